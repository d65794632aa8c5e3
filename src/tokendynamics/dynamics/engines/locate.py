"""Where within a step an event happens."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.dynamics.engines.stages import Attempt
from tokendynamics.dynamics.events import Event
from tokendynamics.dynamics.field import Field

_HALVINGS = 52


def first_event(event: Event, field: Field, attempt: Attempt, t: Tensor, h: Tensor) -> Tensor:
    """Return the share of the step, (system,), at which the event's value crosses zero, by bisection.

    The value is above zero at the start of the step and at most zero at its end.
    """
    low, high = torch.zeros_like(h), torch.ones_like(h)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        over = event.value(field, field.project(attempt.at(middle)), t + middle * h) <= 0
        low, high = torch.where(over, low, middle), torch.where(over, middle, high)
    return high
