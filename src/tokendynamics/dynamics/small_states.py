"""A word of warning where states are so small that the absolute tolerance is all that controls them."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.dynamics.engines.problem import Outcome, Problem

NEAR = 100.0
"""Tokens of a norm up to this many times atol may lose a hundredth of themselves at every step."""


def warning_of_small_states(problem: Problem, outcome: Outcome) -> str | None:
    """Say what is to be said of tokens near atol at an output time; None where there are none.

    On a sphere or ellipsoid tokens have norm 1 in the metric in which errors are measured. A token at zero exactly has
    nothing to lose, and with absolute positions it is token and position together that move.
    """
    if problem.field.geometry.quadratic:
        return None
    smallest = _norms(problem.field.attention.placed(outcome.states.detach())).flatten(start_dim=1).amin(dim=-1)
    near = smallest <= NEAR * problem.atol
    if not bool(near.any()):
        return None
    least = float(smallest.min())
    return (
        f"warning: {int(near.sum())} of {len(near)} systems have tokens of a norm down to {least:.3g}, near atol = "
        f"{problem.atol:.3g}, which is all that controls them: their digits may be wrong; "
        f"for these take an atol of {max(least * problem.rtol, torch.finfo(torch.float64).tiny):.0e} or less"
    )


def _norms(x: Tensor) -> Tensor:
    """Return norms that do not underflow, infinite for zero tokens."""
    largest = x.abs().amax(dim=-1)
    norms = largest * (x / largest.unsqueeze(-1)).norm(dim=-1)
    return torch.where(largest > 0, norms, torch.inf)
