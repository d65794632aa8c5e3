"""What a run can know of time: where functions of time are asked, how finely, and what floats resolve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tokendynamics.attention.schedules.conversion import has_function
from tokendynamics.dynamics._flow import Flow
from tokendynamics.dynamics._trajectory import Trajectory
from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.dynamics.events import AtRest, Event
from tokendynamics.dynamics.options import read_times
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_tensor
from tokendynamics.numerics.errors import expected
from tokendynamics.spaces.retraction import inner

_STEPS_A_STOP = 10
"""Steps that must be left for each output time that a step may not pass."""

_LOOKS, _SYSTEMS = 8, 1000
"""Output times and systems at which the spacing of floats is compared with the motion."""

_FINE = 1e-3
"""Spacings below this share of rtol are not looked at."""


def begun(flow: Flow, x0: ArrayLike | Trajectory, times: ArrayLike, jumps: ArrayLike) -> Flow:
    """Return the flow with its jumps declared and the shapes of its functions of time known from the first time.

    Raises:
        ArgumentValueError: Jumps of a flow without functions of time, or a function whose matrices do not fit.
    """
    if not isinstance(flow, Flow):
        return flow  # refused by name where the start is read
    declared = as_tensor(jumps, "jumps").reshape(-1).tolist() if np.size(np.asarray(jumps, dtype=object)) else []
    if declared:
        if not any(map(has_function, flow.attention.schedules)):
            wanted = "none where no matrix is a function of time; schedules know their own jumps"
            raise ArgumentValueError(expected("jumps", wanted, declared))
        flow = flow.with_jumps(declared)
    if flow.attention.shape_is_known:
        return flow
    first = float(x0.times[-1]) if isinstance(x0, Trajectory) else read_times(times, at_least=1)[0]
    return flow.beginning(first)


def stops(times: Sequence[float], max_steps: int) -> tuple[float, ...]:
    """Return the output times that no step passes where a function of time is only known where it is asked.

    Of more times than a tenth of the budget some are taken, evenly by number.
    """
    count = min(len(times), max(2, max_steps // _STEPS_A_STOP))
    chosen = np.unique(np.linspace(0, len(times) - 1, count).round().astype(int))
    return tuple(times[index] for index in chosen)


def steady_events(events: Sequence[Event], flow: Flow) -> tuple[Event, ...]:
    """Drop `AtRest` where a matrix depends on time: what stands still at one moment moves again at another."""
    if flow.attention.constant:
        return tuple(events)
    return tuple(event for event in events if not isinstance(event, AtRest))


def notes_on_time(engine: str, problem: Problem, outcome: Outcome, events: Sequence[Event]) -> list[str]:
    """Say what may have been missed between steps, which events did not apply, and where floats are too coarse."""
    found: list[str] = []
    if not problem.field.constant and any(isinstance(event, AtRest) for event in events):
        found.append("AtRest ended no run: circuits depend on time, so rest at one moment is not an equilibrium")
    if engine == "layers":
        return found
    if problem.field.attention.is_sampled and problem.max_step is None:
        size = f"the longest was {outcome.longest_step:.3g}; " if outcome.longest_step else ""
        found.append(
            "functions of time are evaluated only at the times that steps need: a pulse or a jump shorter "
            f"than a step may have been missed ({size}max_step= or jumps= bounds them)"
        )
    if (coarse := _coarse_times(problem, outcome)) is not None:
        found.append(coarse)
    return found


def _coarse_times(problem: Problem, outcome: Outcome) -> str | None:
    """Say where tokens move by more than the tolerances between two neighbouring floats of the time."""
    times = np.array(problem.times)
    spacing = np.spacing(np.abs(times))
    if spacing.max() < _FINE * problem.rtol:
        return None
    looks = np.unique(np.linspace(0, len(times) - 1, min(len(times), _LOOKS)).round().astype(int))
    systems = torch.from_numpy(np.unique(np.linspace(0, len(problem.start) - 1, _SYSTEMS).round().astype(int)))
    field = problem.field.select(systems)
    largest, where = 0.0, 0
    for index in looks.tolist():
        x = outcome.states[systems.to(outcome.states.device), index].detach()
        change = float(spacing[index]) * field.within(*_around(times, index)).velocity(x, float(times[index])).detach()
        if field.geometry.quadratic:
            size = inner(change, change, field.geometry.metric).sqrt() / (problem.atol + problem.rtol)
        else:
            size = (change / (problem.atol + problem.rtol * x.abs())).abs()
        moving = outcome.end_times[systems] >= float(times[index])
        size = size.flatten(start_dim=1).amax(dim=-1).cpu()[moving].nan_to_num(0.0, 0.0)
        if len(size) and float(size.max()) > largest:
            largest, where = float(size.max()), index
    if largest <= 1:
        return None
    return (
        f"warning: the spacing of floats at t = {times[where]:.6g} is {spacing[where]:.2g}, in which tokens move by "
        f"{largest:.2g} times what the tolerances allow: times, and what depends on them, are no more exact than that; "
        "let the run begin near t = 0"
    )


def _around(times: np.ndarray, index: int) -> tuple[float, float]:
    last = max(index, 1)
    return float(times[last - 1]), float(times[last])
