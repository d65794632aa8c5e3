"""The options of a simulation, checked one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics.events import Consensus, Event, NormAbove
from tokendynamics.dynamics.flow import Flow
from tokendynamics.numerics.arguments import ArrayLike, as_tensor
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, expected
from tokendynamics.spaces.ellipsoid import Ellipsoid

_STEPS = 30_000


def read_times(times: ArrayLike) -> tuple[float, ...]:
    """Increasing times, at least two; whole numbers are fine."""
    whole = isinstance(times, np.ndarray | Tensor) and not torch.as_tensor(times).is_complex()
    given = torch.as_tensor(times).to(torch.float64) if whole else times
    moments = as_tensor(given, "times", ndim_at_least=1, axes="(time,)").to(torch.float64)
    if moments.ndim != 1 or len(moments) < 2:
        raise ArgumentValueError(
            expected("times", "at least two times, shape (time,)", f"shape {tuple(moments.shape)}")
        )
    falls = (moments.diff() <= 0).nonzero().squeeze(-1)
    if len(falls):
        i = int(falls[0])
        came = f"{float(moments[i])} at index {i} followed by {float(moments[i + 1])}"
        raise ArgumentValueError(expected("times", "increasing times", came, "sort them and drop repetitions"))
    return tuple(moments.tolist())


def positive(value: float, argument: str) -> float:
    """A positive finite number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentTypeError(expected(argument, "a number", repr(value)))
    if not (value > 0 and math.isfinite(value)):
        raise ArgumentValueError(expected(argument, "a positive finite number", value))
    return float(value)


def budget(max_steps: int | None) -> int:
    """A number of attempted steps; None for the usual one."""
    if max_steps is None:
        return _STEPS
    if isinstance(max_steps, bool) or not isinstance(max_steps, Integral) or max_steps < 1:
        raise ArgumentValueError(expected("max_steps", "a whole number of at least 1, or None", repr(max_steps)))
    return int(max_steps)


def checked_events(events: Sequence[Event], start: Tensor) -> tuple[Event, ...]:
    """Events that fit the start."""
    if isinstance(events, Event) or not isinstance(events, Sequence):
        raise ArgumentTypeError(expected("events", "a list of events", type(events).__name__))
    for event in events:
        if not isinstance(event, Event):
            raise ArgumentTypeError(expected("events", "events such as Consensus(1e-3)", repr(event)))
        if isinstance(event, Consensus) and not -start.shape[-2] <= event.reference < start.shape[-2]:
            wanted = f"events with a reference from {-start.shape[-2]} to {start.shape[-2] - 1}"
            raise ArgumentValueError(expected("events", wanted, repr(event)))
    return tuple(events)


def with_overflow_guard(events: Sequence[Event], flow: Flow, dtype: torch.dtype) -> tuple[Event, ...]:
    """The events, and in free space one that ends a system before its numbers overflow."""
    guard: list[Event] = []
    if not isinstance(flow.space, Ellipsoid):
        guard.append(NormAbove(1e100 if dtype == torch.float64 else 1e15))
    return (*events, *guard)
