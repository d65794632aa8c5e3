"""Where within a step the value of an event falls to zero, also where it is positive again at the end of the step.

The value is sampled at ten places inside the step, through the continuous extension of the states. A sign change
between neighbours is a crossing. Where the value turns round between two neighbours (its derivative changes sign),
and could reach zero there by twice the differences to them, the extremum is found by golden sections. What can still
be missed: a value that falls to zero and returns between two samples although both neighbours show no turning point
near zero, such as one that oscillates several times within a tenth of a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from tokendynamics.dynamics._field import Field
from tokendynamics.dynamics.events import AtRest, Consensus, Event, NormAbove, Status

SAMPLES = 8
EDGE = 1e-3
"""Shares at both ends of a step at which the value is looked at too: they give the sign of its derivative there."""

PLACES = (0.0, EDGE, *(number / (SAMPLES + 1) for number in range(1, SAMPLES + 1)), 1 - EDGE, 1.0)
GOLDEN, SECTIONS, HALVINGS = (math.sqrt(5) - 1) / 2, 32, 52
MARGIN = 2.0
"""A turning point may lie beyond the sample next to it by this many times the differences to its neighbours.

Of a neighbour that is nearer than the other the difference is continued to the distance of the other.
"""

SLOWER = 10.0
"""Steps whose stages are all faster than this many times the bound of `AtRest` are not looked into."""

Values = Callable[[Tensor, Tensor], Tensor]
"""From rows (n,) and shares (n,) of the step to values (n,)."""

States = Callable[[Tensor, Tensor], Tensor]
"""Likewise to states (n, token, dim)."""


@dataclass(frozen=True)
class OverflowGuard(NormAbove):
    """Ends a run before its numbers overflow; looked at once a step."""


@dataclass(frozen=True)
class RadiusGuard:
    """Ends a run in which a token's radius falls to zero, up to `least`: its direction is then rounding.

    A token whose direction does not matter to its motion, as others do not see it, passes zero as smoothly as any
    other state: step control does not notice, so that steps which are long enough are looked into.

    Attributes:
        least: The radius that counts as zero, in units of x.
    """

    least: float
    status: Status = Status.RADIUS

    def value(self, field: Field, x: Tensor, t: Tensor) -> Tensor:
        """See `Event`."""
        return x.norm(dim=-1).amin(dim=-1) - self.least

    def is_passed(self, before: Tensor, after: Tensor) -> Tensor:
        """Tell in which steps from states to others some token comes as near zero on a straight line, (system,)."""
        way = after - before
        square = way.square().sum(dim=-1, keepdim=True).clamp_min(torch.finfo(way.dtype).tiny)
        share = (-(before * way).sum(dim=-1, keepdim=True) / square).clamp(0, 1)
        return ((before + share * way).norm(dim=-1) <= self.least).any(dim=-1)

    def may_be_passed(self, start: Tensor, slopes: Tensor, reach: Tensor) -> Tensor:
        """Tell in which steps some token can come to zero at all, (system,); the arguments are those of `may_cross`."""
        farthest = reach[:, None] * slopes.abs().amax(dim=0).norm(dim=-1)
        return ~(farthest < start.norm(dim=-1) - self.least).all(dim=-1)

    def passages(self, states: States, before: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows in which a token passes zero within its step, and at what share of it first.

        Args:
            states: Those of each row at a share of its step.
            before: The value of each row at the start of the step, (row,).
        """
        rows = torch.arange(len(before), device=before.device)
        shares = torch.tensor(PLACES, dtype=torch.float64, device=before.device)
        places = [states(rows, share.expand(len(rows))).detach() for share in shares]
        passed = torch.stack([self.is_passed(left, right) for left, right in pairwise(places)])
        row, low, high = _first_parts(passed, shares)
        for _ in range(HALVINGS):
            if len(row) == 0:
                break
            middle = (low + high) / 2
            ends = [states(row, share).detach() for share in (low, middle, high)]
            halves = [self.is_passed(*half) for half in pairwise(ends)]
            # A path that bends away from zero shows it here.
            still = halves[0] | halves[1]
            low, high = torch.where(halves[0], low, middle), torch.where(halves[0], middle, high)
            row, low, high = row[still], low[still], high[still]
        return row, high


def _first_parts(passed: Tensor, shares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows (n,) and both ends (n,) of the first part that is passed, of (part, row)."""
    row = passed.any(dim=0).nonzero().squeeze(-1)
    part = passed[:, row].to(torch.int8).argmax(dim=0)
    return row, shares[part], shares[part + 1]


def crossings(values: Values, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """Return all places at which values fall from above zero to zero or less, as rows and shares of the step.

    Args:
        values: The value of each row at a share of its step.
        before: Values at the start of the step, (row,).
        after: Values at its end.
    """
    count, place = len(before), before.device
    rows = torch.arange(count, device=place)
    shares = torch.tensor(PLACES, dtype=torch.float64, device=place)
    inner = [values(rows, share.expand(count)) for share in shares[1:-1]]
    sampled = torch.stack([before, *inner, after])
    brackets = [_sign_changes(sampled, shares), *(_turned(values, sampled, shares, side) for side in (1.0, -1.0))]
    row, low, high = (torch.cat(parts) for parts in zip(*brackets, strict=True))
    return row, _bisected(values, row, low, high)


def is_sampled(event: Event) -> bool:
    """Tell whether an event is looked for within steps; guards are for their ends alone."""
    return not isinstance(event, OverflowGuard | RadiusGuard)


def may_cross(event: Event, before: Tensor, after: Tensor, start: Tensor, slopes: Tensor, reach: Tensor) -> Tensor:
    """Tell in which steps an event's value can be zero somewhere: where it cannot be, nothing is sampled.

    Args:
        event: The event.
        before: Its values at the start of the steps, (system,).
        after: Those at the end.
        start: States at the start, (system, token, dim).
        slopes: Of all stages, (stage, system, token, dim).
        reach: How far a state can be within a step from where it is at either end, for a largest slope of 1, (system,).
    """
    if isinstance(event, AtRest):
        slowest = slopes.norm(dim=-1).amax(dim=-1).amin(dim=0)
        return ~(slowest > SLOWER * event.speed)
    if type(event) not in (Consensus, NormAbove):
        return torch.ones_like(before, dtype=torch.bool)
    change = reach * (slopes.abs().amax(dim=0).norm(dim=-1) / start.norm(dim=-1)).amax(dim=-1)
    return within_reach(before, after, change)


def within_reach(before: Tensor, after: Tensor, change: Tensor) -> Tensor:
    """Tell in which steps the value of `Consensus` or `NormAbove` can be zero.

    Args:
        before: Values at the start of the steps, (system,).
        after: Those at the end.
        change: The most by which a token can differ from where it is at one end, relative to its norm there, (system,).
    """
    # By how much a chord of two unit rows, or the logarithm of a norm, can change.
    reach = torch.where(change < 0.5, 2 * change / (1 - change), torch.inf)
    return ~((torch.minimum(before, after) > reach) | (torch.maximum(before, after) < -reach))


def _sign_changes(sampled: Tensor, shares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    place, row = ((sampled[:-1] > 0) & (sampled[1:] <= 0)).nonzero(as_tuple=True)
    return row, shares[place], shares[place + 1]


def _turned(values: Values, sampled: Tensor, shares: Tensor, side: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return brackets of falls to zero around turning points between samples: minima for side 1, maxima for −1."""
    signed = side * sampled
    left, middle, right = signed[:-2], signed[1:-1], signed[2:]
    # Samples at the edges are near each other: their slope tells how far the value falls up to the next sample.
    widths = shares.diff()[:, None]
    ratio = widths[1:] / widths[:-1]
    falls = (left - middle) * ratio.clamp_min(1.0), (right - middle) * (1 / ratio).clamp_min(1.0)
    depth = MARGIN * torch.maximum(*falls)
    # The sample itself is on the other side of zero: above it for a minimum, at zero or below for a maximum.
    beyond = middle > 0 if side > 0 else middle >= 0
    place, row = ((middle <= left) & (middle <= right) & beyond & (middle <= depth)).nonzero(as_tuple=True)
    if len(row) == 0:
        return row, shares[:0], shares[:0]
    first, last = shares[place], shares[place + 2]
    turn, value = _extremum(lambda index, share: side * values(row[index], share), first, last)
    crossed = value <= 0 if side > 0 else value < 0
    low, high = (first, turn) if side > 0 else (turn, last)
    return row[crossed], low[crossed], high[crossed]


def _extremum(values: Values, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return places and values of minima between two places each, by golden sections."""
    rows = torch.arange(len(low), device=low.device)
    inside = [high - GOLDEN * (high - low), low + GOLDEN * (high - low)]
    heights = [values(rows, share) for share in inside]
    for _ in range(SECTIONS):
        left = heights[0] < heights[1]
        low, high = torch.where(left, low, inside[0]), torch.where(left, inside[1], high)
        place = torch.where(left, high - GOLDEN * (high - low), low + GOLDEN * (high - low))
        value = values(rows, place)
        inside = [torch.where(left, place, inside[1]), torch.where(left, inside[0], place)]
        heights = [torch.where(left, value, heights[1]), torch.where(left, heights[0], value)]
    left = heights[0] < heights[1]
    return torch.where(left, *inside), torch.where(left, *heights)


def _bisected(values: Values, row: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the places at which values, above zero at `low` and not at `high`, become zero, from above."""
    if len(row) == 0:
        return high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        over = values(row, middle) <= 0
        low, high = torch.where(over, low, middle), torch.where(over, middle, high)
    return high
