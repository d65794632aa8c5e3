"""The page of a training run: how it ended, its losses, its layers, and where its tokens go."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tokendynamics.figures.curves import MOST_POINTS, Curve, Rule, styled, thinned
from tokendynamics.figures.figure import Figure, Section, Table, cells
from tokendynamics.report._page import conventions, made, page_of, render, shortened
from tokendynamics.report.training._lines import MEASURES, STATES, over_steps, through_layers
from tokendynamics.training import Record
from tokendynamics.training.record import answer, course, findings, in_words, measure_of, value
from tokendynamics.words import count, number, plural, written

_CONDITIONS = {"query_condition": "Q", "contraction_condition": "A", "value_condition": "V"}
_REAL_PARTS = {"value_real_lowest": "lowest", "value_real_highest": "highest"}


def losses(record: Record) -> Figure:
    """Draw the loss of the training and of the validation split."""
    training, together = _in_bins(*course(record.history, "loss"))
    binning = f", {together} of these together" if together > 1 else ""
    return over_steps(
        "loss",
        "Does the loss fall, on new data too?",
        "Loss (nats)",
        f"Training: the mean over the steps since the last point{binning}. Validation: the mean over the whole split.",
        [styled("training", 0, *training), _line("validation", 1, record.validation, "loss")],
    )


def measure_over_steps(record: Record) -> list[Figure]:
    """Draw the measure of the task on the validation split, where it is not the loss."""
    name = measure_of(record)
    if name == "loss":
        return []
    what = in_words(name)
    return [
        over_steps(
            "measure",
            f"What becomes of the {what}?",
            what.capitalize(),
            "The mean over the whole validation split.",
            [_line("validation", 1, record.validation, name)],
        )
    ]


def learning_rate(record: Record) -> Figure:
    """Draw the learning rate."""
    recipe, rates = record.experiment.recipe, _line("learning rate", 0, record.history, "learning_rate")
    return over_steps(
        "learning-rate",
        "With which learning rate?",
        "Learning rate × 10³",
        f"Of the weights; a regime's own parameters have multiples of it. A warm-up of "
        f"{plural(recipe.warmup, 'step')}, then {recipe.schedule}.",
        [replace(rates, values=1000 * np.asarray(rates.values))],
    )


def conditioning(record: Record) -> tuple[Figure, ...]:
    """Draw condition numbers, and between what the real parts of the eigenvalues of V lie; nothing without them."""
    conditions = [_line(name, place, record.validation, key) for place, (key, name) in enumerate(_CONDITIONS.items())]
    parts = [_line(name, place, record.validation, key) for place, (key, name) in enumerate(_REAL_PARTS.items())]
    figures = []
    if any(line.shown(log=True) for line in conditions):
        caption = (
            "The largest over the layers. From 10⁵ on an inverse in float32 keeps less than two digits; the "
            "form “congruence” inverts nothing."
        )
        figures.append(
            over_steps("conditions", "Do matrices become singular?", "Condition number", caption, conditions, log=True)
        )
    if any(line.shown(log=False) for line in parts):
        caption = (
            "Lowest and highest over the layers. V expands where all are positive, contracts where all are negative."
        )
        question, axis = "Are the eigenvalues of V positive or negative?", "Re λ(V)"
        figures.append(over_steps("real-parts", question, axis, caption, parts, rules=(Rule(0.0, ""),)))
    return tuple(figures)


def layers(record: Record) -> tuple[Figure, ...]:
    """Draw norms and distances through the layers."""
    return tuple(
        through_layers(measure, {state: _through(record.layers.get(state, {}), measure) for state in STATES})
        for measure in MEASURES
    )


def _through(state: Mapping[str, Sequence[Any]], measure: str) -> list[Curve]:
    values = np.array([value(entry) for entry in state.get(measure, ())])
    return [styled("this network", 0, np.arange(len(values), dtype=np.float64), values)] if len(values) else []


def _line(name: str, place: int, entries: Sequence[Mapping[str, Any]], key: str) -> Curve:
    return thinned(styled(name, place, *course(entries, key)))


def _in_bins(steps: np.ndarray, values: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], int]:
    """Return means of as many points together as leave no more than can be drawn, and how many these are.

    >>> _in_bins(np.arange(1.0, 5.0), np.arange(4.0))[1]
    1
    >>> (steps, values), together = _in_bins(np.arange(1.0, 402.0), np.ones(401))
    >>> together, len(values), float(steps[-1])
    (3, 134, 401.0)
    """
    together = max(1, math.ceil(len(values) / MOST_POINTS))
    starts = range(0, len(values), together)
    ends = steps[[min(start + together, len(steps)) - 1 for start in starts]] if len(steps) else steps
    return (ends, np.array([values[start : start + together].mean() for start in starts])), together


_QUESTION = "how did the training go?"


@page_of.register(Record)
def run_page(record: Record) -> str:
    """Return the whole page as HTML that needs nothing else; all text that came from a user is escaped.

    Args:
        record: From `tokendynamics.training.train`, or read from a run's folder; nothing else is looked at.
    """
    experiment = record.experiment
    model = experiment.model
    sizes = {"layers": "num_hidden_layers", "heads": "num_attention_heads", "dim": "hidden_size"}
    size = " × ".join(f"{written(model[entry])} {name}" for name, entry in sizes.items() if entry in model)
    regime, remedy = written(model.get("regime", "baseline")), written(model.get("remedy", "none"))
    parts = [size, f"regime {regime}", f"remedy {remedy}" if remedy != "none" else "no remedy"]
    reached = (_measures(record.measures),) if record.measures else ()
    course = (losses(record), *measure_over_steps(record), learning_rate(record))
    watched = conditioning(record)
    recipe = experiment.recipe
    batch = f"{count(recipe.batch)} × {recipe.accumulation} items"
    batch = plural(recipe.batch, "item") if recipe.accumulation == 1 else batch
    training = (
        f"{count(record.steps)} of {plural(recipe.steps, 'step')} of {batch}, {recipe.optimizer}, learning rate "
        f"{number(recipe.learning_rate)} ({recipe.schedule} after {plural(recipe.warmup, 'step')} of warm-up), "
        f"{recipe.precision}"
    )
    return render(
        "training.html.jinja",
        title=f"{experiment.name}: {_QUESTION}",
        sections=[
            Section("measures", "What did it reach?", tables=reached, notes=() if reached else (_NOTHING,)),
            Section("course", "How did it learn?", figures=course),
            *([Section("conditioning", "How well conditioned are the matrices?", figures=watched)] if watched else []),
            Section("layers", "Where do the tokens go?", figures=layers(record)),
            Section("experiment", "What was trained?", tables=(_experiment(record),)),
        ],
        conventions=conventions("training_loss", "run_splits", "attention", "conditioning"),
        manifest={name: shortened(entry) for name, entry in record.manifest.items()},
        kind="training",
        name=experiment.name,
        question=_QUESTION,
        shape=", ".join(part for part in parts if part),
        facts=[
            ("Task", f"{experiment.task}, on {experiment.data}"),
            ("Training", training),
            ("Seed", str(experiment.seed)),
            *made(record.manifest, record.seconds),
        ],
        answer=answer(record),
        findings=findings(record),
        details=(),
    )


_NOTHING = "Not measured, because a run is measured when it finishes."


def _measures(measures: Mapping[str, Mapping[str, Any]]) -> Table:
    names = list(dict.fromkeys(name for values in measures.values() for name in values))
    rows = [cells([split, *(value(values.get(name)) for name in names)]) for split, values in measures.items()]
    heads = ["Loss (nats)" if name == "loss" else in_words(name).capitalize() for name in names]
    return Table("Loss and measures after the last step", ("Split", *heads), tuple(rows))


def _experiment(record: Record) -> Table:
    """List every entry of the experiment, those of its parts by part."""
    rows = []
    for part, entry in record.experiment.as_json().items():
        entries = (
            {f"{part}.{name}": setting for name, setting in entry.items()}
            if isinstance(entry, Mapping)
            else {part: entry}
        )
        rows += [cells([name, str(shortened(written(setting))) or "none"]) for name, setting in entries.items()]
    return Table("The experiment, as experiment.json has it", ("Entry", "Value"), tuple(rows))
