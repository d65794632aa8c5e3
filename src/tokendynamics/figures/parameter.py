"""A parameter as an axis: where its values stand, and where their cells end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST_TICKS = 8


@dataclass(frozen=True)
class Parameter:
    """One axis of a diagram.

    Attributes:
        name: What varies.
        values: In the order in which they are drawn: numbers rise, words stay as they came.
        order: Where they stood.
        places: Where they are drawn: at themselves, or evenly where they are words.
        edges: Of their cells, one more.
        log: Whether the axis is logarithmic, as it is where values rise by factors.
        words: Whether values are words or truth values: nothing is between two of them.
    """

    name: str
    values: np.ndarray
    order: np.ndarray
    places: np.ndarray
    edges: np.ndarray
    log: bool
    words: bool

    @property
    def labels(self) -> list[str]:
        """The values in words, with as few digits as tell them apart."""
        if self.words:
            return [str(value) for value in self.values]
        for digits in range(3, 17):
            labels = [f"{value:.{digits}g}".replace("-", "−") for value in self.values]
            if len(set(labels)) == len(labels):
                return labels
        return [repr(value) for value in self.values.tolist()]


def parameter(name: str, values: np.ndarray) -> Parameter:
    """Return the axis of a parameter.

    >>> found = parameter("scale", np.array([1.0, 4.0, 2.0]))
    >>> found.values.tolist(), found.log, found.edges.round(3).tolist()
    ([1.0, 2.0, 4.0], True, [0.707, 1.414, 2.828, 5.657])
    """
    words = values.dtype.kind not in "iuf"
    if words:
        places = np.arange(len(values), dtype=np.float64)
        return Parameter(name, values, np.arange(len(values)), places, np.arange(len(values) + 1) - 0.5, False, True)
    order = np.argsort(values, kind="stable")
    places = values[order].astype(np.float64)
    log = _rises_by_factors(places)
    edges = np.exp(_edges(np.log(places))) if log else _edges(places)
    return Parameter(name, values[order], order, places, edges, log, False)


def _rises_by_factors(places: np.ndarray) -> bool:
    """Tell whether numbers are nearer to equal factors than to equal differences."""
    if len(places) < 3 or places[0] <= 0:
        return False
    uneven = [np.ptp(steps) / steps.mean() for steps in (np.diff(np.log(places)), np.diff(places))]
    return bool(uneven[0] < uneven[1] - 1e-6)


def _edges(places: np.ndarray) -> np.ndarray:
    """Return the middles between numbers, and as far beyond the ends."""
    if len(places) == 1:
        return places[0] + np.array([-0.5, 0.5])
    middles = (places[1:] + places[:-1]) / 2
    return np.concatenate([[2 * places[0] - middles[0]], middles, [2 * places[-1] - middles[-1]]])


def ticks(axis: Parameter) -> tuple[list[float], list[str]]:
    """Return where labels stand and what they say, not too densely: of values that were run, and of no others."""
    step = -(-len(axis.places) // MOST_TICKS)
    return axis.places[::step].tolist(), axis.labels[::step]
