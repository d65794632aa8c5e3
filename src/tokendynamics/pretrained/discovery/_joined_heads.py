"""Heads that run one after the other, as one attention with all of its heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from tokendynamics.pretrained.discovery.attention_call import AttentionCall, as_features

_SAME = 1e-5
"""By how much what a module reads may miss outputs of heads, relative to the largest."""


def joined(calls: Sequence[AttentionCall]) -> list[AttentionCall]:
    """Return attentions with those of one module to one input after the other as one."""
    joint: list[AttentionCall] = []
    for call in calls:
        if joint and joint[-1].continued_by(call):
            joint[-1] = joint[-1].beside(call)
        else:
            joint.append(call)
    return joint


def with_all_heads(calls: Sequence[AttentionCall]) -> AttentionCall:
    """Return attentions with `has_heads_like` as one; factors of their logits become those of their queries.

    Args:
        calls: In the order in which their outputs stand side by side.
    """
    first = calls[0]

    def masks(several: Sequence[Tensor | None]) -> Tensor | None:
        present = next((mask for mask in several if mask is not None), None)
        if present is None or all(mask is not None and torch.equal(mask, present) for mask in several):
            return present
        nothing = torch.ones_like(present) if present.dtype == torch.bool else torch.zeros_like(present)
        whole = [nothing if mask is None else mask for mask in several]
        lead = [call.query.shape[:2] for call in calls]
        return torch.cat(
            [mask.expand(*shape, *mask.shape[-2:]) for mask, shape in zip(whole, lead, strict=True)], dim=1
        )

    joint = {name: torch.cat([getattr(call, name) for call in calls], dim=1) for name in ("key", "value")}
    return replace(
        first,
        query=torch.cat([call.query * (call.scale / first.scale) for call in calls], dim=1),
        **joint,
        output=torch.cat([call.output for call in calls], dim=2),
        weights_of=lambda rows: torch.cat([call.weights_of(rows) for call in calls], dim=1),
        mask_of=lambda rows: masks([call.mask_of(rows) for call in calls]),
        explicit=any(call.explicit for call in calls),
        shown_by_weights=lambda rows: masks([call.shown(rows) for call in calls]),
        runs=len(calls),
    )


class JoinedHeads:
    """Gives attentions whose heads run one after the other to a watcher as one.

    Args:
        watch: The watcher.
        runs: For each attention that it is to see, in their order, of how many it is, and the order of its heads.
    """

    def __init__(self, watch: Callable[[AttentionCall], None], runs: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        self._watch, self._runs = watch, list(reversed(runs))
        self._heads: list[AttentionCall] = []

    def __call__(self, call: AttentionCall) -> None:
        """Take the next attention."""
        runs, order = self._runs[-1] if self._runs else (1, ())
        if runs > 1:
            self._heads.append(call)
            if len(self._heads) < runs:
                return
            alike = all(self._heads[0].has_heads_like(head) for head in self._heads)
            several, self._heads = ([with_all_heads(self._heads)] if alike else self._heads), []
        else:
            several = [call]
        self._runs = self._runs[:-1]
        for whole in several:
            self._watch(whole.in_order(order) if whole.query.shape[1] == len(order) else whole)


def heads_in(attentions: Sequence[AttentionCall], x: Tensor | None) -> tuple[int, tuple[int, ...]]:
    """Return how many of the last attentions gave states that are their outputs side by side, and in which order.

    It is 0 for none; the order is empty for that in which they ran. A head may have a factor.
    """
    heads: list[AttentionCall] = []
    width = 0 if x is None or x.ndim == 0 else x.shape[-1]
    for attention in reversed(attentions):
        if width <= 0 or (heads and not attention.has_heads_like(attentions[-1])):
            return 0, ()
        heads.insert(0, attention)
        width -= attention.output.shape[2:].numel()
        if width == 0:
            break
    if not heads or width:
        return 0, ()
    outputs = torch.cat([head.output for head in heads], dim=2)
    read = as_features(x, *outputs.shape[:2])
    order = None if read is None or read.numel() != outputs.numel() else _order_in(read.reshape_as(outputs), outputs)
    return (0, ()) if order is None else (len(heads), order)


def _order_in(read: Tensor, outputs: Tensor) -> tuple[int, ...] | None:
    """Return the place among outputs of heads (input, token, head, feature) of each that was read, but for a factor.

    It is empty where they are in the same order, and None where something else was read.
    """
    if bool(((read - outputs).abs() <= _SAME * outputs.abs().max()).all()):
        return ()
    one, other = (functional.normalize(part.movedim(2, 0).flatten(1).double()) for part in (read, outputs))
    cosines = one @ other.mT
    largest, order = cosines.abs().max(dim=1)
    if not bool((largest > 1 - _SAME**2).all()) or len(order.unique()) < len(order):
        return None
    return () if bool((order == torch.arange(len(order))).all()) else tuple(order.tolist())
