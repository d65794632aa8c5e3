"""The tables of a study: arms, comparisons, claims, and runs that did not finish."""

from __future__ import annotations

from dataclasses import replace

from tokendynamics.numerics._intervals import T_COVERAGE
from tokendynamics.report.kit._figure import Cell, Table, cells
from tokendynamics.sweeps.study import PairedComparison, StudyResult
from tokendynamics.sweeps.study._words import about_grid_ends, claimed, verdict_of
from tokendynamics.training._record import FINISHED
from tokendynamics.words import UNDEFINED, count, percent

_MOST_SEEDS = 100_000
"""Beyond which no number of seeds is looked for; see `tokendynamics.sweeps.study.PairedComparison`."""


def arms_table(result: StudyResult) -> Table:
    """Return every arm by itself.

    Args:
        result: What the study found.
    """
    rows = []
    for arm in result.arms:
        rate = "none" if arm.learning_rate is None else arm.learning_rate
        finished = Cell(f"{arm.finished} of {arm.runs}", sort=str(arm.finished), value=arm.finished)
        name, rate, *numbers = cells([arm.name, rate, arm.mean, arm.low, arm.high])
        if arm.learning_rate_at_end:
            rate = replace(rate, text=f"{rate.text} ({arm.learning_rate_at_end} tried)")
        rows.append((name, finished, rate, *numbers))
    better = "lower" if result.lower_is_better else "higher"
    caption = (
        f"{result.unit.capitalize()} on the test split, {better} is better: mean over the finished seeds with "
        f"its {percent(result.confidence)} t-interval; one seed has none"
    )
    return Table(caption, ("Arm", "Finished", "Learning rate", "Mean", "Low", "High"), tuple(rows))


def comparisons_table(result: StudyResult) -> Table:
    """Return every arm beside the reference.

    Args:
        result: What the study found.
    """
    rows = []
    for pair in result.comparisons:
        differences = cells([f"{pair.arm} − {pair.reference}", len(pair.seeds), pair.mean, pair.low, pair.high, pair.p])
        rows.append((*differences, Cell(verdict_of(pair)), *cells([pair.detectable]), _needed(pair)))
    columns = (
        "Difference", "Pairs", "Mean", "Low", "High", "p", "Verdict", "Detectable with 80 %", "Seeds needed with 80 %",
    )  # fmt: skip
    caption = (
        f"Paired differences in {result.unit} with the {percent(result.confidence)} t-interval of their mean; the "
        "smallest true difference that this number of seeds detects with 80 % probability, and the seeds needed to "
        f"detect one as large as the mean. {T_COVERAGE}{_caution(result)}"
    )
    return Table(caption, columns, tuple(rows))


def claims_table(result: StudyResult) -> Table:
    """Return every claim with its verdict.

    Args:
        result: What the study found.
    """
    rows = []
    for found in result.claims:
        pair, claim = found.comparison, claimed(found.claim, result.unit)
        size = "none claimed" if found.claim.difference is None else found.p_size
        rows.append(cells([claim, found.decision, pair.mean, pair.low, pair.high, found.p, size, pair.needed]))
    tests = result.claims[0].tests if result.claims else 1
    corrected = f" corrected for {tests} tests (Holm)" if tests > 1 else ""
    columns = (
        "Claim",
        "Verdict",
        "Mean",
        "Low",
        "High",
        "p of no difference",
        "p of the claimed difference",
        "Seeds needed",
    )
    caption = (
        f"Differences of the two arms of each claim in {result.unit}, their {percent(result.confidence)} t-intervals "
        f"(not corrected), and p-values{corrected}. {T_COVERAGE}{_caution(result)}"
    )
    return Table(caption, columns, tuple(rows))


def unfinished_table(result: StudyResult) -> Table | None:
    """Return the runs that did not finish, and why; None where all did.

    Args:
        result: What the study found.
    """
    dataset = result.dataset
    rows = [
        cells(
            [
                str(arm),
                int(seed),
                str(dataset["status"].values[row, column]),
                str(dataset["reason"].values[row, column]),
            ]
        )
        for row, arm in enumerate(dataset["arm"].values)
        for column, seed in enumerate(dataset["seed"].values)
        if dataset["status"].values[row, column] != FINISHED
    ]
    if not rows:
        return None
    return Table(
        "Runs that did not finish; they are excluded from every mean and pair",
        ("Arm", "Seed", "Ended", "Why"),
        tuple(rows),
    )


def _caution(result: StudyResult) -> str:
    """Return the warning of a table of differences about learning rates at an end of the grid; empty without one."""
    warning = about_grid_ends(result.arms)
    return f". {warning.removesuffix('.')}" if warning else ""


def _needed(pair: PairedComparison) -> Cell:
    if pair.detectable is None:
        return Cell(UNDEFINED, undefined=True)
    if pair.needed is None:
        return Cell(f"over {count(_MOST_SEEDS)}", sort=str(_MOST_SEEDS))
    return Cell(count(pair.needed), sort=str(pair.needed), value=pair.needed)
