"""`positional` Remark 3.5: whether A_sym ≺ 0 and W_sym ≻ 0 always send all tokens to zero, on random draws."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure

from reproductions.drawing import footnote, stacked_shares
from reproductions.positional.outcomes import Outcome, outcomes, positive_definite, shares
from reproductions.record import Quantity, Record, measured, timed
from tokendynamics import figures
from tokendynamics.numerics.arguments import generator

TOKENS = 4
TO_ZERO = {2: 0.92, 4: 0.74}
"""Share of draws that satisfy the condition and go to zero, by dim, found before by independent code."""

NONZERO = 0.17
"""Share of nonzero equilibria among draws in dim 2 that violate it, likewise."""

_FALSE = "those whose V has an eigenvalue with positive real part go to infinity"


@dataclass(frozen=True)
class Draws:
    """Random flows, what became of them, and the largest real part of the eigenvalues of their V."""

    words: np.ndarray
    largest: np.ndarray

    @property
    def undecided(self) -> float:
        """The share of undecided flows, of all."""
        return float((self.words == str(Outcome.UNDECIDED)).mean())

    def share(self, outcome: Outcome, among: np.ndarray | None = None) -> float:
        """Of `outcome` among the decided ones, or among those of them in a mask."""
        words = self.words if among is None else self.words[among]
        decided = words[words != str(Outcome.UNDECIDED)]
        return float((decided == str(outcome)).mean()) if len(decided) else math.nan


def draw_flows(condition: bool, draws: int, dim: int, seed: int) -> Draws:
    """Run `draws` flows that satisfy the paper's condition, or standard normal ones that violate it.

    Args:
        condition: Whether A_sym ≺ 0 and W_sym ≻ 0 hold, or do not.
        draws: How many.
        dim: Features of a token.
        seed: Of the matrices; the starts have the next one.
    """
    random = generator(seed)
    if condition:
        contraction, qk = -positive_definite(draws, dim, random), positive_definite(draws, dim, random)
    else:
        contraction, qk = torch.randn(2, 2 * draws, dim, dim, dtype=torch.float64, generator=random)
        lowest_a, lowest_w = (torch.linalg.eigvalsh((m + m.mT) / 2)[:, 0] for m in (-contraction, qk))
        violating = ~((lowest_a > 0) & (lowest_w > 0))
        contraction, qk = contraction[violating][:draws], qk[violating][:draws]
    ov = torch.linalg.solve(contraction, qk)
    largest = torch.linalg.eigvals(ov).real.amax(dim=-1).numpy()
    return Draws(outcomes(qk, ov, TOKENS, seed + 1), largest)


@timed
def reproduce(*, draws: int = 200, seed: int = 35) -> Record:
    """Four outcomes of random flows in dim 2 and 4, under the paper's condition and against it.

    Shares that are compared are of the decided flows; the undecided are shares of all, in rows of their own.

    Args:
        draws: For each dim and condition; 200 take about a minute.
        seed: Of everything.
    """
    quantities: list[Quantity] = []
    draws_of: dict[tuple[int, bool], Draws] = {}
    for dim in (2, 4):
        held, broken = (draw_flows(condition, draws, dim, seed + 10 * dim + condition) for condition in (True, False))
        draws_of[dim, True], draws_of[dim, False] = held, broken
        zero, known = held.share(Outcome.ZERO), TO_ZERO[dim]
        tolerance = 4 * math.sqrt(known * (1 - known) / draws)
        negative = held.largest < 0
        stable, unstable = held.share(Outcome.DIVERGED, negative), held.share(Outcome.DIVERGED, ~negative)
        likely = broken.share(Outcome.DIVERGED)
        given, against = f"dim {dim}, condition holds", f"dim {dim}, condition violated"
        quantities += [
            measured(f"{given}: undecided, of all", held.undecided),
            measured(f"{against}: undecided, of all", broken.undecided),
            Quantity(f"{given}: to zero, of the decided (paper's conjecture)", 1.0, zero, 0.0, reason=_FALSE),
            Quantity(f"{given}: to zero, of the decided", known, zero, tolerance, source="simulation"),
            Quantity(f"{given}, all Re λ(V) < 0: to infinity, of the decided", 0.0, stable, 0.0, source="simulation"),
            Quantity(f"{given}, some Re λ(V) > 0: to infinity, of the decided", 0.9, unstable, 0.0, "≥", "simulation"),
            Quantity(f"{against}: to infinity, of the decided (“likely”)", 0.5, likely, 0.0, "≥", "reading"),
        ]
    nonzero = draws_of[2, False].share(Outcome.EQUILIBRIUM)
    tolerance = 4 * math.sqrt(NONZERO * (1 - NONZERO) / draws)
    quantities.append(
        Quantity(
            "dim 2, condition violated: to a nonzero equilibrium, of the decided",
            NONZERO,
            nonzero,
            tolerance,
            source="simulation",
        )
    )
    return Record(
        paper="positional",
        figure="Remark 3.5",
        statement="Not all flows with A_sym ≺ 0 and W_sym ≻ 0 go to zero: the spectrum of V decides. A third outcome "
        "is a nonzero equilibrium.",
        quantities=tuple(quantities),
        invented=f"{draws} draws for each bar: standard normal A and W, kept if their symmetric parts are definite as "
        f"required (or if they are not), {TOKENS} standard normal tokens, seed {seed}",
        seed=seed,
        results={"draws": draws_of},
    )


def draw(record: Record) -> Figure:
    """Draw the shares of the four outcomes: by condition, and under it by the spectrum of V."""
    draws_of: dict[tuple[int, bool], Draws] = record.results["draws"]
    figure, panels = figures.panels(2, width=figures.DOUBLE, height=2.8, titles=["dim 2", "dim 4"])
    for panel, dim in zip(panels, (2, 4), strict=True):
        held, broken = draws_of[dim, True], draws_of[dim, False]
        negative = held.largest < 0
        groups = {
            "condition violated": broken.words,
            "condition holds": held.words,
            "… and all Re λ(V) < 0": held.words[negative],
            "… and some Re λ(V) > 0": held.words[~negative],
        }
        bars = {name: {str(k): v for k, v in shares(words).items()} for name, words in groups.items() if len(words)}
        stacked_shares(panel, bars, legend=dim == 2)
    return footnote(
        figure,
        record,
        "Condition: A_sym ≺ 0 and W_sym ≻ 0. The bars count all draws; the table has shares of the decided ones, and "
        "the undecided in rows of their own.",
    )
