"""`positional` Remark 4.2: how often flows diverge under a rotary term of growing strength."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from reproductions.studies.design import Design, words
from reproductions.studies.record import Cell, Table
from reproductions.studies.statistics import change, share, share_of
from tokendynamics.sweeps.systems.measures import STATUSES

TITLE = "Does a rotary term make flows diverge, and how strong must it be?"
QUESTION = (
    "Remark 4.2 of `positional` says that rotary positions encourage divergence: the term σ · Q̄ R K̄^T beside W can "
    "keep a flow from the convergence scenario. Random flows with A_sym ≺ 0 and W_sym ≻ 0 (normal law, as for Remark "
    "3.5), Q̄ and K̄ standard normal, 4 tokens, ‖ov‖ = 1, followed to t = 10^6. How does the share of divergence move "
    "with σ?"
)
SPEC = "rotary-strength"
SPECS = (SPEC,)
_REACHED = STATUSES.index("reached the horizon")
_TABLE = "strength"


def measure(designs: Mapping[str, Design]) -> tuple[Table, ...]:
    """Run the design and count outcomes, those of the undecided counted both ways."""
    dataset = designs[SPEC].swept()
    rows: list[tuple[Cell, ...]] = []
    for dim in dataset["dim"].values:
        for strength in dataset["strength"].values:
            here = dataset.sel(dim=dim, strength=strength)
            moving = here["status"].values == _REACHED
            rows.append((int(dim), float(strength), *counted(words(here).values, moving)))
    caption = (
        "Shares with Wilson intervals. “At most” counts the undecided in. Those that were followed to t = 10^6 and are "
        "neither small, nor grown, nor at rest stand in the last column."
    )
    outcomes = ("zero", "zero, at most", "diverged", "diverged, at most", "nonzero equilibrium", "undecided")
    heads = ("dim", "σ", "draws", *outcomes, "moving at the end")
    return (Table(_TABLE, caption, heads, tuple(rows)),)


def counted(outcomes: np.ndarray, reached: np.ndarray) -> tuple[Cell, ...]:
    """Return the draws and the shares of a point.

    Args:
        outcomes: Words of outcomes.
        reached: Which systems were followed to the end.
    """
    open_ = outcomes == "undecided"
    shares = [
        share(outcomes == "zero"),
        share((outcomes == "zero") | open_),
        share(outcomes == "diverged"),
        share((outcomes == "diverged") | open_),
        share(outcomes == "nonzero equilibrium"),
        share(open_),
    ]
    return (len(outcomes), *shares, int((open_ & reached).sum()))


def conclude(tables: Mapping[str, Table]) -> list[str]:
    """Say of each dimension from which strength on more diverge and fewer go to zero, whatever the undecided do."""
    rows = tables[_TABLE].each()
    sentences: list[str] = []
    for dim in dict.fromkeys(row["dim"] for row in rows):
        of_dim = [row for row in rows if row["dim"] == dim]
        sentences += [_rises(of_dim, "diverged", "more", "diverge"), _rises(of_dim, "zero", "fewer", "go to zero")]
    count = sum(row["undecided"].of(row["draws"]) for row in rows)
    total, moving = sum(row["draws"] for row in rows), sum(row["moving at the end"] for row in rows)
    known = "Each sentence above holds whatever becomes of them."
    return [
        *sentences,
        f"Undecided are {count} of {total:,} ({share_of(count, total)}), {moving} of them still moving. {known}",
    ]


def _rises(rows: list[dict[str, Any]], outcome: str, wanted: str, verb: str) -> str:
    """Compare each strength with the weakest, counting the undecided against the claim."""
    weakest, others = rows[0], rows[1:]
    certain = [row for row in others if _surely(weakest, row, outcome) == wanted]
    against = {"more": "fewer", "fewer": "more"}[wanted]
    turned = [row for row in others if _surely(weakest, row, outcome) == against]
    where = f"dim {weakest['dim']}"
    if turned:
        strengths = ", ".join(f"{row['σ']:g}" for row in turned)
        turned_round = f"with a rotary term {against} systems {verb}, at σ = {strengths}"
        return f"{where}: {turned_round}: the remark has it the other way."
    if not certain:
        return f"{where}: at no σ up to {others[-1]['σ']:g} do these draws show that {wanted} systems {verb}."
    first = certain[0]
    numbers = f"{_range(weakest, outcome)} at σ = {weakest['σ']:g}, {_range(first, outcome)} at {first['σ']:g}"
    last = f", {_range(others[-1], outcome)} at {others[-1]['σ']:g}" if first is not others[-1] else ""
    return f"{where}: with a rotary term of σ ≥ {first['σ']:g} {wanted} systems {verb} ({numbers}{last})."


def _surely(before: Mapping[str, Any], after: Mapping[str, Any], outcome: str) -> str:
    low, high = ((row[outcome], row[f"{outcome}, at most"]) for row in (before, after))
    if change(low[1], high[0]) == "more":
        return "more"
    return "fewer" if change(low[0], high[1]) == "fewer" else "not decided"


def _range(row: Mapping[str, Any], outcome: str) -> str:
    low, high = (row[name].value for name in (outcome, f"{outcome}, at most"))
    return f"{low:.1%}" if low == high else f"{low:.1%} to {high:.1%}"
