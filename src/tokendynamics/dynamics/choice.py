"""Which engine suits a problem."""

from __future__ import annotations

import torch

from tokendynamics.dynamics.engines.problem import Problem
from tokendynamics.numerics.errors import ArgumentValueError, expected

LONG = 1e4
"""Horizons from here on, in units of the fastest possible motion, go to the stiff engine."""

_LARGEST_STIFF, _SYSTEMS, _JUMPS = 1024, 64, 50


def choose(engine: str, problem: Problem) -> str:
    """The engine to use, by name.

    Raises:
        ArgumentValueError: An unknown engine, or one that cannot do what is asked.
    """
    names = ("auto", "batched", "stiff", "layers", "fixed")
    if engine not in names:
        raise ArgumentValueError(expected("engine", f"one of {', '.join(names)}", repr(engine)))
    if engine == "auto":
        engine = "fixed" if problem.step is not None else "stiff" if _suits_stiff(problem) else "batched"
    if engine == "fixed" and problem.step is None:
        raise ArgumentValueError(expected("step", "a positive time for engine='fixed'", None))
    if engine != "fixed" and problem.step is not None:
        raise ArgumentValueError(expected("engine", "'fixed' or 'auto' where step is given", repr(engine)))
    if engine == "batched" and not problem.tableau.error:
        advice = "give step= for a fixed step, or take dopri5 or bosh3"
        raise ArgumentValueError(expected("method", "one with an error estimate", problem.tableau.name, advice))
    return engine


def _suits_stiff(problem: Problem) -> bool:
    systems, tokens, dim = problem.start.shape
    if problem.start.dtype != torch.float64 or tokens * dim > _LARGEST_STIFF or systems > _SYSTEMS:
        return False
    field, (first, *_, last) = problem.field, problem.times
    # Every jump of a schedule starts a multistep method anew, at order one.
    if len(field.attention.breaks(first, last)) > _JUMPS:
        return False
    ov = field.attention.ov.matrix_at(first)
    speed = field.factor * (
        field.attention.heads if field.identity_values else float(ov.norm(dim=(-2, -1)).sum(-1).max())
    )
    return (last - first) * speed >= LONG
