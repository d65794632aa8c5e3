"""The page of a study: significant differences, validation curves, tokens through the layers, how the runs ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tokendynamics.figures.axes import Axis
from tokendynamics.figures.curves import Curve, Curves, Rule, curve_keys, described, styled, thinned
from tokendynamics.figures.figure import NO_MARKUP, Cell, Figure, Given, Section, Table, cells
from tokendynamics.figures.palette import AXIS, BLUE, INK
from tokendynamics.figures.rows import Difference, Differences
from tokendynamics.figures.svg import Key
from tokendynamics.numerics.intervals import T_COVERAGE, student_quantile
from tokendynamics.numerics.printable import printable
from tokendynamics.report._page import conventions, made, page_of, piece, render, shortened
from tokendynamics.report.training._lines import MEASURES, STATES, over_steps, through_layers
from tokendynamics.sweeps.study import PairedComparison, StudyResult
from tokendynamics.sweeps.study.words import ONE_SEED, VERDICTS, about_grid_ends, about_runs, claimed, verdict_of
from tokendynamics.training.record import FINISHED
from tokendynamics.words import UNDEFINED, count, percent, plural, signed


def finished_only(result: StudyResult, name: str) -> np.ndarray:
    """Return a variable of the dataset over arms and seeds first, NaN where a run did not finish."""
    values = result.dataset[name].transpose("arm", "seed", ...)
    return values.where(result.dataset["status"] == FINISHED).transpose(*values.dims).values


def places_of(result: StudyResult) -> dict[str, int]:
    """Return which look each arm has in all figures: the first is that of the reference."""
    others = [arm.name for arm in result.arms if arm.name != result.reference]
    return {name: place for place, name in enumerate([result.reference, *others])}


def validation(result: StudyResult) -> tuple[Figure, ...]:
    """Draw the measure on the validation split over steps, and its paired differences from the reference.

    Args:
        result: What the study found.
    """
    values, steps = finished_only(result, "validation"), result.dataset["step"].values.astype(np.float64)
    places, unit, level = places_of(result), result.unit, percent(result.confidence)
    arms = [str(arm) for arm in result.dataset["arm"].values]
    lines = {
        arm: _mean_line(arm, places[arm], steps, row, result.confidence) for arm, row in zip(arms, values, strict=True)
    }
    band = f"Line: mean over the seeds that finished. Band: its {level} t-interval, from two seeds on."
    together = over_steps(
        "validation",
        "How does each arm learn?",
        unit.capitalize(),
        f"On the validation split. {band} Bands that overlap may hide a difference: arms share their seeds, see below.",
        [lines[arm] for arm in places],
    )
    reference = values[arms.index(result.reference)]
    differences = {
        arm: _mean_line(f"{arm} − {result.reference}", places[arm], steps, row - reference, result.confidence)
        for arm, row in zip(arms, values, strict=True)
    }
    better = "below" if result.lower_is_better else "above"
    apart = over_steps(
        "validation-differences",
        f"When do arms part from {printable(result.reference)}?",
        f"Difference in {unit}",
        f"On the validation split, seed by seed, over seeds that both arms finished. {band} An arm is better {better} "
        "zero. Intervals at many steps: one that excludes zero at some of them decides nothing.",
        [differences[arm] for arm in places if arm != result.reference],
        rules=(Rule(0.0, printable(result.reference), "right"),),
    )
    return together, apart


def layers(result: StudyResult) -> tuple[Figure, ...]:
    """Draw norms and distances through the layers of all networks.

    Args:
        result: What the study found.
    """
    band, ends = (
        " Line: median over the seeds that finished. Band: from the lowest to the highest.",
        ("lowest", "highest"),
    )
    return tuple(through_layers(measure, _states(result, f"token_{measure}"), band, ends) for measure in MEASURES)


def _states(result: StudyResult, name: str) -> Mapping[str, list[Curve]]:
    values, depths = finished_only(result, name), result.dataset["layer"].values.astype(np.float64)
    arms = {str(arm): place for place, arm in enumerate(result.dataset["arm"].values)}
    states = [str(state) for state in result.dataset["state"].values]
    return {
        state: [
            _median_line(arm, place, depths, values[arms[arm], :, states.index(state)])
            for arm, place in places_of(result).items()
        ]
        for state in STATES
        if state in states
    }


def _mean_line(name: str, place: int, x: np.ndarray, values: np.ndarray, confidence: float) -> Curve:
    """Return mean and t-interval over seeds, (seed, x), at places where any seed has a value."""
    there = np.isfinite(values)
    at = np.flatnonzero(there.any(axis=0))
    intervals = np.array([_interval(values[there[:, column], column], confidence) for column in at]).reshape(-1, 3)
    return thinned(styled(printable(name), place, x[at], *intervals.T))


def _interval(values: np.ndarray, confidence: float) -> tuple[float, float, float]:
    """Return the mean and the ends of its t-interval; NaN for those of one value."""
    many, mean = len(values), float(values.mean())
    if many < 2:
        return mean, math.nan, math.nan
    half = student_quantile(confidence, many - 1) * float(values.std(ddof=1)) / math.sqrt(many)
    return mean, mean - half, mean + half


def _median_line(name: str, place: int, x: np.ndarray, values: np.ndarray) -> Curve:
    at = np.flatnonzero(np.isfinite(values).any(axis=0))
    statistics = [function(values[:, at], axis=0) for function in (np.nanmedian, np.nanmin, np.nanmax)]
    return styled(printable(name), place, x[at], *statistics)


_TUNING_QUESTION = "Was every arm tuned well enough?"
_CONVENTIONS = (
    "pairs", "t_intervals", "significant", "claims", "detectable", "study_splits", "attention", "unfinished",
)  # fmt: skip
_HEIGHT = 280
_MARGIN = 1.15
"""Factor by which the axis is wider than the grid."""


def tuning(result: StudyResult) -> Figure:
    """Draw the measure of each arm over the learning rates that were tried.

    Args:
        result: What a study with tuning found.
    """
    lines, seeds = _lines(result), ", ".join(map(str, result.dataset["tuning_seed"].values))
    if not lines:
        return Figure(
            "learning-rates", _TUNING_QUESTION, "Nothing is drawn: no learning rate was finished on all seeds."
        )
    keys = [*curve_keys([*lines.values()]), Key("one seed", "circle", INK), Key("chosen", "diamond", INK)]
    means, tried, chosen = [], [], []
    rates = np.asarray(next(iter(lines.values())).x)
    for arm, line in lines.items():
        losses = result.dataset["tuning"].sel(arm=arm, rate=rates).transpose("tuning_seed", "rate").values
        at = rates == float(result.dataset["learning_rate"].sel(arm=arm))
        means.append(replace(line, mark=""))
        tried.append(Curve("", np.tile(rates, len(losses)), losses.ravel(), line.colour, width=0, mark="ring"))
        chosen.append(Curve("", rates[at], np.asarray(line.values)[at], line.colour, width=0, mark="diamond"))
    ends = (rates[0] / _MARGIN, rates[-1] * _MARGIN)
    axis = Axis("Learning rate (log scale)", ends, log=True, at=rates.tolist(), form="~g")
    dataset = result.dataset
    tuning_seeds = dataset["tuning_seed"].values.tolist()
    table_rows = []
    for tuned in places_of(result):
        best = float(dataset["learning_rate"].sel(arm=tuned))
        for rate in dataset["rate"].values.tolist():
            runs = dataset["tuning"].sel(arm=tuned, rate=rate).values
            status = [str(word) for word in dataset["tuning_status"].sel(arm=tuned, rate=rate).values]
            outcomes: list[Given] = [
                float(value) if np.isfinite(value) else word for value, word in zip(runs, status, strict=True)
            ]
            table_rows.append(cells([tuned, rate, float(runs.mean()), *outcomes, "chosen" if rate == best else ""]))
    table_columns = ("Arm", "Learning rate", "Mean", *(f"Seed {seed}" for seed in tuning_seeds), "Choice")
    return Figure(
        "learning-rates",
        _TUNING_QUESTION,
        f"On the validation split at the end of training. Line: mean over the seeds {seeds} where all "
        "finished; rings: each of them; diamond: chosen.",
        Curves([*means, *tried, *chosen], result.unit.capitalize(), axis=axis, height=_HEIGHT),
        Table(
            f"{result.unit.capitalize()} on the validation split for each learning rate",
            table_columns,
            tuple(table_rows),
        ),
        title=f"{_TUNING_QUESTION} {result.unit.capitalize()} over learning rates",
        description=f"{described(list(lines.values()))} The table below holds every run.",
        keys=keys,
    )


def _lines(result: StudyResult) -> dict[str, Curve]:
    """Return the means of each arm that has any."""
    rates = result.dataset["rate"].values.astype(np.float64)
    order = np.argsort(rates)
    means = result.dataset["tuning"].mean("tuning_seed", skipna=False)
    lines = {
        name: styled(printable(name), place, rates[order], means.sel(arm=name).values[order])
        for name, place in places_of(result).items()
    }
    return {name: line for name, line in lines.items() if line.shown()}


_DIFFERENCES_QUESTION = "Does every seed say the same?"


def differences(result: StudyResult) -> Figure:
    """Draw every paired difference.

    Args:
        result: What the study found.
    """
    ident, unit, level = "seeds", result.unit, percent(result.confidence)
    shown = [pair for pair in result.comparisons if pair.seeds]
    if not shown:
        return Figure(
            ident, _DIFFERENCES_QUESTION, "Nothing to plot: no seed finished both in an arm and in the reference."
        )
    left, right = ("better", "worse") if result.lower_is_better else ("worse", "better")
    return Figure(
        ident,
        _DIFFERENCES_QUESTION,
        f"Each ring is one seed: the arm minus {result.reference}, on the test split. The bar is the {level} "
        f"t-interval of the mean: the difference is significant where it excludes zero. One seed has no interval, nor "
        "have equal differences. "
        f"{T_COVERAGE}.",
        Differences(
            [
                Difference(
                    printable(pair.arm),
                    pair.mean,
                    pair.low,
                    pair.high,
                    f"{_name(pair)}: {_mean(pair)}",
                    [
                        (value, f"seed {seed}: {signed(value)}")
                        for seed, value in zip(pair.seeds, pair.differences, strict=True)
                    ],
                )
                for pair in shown
            ],
            (f"← {left} · difference in {unit} · {right} →", f"← {left} · {right} →"),
            [
                Key("one seed", "circle", BLUE, width=1.5),
                Key(f"mean, {level} interval", "diamond", INK),
                Key("no difference", "line", AXIS, width=1.5),
            ],
        ),
        _differences_table(result, shown),
        title=f"{_DIFFERENCES_QUESTION} Paired differences in {unit}",
        description=f"{'; '.join(_described(pair) for pair in shown)}. The table below holds every difference.",
    )


def _described(pair: PairedComparison) -> str:
    least, most = signed(min(pair.differences)), signed(max(pair.differences))
    return f"{_name(pair)}: {plural(len(pair.seeds), 'seed')} from {least} to {most}, {VERDICTS[pair.verdict]}"


def _name(pair: PairedComparison) -> str:
    return printable(f"{pair.arm} − {pair.reference}")


def _mean(pair: PairedComparison) -> str:
    if pair.low is None or pair.high is None:
        return f"{signed(pair.mean)}, {'one seed' if len(pair.seeds) < 2 else 'equal on all seeds'}"
    return f"{signed(pair.mean)} ({signed(pair.low)} to {signed(pair.high)})"


def _differences_table(result: StudyResult, pairs: Sequence[PairedComparison]) -> Table:
    """Put the measure of every arm and seed beside the differences."""
    by_seed = [dict(zip(pair.seeds, pair.differences, strict=True)) for pair in pairs]
    rows = [
        cells(
            [
                seed,
                *(values.get(seed) for values in result.values.values()),
                *(differences.get(seed) for differences in by_seed),
            ]
        )
        for seed in result.seeds
    ]
    names = ("Seed", *result.values, *(f"{pair.arm} − {pair.reference}" for pair in pairs))
    return Table(f"{result.unit.capitalize()} on the test split, and differences, seed by seed", names, tuple(rows))


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
            rate = replace(rate, text=f"{rate.text} ({arm.learning_rate_at_end} tried)", unrounded=False)
        rows.append((name, finished, rate, *numbers))
    better = "lower" if result.lower_is_better else "higher"
    caption = (
        f"{result.unit.capitalize()} on the test split, {better} is better: mean over the finished seeds with "
        f"its {percent(result.confidence)} t-interval; one seed and equal seeds have none"
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
    for tested in result.claims:
        pair, claim = tested.comparison, claimed(tested.claim, result.unit)
        size = "none claimed" if tested.claim.difference is None else tested.p_size
        rows.append(cells([claim, tested.decision, pair.mean, pair.low, pair.high, tested.p, size, pair.needed]))
    tests = result.claims[0].tests if result.claims else 1
    corrected = f" corrected for {tests} tests (Holm)" if tests > 1 else ""
    columns = (
        "Claim", "Verdict", "Mean", "Low", "High", "p of no difference", "p of the claimed difference",
        "Seeds needed",
    )  # fmt: skip
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


_PAGE_QUESTION = "which differences are significant?"


@page_of.register(StudyResult)
def study_page(result: StudyResult) -> str:
    """Return the whole page as HTML that needs nothing else; all text that came from a user is escaped.

    Args:
        result: From `tokendynamics.sweeps.study.study` or `open_study`.
    """
    record = result.manifest
    attributes = result.dataset.attrs
    specification = str(attributes.get("specification", ""))
    arms, seeds = plural(len(result.arms), "arm"), plural(len(result.seeds), "seed")
    better = "lower" if result.lower_is_better else "higher"
    return render(
        "training.html.jinja",
        title=f"{result.name}: {_PAGE_QUESTION}",
        sections=_sections(result),
        conventions=conventions(*_CONVENTIONS, coverage=T_COVERAGE),
        manifest={name: shortened(value) for name, value in record.items()},
        files=result.files,
        about=piece("specification.html.jinja", text=specification) if specification else NO_MARKUP,
        kind="study",
        name=result.name,
        question=_PAGE_QUESTION,
        shape=f"{arms}, each trained with {seeds}, and compared by {result.unit} on the test split: {better} is better",
        facts=[("Preset", str(attributes.get("preset", ""))), ("Reference", result.reference), *made(record)],
        answer=result.answer,
        findings=result.findings,
        details=result.details,
    )


def _sections(result: StudyResult) -> list[Section]:
    lost, tuned = unfinished_table(result), "tuning" in result.dataset
    claims = [Section("claims", "Do the claims hold?", tables=(claims_table(result),))] if result.claims else []
    rates = (
        [Section("tuning", "Was every arm tuned well enough?", _of_tuning(result), figures=(tuning(result),))]
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
