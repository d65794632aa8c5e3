"""The drawings of one run: losses, measures, learning rate and conditioning over steps, and its layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tokendynamics.report.kit._curves import Rule
from tokendynamics.report.kit._figure import Figure
from tokendynamics.report.training._lines import MOST_POINTS, Line, thinned
from tokendynamics.report.training._over_steps import over_steps
from tokendynamics.report.training._through_layers import MEASURES, STATES, Band, through_layers
from tokendynamics.training._record import Record, course, in_words, measure_of, value

_CONDITIONS = {"query_condition": "Q", "contraction_condition": "A", "value_condition": "V"}
_REAL_PARTS = {"value_real_lowest": "lowest", "value_real_highest": "highest"}


def losses(record: Record) -> Figure:
    """Draw the loss of the training and of the validation split."""
    training, together = _in_bins(*course(record.history, "loss"))
    told = f", {together} of these together" if together > 1 else ""
    return over_steps(
        "loss",
        "Does the loss fall, on new data too?",
        "Loss (nats)",
        f"Training: the mean over the steps since the last point{told}. Validation: the mean over the whole split.",
        [Line("training", 0, *training), _line("validation", 1, record.validation, "loss")],
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
        f"Of the weights; a regime's own parameters have multiples of it. A warm-up of {recipe.warmup:,} steps, then "
        f"{recipe.schedule}.",
        [replace(rates, values=1000 * rates.values)],
    )


def conditioning(record: Record) -> tuple[Figure, ...]:
    """Draw condition numbers, and between what the real parts of the eigenvalues of V lie; nothing without them."""
    conditions = [_line(name, place, record.validation, key) for place, (key, name) in enumerate(_CONDITIONS.items())]
    parts = [_line(name, place, record.validation, key) for place, (key, name) in enumerate(_REAL_PARTS.items())]
    figures = []
    if any(line.drawn(log=True) for line in conditions):
        caption = (
            "The largest over the layers. From 10⁵ on an inverse in float32 keeps less than two digits; the "
            "form “congruence” inverts nothing."
        )
        figures.append(
            over_steps("conditions", "Do matrices become singular?", "Condition number", caption, conditions, log=True)
        )
    if any(line.drawn(log=False) for line in parts):
        caption = (
            "Lowest and highest over the layers. V expands where all are positive, contracts where all are negative."
        )
        question, axis = "Are the eigenvalues of V positive or negative?", "Re λ(V)"
        figures.append(over_steps("real-parts", question, axis, caption, parts, rules=(Rule(0.0, ""),)))
    return tuple(figures)


def layers(record: Record) -> tuple[Figure, ...]:
    """Draw norms and distances through the layers."""
    return tuple(
        through_layers(measure, {state: _through(record.layers.get(state, {}), measure) for state in STATES}, Band())
        for measure in MEASURES
    )


def _through(state: Mapping[str, Sequence[Any]], measure: str) -> list[Line]:
    values = np.array([value(each) for each in state.get(measure, ())])
    return [Line("this network", 0, np.arange(len(values), dtype=np.float64), values)] if len(values) else []


def _line(name: str, place: int, entries: Sequence[Mapping[str, Any]], key: str) -> Line:
    return thinned(Line(name, place, *course(entries, key)))


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
