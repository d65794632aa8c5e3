"""The page of a study: significant differences, validation curves, tokens through the layers, how the runs ended."""

from __future__ import annotations

from dataclasses import replace

from tokendynamics.figures.figure import NO_MARKUP, Cell, Section, Table, cells
from tokendynamics.numerics.intervals import T_COVERAGE
from tokendynamics.report._page import made, piece, render, shortened
from tokendynamics.report._registry import page_of
from tokendynamics.report.training._differences import differences
from tokendynamics.report.training._study_figures import layers, validation
from tokendynamics.report.training._through_layers import ATTENTION_ALONE
from tokendynamics.report.training._tuning import tuning
from tokendynamics.sweeps.study import PairedComparison, StudyResult
from tokendynamics.sweeps.study.words import ONE_SEED, about_grid_ends, about_runs, claimed, verdict_of
from tokendynamics.training.record import FINISHED
from tokendynamics.words import UNDEFINED, Convention, count, percent, plural

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


_QUESTION = "which differences are significant?"


@page_of.register(StudyResult)
def study_page(result: StudyResult) -> str:
    """Return the whole page as HTML that needs nothing else; all text that came from a user is escaped.

    Args:
        result: From `tokendynamics.sweeps.study.study` or `open_study`.
    """
    record = result.manifest
    attributes = result.dataset.attrs
    specification = str(attributes.get("specification", ""))
    return render(
        "training.html.jinja",
        title=f"{result.name}: {_QUESTION}",
        verdict_title="Result",
        sections=_sections(result),
        conventions=_CONVENTIONS,
        manifest={name: shortened(value) for name, value in record.items()},
        files=result.files,
        scripts=("shared.js",),
        sheets=("page.css",),
        about=piece("specification.html.jinja", text=specification) if specification else NO_MARKUP,
        kind="study",
        name=result.name,
        question=_QUESTION,
        shape=_shape(result),
        facts=[("Preset", str(attributes.get("preset", ""))), ("Reference", result.reference), *made(record)],
        answer=result.answer,
        findings=result.findings,
        details=result.details,
    )


def _shape(result: StudyResult) -> str:
    better = "lower" if result.lower_is_better else "higher"
    return (
        f"{plural(len(result.arms), 'arm')}, each trained with {plural(len(result.seeds), 'seed')}, and compared by "
        f"{result.unit} on the test split: {better} is better"
    )


def _sections(result: StudyResult) -> list[Section]:
    lost, tuned = unfinished_table(result), "tuning" in result.dataset
    claims = [Section("claims", "Do the claims hold?", tables=(claims_table(result),))] if result.claims else []
    rates = (
        [
            Section(
                "tuning",
                "Was every arm tuned well enough?",
                _of_tuning(result),
                figures=(tuning(result),),
            )
        ]
        if tuned
        else []
    )
    compared = (comparisons_table(result),)
    return [
        Section("differences", "Which differences are significant?", tables=compared, figures=(differences(result),)),
        *claims,
        Section("arms", "How good is each arm?", tables=(arms_table(result),)),
        Section("course", "How does each arm learn?", figures=validation(result)),
        Section("layers", "Where do the tokens go?", figures=layers(result)),
        *rates,
        Section("ends", "How did the runs end?", (about_runs(result.dataset),), tables=() if lost is None else (lost,)),
    ]


def _of_tuning(result: StudyResult) -> tuple[str, ...]:
    one_seed = (ONE_SEED,) if result.dataset.sizes["tuning_seed"] == 1 else ()
    return (about_grid_ends(result.arms) or "No chosen learning rate is at an end of the grid.", *one_seed)


_CONVENTIONS = (
    Convention(
        "Pairs",
        "runs with one seed see the same data in the same order and start from the same weights outside attention, so "
        "arms are compared seed by seed",
        "variation between seeds would count as noise and hide smaller differences",
    ),
    Convention(
        "Intervals",
        f"are t-intervals; those of a difference are over the paired seeds. {T_COVERAGE}",
        "a mean over two seeds would look as certain as one over ten",
    ),
    Convention(
        "Significant",
        "means that the confidence interval of a difference excludes zero, without a correction for several intervals",
        "among many arms that do not differ, some would differ significantly by chance: claims are corrected for that",
    ),
    Convention(
        "Claims",
        "are tested together: the probability that chance alone decides any of them is at most that of a single "
        "interval (Holm, 1979)",
        "of twenty claims about arms that do not differ, one would hold by chance",
    ),
    Convention(
        "Detectable difference",
        "is the true difference whose interval excludes zero with 80 % probability, given the number of pairs and "
        "their standard deviation, which is itself estimated from these pairs",
        "a difference that is not significant would look like no difference",
    ),
    Convention(
        "Splits",
        "learning rates are chosen on the validation split, with separate seeds; arms are compared on the test "
        "split, which chooses nothing",
        "an arm that was tuned longer would look better than it is",
    ),
    ATTENTION_ALONE,
    Convention(
        "Runs that did not finish",
        "are excluded from every mean, and their seeds from every pair",
        "the measure of an incomplete run would be compared with that of a complete one",
    ),
)
