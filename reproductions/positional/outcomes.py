"""What becomes of the tokens of many random flows: four outcomes, never two."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import Attention, RotaryPositions
from tokendynamics.dynamics import Flow, Status, simulate
from tokendynamics.dynamics.events import NormAbove
from tokendynamics.numerics.arguments import generator
from tokendynamics.spaces import Free
from tokendynamics.theorems.outcomes import outcomes_of

HORIZON = 1e6
"""In units of 1/‖ov‖: every flow is run at the speed at which its value matrix has norm 1, a change of time."""

_BOUND = 1e3
_TRIES: tuple[tuple[Literal["batched", "compiled", "stiff"], int], ...] = (
    ("batched", 1500),
    ("compiled", 400_000),
    ("stiff", 5000),
)
"""Engines and steps, the cheaper first: a compiled step takes about a microsecond, an implicit one some 100."""


class Outcome(StrEnum):
    """The end of one flow."""

    ZERO = "to zero"
    DIVERGED = "to infinity"
    EQUILIBRIUM = "to a nonzero equilibrium"
    UNDECIDED = "undecided"


_WORDS = {
    "zero": Outcome.ZERO,
    "diverged": Outcome.DIVERGED,
    "nonzero equilibrium": Outcome.EQUILIBRIUM,
    "undecided": Outcome.UNDECIDED,
}
"""What the figures call the outcomes of `tokendynamics.theorems.outcomes`."""


def positive_definite(count: int, dim: int, random: torch.Generator) -> Tensor:
    """Draw standard normal matrices, those kept whose symmetric part is positive definite: nothing else is imposed.

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

    `tokendynamics.theorems.outcomes.outcomes_of` says what each outcome means; with ‖ov‖ = 1 a run that ends before
    t = 100 is undecided, unless it has diverged.

    Explicit steps come first; the flows that spend all of theirs are run again, from the start, by many explicit steps,
    which slow decays and stiff growth may need, and at last by implicit ones.

    Returns:
        Words of `Outcome`, (system,).
    """
    systems, dim = qk.shape[0], qk.shape[-1]
    ov = ov / torch.linalg.matrix_norm(ov, ord=2)[:, None, None]
    start = torch.randn(systems, tokens, dim, dtype=torch.float64, generator=generator(seed))
    words, rows = np.full(systems, str(Outcome.UNDECIDED), dtype=f"U{max(map(len, Outcome))}"), torch.arange(systems)
    for engine, steps in _TRIES:
        turned = None if rotary is None else (rotary[0][rows], rotary[1][rows])
        words[rows.numpy()], spent = _run(_flow(qk[rows], ov[rows], turned), start[rows], engine, steps)
        rows = rows[torch.from_numpy(spent)]
        if len(rows) == 0:
            break
    return words


def shares(words: np.ndarray) -> dict[Outcome, float]:
    """Return the share of each outcome."""
    return {outcome: float((words == str(outcome)).mean()) for outcome in Outcome}


def _flow(qk: Tensor, ov: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Flow:
    positions = None if rotary is None else RotaryPositions(rotary[0].unsqueeze(1), rotary[1].unsqueeze(1))
    return Flow(Attention(qk.unsqueeze(1), ov.unsqueeze(1), positions=positions), Free())


def _run(
    flow: Flow, start: Tensor, engine: Literal["batched", "compiled", "stiff"], steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return what became of each system, and which of them spent their steps before that was clear."""
    times = np.concatenate([[0.0], np.geomspace(1.0, HORIZON, 81)])
    events = [NormAbove(_BOUND)]
    run = simulate(flow, start, times, rtol=1e-6, atol=1e-9, engine=engine, max_steps=steps, events=events)
    words = np.array([str(_WORDS[word]) for word in outcomes_of(run)], dtype=f"U{max(map(len, Outcome))}")
    return words, (words == str(Outcome.UNDECIDED)) & (run.status == Status.BUDGET.value)
