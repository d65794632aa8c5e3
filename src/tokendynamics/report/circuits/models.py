"""The pages of transformers that were built, examined or learned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from tokendynamics.circuits import OneLayerTransformer
from tokendynamics.circuits.constructions.comparison import Answer, TaskComparison
from tokendynamics.circuits.evidence import Evidence
from tokendynamics.circuits.evidence import evidence as measure_evidence
from tokendynamics.circuits.evidence.instrument import Estimate, Instrument
from tokendynamics.circuits.evidence.verdict import TAKES_PART
from tokendynamics.circuits.learning import LearningRecord
from tokendynamics.circuits.learning.record import SOLVED
from tokendynamics.figures.drawing import drawing
from tokendynamics.figures.figure import Cell, Figure, Section, Table, cells
from tokendynamics.figures.fits import Fit, Fits, Level, LossesOverSteps
from tokendynamics.figures.palette import AXIS, GREEN, ORANGE
from tokendynamics.figures.rows import Intervals, Row
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.report._page import conventions, page_of
from tokendynamics.report.circuits.page import (
    CircuitsReport,
    attention_weights,
    circuits_page,
    feed_forward_weights,
    functional_beside_block,
    model_facts,
    task_facts,
)
from tokendynamics.words import count, number, percent, plural


def answers_table(answers: tuple[Answer, ...]) -> Table:
    """List every token of the given sequences: category, target, output and error."""
    rows = [
        cells([index, place, int(category), float(target), float(output), float(output - target)])
        for index, answer in enumerate(answers, start=1)
        for place, (category, target, output) in enumerate(
            zip(answer.x, answer.targets, answer.outputs, strict=True), start=1
        )
    ]
    columns = ("Sequence", "Token", "Category X", "Target Y", "Output", "Output − target")
    return Table("Targets and outputs", columns, tuple(rows))


def answers_figure(comparison: TaskComparison) -> Figure:
    """Draw targets as rings and outputs as discs: exact where the disc lies in its ring."""
    answers = comparison.answers[:4]
    question = "What is the output for each token?"
    worst = max((answer.largest_error for answer in answers), default=0.0)
    return Figure(
        "answers",
        question,
        "The label below a token is its category. The target is q_true of the previous and the current "
        "category; the first token has the target 0 and is not part of any loss.",
        Fits(
            [
                Fit([str(int(category)) for category in answer.x], answer.targets.tolist(), answer.outputs.tolist())
                for answer in answers
            ],
            "Category of the token",
        ),
        answers_table(comparison.answers),
        title=f"{question} Targets and outputs",
        description=f"{plural(len(answers), 'sequence')}; largest error from the second token on: {number(worst)}.",
    )


def instruments_table(evidence: Evidence) -> Table:
    """List each instrument with its role, its reading, its headline estimate and its result."""
    rows = tuple(
        (
            Cell(f"{index}. {instrument.name}"),
            Cell(_role(evidence, instrument)),
            Cell(instrument.reading),
            Cell(f"{instrument.estimates[0].name}: {number(instrument.estimate)}"),
            Cell(_interval(instrument.estimates[0])),
            Cell(instrument.sentence),
        )
        for index, instrument in enumerate(evidence.instruments, start=1)
    )
    columns = ("Instrument", "Role", "Reading", "Estimate", f"{percent(evidence.confidence)} CI", "Result")
    return Table(
        "The five instruments: path patching and ablation decide, the others support or question the verdict",
        columns,
        rows,
    )


def thresholds_table(evidence: Evidence) -> Table:
    """Return the verdict at each threshold."""
    columns = ("Threshold", *(percent(share) for share in evidence.by_threshold))
    row = (Cell("Verdict"), *(Cell(verdict) for verdict in evidence.by_threshold.values()))
    return Table(
        f"Verdict by threshold: the share of the interaction from which a part counts ({percent(TAKES_PART)} here)",
        columns,
        (row,),
    )


def instruments_figure(evidence: Evidence) -> Figure:
    """Draw all numbers of all instruments with their intervals on one axis."""
    drawn = [
        (instrument, estimate)
        for instrument in evidence.instruments
        for estimate in instrument.estimates
        if estimate.value is not None
    ]
    # Shares lie in 0 … 1; a rise of the loss can exceed that, and is cut at 2.
    ends = [end for _, one in drawn for end in (one.value, one.low, one.high) if end is not None]
    domain = (-0.25 if ends and min(ends) < -0.03 else 0.0), (min(2.0, max(1.0, *ends)) if ends else 1.0)
    rows: list[Row] = []
    former = ""
    for instrument, estimate in drawn:
        if instrument.name != former:
            rows.append(Row(instrument.name))
        former = instrument.name
        rows.append(Row(estimate.name, estimate.value, estimate.low, estimate.high, number(estimate.value)))
    question = "How large is the effect in each instrument?"
    rule = (TAKES_PART, f"threshold: {number(TAKES_PART)}")
    estimates = (f"{instrument.name}, {one.name} {one.written(evidence.confidence)}" for instrument, one in drawn)
    estimate_rows = [
        cells([instrument.name, estimate.name, estimate.value, estimate.low, estimate.high])
        for instrument in evidence.instruments
        for estimate in instrument.estimates
    ]
    columns = ("Instrument", "Quantity", "Estimate", "Lower end", "Upper end")
    return Figure(
        "evidence-numbers",
        question,
        f"Shares, |correlations| and R² with their {percent(evidence.confidence)} confidence intervals. A part "
        f"counts if its whole interval lies above the dashed line at {number(TAKES_PART)}. Values above 2 are drawn at "
        "the edge.",
        Intervals(rows, domain, rule),
        Table(
            f"Every estimate with its {percent(evidence.confidence)} confidence interval", columns, tuple(estimate_rows)
        ),
        title=f"{question} Estimates with confidence intervals",
        description=f"{'; '.join(estimates)}.",
    )


def _role(evidence: Evidence, instrument: Instrument) -> str:
    role = "decides" if instrument.name in ("path patching", "ablation") else "supports"
    return {True: f"{role}, agrees", False: f"{role}, disagrees", None: role}[evidence.agrees(instrument)]


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "undefined"
    return f"{number(estimate.low)} to {number(estimate.high)}"


def loss_curves(records: Sequence[LearningRecord]) -> Figure:
    """Draw the loss on fresh sequences over outer steps, log scale.

    Args:
        records: Runs of one model that differ by their seed.
    """
    runs = [np.array((*record.losses, record.final_loss)) for record in records]
    task = records[0].task
    levels = (
        Level("best sum of two functions (no logic)", task.interaction_variance, ORANGE, (5, 3)),
        Level("best constant", task.variance, AXIS, (1, 3)),
        Level("solved", SOLVED * task.variance, GREEN, (9, 3)),
    )
    question = "How fast do the models learn, and do all seeds solve the task?"
    solved = sum(record.solved for record in records)
    finals = np.array([record.final_loss for record in records])
    steps = max(len(record.losses) for record in records)
    rows = []
    for step in range(steps):
        losses = [record.losses[step] if step < len(record.losses) else None for record in records]
        rows.append(cells([step, *losses]))
    rows.append(cells(["end", *(record.final_loss for record in records)]))
    columns = ("Outer step", *(f"Seed {record.seed}" for record in records))
    return Figure(
        "learning-losses",
        question,
        "Mean squared error over the tokens from the second on, without penalty, log scale. It is measured on "
        "fresh sequences before each outer step of L-BFGS and after the last one. Solved: at most 1 % of the variance "
        "of the targets remains.",
        LossesOverSteps(
            [np.where(np.isfinite(run) & (run > 0), run, np.nan) for run in runs],
            [level for level in levels if 0 < level.loss < math.inf],
            ("Outer step", "Mean squared error (log scale)"),
        ),
        Table("Mean squared error before each outer step, and at the end", columns, tuple(rows)),
        title=f"{question} Mean squared error over outer steps",
        description=f"{plural(len(records), 'seed')}: median of the final loss {number(float(np.median(finals)))}, "
        f"from {number(float(finals.min()))} to {number(float(finals.max()))}; {solved} solved. "
        "The table below lists every value.",
    )


_CONVENTIONS = ("tokens", "sender_first", "pair_loss", "interaction")
Meant = Literal["exact", "approximate", "wrong"]
"""What a construction should be: exact, correct up to an error that no weights remove, or wrong as printed."""


@drawing()
def built_report(
    comparison: TaskComparison, manifest: Mapping[str, Any], files: Sequence[str], *, meant: Meant
) -> CircuitsReport:
    """Return the page of a hand-built transformer.

    Args:
        comparison: Its outputs and the targets.
        manifest: See `manifest`.
        files: Data files beside the page.
        meant: "wrong" for a construction as printed, which shows how it fails; "approximate" for one that no weights
            make exact.
    """
    model = comparison.model
    answer = "Exact" if comparison.exact else f"Wrong for {plural(len(comparison.wrong), 'pair')} of categories"
    if meant == "approximate" and not comparison.exact:
        answer = f"Correct up to {number(comparison.relative_error)} standard deviations"
    if not comparison.has_pairs:
        answer = "Nothing to check"
    findings = list(comparison.sentences)
    if meant == "wrong":
        findings.append("This is the construction as printed in the paper; the page shows where it fails.")
    if comparison.exact:
        wrong_table = ()
    else:
        rows = [cells([pair.previous, pair.current, pair.target, pair.output]) for pair in comparison.wrong[:40]]
        more = len(comparison.wrong) - len(rows)
        caption = "Pairs with wrong outputs, largest error first" + (
            f" ({count(more)} more are in the data)" if more else ""
        )
        wrong_table = (Table(caption, ("Previous category", "Category", "Target", "Output"), tuple(rows)),)
    answers, wrong = (answers_figure(comparison),) if comparison.answers else (), wrong_table
    outputs = Section("answers-section", "What are its outputs?", figures=answers, tables=wrong)
    sections = (
        *((outputs,) if answers or wrong else ()),
        Section("attention-section", "The attention", figures=(attention_weights(model),)),
        Section("feed-forward-section", "The feed-forward part", figures=(feed_forward_weights(model),)),
        Section("task-section", "The task", figures=(functional_beside_block(model, model.task),)),
    )
    return CircuitsReport(
        question="does it compute the functional of adjacent categories?",
        name=model.name,
        answer=answer,
        findings=tuple(findings),
        facts=(*task_facts(model.task), *model_facts(model)),
        sections=sections,
        conventions=conventions(*_CONVENTIONS),
        manifest=manifest,
        files=tuple(files),
    )


@drawing()
def evidence_report(
    model: OneLayerTransformer, evidence: Evidence, manifest: Mapping[str, Any], files: Sequence[str]
) -> CircuitsReport:
    """Return the page of one transformer and the five instruments.

    Args:
        model: The transformer.
        evidence: Its evidence.
        manifest: See `manifest`.
        files: Data files beside the page.
    """
    sections = (_instruments_section(evidence), *_weights_sections(model, best_head(evidence)))
    return CircuitsReport(
        question="is the logic in the attention or in the feed-forward part?",
        name=model.name,
        answer=_spelt(evidence),
        findings=_evidence_findings(evidence),
        facts=(*task_facts(model.task), *model_facts(model)),
        sections=sections,
        conventions=conventions(*_CONVENTIONS, "verdict"),
        manifest=manifest,
        files=tuple(files),
    )


@drawing()
def learning_report(
    records: Sequence[LearningRecord],
    evidences: Sequence[Evidence | None],
    manifest: Mapping[str, Any],
    files: Sequence[str],
) -> CircuitsReport:
    """Return the page of models of one design, learned from several seeds; the one with the median loss is shown.

    Args:
        records: At least one, of one architecture, flavour and task but for the seeds.
        evidences: One for each record; None for a run that stopped early.
        manifest: See `manifest`.
        files: Data files beside the page.
    """
    shown = median_record(records)
    evidence = evidences[records.index(shown)]
    seeds = _seeds_section(records, evidences)
    model, head = shown.transformer, best_head(evidence) if evidence else 0
    about = f"The model shown below is that of seed {shown.seed}{why_chosen(len(records))}."
    stopped = f"The run stopped: {shown.status}. Its last finite weights are shown and were not measured."
    recipe = shown.settings
    steps, inner = plural(recipe.steps, "outer step"), plural(recipe.inner, "iteration")
    return CircuitsReport(
        question="is what it learned in the attention or in the feed-forward part?",
        name=shown.name.rpartition(", seed")[0],
        answer=_learned_answer(shown, evidence),
        findings=(*seeds.sentences, about, *(_evidence_findings(evidence) if evidence else (stopped,))),
        facts=(
            *task_facts(shown.task),
            ("Recipe", f"L-BFGS, {steps} of up to {inner}, each on {plural(recipe.batch, 'fresh sequence')}"),
            *model_facts(model),
        ),
        sections=(seeds, *([_instruments_section(evidence)] if evidence else []), *_weights_sections(model, head)),
        conventions=conventions(*_CONVENTIONS, "verdict"),
        manifest=manifest,
        files=tuple(files),
    )


def _learned_answer(shown: LearningRecord, evidence: Evidence | None) -> str:
    if evidence is None:
        return "Stopped early"
    return _spelt(evidence) if shown.solved else f"Not solved; {_spelt(evidence).lower()}"


def median_record(records: Sequence[LearningRecord]) -> LearningRecord:
    """Return the run with the (lower) median of the final losses; runs that became not finite come last."""
    ordered = sorted(records, key=lambda record: (not np.isfinite(record.final_loss), record.final_loss))
    return ordered[(len(ordered) - 1) // 2]


def why_chosen(runs: int) -> str:
    """Return why `median_record` chose the run, as a clause; nothing where there is one.

    >>> why_chosen(3), why_chosen(2)
    (', which has the median loss', ', which has the lower of the two middle losses')
    """
    which = "median loss" if runs % 2 else "lower of the two middle losses"
    return f", which has the {which}" if runs > 1 else ""


def best_head(evidence: Evidence) -> int:
    """Return the head whose category block is most like q_true, from 0."""
    heads = evidence.instrument("correlation").details.get("heads", [])
    return max(heads, key=lambda head: head["centred"])["head"] if heads else 0


def _seeds_section(records: Sequence[LearningRecord], evidences: Sequence[Evidence | None]) -> Section:
    finals = np.array([record.final_loss for record in records])
    solved = sum(record.solved for record in records)
    spread = f"from {number(float(finals.min()))} to {number(float(finals.max()))}" if len(records) > 1 else "one run"
    rows = tuple(
        (
            *cells([record.seed, record.final_loss, record.relative_loss]),
            Cell("yes" if record.solved else "no"),
            *cells(
                [
                    evidence and evidence.instrument("correlation").estimate,
                    evidence.verdict if evidence else "not measured",
                ]
            ),
            *cells([record.status, record.seconds]),
        )
        for record, evidence in zip(records, evidences, strict=True)
    )
    columns = (
        "Seed", "Final loss", "Share of variance", "Solved", "Centred |correlation|", "Verdict", "Status", "Seconds",
    )  # fmt: skip
    return Section(
        "seeds-section",
        "Did it learn?",
        sentences=(
            f"{solved} of {plural(len(records), 'seed')} solved the task: at most {percent(SOLVED)} of the variance "
            "remains. The median final loss, on fresh test sequences, is "
            f"{number(float(np.median(finals)))} ({spread}).",
        ),
        tables=(Table("Runs by seed", columns, rows),),
        figures=(loss_curves(records),),
    )


def _weights_sections(model: OneLayerTransformer, head: int) -> tuple[Section, ...]:
    return (
        Section(
            "task-section",
            "Does the category block resemble q_true?",
            figures=(functional_beside_block(model, model.task, head),),
        ),
        Section("attention-section", "The attention", figures=(attention_weights(model),)),
        Section("feed-forward-section", "The feed-forward part", figures=(feed_forward_weights(model),)),
    )


def _instruments_section(evidence: Evidence) -> Section:
    return Section(
        "evidence-section",
        "What do the instruments show?",
        tables=(instruments_table(evidence), thresholds_table(evidence)),
        figures=(instruments_figure(evidence),),
    )


def _spelt(evidence: Evidence) -> str:
    return {
        "attention": "The attention",
        "feed-forward": "The feed-forward part",
        "both": "Both parts",
        "either": "Either part",
        "undecided": "Undecided",
    }[evidence.verdict]


def _evidence_findings(evidence: Evidence) -> tuple[str, ...]:
    loss = "is not finite" if evidence.loss is None else f"is {number(evidence.loss)}"
    return (
        evidence.sentence,
        f"On the {plural(evidence.samples, 'sequence')} of this evidence the mean squared error of the model {loss}. "
        f"Without logic it is at least {number(evidence.interaction_variance)}, the variance of q_true’s interaction.",
    )


@page_of.register(TaskComparison)
def built_page(comparison: TaskComparison) -> str:
    """Return the page of a hand-built transformer.

    Args:
        comparison: Its outputs and the targets.
    """
    return circuits_page(built_report(comparison, {}, (), meant="exact"))


@page_of.register(Evidence)
def evidence_page(result: Evidence) -> str:
    """Return the page of a transformer and the five instruments.

    Args:
        result: The evidence.

    Raises:
        ArgumentValueError: It does not hold the model.
    """
    if result.model is None:
        raise ArgumentValueError("result", "evidence with its model", "model=None", "measure the model again")
    return circuits_page(evidence_report(result.model, result, {}, ()))


@page_of.register(LearningRecord)
def learning_page(record: LearningRecord) -> str:
    """Return the page of one run of `learn`, whose model is measured for it where the run finished.

    Args:
        record: The record of the run.
    """
    measurable = record.status == "finished" and record.task.positions > 1
    measured = measure_evidence(record.transformer, record.task, seed=record.seed) if measurable else None
    return circuits_page(learning_report([record], [measured], {}, ()))
