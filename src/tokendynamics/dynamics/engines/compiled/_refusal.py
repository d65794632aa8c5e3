"""What of a problem the compiled loop cannot do; asked before numba is imported."""

from __future__ import annotations

from tokendynamics.attention import AbsolutePositions, RotaryPositions
from tokendynamics.attention.schedules import Constant, PerHead, Schedule, Sinusoidal
from tokendynamics.dynamics.engines.problem import Problem
from tokendynamics.dynamics.events import AtRest, Consensus, NormAbove, OverflowGuard

LARGEST_DIM = 16
"""Rows of more features do not fit the registers of any processor."""


def refusal(problem: Problem) -> str | None:
    """Return what of the problem the loop cannot do, in words; None if it can do all of it."""
    field, positions = problem.field, problem.field.attention.positions
    if problem.start.device.type != "cpu":
        return f"states on {problem.start.device}"
    if problem.start.shape[2] > LARGEST_DIM:
        return f"more than {LARGEST_DIM} features"
    if not field.geometry.closed_form:
        return "a space of your own"
    if positions is not None and type(positions) not in (AbsolutePositions, RotaryPositions):
        return "positions of your own"
    # Of a subclass it is not known what it means.
    if any(
        type(event) not in (AtRest, Consensus, NormAbove, OverflowGuard)
        for event in (*problem.events, *problem.recorded)
    ):
        return "events of your own"
    first, *_, last = problem.times
    joints = field.attention.joints(first, last)
    inside = field.within(first, joints[0] if joints else last).attention
    if not all(map(_is_known, inside.schedules)):
        return "circuits that are a function of time of your own"
    return None


def _is_known(schedule: Schedule) -> bool:
    heads = schedule.heads if isinstance(schedule, PerHead) else (schedule,)
    return all(isinstance(head, Constant | Sinusoidal) for head in heads)
