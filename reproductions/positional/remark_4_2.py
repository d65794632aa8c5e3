"""`positional` Remark 4.2: whether rotary positions make flows diverge more often, on random draws."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.figure import Figure

from reproductions.drawing import footnote, stacked_shares
from reproductions.positional.outcomes import Outcome, outcomes, positive_definite, shares
from reproductions.record import Quantity, Record, measured, timed
from tokendynamics import figures
from tokendynamics.numerics.arguments import generator

TOKENS = 4

_UNSETTLED = "counting the undecided both ways the change is between {low:+.3g} and {high:+.3g}, ± {error:.2g}"


@timed
def reproduce(*, draws: int = 200, seed: int = 420) -> Record:
    """Measure the same flows under the condition of Remark 3.5 without and with a random rotary term.

    Flows that grow under a rotary term are stiff (their logits grow with the square of the norm) and some are still
    undecided when they have spent their steps. They are counted both ways: what is said must hold for each.

    Args:
        draws: For each dim.
        seed: Of everything.
    """
    outcomes_of: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    quantities: list[Quantity] = []
    for dim in (2, 4):
        random = generator(seed + dim)
        contraction, qk = -positive_definite(draws, dim, random), positive_definite(draws, dim, random)
        query, key = torch.randn(2, draws, dim, dim, dtype=torch.float64, generator=random)
        ov = torch.linalg.solve(contraction, qk)
        outcomes_of[dim] = outcomes(qk, ov, TOKENS, seed), outcomes(qk, ov, TOKENS, seed, (query, key))
        quantities += compared(dim, *outcomes_of[dim])
    answers = "; ".join(
        f"{quantity.name.split(':')[0]}: {_SAID[quantity.verdict]}"
        for quantity in quantities
        if quantity.tolerance >= 0
    )
    return Record(
        paper="positional",
        figure="Remark 4.2",
        statement="Whether a random rotary term sends flows with A_sym ≺ 0 and W_sym ≻ 0 to infinity more often, and "
        f"to zero less often, whatever becomes of the undecided: {answers}.",
        quantities=tuple(quantities),
        invented=f"{draws} draws for each dim: A and W as for Remark 3.5, standard normal Q̄ and K̄, logits without "
        f"1/√D_k, {TOKENS} standard normal tokens, seed {seed}",
        seed=seed,
        results={"words": outcomes_of},
    )


_SAID = {"yes": "so", "no": "not so", "cannot tell": "not decided by these draws"}


def compared(dim: int, without: np.ndarray, turned: np.ndarray) -> list[Quantity]:
    """Return the shares of all draws, counting the undecided both ways, and what they say of the claim.

    Args:
        dim: Features of a token, for the names.
        without: Words of `Outcome` without a rotary term, (draw,).
        turned: With it, of the same draws.
    """
    rows = []
    for name, words in (("without", without), ("with rotary term", turned)):
        rows.append(measured(f"dim {dim}, {name}: undecided, of all", _share(words, Outcome.UNDECIDED)))
        for outcome in (Outcome.DIVERGED, Outcome.ZERO):
            lowest, highest = _share(words, outcome), _share(words, outcome, Outcome.UNDECIDED)
            rows.append(measured(f"dim {dim}, {name}: {outcome}, of all, at least", lowest))
            rows.append(measured(f"dim {dim}, {name}: {outcome}, of all, at most", highest))
    rows.append(change(f"dim {dim}, more go to infinity: least rise of the share", Outcome.DIVERGED, without, turned))
    rows.append(change(f"dim {dim}, fewer go to zero: least fall of the share", Outcome.ZERO, turned, without))
    return rows


def change(name: str, outcome: Outcome, before: np.ndarray, after: np.ndarray) -> Quantity:
    """Tell whether the share of `outcome` is higher in `after` than in `before`, draw by draw, by two standard errors.

    The lowest possible rise has all undecided ones of `before` end so, and none of `after`; the highest the reverse.
    If the first is beyond two standard errors above 0 the share rises, if the second is as far below 0 it does not,
    and else these draws cannot tell.
    """
    least = _is(after, outcome) - _is(before, outcome, Outcome.UNDECIDED)
    most = _is(after, outcome, Outcome.UNDECIDED) - _is(before, outcome)
    low, high = float(least.mean()), float(most.mean())
    error = 2 * max(float(least.std()), float(most.std())) / math.sqrt(len(least))
    if low > error or high < -error:
        return Quantity(
            name, 0.0, low, error, "≥", "reading", reason="the share changes the other way" if high < 0 else ""
        )
    return Quantity(name, 0.0, low, error, "≥", "reading", unsettled=_UNSETTLED.format(low=low, high=high, error=error))


def draw(record: Record) -> Figure:
    """Draw the shares of the four outcomes without and with the rotary term."""
    figure, panels = figures.panels(2, width=figures.DOUBLE, height=2.2, titles=["dim 2", "dim 4"])
    for panel, dim in zip(panels, (2, 4), strict=True):
        bars = dict(zip(("without", "with rotary term"), map(shares, record.results["words"][dim]), strict=True))
        stacked_shares(
            panel, {name: {str(k): v for k, v in bar.items()} for name, bar in bars.items()}, legend=dim == 2
        )
    return footnote(figure, record, record.statement)


def _is(words: np.ndarray, *kinds: Outcome) -> np.ndarray:
    return np.isin(words, [str(kind) for kind in kinds]).astype(float)


def _share(words: np.ndarray, *kinds: Outcome) -> float:
    return float(_is(words, *kinds).mean())
