"""A training run in sentences: how it ended, what it reached, and where its tokens go."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tokendynamics.training import TASKS, Record
from tokendynamics.words import count, number, plural, sentence

AVERAGED = "test, averaged"


def measure_of(record: Record) -> str:
    """Return the name of the measure by which runs of this task are compared; the loss where it has none."""
    task = TASKS.get(record.experiment.task)
    name = "loss" if task is None else task.measure
    return name if any(name in values for values in record.measures.values()) else "loss"


def in_words(measure: str) -> str:
    """Return a measure as it is read.

    >>> in_words("bits_per_byte"), in_words("loss")
    ('bits per byte', 'nats of loss')
    """
    return "nats of loss" if measure == "loss" else measure.replace("_", " ")


def value(number_or_none: Any) -> float:
    """Return a number of a record, in which None stands for what is not finite."""
    return math.nan if number_or_none is None else float(number_or_none)


def answer(record: Record) -> str:
    """Return the run in one sentence."""
    steps, name = plural(record.steps, "step"), measure_of(record)
    reached = value(record.measures.get("test", {}).get(name))
    if not record.finished:
        planned = count(record.experiment.recipe.steps)
        return f"{sentence(record.status).rstrip('.')}: the run ended after {count(record.steps)} of {planned} steps."
    if not math.isfinite(reached):
        return f"Finished after {steps}; not measured on the test split."
    return f"{number(reached, 4)} {in_words(name)} on the test split, after {steps}."


def findings(record: Record) -> list[str]:
    """Return the run's notes, both splits, averaged weights, the validation loss over steps, and the layers."""
    return [
        *(sentence(note) for note in record.notes),
        *_splits(record),
        *_averaged(record),
        *_course(record),
        *(text for state in ("full", "bare") for text in _tokens(record.layers.get(state, {}), state)),
    ]


def _splits(record: Record) -> list[str]:
    name = measure_of(record)
    reached = value(record.measures.get("validation", {}).get(name))
    if not math.isfinite(reached):
        return []
    return [f"{number(reached, 4)} {in_words(name)} on the validation split, which serves to choose recipes."]


def _averaged(record: Record) -> list[str]:
    """Compare averaged weights with the last ones by their loss, which is better when lower in every task."""
    plain, averaged = (value(record.measures.get(split, {}).get("loss")) for split in ("test", AVERAGED))
    if not (math.isfinite(plain) and math.isfinite(averaged)):
        return []
    verdict = "lower than" if averaged < plain else "higher than" if averaged > plain else "the same as"
    return [
        f"With averaged weights the loss on the test split is {number(averaged, 4)} nats, {verdict} that of the last "
        f"weights, {number(plain, 4)}."
    ]


def _course(record: Record) -> list[str]:
    """Return whether the validation loss was lowest at the end."""
    steps, losses = course(record.validation, "loss")
    if len(losses) < 2:
        return []
    lowest = int(np.argmin(losses))
    last, least = number(float(losses[-1]), 4), number(float(losses[lowest]), 4)
    if losses[lowest] == losses[-1]:
        return [f"The validation loss is lowest at the last evaluation: {last} nats."]
    return [
        f"The validation loss was lowest at step {count(int(steps[lowest]))} ({least} nats) and rose to {last} at step "
        f"{count(int(steps[-1]))}."
    ]


def course(entries: Sequence[Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and finite values of one quantity of a record's history or validation."""
    points = [(entry["step"], value(entry.get(name))) for entry in entries]
    finite = np.array([point for point in points if math.isfinite(point[1])], dtype=np.float64).reshape(-1, 2)
    return finite[:, 0], finite[:, 1]


_WHERE = {
    "full": "In the whole network",
    "bare": "With attention alone (no norms, no feed-forward parts)",
}


def _tokens(layers: Mapping[str, Sequence[Any]], state: str) -> list[str]:
    """Return how the mean distance of two tokens changes, and whether every layer changes it the same way."""
    distances = np.array([value(each) for each in layers.get("distance", ())])
    if len(distances) < 2 or not np.isfinite(distances).all():
        return []
    changes = np.diff(distances)
    grows, shrinks = (changes > 0).all(), (changes < 0).all()
    how = (
        "it grows in every layer"
        if grows
        else "it shrinks in every layer"
        if shrinks
        else "the layers do not all change it the same way"
    )
    first, last = (number(float(each)) for each in distances[[0, -1]])
    return [
        f"{_WHERE[state]}, the mean distance of two tokens is {first} at the embedding and {last} after layer "
        f"{len(changes)}: {how}."
    ]
