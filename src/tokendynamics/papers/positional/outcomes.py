"""What becomes of the tokens of many random flows: four outcomes, never two."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import Attention, RotaryPositions
from tokendynamics.dynamics import Flow, Status, Trajectory, simulate
from tokendynamics.dynamics.events import NormAbove
from tokendynamics.numerics.seeding import generator
from tokendynamics.spaces import Free

HORIZON = 3000.0
"""In units of 1/‖ov‖: every flow is run at the speed at which its value matrix has norm 1, a change of time."""

_BOUND = 1e4
_STEPS = 3000
_SHRINKS, _STAYS = 0.5, 1e-3


class Outcome(StrEnum):
    """The end of one flow."""

    ZERO = "to zero"
    DIVERGED = "to infinity"
    EQUILIBRIUM = "to a nonzero equilibrium"
    UNDECIDED = "undecided"


def positive_definite(count: int, dim: int, random: torch.Generator) -> Tensor:
    """Standard normal matrices, those kept whose symmetric part is positive definite: nothing else is imposed.

    Args:
        count: How many.
        dim: Rows and columns; about one matrix in 7 is kept in dim 2, and one in 400 in dim 4.
        random: The generator of the draws.

    Returns:
        (count, dim, dim), float64.
    """
    kept = torch.empty(0, dim, dim, dtype=torch.float64)
    while len(kept) < count:
        drawn = torch.randn(20_000, dim, dim, dtype=torch.float64, generator=random)
        lowest = torch.linalg.eigvalsh((drawn + drawn.mT) / 2)[:, 0]
        kept = torch.cat([kept, drawn[lowest > 0]])
    return kept[:count]


def outcomes(qk: Tensor, ov: Tensor, tokens: int, seed: int, rotary: tuple[Tensor, Tensor] | None = None) -> np.ndarray:
    """Run one flow for each pair of matrices from one normal start each, and say what became of it.

    - to infinity: the largest norm passed 10,000, and its logarithm still grew over the last doubling;
    - to zero: from a tenth of the horizon to its end the largest norm halved at least (t^(−1/2) predicts 0.32);
    - to a nonzero equilibrium: over the same time no token moved by more than a thousandth of the largest norm;
    - undecided: anything else, such as slower motion, rotation, or a step budget that was spent.

    Args:
        qk: W, (system, dim, dim).
        ov: V^T, (system, dim, dim).
        tokens: Tokens of each start.
        seed: Of the starts.
        rotary: Q̄ and K̄, (system, dim, dim) each, for (8) instead of (2).

    Returns:
        Words of `Outcome`, (system,).
    """
    systems, dim = qk.shape[0], qk.shape[-1]
    ov = ov / torch.linalg.matrix_norm(ov, ord=2)[:, None, None]
    positions = None
    if rotary is not None:
        positions = RotaryPositions(rotary[0].unsqueeze(1), rotary[1].unsqueeze(1))
    flow = Flow(Attention(qk.unsqueeze(1), ov.unsqueeze(1), positions=positions), Free())
    start = torch.randn(systems, tokens, dim, dtype=torch.float64, generator=generator(seed))
    times = np.concatenate([[0.0], np.geomspace(1.0, HORIZON, 81)])
    run = simulate(
        flow, start, times, rtol=1e-6, atol=1e-9, engine="batched", max_steps=_STEPS, events=[NormAbove(_BOUND)]
    )
    return _classified(run)


def shares(words: np.ndarray) -> dict[Outcome, float]:
    """The share of each outcome."""
    return {outcome: float((words == outcome.value).mean()) for outcome in Outcome}


def _classified(run: Trajectory) -> np.ndarray:
    norms = torch.linalg.vector_norm(run.tensor, dim=-1).amax(dim=-1).numpy()
    tenth = int(np.searchsorted(run.times, HORIZON / 10))
    moved = (run.tensor[:, tenth:] - run.tensor[:, -1:]).norm(dim=-1).amax(dim=(-2, -1)).numpy()
    finished = run.status == Status.HORIZON.value
    words = np.full(len(norms), Outcome.UNDECIDED.value, dtype=object)
    words[finished & (moved < _STAYS * norms[:, -1])] = Outcome.EQUILIBRIUM.value
    words[finished & (norms[:, -1] < _SHRINKS * norms[:, tenth])] = Outcome.ZERO.value
    words[(run.status == Status.DIVERGED.value)] = Outcome.DIVERGED.value
    return words
