"""`asymptotic` Remark 4.2: how often uniform tokens share a half space, beside both formulas."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reproductions.studies.design import Design
from reproductions.studies.record import Cell, Table
from reproductions.studies.statistics import share
from tokendynamics import observables

TITLE = "How often do uniform tokens share a half space?"
QUESTION = (
    "Theorem 4.1 of `asymptotic` asks that all tokens start in one open half space. Its Remark 4.2 gives the "
    "probability of that for ℓ uniform tokens in dimension n + 1 by Wendel's theorem, as 2^(1−ℓ) Σ C(ℓ−1, μ) over μ = "
    "0 … n−1. Wendel's own sum ends at μ = n. Which do draws agree with?"
)
SPEC = "wendel"
SPECS = (SPEC,)
LEVEL = 0.05
"""A formula is rejected where its least p, times the number of cases, is below."""

_FORMULAS = {"corrected": "sum to n", "printed": "sum to n − 1 (printed)"}


def measure(designs: Mapping[str, Design]) -> tuple[Table, ...]:
    """Count the draws that share a half space, and how likely such counts are by either formula."""
    by_case: dict[tuple[int, int], list[np.ndarray]] = {}
    for at, setup in designs[SPEC].built():
        margin = np.asarray(observables.hemisphere(setup.start).margin)
        by_case.setdefault((at["dim"], at["tokens"]), []).append(margin > 0)
    return (table({case: np.concatenate(parts) for case, parts in by_case.items()}),)


def table(shared: Mapping[tuple[int, int], np.ndarray]) -> Table:
    """Return the counts of each case (dim, tokens) beside both formulas."""
    rows: list[tuple[Cell, ...]] = []
    for (dim, tokens), mask in shared.items():
        formulas = [observables.wendel_probability(tokens, dim, formula=name) for name in _FORMULAS]
        chances = [chance(mask, probability) for probability in formulas]
        rows.append((dim, tokens, len(mask), share(mask), *formulas, *chances))
    caption = (
        "Tokens in one open half space: share of the draws with its Wilson interval, both formulas, and the "
        "probability p of a count as unlikely as the one found or less likely (exact binomial test)."
    )
    heads = (
        "dim",
        "tokens",
        "draws",
        "share",
        *_FORMULAS.values(),
        *(f"p, {formula}" for formula in _FORMULAS.values()),
    )
    return Table("half spaces", caption, heads, tuple(rows))


def chance(mask: np.ndarray, probability: float) -> float:
    """Return the two-sided p of the exact binomial test."""
    from scipy.stats import binomtest

    return float(binomtest(int(mask.sum()), len(mask), probability).pvalue)


def conclude(tables: Mapping[str, Table]) -> list[str]:
    """Say of each formula whether the draws reject it."""
    half_spaces = tables["half spaces"]
    sentences = [_judged(half_spaces, name) for name in _FORMULAS.values()]
    certain = [row for row in half_spaces.each() if row["tokens"] <= row["dim"]]
    missed = sum(round((1 - row["share"].value) * row["draws"]) for row in certain)
    total = sum(row["draws"] for row in certain)
    if not missed:
        return [*sentences, f"With at most as many tokens as dimensions all {total:,} draws share a half space."]
    return [
        *sentences,
        f"With at most as many tokens as dimensions {missed} of {total:,} draws share none: look into it.",
    ]


def _judged(half_spaces: Table, name: str) -> str:
    values = half_spaces.column(f"p, {name}")
    least, cases = min(values), len(values)
    if least * cases < LEVEL:
        rejected = sum(value * cases < LEVEL for value in values)
        return f"The {name} is rejected in {rejected} of {cases} cases (least p {least:.2g})."
    return f"The {name} agrees with the draws in all {cases} cases (least p {least:.2g} of {cases})."
