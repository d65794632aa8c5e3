"""How much attention each token receives, measured beside a forward pass that runs as it always does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokendynamics.pretrained.discovery.attention_call import AttentionCall

FAR = 4
"""Receivers at least this many tokens away count: nearer ones attend to a token for what it says."""

FEWEST = 8
"""Receivers below which their mean is noise: with fewer, random networks give some token a third of it."""


@dataclass(frozen=True)
class _Receivers:
    """What follows from a mask for some receivers.

    Attributes:
        far: From which of them a token receives.
        count: How many these are.
        alike: What they would give it in sum if each attended alike to all that it sees.
    """

    far: Bool[Tensor, "prompt row token"]
    count: Int[Tensor, "prompt token"]
    alike: Float[Tensor, "prompt token"]


@dataclass
class ReceivedAttention:
    """Takes every attention of a pass, in the order of the layers, and keeps what each token receives.

    Attributes:
        lengths: Tokens of each prompt of the pass; None where all are as long as the pass.
        received: For each attention the mean over heads, and over the tokens at least `FAR` away that see it, of the
            weight that goes to a token, (prompt, token); NaN where fewer than `FEWEST` do.
        uniform: The same if each of them attended alike to all that it sees.
    """

    lengths: tuple[int, ...] | None
    received: list[Float[Tensor, "prompt token"]] = field(default_factory=list)
    uniform: list[Float[Tensor, "prompt token"]] = field(default_factory=list)
    _last: tuple[Tensor | None, _Receivers] | None = None

    def __call__(self, call: AttentionCall) -> None:
        """Measure one attention, some receivers at a time."""
        (prompts, _, receivers, _), senders = call.query.shape, call.key.shape[2]
        if receivers != senders:  # towards another sequence: nothing here receives it
            return
        there = _there(self.lengths or (senders,) * prompts, senders).to(call.query.device)
        total, count, alike = (torch.zeros(prompts, senders, device=call.query.device) for _ in range(3))
        for rows, weights, mask in call.by_rows():
            mean = weights.float().mean(dim=1)
            receivers_of = self._receivers(mask, rows, there, mean.shape)
            total += (mean * receivers_of.far).sum(dim=-2)
            count += receivers_of.count
            alike += receivers_of.alike
        count = torch.where(count >= FEWEST, count, torch.nan)
        self.received.append((total / count).cpu())
        self.uniform.append((alike / count).cpu())

    def _receivers(
        self, mask: Tensor | None, rows: slice, there: Bool[Tensor, "prompt token"], shape: torch.Size
    ) -> _Receivers:
        if shape[-2] < shape[-1]:
            return _receivers(mask, rows, there, shape)
        # Most layers share their mask, and what follows from it: of a short prompt it is kept.
        if self._last is None or not _same(self._last[0], mask) or self._last[1].far.shape != shape:
            self._last = mask, _receivers(mask, rows, there, shape)
        return self._last[1]

    def by_layer(self, attends: Sequence[bool]) -> Float[Tensor, "kind layer prompt token"] | None:
        """Return received and uniform weight of every layer; None where not every layer's attention shows once.

        Args:
            attends: For each layer, whether it has an attention; NaN stands in the others.
        """
        if len(self.received) != sum(attends) or len({each.shape for each in self.received}) != 1:
            return None
        shown = torch.stack([torch.stack(self.received), torch.stack(self.uniform)])
        found = shown.new_full((2, len(attends), *shown.shape[2:]), torch.nan)
        found[:, [layer for layer, own in enumerate(attends) if own]] = shown
        return found


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one is other or (one.shape == other.shape and torch.equal(one, other))


def _receivers(mask: Tensor | None, rows: slice, there: Bool[Tensor, "prompt token"], shape: torch.Size) -> _Receivers:
    place = torch.arange(shape[-1], device=there.device)
    seen = _seen(mask, shape).to(there.device) & there[:, rows, None] & there.unsqueeze(-2)
    far = seen & ((place[rows, None] - place).abs() >= FAR)
    alike = seen.sum(dim=-1, keepdim=True).clamp(min=1).reciprocal()
    return _Receivers(far, far.sum(dim=-2), (alike * far).sum(dim=-2))


def _there(lengths: tuple[int, ...], longest: int) -> Bool[Tensor, "prompt token"]:
    return torch.arange(longest) < torch.tensor(lengths)[:, None]


def _seen(mask: Tensor | None, shape: torch.Size) -> Bool[Tensor, "prompt row token"]:
    """Return which senders each receiver may see, by any head."""
    if mask is None:
        return torch.ones(shape, dtype=torch.bool)
    shown = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    shown = shown[None] if shown.ndim == 3 else shown
    by_head = shown.any(dim=1) if shown.ndim == 4 else shown
    return by_head[..., : shape[-1]].expand(shape)
