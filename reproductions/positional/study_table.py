"""A table of trained arms: claims tested by a study, printed numbers beside ours, and what its controls say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from reproductions.drawing import dot_rows, footnote
from reproductions.positional.printed import Column, as_printed, both_prints, in_the_text, less
from reproductions.positional.trained import digest_of, working_folder
from reproductions.published import published
from reproductions.record import Quantity, Record, measured, timed
from tokendynamics import figures
from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.extras import require
from tokendynamics.numerics.intervals import T_COVERAGE
from tokendynamics.provenance.progress import Progress, reporting
from tokendynamics.specification.examples import example_text
from tokendynamics.sweeps.study import PairedComparison, StudyPlan, StudyResult, TestedClaim, parse_plan, study
from tokendynamics.sweeps.study.paired import compared
from tokendynamics.sweeps.study.result import dataset_of
from tokendynamics.training import train
from tokendynamics.training.record import FINISHED
from tokendynamics.words import signed

TIED, W_ONLY = "tied", "w_only"
"""Controls: V tied to W without any sign, and the sign of W alone."""


@dataclass(frozen=True)
class Table:
    """A printed table, and the small study in its place.

    Attributes:
        title: What it shows, in a line.
        figure: Its number, and that of the table with its standard deviations.
        example: The study's name.
        columns: The printed ones; the study has the measure of the first.
        orders: Every pair of arms, better and worse, that the paper's text and numbers put in that order.
        called: Names of the study's arms, in words.
        paper: What the paper trains, and the presets of that.
        arithmetic: What the paper says of its own numbers, beside what they give.
    """

    title: str
    figure: str
    example: str
    columns: tuple[Column, ...]
    orders: tuple[tuple[str, str], ...]
    called: Mapping[str, str]
    paper: str
    arithmetic: tuple[Quantity, ...] = ()

    @timed
    def reproduce(
        self,
        *,
        steps: int | None = None,
        seeds: int | None = None,
        folder: str | Path | None = None,
        progress: bool | Progress = False,
    ) -> Record:
        """Run the study and test what the table claims.

        Args:
            steps: None for the study as it is; of runs of tiny networks without tuning, to see that all works.
            seeds: Of these, how many; None for all.
            folder: Where runs are kept and taken from.
            progress: Of the runs.
        """
        require("sweeps", "folder", "studies of many trainings", error=CheckpointError)
        whole = plan_of(self.example)
        plan, run = (whole, studied) if steps is None else (short(whole, steps, seeds), in_this_process)
        with working_folder(folder) as place, reporting(progress) as report:
            result = run(plan, place, report)
        return Record(
            paper="positional",
            figure=self.figure,
            statement=f"Reduced: {size_of(plan)}, in the place of {self.paper}. {said(self, result)} {T_COVERAGE}.",
            quantities=quantities(self, result),
            invented=f"size and data, learning rates tuned for every arm on {_tuned_on(plan)}, claims tested on a "
            f"split that nothing was chosen on: what `tokendynamics study --example {self.example}` prints",
            seed=result.seeds[0],
            results={"found": result, "called": self.called},
        )

    def draw(self, record: Record) -> Figure:
        """Draw every arm and seed, and the differences from the reference."""
        return drawn(record)


def table(name: str) -> Table:
    """Return a table by the name of its study, as published.toml has it."""
    entry = dict(published("positional", name).entry)
    columns = tuple(
        Column(**{**column, "rows": {arm: (mean, deviation) for arm, (mean, deviation) in column["rows"].items()}})
        for column in entry.pop("columns")
    )
    arithmetic = [
        in_the_text(
            row["words"], row["printed"], columns[row["column"]].difference(*row["arms"]), row.get("within", 0.0)
        )
        for row in entry.pop("in_the_text", ())
    ]
    arithmetic += [both_prints(columns)] if any(column.again for column in columns) else []
    orders = tuple((better, worse) for better, worse in entry.pop("orders"))
    return Table(example=name, columns=columns, orders=orders, arithmetic=tuple(arithmetic), **entry)


TABLES = {name: table(name) for name in ("table1", "table2", "table3")}


DATA = {"pydoc": "the help pages of CPython", "python-doc": "the manual of Python", "digits": "scikit-learn's digits"}

_TINY: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}
_LITTLE = {"held_out": 0.01}


def plan_of(example: str) -> StudyPlan:
    """Return the study that ``tokendynamics study --example NAME`` prints."""
    return parse_plan(example_text(example), f"{example}.toml")


def studied(plan: StudyPlan, folder: Path, report: Progress) -> StudyResult:
    """Run a study in a folder of its name, or go on with it where it was stopped."""
    return study(plan, folder / "studies" / plan.name, resume=True, progress=report)


def size_of(plan: StudyPlan) -> str:
    """Say how large a study's networks are, and what they learn."""
    experiment = next(iter(plan.arms.values()))
    model, recipe = experiment.model, experiment.recipe
    return (
        f"{model['num_hidden_layers']} layers of {model['hidden_size']}, {recipe.steps} steps of {recipe.batch}, on "
        f"{DATA.get(experiment.data, experiment.data)}"
    )


def short(plan: StudyPlan, steps: int, seeds: int | None) -> StudyPlan:
    """Return a plan of few steps of tiny networks on the first seeds, without tuning, to see that all works."""
    table = plan.tables.study
    tables = plan.tables.model_copy(
        update={"tuning": None, "study": table.model_copy(update={"seeds": table.seeds[:seeds]})}
    )
    recipe = {"steps": steps, "warmup": 0, "evaluate_every": steps}
    arms = {
        arm: experiment.changed(model=_TINY, recipe=recipe, options=_LITTLE if "held_out" in experiment.options else {})
        for arm, experiment in plan.arms.items()
    }
    return replace(plan, tables=tables, arms=arms)


def in_this_process(plan: StudyPlan, folder: Path, report: Progress) -> StudyResult:
    """Train one run of a short plan after the other: to start a process for each would take longer than the runs."""
    runs = [run for arm in plan.arms for run in plan.runs(arm, None)]
    place = folder / "studies" / f"{plan.name}-{digest_of(plan.identity())}"
    for done, run in enumerate(runs):
        report(done, len(runs), f"Training {plan.name}")
        train(run.experiment, place / run.place, resume=True, threads=1, loggers=())
    report(len(runs), len(runs), f"Training {plan.name}")
    return StudyResult(dataset_of(plan, place))


def _tuned_on(plan: StudyPlan) -> str:
    """Return on which seeds learning rates were chosen."""
    seeds = [] if plan.tables.tuning is None else plan.tables.tuning.seeds
    return f"the one seed {seeds[0]}, with which nothing else is run" if len(seeds) == 1 else "seeds of their own"


def quantities(table: Table, result: StudyResult) -> tuple[Quantity, ...]:
    """Return every row: claims, controls, means beside printed ones, and what the printed numbers say themselves."""
    status = result.dataset["status"].values
    rows = [row for claim in result.claims for row in claimed(table, claim, result)]
    rows += [row for pair in (*untested(table, result), *controls(result)) for row in beside(table, pair, result)]
    rows += [row for arm in result.values for row in by_itself(table, arm, result)]
    rows.append(measured("runs that did not finish", float((status != FINISHED).sum())))
    rows.append(measured("seconds of a run, median", float(result.dataset["seconds"].median())))
    rows += [as_printed(column, *pair, table.called) for column in table.columns for pair in table.orders]
    return (*rows, *table.arithmetic)


def claimed(table: Table, tested: TestedClaim, result: StudyResult) -> list[Quantity]:
    """Return the verdict of a claim, and beside it its interval and what this number of seeds can detect.

    Args:
        table: With the printed difference.
        tested: The claim as the study tested it.
        result: Of the study.
    """
    pair, column = tested.comparison, table.columns[0]
    words = _difference(table, pair, result)
    printed = f" (printed for {column.name}: {signed(column.difference(pair.arm, pair.reference))})"
    relation = "≤" if column.lower_is_better else "≥"
    mean = math.nan if pair.mean is None else pair.mean
    row = Quantity(f"{words}{printed}", 0.0, mean, 0.0, relation, "reading")
    if tested.decision == "cannot be decided at this size":
        row = replace(row, unsettled=_undecided(tested))
    elif tested.decision == "does not hold":
        row = replace(row, reason=f"it is the other way round, p = {tested.p:.2g} corrected for {tested.tests} tests")
    rows = [row, *_ends(words, pair, result)]
    if pair.detectable is not None:
        needed = math.inf if pair.needed is None else float(pair.needed)
        rows.append(measured(f"{words}: smallest difference detectable with 80 % probability", pair.detectable))
        rows.append(measured(f"{words}: seeds that separate one as large as ours at 80 %", needed))
    return rows


def _undecided(tested: TestedClaim) -> str:
    pair = tested.comparison
    if pair.detectable is None or tested.p is None:
        return f"{len(pair.seeds)} paired seeds finished"
    needed = "more than 100,000 seeds" if pair.needed is None else f"{pair.needed:,} seeds"
    return (
        f"cannot be decided at this size: p = {tested.p:.2g} corrected for {tested.tests} tests; "
        f"{len(pair.seeds)} seeds separate {pair.detectable:.2g} with a probability of 80 %, "
        f"one as large as this takes {needed}"
    )


def _difference(table: Table, pair: PairedComparison, result: StudyResult) -> str:
    return f"{_unit(result)}: {less(table.called[pair.arm], table.called[pair.reference])}"


def _unit(result: StudyResult) -> str:
    return result.measure.replace("_", " ")


def _ends(words: str, pair: PairedComparison, result: StudyResult) -> list[Quantity]:
    ends, percent = (("lower", pair.low), ("upper", pair.high)), f"{100 * result.confidence:.4g} %"
    return [
        measured(f"{words}: {end} end of its {percent} interval", value) for end, value in ends if value is not None
    ]


def untested(table: Table, result: StudyResult) -> list[PairedComparison]:
    """Return the pairs that the paper orders and the study has no claim of."""
    claims = {(tested.claim.better, tested.claim.worse) for tested in result.claims}
    return [_compared(result, *pair) for pair in table.orders if pair not in claims and set(pair) <= set(result.values)]


def controls(result: StudyResult) -> list[PairedComparison]:
    """Return the control arms beside the reference, and what signs add to the tie; none without such arms."""
    arms = list(result.values)
    pairs = [(arm, result.reference) for arm in (TIED, W_ONLY) if arm in arms]
    if TIED in arms:
        pairs += [(arm, TIED) for arm in arms if arm not in (TIED, W_ONLY, result.reference)]
    return [_compared(result, *pair) for pair in pairs]


def _compared(result: StudyResult, arm: str, reference: str) -> PairedComparison:
    settings: dict[str, Any] = {"confidence": result.confidence, "lower_is_better": result.lower_is_better}
    return compared(arm, reference, result.values, result.seeds, **settings)


def beside(table: Table, pair: PairedComparison, result: StudyResult) -> list[Quantity]:
    """Return a difference that the study has no claim of, with its interval."""
    words = _difference(table, pair, result)
    return [measured(words, math.nan if pair.mean is None else pair.mean), *_ends(words, pair, result)]


def by_itself(table: Table, arm: str, result: StudyResult) -> list[Quantity]:
    """Return an arm's mean and standard deviation beside the printed ones, with which they are not compared."""
    values, column = np.array(list(result.values[arm].values())), table.columns[0]
    rate = float(result.dataset["learning_rate"].sel(arm=arm))
    end = next(arm_result.learning_rate_at_end for arm_result in result.arms if arm_result.name == arm)
    rows = [measured(f"{table.called[arm]}: learning rate" + (f", the {end} tried" if end else ""), rate)]
    if not len(values):
        return rows
    spread = float(values.std(ddof=1)) if len(values) > 1 else math.nan
    numbers = ((f"mean of {len(values)} seeds", float(values.mean())), ("standard deviation over seeds", spread))
    printed = column.rows.get(arm)
    for place, (words, value) in enumerate(numbers):
        name = f"{table.called[arm]}: {_unit(result)}, {words}"
        if printed is None:
            rows.append(measured(name, value))
        else:
            name = f"{name}, beside {column.name} (not comparable)"
            rows.append(Quantity(name, printed[place], value, math.nan, "measured", "paper"))
    return rows


def said(table: Table, result: StudyResult) -> str:
    """Say what became of the claims, where a gap comes from, and what the printed numbers themselves separate."""
    claims = "; ".join(
        f"{table.called[tested.claim.better]} better than {table.called[tested.claim.worse]}: {tested.decision}"
        for tested in result.claims
    )
    gap = about_gap(table, result)
    return f"{claims[0].upper()}{claims[1:]}.{gap and f' {gap}'} {about_print(table)}"


def about_print(table: Table) -> str:
    """Say which of the paper's own differences its own standard deviations do not separate."""
    unclear = {
        column.name: [
            f"{table.called[better]} from {table.called[worse]}"
            for better, worse in table.orders
            if as_printed(column, better, worse, table.called).verdict == "cannot tell"
        ]
        for column in table.columns
    }
    named = "; ".join(f"{', '.join(pairs)} ({name})" for name, pairs in unclear.items() if pairs)
    return f"What the paper prints of five runs {f'does not tell {named}' if named else 'tells all arms apart'}."


def about_gap(table: Table, result: StudyResult) -> str:
    """Say by what the regimes differ from the reference: the tie of V to W, or signs; empty without the controls."""
    by_pair = {(pair.arm, pair.reference): pair for pair in controls(result)}
    tie = by_pair.get((TIED, result.reference))
    if tie is None:
        return ""
    signs = [pair for (_, other), pair in by_pair.items() if other == TIED]
    separated = [f"{table.called[pair.arm]} {_better(pair)}" for pair in signs if pair.verdict == "separated"]
    w_only = by_pair.get((W_ONLY, result.reference))
    parts = [f"the tie of V to W without any sign is {_against(tie)}"]
    parts += [f"the sign of W alone is {_against(w_only)}"] if w_only else []
    added = f"is separated ({', '.join(separated)})" if separated else "is not separated"
    parts.append(f"what signs add to the tie {added}")
    return f"Beside {table.called[result.reference]} {'; '.join(parts)}."


def _better(pair: PairedComparison) -> str:
    return "better" if pair.better else "worse"


def _against(pair: PairedComparison) -> str:
    return _better(pair) if pair.verdict == "separated" else "not separated"


def drawn(record: Record) -> Figure:
    """Draw the measure of every arm and seed, and the differences from the reference, seed by seed."""
    result: StudyResult = record.results["found"]
    called: Mapping[str, str] = record.results["called"]
    unit, reference = _unit(result), called[result.reference]
    rows = {called[arm]: list(values.values()) for arm, values in result.values.items() if values}
    apart = {called[pair.arm]: pair.differences for pair in result.comparisons if pair.differences}
    titles = [f"{unit}, test split", f"less {reference}, seed by seed"]
    figure, (left, right) = figures.panels(2, width=figures.DOUBLE, height=1.4 + 0.3 * len(rows), titles=titles)
    dot_rows(left, rows, unit, scale="linear")
    dot_rows(right, apart, f"difference in {unit}", scale="linear")
    right.axvline(0.0, color="0.6", lw=0.8, zorder=0.5)
    return footnote(figure, record, f"{record.statement} Circles: seeds; bars: medians.")
