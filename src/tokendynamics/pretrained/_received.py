"""How much attention each token receives, measured beside a forward pass that runs as it always does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokendynamics.pretrained.discovery._interface import AttentionCall

FAR = 4
"""Receivers at least so many tokens away count: nearer ones attend to a token for what it says."""

FEWEST = 8
"""Receivers below which their mean is noise: with fewer, random networks give some token a third of it."""


@dataclass(frozen=True)
class _Receivers:
    """From which tokens a token receives, how many they are (NaN: too few), and what if they attended to all alike."""

    far: Bool[Tensor, "prompt token token"]
    count: Float[Tensor, "prompt token"]
    uniform: Float[Tensor, "prompt token"]


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
        """Measure one attention."""
        weights = call.weights.float().mean(dim=1)
        prompts, receivers, senders = weights.shape
        if receivers != senders:  # towards another sequence: nothing here receives it
            return
        if self._last is None or not _same(self._last[0], call.mask) or self._last[1].far.shape != weights.shape:
            there = _there(self.lengths or (senders,) * prompts, senders).to(weights.device)
            # Most layers share their mask, and what follows from it.
            self._last = call.mask, _receivers(call.mask, weights, there)
        found = self._last[1]
        self.received.append(((weights * found.far).sum(dim=-2) / found.count).cpu())
        self.uniform.append(found.uniform)

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


def _receivers(
    mask: Tensor | None, weights: Float[Tensor, "prompt token token"], there: Bool[Tensor, "prompt token"]
) -> _Receivers:
    seen = _seen(mask, weights) & there.unsqueeze(-2) & there.unsqueeze(-1)
    place = torch.arange(weights.shape[-1], device=weights.device)
    far = seen & ((place[:, None] - place).abs() >= FAR)
    many = far.sum(dim=-2)
    count = torch.where(many >= FEWEST, many, torch.nan)
    alike = seen.sum(dim=-1, keepdim=True).clamp(min=1).reciprocal()
    return _Receivers(far, count, ((alike * far).sum(dim=-2) / count).cpu())


def _there(lengths: tuple[int, ...], longest: int) -> Bool[Tensor, "prompt token"]:
    return torch.arange(longest) < torch.tensor(lengths)[:, None]


def _seen(mask: Tensor | None, weights: Float[Tensor, "prompt token token"]) -> Bool[Tensor, "prompt token token"]:
    """Return which senders each receiver may see, by any head."""
    if mask is None:
        return torch.ones_like(weights, dtype=torch.bool)
    shown = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    shown = shown[None] if shown.ndim == 3 else shown
    by_head = shown.any(dim=1) if shown.ndim == 4 else shown
    return by_head[..., : weights.shape[-1]].expand_as(weights)
