"""Finds blocks that add more than two parts: an attention and several modules that act on each token by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tokendynamics.pretrained.discovery._calls import ModuleCall
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.discovery._inside_block import TOLERANCE, BlockOutputs
from tokendynamics.pretrained.discovery._trials import acts_on, mixing_of

_PART = 1e-4
"""What adds less than this share of a sum is no part of it."""

_DEPENDENT = 1e-5
"""Singular value, relative to the largest, below which outputs of unit norm depend on each other."""


@dataclass(frozen=True)
class SeveralParts:
    """A sum of the state, an attention and several modules that act on each token by itself.

    Attributes:
        attention: The call that gives the attention's part, and its factor.
        others: Those of the feed-forward part, in the order in which they ran, with their factors.
        ahead: How many of them act before the attention.
        skip: What multiplies the block's input.
        after: What reads the state after the attention, and which multiple of the sum until there it reads; None where
            nothing does.
        norm: The norm that reads the sum and gives the block's output; None without.
    """

    attention: tuple[ModuleCall, float]
    others: tuple[tuple[ModuleCall, float], ...]
    ahead: int
    skip: float
    after: tuple[ModuleCall, float] | None
    norm: ModuleCall | None


def several_parts(inside: BlockOutputs, block: ModuleCall, projected: int, time: int | None) -> SeveralParts | None:
    """Return the parts of a block's sum; None where its output is no such sum.

    Args:
        inside: What its modules gave.
        block: Its call.
        projected: When the attention's output projection ended.
        time: When the attention ran; None where it did not show.

    Raises:
        LayoutNotFoundError: It is a sum, but of other parts than an attention and what acts on each token by itself.
    """
    last = inside.norm_giving(inside.y)
    total = inside.y if last is None else inside.states(last[0].x)
    parts, skip = _terms(inside, total)
    if time is None or len(parts) < 2:
        return None
    attending = [part for part in parts if part[0].end >= projected and inside.carries(part[0], time, projected)]
    others = [part for part in parts if part not in attending]
    if len(attending) != 1:
        return None
    mixing = [inside.name(call) for call, _ in others if mixing_of(call) != "none"]
    if mixing:
        names = ", ".join(inside.name(call) for call, _ in parts)
        raise LayoutNotFoundError(
            f"it adds the outputs of {len(parts)} modules ({names}), of which {mixing[0]} may act on other tokens "
            "besides the attention: gates stand on one attention and on what acts on each token by itself"
        )
    attention = attending[0]
    ahead = [part for part in others if acts_on(block, part[0].name, attention[0].name) is not False]
    after = _check_streams(inside, block, parts, attention, skip)
    norm = None if last is None else last[0]
    return SeveralParts(attention, tuple(others), len(ahead), skip, None if ahead else after, norm)


def _terms(inside: BlockOutputs, total: Tensor) -> tuple[list[tuple[ModuleCall, float]], float]:
    """Return the outermost modules whose outputs, times factors, add up to a sum with the state; and its factor."""
    outputs: list[tuple[ModuleCall, Tensor]] = []
    for call, states in sorted(inside.outputs, key=lambda part: part[0].start):
        usual = torch.equal(states, total) or torch.equal(states, inside.y) or not inside.counts(states)
        same = any(torch.equal(states, other) for _, other in outputs)
        if not usual and not same and not any(_inside(call, other) for other, _ in outputs):
            outputs.append((call, states))
    if len(outputs) < 2:
        return [], 1.0
    matrix, wanted = inside.matrix([states for _, states in outputs]), inside.matrix([total])
    size = matrix.norm(dim=0).clamp_min(1e-300)
    values = torch.linalg.svdvals(matrix / size)
    if len(matrix) <= len(outputs) or float(values[-1]) < _DEPENDENT * float(values[0]):
        return [], 1.0
    factors = torch.linalg.lstsq(matrix, wanted).solution[:, 0]
    chosen = [part for part, there in zip(outputs, factors.abs() * size > _PART * wanted.norm(), strict=True) if there]
    if not chosen:
        return [], 1.0
    error, known = inside.fit(total, [states for _, states in chosen])
    skip = inside.skip(total, [states for _, states in chosen], known)
    if error > TOLERANCE or abs(skip) < _PART:
        return [], 1.0
    parts = sorted(zip((call for call, _ in chosen), known, strict=True), key=lambda part: part[0].end)
    return parts, skip


def _check_streams(
    inside: BlockOutputs,
    block: ModuleCall,
    parts: Sequence[tuple[ModuleCall, float]],
    attention: tuple[ModuleCall, float],
    skip: float,
) -> tuple[ModuleCall, float] | None:
    """Return what reads the state after the attention; refuse parts that act on later ones otherwise than by the state.

    A factor on the outputs of both would count twice then.
    """
    state, after = skip * inside.x, None
    for place, (call, factor) in enumerate(parts[:-1]):
        state = state + factor * inside.states(call.y)
        read = inside.reading_multiple(state)
        if call is attention[0]:
            after = read
        if read is None and any(acts_on(block, call.name, later.name) is not False for later, _ in parts[place + 1 :]):
            raise LayoutNotFoundError(
                f"{inside.name(call)} acts on further parts of the sum, and no module reads the state after it: "
                "gates on the parts cannot be told apart"
            )
    return after


def _inside(call: ModuleCall, other: ModuleCall) -> bool:
    return other.start < call.start and call.end < other.end
