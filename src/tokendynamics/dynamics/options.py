"""The options of a simulation, checked one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics._flow import Flow
from tokendynamics.dynamics.engines._crossings import OverflowGuard, RadiusGuard
from tokendynamics.dynamics.events import AtRest, Consensus, Event
from tokendynamics.dynamics.rescaled import grows_evenly
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_tensor, without_labels

_WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_STEPS, _COUNTABLE = 30_000, 2.0**52
_STEPS_A_STOP = 10
"""Steps that must be left for each output time that a step may not pass."""


def read_times(times: ArrayLike, at_least: int = 2) -> tuple[float, ...]:
    """Read increasing times; whole numbers are fine."""
    moments = as_tensor(_reals(without_labels(times)), "times", ndim_at_least=1, axes="(time,)").to(torch.float64)
    if moments.ndim != 1 or len(moments) < at_least:
        wanted = f"at least {'two times' if at_least == 2 else 'one time'}, shape (time,)"
        raise ArgumentValueError("times", wanted, f"shape {tuple(moments.shape)}")
    numbers = moments.detach().cpu().numpy()
    falls = np.flatnonzero(np.diff(numbers) <= 0)
    if len(falls):
        i = int(falls[0])
        came = f"{float(numbers[i])} at index {i} followed by {float(numbers[i + 1])}"
        raise ArgumentValueError("times", "increasing times", came, "sort them and drop repetitions")
    return tuple(numbers.tolist())


def budget(max_steps: int | None) -> int:
    """Read a number of attempted steps; None for the usual one."""
    if max_steps is None:
        return _STEPS
    if max_steps < 1:
        raise ArgumentValueError("max_steps", "a whole number of at least 1, or None", repr(max_steps))
    return int(max_steps)


def _reals(times: ArrayLike) -> ArrayLike:
    """Read whole numbers as reals: times may count layers."""
    if isinstance(times, np.ndarray) and not isinstance(times, np.ma.MaskedArray) and times.dtype.kind in "iu":
        return times.astype(np.float64)
    if isinstance(times, Tensor) and not times.is_meta and times.dtype in _WHOLE:
        return times.to(torch.float64)
    return times


def check_steps(engine: str, times: Sequence[float], step: float | None, max_steps: int | None) -> None:
    """Refuse equal steps, or layers, that are known beforehand not to reach the last time.

    With a budget of the caller's own the run may end there; what float64 cannot count to is refused in any case.
    Engines with step control find their steps on the way, and end with a status.

    Raises:
        ArgumentValueError: More steps than the budget; the number is printed.
    """
    horizon = times[-1] - times[0]
    if engine in ("fixed", "sde") and step is not None:
        argument, came, advice = "step", f"{step:g}", "take a longer step, or raise max_steps"
        needed = horizon / step if horizon < step * _COUNTABLE else math.inf
    elif engine == "layers":
        argument, came, advice, needed = "times", f"{times[-1]:g}", "end earlier, or raise max_steps", horizon
    else:
        return
    most = _STEPS if max_steps is None else _COUNTABLE
    if needed * (1 - 1e-12) > most:
        needed_steps = f"{needed:.3g} steps" if math.isfinite(needed) else "more steps than float64 can count"
        wanted = f"at most {most:.6g} steps from time {times[0]:g} to {times[-1]:g}"
        raise ArgumentValueError(argument, wanted, f"{came}, which takes {needed_steps}", advice)


def checked_events(events: Sequence[Event], start: Tensor) -> tuple[Event, ...]:
    """Refuse events that do not fit the start."""
    if isinstance(events, str | Event) or not isinstance(events, Sequence):
        raise ArgumentTypeError("events", "a list of events", type(events).__name__)
    for event in events:
        if not isinstance(event, Event):
            raise ArgumentTypeError("events", "events such as Consensus(1e-3)", repr(event))
        if isinstance(event, Consensus) and not -start.shape[-2] <= event.reference < start.shape[-2]:
            wanted = f"events with a reference from {-start.shape[-2]} to {start.shape[-2] - 1}"
            raise ArgumentValueError("events", wanted, repr(event))
    return tuple(events)


def split_events(events: Sequence[Event]) -> tuple[tuple[Event, ...], tuple[Event, ...]]:
    """Split into those that end a run and those recorded; one's own event ends it unless it says otherwise."""
    noted = tuple(event for event in events if getattr(event, "then", "end") == "record")
    return tuple(event for event in events if getattr(event, "then", "end") != "record"), noted


_LEAST_RADIUS, _ERRORS = 1e-8, 100.0
"""Of a token with a radius, and in units of atol: below the larger one it counts as zero."""


def with_guards(events: Sequence[Event], flow: Flow, dtype: torch.dtype, atol: float) -> tuple[Event, ...]:
    """Return the events, and those that end a system before its numbers overflow, or where a radius reaches zero."""
    guard: list[Event] = []
    if flow.geometry.has_radius:
        guard.append(RadiusGuard(max(_LEAST_RADIUS, _ERRORS * atol)))
    if not flow.geometry.bounded:
        guard.append(OverflowGuard(1e100 if dtype == torch.float64 else 1e15))
    return (*events, *guard)


def stops(times: Sequence[float], max_steps: int) -> tuple[float, ...]:
    """Return the output times that no step passes where a function of time is only known where it is asked.

    Of more times than a tenth of the budget some are taken, evenly by number.
    """
    count = min(len(times), max(2, max_steps // _STEPS_A_STOP))
    chosen = np.unique(np.linspace(0, len(times) - 1, count).round().astype(int))
    return tuple(times[index] for index in chosen)


def steady_events(events: Sequence[Event], flow: Flow, frame: str) -> tuple[Event, ...]:
    """Drop `AtRest` where the field depends on time: what stands still at one moment moves again at another.

    In the rescaled frame it does, but where `grows_evenly` holds what is at rest stays there.
    """
    if grows_evenly(flow) if frame == "rescaled" else flow.constant:
        return tuple(events)
    return tuple(event for event in events if not isinstance(event, AtRest))
