"""What the end of a run that cannot go on is called: one definition for every engine.

*Diverged*: in free space a state grew until numbers overflow, or grows so fast that its pole lies within what the time
can resolve. *Not finite*: the field itself is not finite, at a state of moderate size. *Step size underflow*: states
stay bounded, and yet no step that the time can resolve is accurate enough.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tokendynamics.dynamics.field import Field
from tokendynamics.dynamics.status import Status

_RESOLVED = 1e4
"""A state that grows by e within so many units in the last place of the time is at its pole: steps there are a
hundredth or a thousandth of what is left, and the last one is one unit long."""


def of_stuck(field: Field, y: Tensor, slope: Tensor, t: Tensor, finite: Tensor) -> dict[Status, Tensor]:
    """Say which systems whose step is too short for their time ended how.

    Args:
        field: The vector field.
        y: States (system, token, dim).
        slope: The field there.
        t: Times (system,), float64.
        finite: Whether the field was finite all over the last step tried, (system,).
    """
    diverged = overflowing(field, y) | _at_its_pole(field, y, slope, t)
    return {Status.DIVERGED: diverged, Status.NOT_FINITE: ~diverged & ~finite, Status.UNDERFLOW: ~diverged & finite}


def of_broken(field: Field, tried: Sequence[tuple[Tensor, Tensor]]) -> dict[Status, Tensor]:
    """Say which systems of a state that is not finite ended how: the first slope that is not finite counts.

    Args:
        field: The vector field.
        tried: States (system, token, dim) in the order of evaluation, each with its slope.
    """
    # Where all slopes are finite it was their sum that overflowed.
    diverged = torch.full((len(tried[0][0]),), not field.geometry.bounded, device=tried[0][0].device)
    for state, slope in reversed(tried):
        diverged = torch.where(_finite(slope), diverged, overflowing(field, state))
    return {Status.DIVERGED: diverged, Status.NOT_FINITE: ~diverged}


def overflowing(field: Field, x: Tensor) -> Tensor:
    """Tell whether states (system, token, dim) are so large, or not finite, that the field may overflow by it.

    It is at most cubic in x: below the fourth root of the largest number it is not x that makes it overflow.
    """
    largest = x.detach().abs().amax(dim=(-2, -1))
    if field.geometry.bounded:
        return torch.zeros_like(largest, dtype=torch.bool)
    return ~(largest < torch.finfo(x.dtype).max ** 0.25)


def _at_its_pole(field: Field, y: Tensor, slope: Tensor, t: Tensor) -> Tensor:
    if field.geometry.bounded:
        return torch.zeros_like(t, dtype=torch.bool)
    state, change = (part.detach().double().flatten(start_dim=1) for part in (y, slope))
    growth = (state * change).sum(dim=-1) / state.square().sum(dim=-1)
    unit = torch.nextafter(t.abs(), torch.full_like(t, torch.inf)) - t.abs()
    return growth * unit * _RESOLVED >= 1


def _finite(x: Tensor) -> Tensor:
    return torch.isfinite(x.detach()).flatten(start_dim=1).all(dim=-1)
