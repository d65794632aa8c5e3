"""The page of a training run: how it ended, its losses, its layers, and where its tokens go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokendynamics.report._registry import page_of
from tokendynamics.report.kit._figure import Section, Table, cells
from tokendynamics.report.kit._manifest import made, shortened
from tokendynamics.report.kit._page import render
from tokendynamics.report.training._run_figures import conditioning, layers, learning_rate, losses, measure_over_steps
from tokendynamics.report.training._through_layers import ATTENTION_ALONE
from tokendynamics.training._record import Record, answer, findings, in_words, value
from tokendynamics.words import Convention, count, number, written

_QUESTION = "how did the training go?"


@page_of.register(Record)
def run_page(record: Record) -> str:
    """Return the whole page as HTML that needs nothing else; all text that came from a user is escaped.

    Args:
        record: From `tokendynamics.training.train`, or read from a run's folder; nothing else is looked at.
    """
    experiment = record.experiment
    return render(
        "training.html.jinja",
        title=f"{experiment.name}: {_QUESTION}",
        verdict_title="Result",
        sections=_sections(record),
        conventions=_CONVENTIONS,
        manifest={name: shortened(entry) for name, entry in record.manifest.items()},
        files=(),
        scripts=("shared.js",),
        sheets=("page.css",),
        kind="training",
        name=experiment.name,
        question=_QUESTION,
        shape=_shape(record),
        facts=_facts(record),
        answer=answer(record),
        findings=findings(record),
        details=(),
    )


def _shape(record: Record) -> str:
    model = record.experiment.model
    sizes = {"layers": "num_hidden_layers", "heads": "num_attention_heads", "dim": "hidden_size"}
    size = " × ".join(f"{written(model[entry])} {name}" for name, entry in sizes.items() if entry in model)
    regime, remedy = written(model.get("regime", "baseline")), written(model.get("remedy", "none"))
    parts = [size, f"regime {regime}", f"remedy {remedy}" if remedy != "none" else "no remedy"]
    return ", ".join(part for part in parts if part)


def _facts(record: Record) -> list[tuple[str, str]]:
    experiment, recipe = record.experiment, record.experiment.recipe
    batch = f"{count(recipe.batch)}" + (f" × {recipe.accumulation}" if recipe.accumulation > 1 else "")
    training = (
        f"{count(record.steps)} of {count(recipe.steps)} steps of {batch} items, {recipe.optimizer}, learning rate "
        f"{number(recipe.learning_rate)} ({recipe.schedule} after {count(recipe.warmup)} steps of warm-up), "
        f"{recipe.precision}"
    )
    return [
        ("Task", f"{experiment.task}, on {experiment.data}"),
        ("Training", training),
        ("Seed", str(experiment.seed)),
        *made(record.manifest, record.seconds),
    ]


def _sections(record: Record) -> list[Section]:
    reached = (_measures(record.measures),) if record.measures else ()
    course = (losses(record), *measure_over_steps(record), learning_rate(record))
    watched = conditioning(record)
    return [
        Section("measures", "What did it reach?", tables=reached, notes=() if reached else (_NOTHING,)),
        Section("course", "How did it learn?", figures=course),
        *([Section("conditioning", "How well conditioned are the matrices?", figures=watched)] if watched else []),
        Section("layers", "Where do the tokens go?", figures=layers(record)),
        Section("experiment", "What was trained?", tables=(_experiment(record),)),
    ]


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
            {f"{part}.{name}": each for name, each in entry.items()} if isinstance(entry, Mapping) else {part: entry}
        )
        rows += [cells([name, str(shortened(written(each))) or "none"]) for name, each in entries.items()]
    return Table("The experiment, as experiment.json has it", ("Entry", "Value"), tuple(rows))


_CONVENTIONS = (
    Convention(
        "Loss",
        "is the cross-entropy in nats. Training: mean over the steps since the last logged one, with dropout and "
        "augmentation. Validation and test: over the whole split, without them",
        "the two curves could be compared point by point",
    ),
    Convention(
        "Splits",
        "the validation split is evaluated during training and serves to choose recipes; the test split is measured "
        "once, after the last step",
        "a measure that was used for a choice is too good",
    ),
    ATTENTION_ALONE,
    Convention(
        "Conditioning",
        "is the worst over the layers: the largest condition number, and the range of the real parts of all "
        "eigenvalues",
        "one nearly singular layer would not show in a mean",
    ),
)
