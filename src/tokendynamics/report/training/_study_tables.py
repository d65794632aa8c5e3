"""The tables of a study: arms, comparisons, claims, and runs that did not finish."""

from __future__ import annotations

from dataclasses import replace

from tokendynamics.numerics._intervals import T_COVERAGE
from tokendynamics.report.kit._figure import Cell, Table, cells
from tokendynamics.report.training._study_result import Comparison, Study, percent_of, unit_of
from tokendynamics.report.training._study_words import SEPARATED, caution, claimed
from tokendynamics.training._record import FINISHED
from tokendynamics.words import UNDEFINED, count

_MOST_SEEDS = 100_000
"""Beyond which no number of seeds is looked for; see `tokendynamics.sweeps.study.Comparison`."""


def arms_table(result: Study) -> Table:
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
        f"{unit_of(result).capitalize()} on the test split, {better} is better: mean over the seeds that finished, and "
        f"its {percent_of(result)} t-interval; a mean of one seed has none"
    )
    return Table(caption, ("Arm", "Finished", "Learning rate", "Mean", "Low", "High"), tuple(rows))


def comparisons_table(result: Study) -> Table:
    """Return every arm beside the reference.

    Args:
        result: What the study found.
    """
    rows = []
    for pair in result.comparisons:
        differences = cells([f"{pair.arm} − {pair.reference}", len(pair.seeds), pair.mean, pair.low, pair.high, pair.p])
        rows.append((*differences, Cell(_verdict(pair)), *cells([pair.detectable]), _needed(pair)))
    columns = (
        "Difference", "Pairs", "Mean", "Low", "High", "p", "Verdict", "Separable with 80 %", "Seeds needed with 80 %",
    )  # fmt: skip
    caption = (
        f"Paired differences in {unit_of(result)} and the {percent_of(result)} t-interval of their mean; the smallest "
        "true difference that so many seeds separate with a probability of 80 %, and the seeds that one as large as "
        f"the mean needs for that. {T_COVERAGE}{caution(result)}"
    )
    return Table(caption, columns, tuple(rows))


def claims_table(result: Study) -> Table:
    """Return every claim with its verdict.

    Args:
        result: What the study found.
    """
    rows = []
    for found in result.claims:
        pair, claim = found.comparison, claimed(found, unit_of(result))
        size = "none claimed" if found.claim.difference is None else found.p_size
        rows.append(cells([claim, found.decision, pair.mean, pair.low, pair.high, found.p, size, pair.needed]))
    tests = result.claims[0].tests if result.claims else 1
    corrected = f" corrected for {tests} tests (Holm)" if tests > 1 else ""
    columns = ("Claim", "Verdict", "Mean", "Low", "High", "p of no difference", "p of the claimed one", "Seeds needed")
    caption = (
        f"Differences of the two arms of each claim in {unit_of(result)}, the {percent_of(result)} t-interval by "
        f"itself, and p-values{corrected}. {T_COVERAGE}{caution(result)}"
    )
    return Table(caption, columns, tuple(rows))


def unfinished_table(result: Study) -> Table | None:
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
        "Runs that did not finish; they are in no mean and no pair", ("Arm", "Seed", "Ended", "Why"), tuple(rows)
    )


def _verdict(pair: Comparison) -> str:
    return f"{pair.verdict}, {'better' if pair.better else 'worse'}" if pair.verdict == SEPARATED else pair.verdict


def _needed(pair: Comparison) -> Cell:
    if pair.detectable is None:
        return Cell(UNDEFINED, undefined=True)
    if pair.needed is None:
        return Cell(f"over {count(_MOST_SEEDS)}", sort=str(_MOST_SEEDS))
    return Cell(count(pair.needed), sort=str(pair.needed), value=pair.needed)
