"""`positional` Remark 3.5: how often A_sym ≺ 0 and W_sym ≻ 0 send all tokens to zero, and what foretells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reproductions.studies.design import Design, words
from reproductions.studies.record import Cell, Estimate, Table
from reproductions.studies.statistics import area, bootstrap, change, sensitivity, share, share_of
from tokendynamics.figures import DOUBLE, panels
from tokendynamics.figures.style import LINES, MUTED, THIN, paper_style

TITLE = "Do negative A and positive W send all tokens to zero?"
QUESTION = (
    "`positional` Remark 3.5 says so of every A_sym ≺ 0 and W_sym ≻ 0 (theorem 3.4 proves it where both are "
    "symmetric). Free flow of one head, W = qk, A = qk · ov^(−1), ‖ov‖ = 1, standard normal tokens, followed to t = "
    "10^6. How do the frequencies of zero, infinity and rest away from zero move with dimension, number of tokens and "
    "distance from symmetry, and what foretells the outcome: the signs of A_sym or the spectrum of V = ov?"
)
NORMAL, CHECK, PREDICTORS = "remark-3-5-normal", "remark-3-5-check", "remark-3-5-predictors"
CUTS = {"dim": "remark-3-5-dim", "tokens": "remark-3-5-tokens", "skew": "remark-3-5-skew"}
SPECS = (NORMAL, *CUTS.values(), PREDICTORS, CHECK)
ROC = "ROC curves"
RATES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
"""Shares of false positives at which the curves are kept."""

Population = tuple[str, Mapping[str, np.ndarray], int]
"""Name of the draws, whether each system diverged and its scores, and the dim."""

_OUTCOMES = ("zero", "diverged", "nonzero equilibrium", "undecided")
_LAW = {
    "normal law": "A and W standard normal, kept where the signs are right (by rejection, as random draws have it).",
    **{
        name: f"A and W as constrained attention has them (`positional` D.2), by {what}; else 4 tokens, dim 4, skew 1."
        for name, what in (("dim", "dimension"), ("tokens", "number of tokens"), ("skew", "size of the skew part"))
    },
}
_SCORES = {"signs of A_sym": "contraction_growth", "spectrum of V": "value_growth"}
PROMISED = 0.005
"""Share of undecided systems below which the outcomes are taken to be known."""


def measure(designs: Mapping[str, Design]) -> tuple[Table, ...]:
    """Run the designs and count outcomes, areas under ROC curves, and what a longer run changes."""
    normal, predictors = designs[NORMAL].swept(), designs[PREDICTORS].swept()
    swept = {name: designs[spec].swept() for name, spec in CUTS.items()}
    tables = [frequencies("normal law", normal, "dim")]
    tables += [frequencies(name, dataset, name) for name, dataset in swept.items()]
    populations = {"A_sym ≺ 0, W_sym ≻ 0": normal, "W_sym ≻ 0, any A": predictors}
    pairs = [(name, population, dim) for name, population in populations.items() for dim in population["dim"].values]
    return (
        *tables,
        below_zero([normal, *swept.values()]),
        areas([(name, _systems(population.sel(dim=dim)), int(dim)) for name, population, dim in pairs]),
        curves(
            [(name, _systems(population.sel(dim=dim)), int(dim)) for name, population, dim in pairs], tuple(_SCORES)
        ),
        undecided([normal, *swept.values(), predictors]),
        longer(normal, designs[CHECK].swept()),
    )


def frequencies(name: str, dataset: xr.Dataset, axis: str) -> Table:
    """Return the share of each outcome along an axis."""
    rows: list[tuple[Cell, ...]] = []
    for value in dataset[axis].values:
        outcomes = words(dataset.sel({axis: value})).values.ravel()
        rows.append((value.item(), len(outcomes), *(share(outcomes == outcome) for outcome in _OUTCOMES)))
    return Table(name, _LAW[name] + " Shares with Wilson intervals.", (axis, "draws", *_OUTCOMES), tuple(rows))


def _systems(dataset: xr.Dataset) -> dict[str, np.ndarray]:
    """Return the decided systems: whether each diverged, and both scores."""
    outcomes = words(dataset).values.ravel()
    decided = outcomes != "undecided"
    scores = {name: dataset[variable].values.ravel()[decided] for name, variable in _SCORES.items()}
    return {"diverged": outcomes[decided] == "diverged", **scores}


def below_zero(datasets: list[xr.Dataset]) -> Table:
    """Return what became of the systems under the condition, by the sign of max Re λ(V)."""
    growth = np.concatenate([dataset["value_growth"].values.ravel() for dataset in datasets])
    outcomes = np.concatenate([words(dataset).values.ravel() for dataset in datasets])
    rows = [
        (name, int(mask.sum()), *(share(outcomes[mask] == outcome) for outcome in _OUTCOMES))
        for name, mask in (("below 0", growth < 0), ("above 0", growth > 0))
    ]
    caption = "All systems with A_sym ≺ 0 and W_sym ≻ 0 of the tables above, by the sign of the largest Re λ(V)."
    return Table("spectrum of V", caption, ("largest Re λ(V)", "draws", *_OUTCOMES), tuple(rows))


def areas(populations: Sequence[Population]) -> Table:
    """Return how well each score foretells divergence, with bootstrap intervals, and the difference, paired."""
    rows: list[tuple[Cell, ...]] = []
    for seed, (name, systems, dim) in enumerate(populations):
        diverged = systems["diverged"]
        signs, spectrum = (systems[score] for score in _SCORES)
        estimates = [_area(scores, diverged, seed) for scores in (signs, spectrum)]
        gap = bootstrap(
            lambda chosen, s=signs, v=spectrum, d=diverged: area(v[chosen], d[chosen]) - area(s[chosen], d[chosen]),
            len(diverged),
            seed,
        )
        right = [share((score > 0) == diverged) for score in (signs, spectrum)]
        rows.append((name, dim, len(diverged), int(diverged.sum()), *estimates, gap, *right))
    caption = (
        "Area under the ROC curve of two scores for divergence: the largest eigenvalue of A_sym over ‖A‖ and the "
        "largest Re λ(V) over ‖V‖ (0.5 is chance, 1 perfect; intervals by bootstrap over systems), and how often the "
        "rule “diverges where it is above 0” is right. 4 tokens."
    )
    heads = ("draws", "dim", "decided", "diverged", *(f"area, {score}" for score in _SCORES), "difference")
    return Table("predictors", caption, (*heads, *(f"rule right, {score}" for score in _SCORES)), tuple(rows))


def _area(score: np.ndarray, diverged: np.ndarray, seed: int) -> Estimate:
    return bootstrap(lambda chosen: area(score[chosen], diverged[chosen]), len(diverged), seed)


def undecided(datasets: list[xr.Dataset]) -> Table:
    """Return how many systems are undecided, and after which try each was left."""
    outcomes = np.concatenate([words(dataset).values.ravel() for dataset in datasets])
    tries = np.concatenate([dataset["tries"].values.ravel() for dataset in datasets])
    rows = [
        (name, int((tries == number).sum()), int(((tries == number) & (outcomes == "undecided")).sum()))
        for number, name in enumerate(("explicit steps", "implicit steps", "many explicit steps"), start=1)
    ]
    total: tuple[Cell, ...] = ("all", len(outcomes), int((outcomes == "undecided").sum()))
    caption = "Systems by the last try that they took, and how many of them it left undecided."
    return Table("tries", caption, ("last try", "systems", "undecided"), (*rows, total))


def longer(short: xr.Dataset, long: xr.Dataset) -> Table:
    """Compare systems that few steps decided with the same systems followed to the end."""
    draws = long.sizes["draw"]
    before, after = words(short).isel(draw=slice(draws)), words(long)
    first = short["tries"].isel(draw=slice(draws)).values == 1
    known = first & (before.values != "undecided") & (after.values != "undecided")
    changed = int((known & (before.values != after.values)).sum())
    rows: tuple[tuple[Cell, ...], ...] = ((int(known.sum()), changed, share_of(changed, int(known.sum()))),)
    caption = "Systems that the first try, of few steps, decided, followed to t = 10^6 by implicit steps."
    return Table("longer runs", caption, ("systems", "other outcome", "share"), rows)


def curves(populations: Sequence[Population], scores: Sequence[str]) -> Table:
    """Return points of the ROC curves.

    Args:
        populations: Each with "diverged" and its scores.
        scores: Their names.
    """
    rows: list[tuple[Cell, ...]] = [
        (name, dim, score, *(sensitivity(systems[score], systems["diverged"], rate) for rate in RATES))
        for name, systems, dim in populations
        for score in scores
    ]
    caption = "Share of the diverging systems that a score finds, by the share of the others that it takes for such."
    return Table(ROC, caption, ("draws", "dim", "score", *(f"at {rate:g}" for rate in RATES)), tuple(rows))


@paper_style()
def roc_picture(table: Table) -> Figure:
    r"""Draw a panel for each kind of draws and score, with a line for each dim and the diagonal of chance.

    >>> row = ("any", 2, "spectrum", *(rate**0.5 for rate in RATES))
    >>> drawn = roc_picture(Table(ROC, "", ("draws", "dim", "score", *(f"at {rate:g}" for rate in RATES)), (row,)))
    >>> drawn.axes[0].get_title(loc="left"), drawn.axes[0].lines[1].get_ydata()[5].round(3).item()
    ('any\nspectrum', 0.447)
    """
    rows = table.each()
    kinds = list(dict.fromkeys((row["draws"], row["score"]) for row in rows))
    dims = sorted({row["dim"] for row in rows})
    figure, axes = panels(len(kinds), width=DOUBLE, height=DOUBLE / 4 + 0.75)
    for ax, (draws, score) in zip(axes, kinds, strict=True):
        by_dim = {row["dim"]: row for row in rows if (row["draws"], row["score"]) == (draws, score)}
        _panel(
            ax, f"{draws}\n{score}", {dim: [row[f"at {rate:g}"] for rate in RATES] for dim, row in by_dim.items()}, dims
        )
    axes[0].set_ylabel("diverging systems found")
    fullest = max(range(len(axes)), key=lambda number: (len(axes[number].lines), number))
    axes[fullest].legend(title="dim", loc="lower right")
    return figure


def _panel(ax: Axes, title: str, curves_by_dim: Mapping[int, Sequence[float]], dims: Sequence[int]) -> None:
    ax.plot((0, 1), (0, 1), color=THIN, linewidth=0.8)
    for dim, shares in curves_by_dim.items():
        colour, dash = LINES[dims.index(dim) % len(LINES)]
        ax.plot(RATES, shares, color=colour, linestyle=dash, label=str(dim))
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal", xlabel="others taken for such")
    ax.set_title(title, fontsize=7, color=MUTED)


PICTURES = {ROC: roc_picture}


def conclude(tables: Mapping[str, Table]) -> list[str]:
    """Say what the tables say of the remark, of the trends and of the predictors."""
    sentences = [_remark(tables["normal law"])]
    sentences += [_trend(tables[name], name) for name in ("normal law", *CUTS)]
    symmetric = [row for row in tables["skew"].each() if row["skew"] == 0.0]
    sentences += [_symmetric(row) for row in symmetric]
    sentences += _spectrum(tables["spectrum of V"])
    sentences += [_better(row) for row in tables["predictors"].each()]
    return [*sentences, _known(tables["tries"]), _settled(tables["longer runs"])]


def _remark(table: Table) -> str:
    shares = "; ".join(f"dim {row['dim']}: {row['zero']}" for row in table.each())
    diverged = sum(row["diverged"].of(row["draws"]) for row in table.each())
    total = sum(table.column("draws"))
    if diverged:
        return f"The remark is false: {diverged} of {total:,} random draws that satisfy it diverge. To zero: {shares}."
    return f"No draw of {total:,} contradicts the remark. To zero: {shares}."


def _trend(table: Table, name: str) -> str:
    axis, rows = table.columns[0], table.each()
    first, last = rows[0], rows[-1]
    law = "the normal law" if name == "normal law" else "D.2"
    between = f"between {axis} {first[axis]:g} and {last[axis]:g} ({law}): {first['zero']} to {last['zero']}"
    match change(first["zero"], last["zero"]):
        case "fewer":
            return f"Fewer systems go to zero {between}."
        case "more":
            return f"More systems go to zero {between}."
        case _:
            return f"These draws do not decide whether fewer go to zero {between}."


def _symmetric(row: Mapping[str, Any]) -> str:
    zero = row["zero"].of(row["draws"])
    if zero == row["draws"]:
        return f"Where A and W are symmetric all {zero} of {row['draws']} go to zero, as theorem 3.4 has it."
    return f"Where A and W are symmetric {zero} of {row['draws']} go to zero, and theorem 3.4 has all: look into it."


def _spectrum(table: Table) -> list[str]:
    below, above = table.each()
    count = below["diverged"].of(below["draws"])
    diverged = f"Of {below['draws']:,} systems with every Re λ(V) < 0, {count or 'none'} diverged ({below['diverged']})"
    verdict = "no proof that none does." if not count else "a spectrum below zero is no guarantee."
    return [
        f"{diverged}: {verdict}",
        f"Of {above['draws']:,} with some Re λ(V) > 0, {above['diverged']} diverged, "
        f"{above['zero'].of(above['draws'])} fell to zero and {above['undecided'].of(above['draws'])} are undecided; "
        "zero is not stable there, so that a fall is called one to zero only below a millionth.",
    ]


def _better(row: Mapping[str, Any]) -> str:
    where = f"{row['draws']}, dim {row['dim']}"
    gap: Estimate = row["difference"]
    signs, spectrum = (row[f"area, {score}"] for score in _SCORES)
    perfect = ", no system being out of order" if spectrum.value == 1 else ""
    numbers = f"areas {spectrum}{perfect} and {signs}"
    if not np.isfinite(gap.value):
        return f"{where}: all decided systems ended alike, no predictor can be judged."
    if gap.low > 0:
        return f"{where}: the spectrum of V foretells divergence better than A_sym does ({numbers})."
    if gap.high < 0:
        return f"{where}: A_sym foretells divergence better than the spectrum of V does ({numbers})."
    return f"{where}: these draws do not decide which of both foretells divergence better ({numbers})."


def _known(table: Table) -> str:
    systems, count = table.rows[-1][1:]
    undecided_share = share_of(int(count), int(systems))  # type: ignore[arg-type]
    kept = "below" if undecided_share.high < PROMISED else "not shown to be below"
    return f"Undecided are {count} of {systems:,} systems ({undecided_share}): {kept} {PROMISED:.1%}."


def _settled(table: Table) -> str:
    row = table.each()[0]
    if row["other outcome"]:
        return (
            f"Of {row['systems']} systems decided by few steps {row['other outcome']} end otherwise when followed to "
            f"t = 10^6: the shares above are uncertain by that much ({row['share']})."
        )
    return f"None of {row['systems']} systems decided by few steps ends otherwise when followed to t = 10^6."
