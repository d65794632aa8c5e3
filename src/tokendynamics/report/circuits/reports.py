"""The content of the pages on circuits: transformers that were built, examined or learned, and loss landscapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from torch import Tensor

from tokendynamics.circuits import OneLayerTransformer, PairTask
from tokendynamics.circuits.constructions import TaskComparison
from tokendynamics.circuits.evidence import Evidence
from tokendynamics.circuits.landscape import LandscapeSurvey, StationaryPoint
from tokendynamics.circuits.learning import LearningRecord
from tokendynamics.circuits.learning.record import SOLVED
from tokendynamics.figures.drawing import drawing
from tokendynamics.figures.figure import Cell, Section, Table, cells
from tokendynamics.report.circuits._instruments import instruments_figure, instruments_table, thresholds_table
from tokendynamics.report.circuits._landscape import (
    basins_figure,
    endings_figure,
    points_matrices,
    points_table,
    stall_table,
)
from tokendynamics.report.circuits._losses import loss_curves
from tokendynamics.report.circuits._model import (
    answers_figure,
    attention_weights,
    feed_forward_weights,
    functional_beside_block,
)
from tokendynamics.report.circuits.page import CircuitsReport
from tokendynamics.words import Convention, count, number, percent, plural

_TOKENS = Convention(
    "Tokens",
    "each token is a one-hot of its category followed by a one-hot of its position; categories count from 1, and "
    "q_true has the previous category first",
    "with the previous category second, q_true and every learned block would be transposed",
)
_SENDER_FIRST = Convention(
    "kᵗq",
    "rows are the sender's features, columns the receiver's",
    "with the receiver first it would be transposed, like the matrix qk in the rest of this package",
)
_LOSS = Convention(
    "Loss",
    "the mean squared error over the tokens from the second on; the first token has no previous one",
    "with the first token, constructions that do not give 0 there would have a larger loss",
)
_EXPECTED = Convention(
    "Loss of a landscape",
    "the exact expectation over independent categories, in closed form, summed over the tokens from the second on",
    "a sample of sequences would add noise to losses and gradients",
)
_RELATIVE = Convention(
    "Gradient",
    "multiplied by the norm of the point and divided by the loss without output: it has no units and does not depend "
    "on the scaling of q against v",
    "scaling alone could make a gradient small",
)
_INTERACTION = Convention(
    "Interaction",
    "the part of q_true that is no sum f(previous) + g(current): q_true less the means of its rows and of its columns "
    "under the law, plus the mean of all; shares of logic are shares of it",
    "with sums counted as logic, a network that only adds would seem to do logic",
)
_MIXING = Convention(
    "T",
    "1 − Σ p², p the law: the probability that two categories differ, and the loss per token of always predicting the "
    "mean",
    "other measures of the diversity of categories would not give the limit T/M of the loss",
)
_VERDICT = Convention(
    "Verdict",
    "by path patching and ablation, which change the model and measure its output; a part counts from a tenth of the "
    "interaction; “either” means that each part computes most of it when the other is ablated",
    "decodable information and the appearance of weights would count although the model may not use them",
)

_PREDICTED = {
    "3.1": "the one-hot of Xᵢ₋₁ is predicted by v Σⱼ q[j, i] xⱼ, xⱼ the one-hot of Xⱼ, q over positions",
    "3.2": "the one-hot of Xᵢ₋₁ is predicted by v Σⱼ w[j, i] xⱼ, xⱼ the one-hot of Xⱼ, each column of w a softmax over "
    "positions",
    "3.3": "Yᵢ = q_true[Xᵢ₋₁, Xᵢ] is predicted by Σⱼ v[i, j] q[Xⱼ, Xᵢ], q over categories",
}

_REMARKS = {
    "3.1": "There are six families; the free parameters of each member are drawn at random. The last row is not a "
    "stationary point but lies on the path to one at infinity.",
    "3.2": "No point with finite logits is stationary. The closed simplex has stationary points at infinite logits: "
    "v = p 1ᵀ without weight on the previous token. The table shows how long gradient flow stalls near one.",
    "3.3": "Members of each family; the letters are not from the paper.",
}

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
    answers = (answers_figure(comparison),) if comparison.answers else ()
    sections = (
        Section("answers-section", "What are its outputs?", figures=answers, tables=_wrong_table(comparison)),
        Section("attention-section", "The attention", figures=(attention_weights(model),)),
        Section("feed-forward-section", "The feed-forward part", figures=(feed_forward_weights(model),)),
        Section("task-section", "The task", figures=(functional_beside_block(model, model.task),)),
    )
    return CircuitsReport(
        question="does it compute the functional of adjacent categories?",
        name=model.name,
        answer=answer,
        findings=tuple(findings),
        facts=(*_task_facts(model.task), *_model_facts(model)),
        sections=sections,
        conventions=(_TOKENS, _SENDER_FIRST, _LOSS, _INTERACTION),
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
        facts=(*_task_facts(model.task), *_model_facts(model)),
        sections=sections,
        conventions=(_TOKENS, _SENDER_FIRST, _LOSS, _INTERACTION, _VERDICT),
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
    about = f"The model shown below is that of seed {shown.seed}, which has the median loss."
    return CircuitsReport(
        question="is what it learned in the attention or in the feed-forward part?",
        name=shown.name.rpartition(", seed")[0],
        answer=_learned_answer(shown, evidence),
        findings=(*seeds.sentences, about, *(_evidence_findings(evidence) if evidence else (_broken(shown),))),
        facts=(*_task_facts(shown.task), *_recipe_facts(shown), *_model_facts(model)),
        sections=(seeds, *([_instruments_section(evidence)] if evidence else []), *_weights_sections(model, head)),
        conventions=(_TOKENS, _SENDER_FIRST, _LOSS, _INTERACTION, _VERDICT),
        manifest=manifest,
        files=tuple(files),
    )


def _learned_answer(shown: LearningRecord, evidence: Evidence | None) -> str:
    if evidence is None:
        return "Stopped early"
    return _spelt(evidence) if shown.solved else f"Not solved; {_spelt(evidence).lower()}"


def _broken(shown: LearningRecord) -> str:
    return f"The run stopped: {shown.status}. Its last finite weights are shown and were not measured."


def median_record(records: Sequence[LearningRecord]) -> LearningRecord:
    """Return the run with the (lower) median of the final losses; runs that became not finite come last."""
    ordered = sorted(records, key=lambda record: (not np.isfinite(record.final_loss), record.final_loss))
    return ordered[(len(ordered) - 1) // 2]


def best_head(evidence: Evidence) -> int:
    """Return the head whose category block is most like q_true, from 0."""
    heads = evidence.instrument("correlation").details.get("heads", [])
    return max(heads, key=lambda head: head["centred"])["head"] if heads else 0


def _seeds_section(records: Sequence[LearningRecord], evidences: Sequence[Evidence | None]) -> Section:
    finals = np.array([record.final_loss for record in records])
    solved = sum(record.solved for record in records)
    spread = f"from {number(float(finals.min()))} to {number(float(finals.max()))}" if len(records) > 1 else "one run"
    return Section(
        "seeds-section",
        "Did it learn?",
        sentences=(
            f"{solved} of {plural(len(records), 'seed')} solved the task: at most {percent(SOLVED)} of the variance "
            "remains. The median final loss, on fresh test sequences, is "
            f"{number(float(np.median(finals)))} ({spread}).",
        ),
        tables=(_seeds_table(records, evidences),),
        figures=(loss_curves(records),),
    )


def _weights_sections(model: OneLayerTransformer, head: int) -> tuple[Section, ...]:
    return (
        Section("task-section", "Does the category block resemble q_true?", figures=_beside(model, head)),
        Section("attention-section", "The attention", figures=(attention_weights(model),)),
        Section("feed-forward-section", "The feed-forward part", figures=(feed_forward_weights(model),)),
    )


def _beside(model: OneLayerTransformer, head: int) -> tuple[Any, ...]:
    return (functional_beside_block(model, model.task, head),)


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


def _wrong_table(comparison: TaskComparison) -> tuple[Table, ...]:
    if comparison.exact:
        return ()
    rows = [cells([pair.previous, pair.current, pair.target, pair.output]) for pair in comparison.wrong[:40]]
    more = len(comparison.wrong) - len(rows)
    caption = "Pairs with wrong outputs, largest error first" + (
        f" ({count(more)} more are in the data)" if more else ""
    )
    return (Table(caption, ("Previous category", "Category", "Target", "Output"), tuple(rows)),)


def _seeds_table(records: Sequence[LearningRecord], evidences: Sequence[Evidence | None]) -> Table:
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
    return Table("Runs by seed", columns, rows)


def _task_facts(task: PairTask) -> tuple[tuple[str, str], ...]:
    extremes = f"from {number(float(task.q_true.min()))} to {number(float(task.q_true.max()))}"
    variance = f"variance {number(task.variance)}, of which {number(task.interaction_variance)} is interaction"
    return (
        ("Task", f"Yᵢ = q_true[Xᵢ₋₁, Xᵢ], the previous category first, and Y₁ = 0; {_size(task.law, task.positions)}"),
        ("q_true", f"{extremes}; {variance} (the part that is no sum f(previous) + g(current))"),
    )


def _size(law: Tensor, positions: int) -> str:
    """Return N with the law, and M."""
    drawn = "equally likely"
    if not bool((law - law[0]).abs().max() < 1e-15):
        drawn = f"with probabilities {', '.join(number(float(p)) for p in law)}"
    categories = "category" if len(law) == 1 else "categories"
    return f"N = {len(law)} {categories} {drawn} and independent, M = {plural(positions, 'position')}"


def _model_facts(model: OneLayerTransformer) -> tuple[tuple[str, str], ...]:
    norm = ", LayerNorm" if model.norm is not None else ""
    mask = "causal" if model.attention.causal else "full mask"
    shape = f"{plural(len(model.ov), 'head')}, {model.attention.weights} weights, {mask}, width {model.width}"
    return (("Model", f"{shape}{norm}, {plural(model.C.shape[0], 'hidden unit')}"),)


def _recipe_facts(record: LearningRecord) -> tuple[tuple[str, str], ...]:
    recipe = record.settings
    steps, inner = plural(recipe.steps, "outer step"), plural(recipe.inner, "iteration")
    return (("Recipe", f"L-BFGS, {steps} of up to {inner}, each on {plural(recipe.batch, 'fresh sequence')}"),)


@drawing()
def landscape_report(survey: LandscapeSurvey, manifest: Mapping[str, Any], files: Sequence[str]) -> CircuitsReport:
    """Return the page of one loss landscape.

    Args:
        survey: The survey.
        manifest: See `manifest`.
        files: Data files beside the page.
    """
    runs = survey.basins
    marks = {name: (loss, survey.per_token(loss)) for name, loss in survey.marks.items()}
    ends = Section(
        "basins-section",
        "Where does descent end?",
        figures=(basins_figure(runs), endings_figure(runs, marks)),
    )
    descent = f"{plural(len(runs.runs), 'start')}, {runs.method}, at most {plural(runs.budget, 'step')}"
    return CircuitsReport(
        question="where can descent end?",
        name=survey.name,
        answer=survey.answer,
        findings=survey.claims,
        facts=(
            ("Task", f"{_PREDICTED[survey.section]}; {_size(survey.landscape.law, survey.landscape.positions)}"),
            ("Descent", f"{descent}, seed {runs.seed}"),
        ),
        sections=(_points_section(survey), ends),
        conventions=(_SENDER_FIRST, _EXPECTED, _RELATIVE, _INTERACTION if survey.section == "3.3" else _MIXING),
        manifest=manifest,
        files=tuple(files),
    )


def _points_section(survey: LandscapeSurvey) -> Section:
    points = [point for point, _ in survey.points]
    shown = (points_matrices(_one_each(points), positions_attend=survey.section != "3.3"),) if points else ()
    return Section(
        "points-section" if points else "stalls-section",
        "Where does the gradient vanish?",
        sentences=(_REMARKS[survey.section],),
        tables=(points_table(survey.points) if points else stall_table(survey),),
        figures=shown,
    )


def _one_each(points: Sequence[StationaryPoint]) -> list[StationaryPoint]:
    """Return the first member of each family, at most four."""
    return list({point.family[0]: point for point in reversed(points)}.values())[::-1][:4]
