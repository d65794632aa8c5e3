"""`positional` Remark 4.2: whether rotary positions make flows diverge more often, on random draws."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure

from tokendynamics import plots
from tokendynamics.numerics.seeding import generator
from tokendynamics.papers.drawing import footnote, stacked_shares
from tokendynamics.papers.positional.outcomes import Outcome, outcomes, positive_definite, shares
from tokendynamics.papers.record import Quantity, Record, timed

TOKENS = 4


@timed
def reproduce(*, draws: int = 200, seed: int = 420) -> Record:
    """The same flows under the condition of Remark 3.5 without and with a random rotary term.

    Flows that grow under a rotary term are stiff (their logits grow with the square of the norm) and many spend
    their steps before they are counted as going to infinity: the undecided are mostly these.

    Args:
        draws: For each dim.
        seed: Of everything.
    """
    found: dict[int, tuple[dict[Outcome, float], dict[Outcome, float]]] = {}
    quantities = []
    for dim in (2, 4):
        random = generator(seed + dim)
        contraction, qk = -positive_definite(draws, dim, random), positive_definite(draws, dim, random)
        query, key = torch.randn(2, draws, dim, dim, dtype=torch.float64, generator=random)
        ov = torch.linalg.solve(contraction, qk)
        without, turned = outcomes(qk, ov, TOKENS, seed), outcomes(qk, ov, TOKENS, seed, (query, key))
        found[dim] = (shares(without), shares(turned))
        more = _decided(turned, Outcome.DIVERGED) - _decided(without, Outcome.DIVERGED)
        fewer = found[dim][0][Outcome.ZERO] - found[dim][1][Outcome.ZERO]
        quantities += [
            Quantity(f"dim {dim}: rise of the share to infinity, of the decided", 0.0, more, 0.0, "≥"),
            Quantity(f"dim {dim}: fall of the share to zero, of all", 0.0, fewer, 0.0, "≥"),
        ]
    return Record(
        paper="positional",
        figure="Remark 4.2",
        statement="Flows with A_sym ≺ 0 and W_sym ≻ 0 go to infinity more often once a rotary term is added.",
        quantities=tuple(quantities),
        invented=f"{draws} draws for each dim: A and W as for Remark 3.5, standard normal Q̄ and K̄, logits without "
        f"1/√D_k, {TOKENS} standard normal tokens, seed {seed}",
        seed=seed,
        results={"shares": found},
    )


def draw(record: Record) -> Figure:
    """The shares of the four outcomes without and with the rotary term."""
    figure, panels = plots.panels(2, width=plots.DOUBLE, height=2.2, titles=["dim 2", "dim 4"])
    for panel, dim in zip(panels, (2, 4), strict=True):
        without, turned = record.results["shares"][dim]
        bars = {"without": without, "with rotary term": turned}
        stacked_shares(
            panel, {name: {str(k): v for k, v in bar.items()} for name, bar in bars.items()}, legend=dim == 2
        )
    return footnote(figure, f"Invented: {record.invented}.")


def _decided(words: np.ndarray, outcome: Outcome) -> float:
    return float((words == str(outcome)).sum() / max((words != str(Outcome.UNDECIDED)).sum(), 1))
