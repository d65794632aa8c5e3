"""What the notes of a trajectory warn of: tokens near atol, what falls between steps, and what floats resolve."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from tokendynamics.dynamics.engines.problem import Outcome, Problem
from tokendynamics.dynamics.events import AtRest, Event
from tokendynamics.spaces.retraction import inner

_LOOKS, _SYSTEMS = 8, 1000
"""Output times and systems at which the spacing of floats is compared with the motion."""

_FINE = 1e-3
"""Spacings below this share of rtol are not looked at."""

NEAR_ATOL = 100.0
"""Tokens of a norm up to this many times atol may lose a hundredth of themselves at every step."""


def warning_of_small_states(problem: Problem, outcome: Outcome) -> str | None:
    """Say what holds of tokens near atol at an output time; None where there are none.

    On a sphere or ellipsoid tokens have norm 1 in the metric in which errors are measured. A token at zero exactly has
    nothing to lose, and with absolute positions it is token and position together that move.
    """
    if problem.field.geometry.quadratic:
        return None
    # Norms that do not underflow, infinite for zero tokens.
    x = problem.field.attention.with_positions(outcome.states.detach())
    largest = x.abs().amax(dim=-1)
    norms = largest * (x / largest.unsqueeze(-1)).norm(dim=-1)
    smallest = torch.where(largest > 0, norms, torch.inf).flatten(start_dim=1).amin(dim=-1)
    near = smallest <= NEAR_ATOL * problem.atol
    if not bool(near.any()):
        return None
    least = float(smallest.min())
    return (
        f"warning: {int(near.sum())} of {len(near)} systems have tokens of a norm down to {least:.3g}, near atol = "
        f"{problem.atol:.3g}, which is all that controls them: their digits may be wrong; "
        f"for these take an atol of {max(least * problem.rtol, torch.finfo(torch.float64).tiny):.0e} or less"
    )


def notes_on_time(engine: str, problem: Problem, outcome: Outcome, events: Sequence[Event]) -> list[str]:
    """Say what may have been missed between steps, which events did not apply, and where floats are too coarse."""
    notes: list[str] = []
    if any(isinstance(event, AtRest) and event not in problem.events for event in events):
        why = "circuits depend on time"
        if problem.field.relative:
            why = "rescaled logits keep their proportions only for constant qk and positive multiples of the identity"
        notes.append(f"AtRest ended no run: {why}, so rest at one moment is not an equilibrium")
    if engine == "layers":
        return notes
    if problem.field.is_sampled and problem.max_step is None:
        size = f"the longest was {outcome.longest_step:.3g}; " if outcome.longest_step else ""
        notes.append(
            "functions of time are evaluated only at the times that steps need: a pulse or a jump shorter "
            f"than a step may have been missed ({size}max_step= or jumps= bounds them)"
        )
    if (coarse := _coarse_times(problem, outcome)) is not None:
        notes.append(coarse)
    return notes


def _coarse_times(problem: Problem, outcome: Outcome) -> str | None:
    """Say where tokens move by more than the tolerances between two neighbouring floats of the time."""
    if math.ulp(max(-problem.times[0], problem.times[-1])) < _FINE * problem.rtol:
        return None
    times = np.array(problem.times)
    spacing = np.spacing(np.abs(times))
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
