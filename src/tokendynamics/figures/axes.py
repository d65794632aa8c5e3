"""The axes of charts: over layers, time and parameters, with their ticks and what is shown on hover along them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tokendynamics.figures.svg import WIDE, alt, inline

Column: TypeAlias = tuple[float, float, str]
"""From where to where a text appears that is shown on hover."""


@dataclass(frozen=True)
class Axis:
    """A horizontal axis.

    Attributes:
        title: What stands on it.
        ends: Where it begins and ends; None: with what is drawn.
        log: Whether it is logarithmic.
        layers: The first and the last whole number that is labelled, not too densely.
        at: The values that are labelled, fewer where there is no room for all.
        most: About how many labels there are on the page, and on a phone.
        form: How they are written.
        whole: Whether labels are whole numbers.
    """

    title: str
    ends: tuple[float, float] | None = None
    log: bool = False
    layers: tuple[int, int] | None = None
    at: Sequence[float] | None = None
    most: tuple[int, int] = (10, 5)
    form: str = ""
    whole: bool = False

    def x(self, width: float = WIDE) -> alt.X:
        """Return the axis for a width of the plotting area."""
        most = self.most[0] if width >= WIDE else self.most[1]
        shown: dict[str, Any] = {"format": self.form} if self.form else {}
        if self.layers is not None:
            shown["values"] = [tick for tick in ticks(self.layers[1], most) if tick >= self.layers[0]]
        elif self.at is not None:
            shown["values"] = list(self.at[:: math.ceil(len(self.at) / most) or 1])
        else:
            shown |= {"tickCount": most} | ({"tickMinStep": 1} if self.whole else {})
        log: dict[str, Any] = {"type": "log"} if self.log else {}
        scale: dict[str, Any] = (
            {} if self.ends is None else {"scale": alt.Scale(domain=list(self.ends), nice=False, **log)}
        )
        return alt.X("x:Q", axis=alt.Axis(title=self.title, **shown), **scale)


def depth_axis(last: int) -> Axis:
    """Return the axis of every figure over depth, so that all of them line up on the page."""
    return Axis("Layer (0 = embedding)", (-0.6, last + 1.0), layers=(0, last), most=(15, 8), form="d")


def time_axis(first: float, last: float, title: str, *, log: bool = False) -> Axis:
    """Return the axis of figures over time.

    Args:
        first: The earliest time that is drawn; above 0 if `log`.
        last: The latest.
        title: What time is, with a word on what is left out.
        log: Whether it is logarithmic.
    """
    if log:
        form = "~g" if first >= 1e-4 and last < 1e5 else "~e"
        return Axis(title, (first, last), log=True, at=log_ticks(first, last), most=(12, 5), form=form)
    return Axis(title, (first, last if last > first else first + 1))


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten between `low` and `high`; with fewer than two decades, or than one, multiples of them, too.

    >>> log_ticks(3.0, 2000.0), log_ticks(0.25, 0.45), log_ticks(9.0, 19.0)
    ([10.0, 100.0, 1000.0], [0.3, 0.4], [10.0, 12.0, 15.0])
    """
    decades = math.log10(high / low)
    multiples = (1, 2, 3, 4, 5, 6, 8) if decades < 0.8 else (1, 2, 5) if decades < 2 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)

    def between(multiples: tuple[float, ...]) -> list[float]:
        return [tick for p in powers for m in multiples if low <= (tick := float(f"{m}e{p}")) <= high]

    ticks = between(multiples)
    return ticks if len(ticks) > 1 else between((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8))


def ticks(last: int, most: int = 15) -> list[int]:
    """Choose whole layers to label, at most about `most`."""
    every = next(step for step in (1, 2, 5, 10, 20, 50, 100, 1000) if last / step <= most)
    return list(range(0, last + 1, every))


def hover(columns: Sequence[Column], axis: Axis, height: int, width: float = WIDE) -> alt.Chart:
    """Lay invisible columns from x to x2 that carry the text shown when the pointer rests on them."""
    rows = [{"x": x, "x2": x2, "text": text} for x, x2, text in columns]
    return (
        alt.Chart(inline(rows), name="hover")
        .mark_rect(fillOpacity=0, strokeOpacity=0, y=0, y2=height)
        .encode(x=axis.x(width), x2="x2:Q", description="text:N")
    )


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

    @property
    def ticks(self) -> tuple[list[float], list[str]]:
        """Where labels stand and what they say, not too densely: of values that were run, and of no others."""
        step = -(-len(self.places) // MOST_TICKS)
        return self.places[::step].tolist(), self.labels[::step]


def parameter(name: str, values: np.ndarray) -> Parameter:
    """Return the axis of a parameter.

    >>> axis = parameter("scale", np.array([1.0, 4.0, 2.0]))
    >>> axis.values.tolist(), axis.log, axis.edges.round(3).tolist()
    ([1.0, 2.0, 4.0], True, [0.707, 1.414, 2.828, 5.657])
    """
    words = values.dtype.kind not in "iuf"
    if words:
        places = np.arange(len(values), dtype=np.float64)
        return Parameter(name, values, np.arange(len(values)), places, np.arange(len(values) + 1) - 0.5, False, True)
    order = np.argsort(values, kind="stable")
    places = values[order].astype(np.float64)
    if len(places) < 3 or places[0] <= 0:
        log = False
    else:
        uneven = [np.ptp(steps) / steps.mean() for steps in (np.diff(np.log(places)), np.diff(places))]
        log = bool(uneven[0] < uneven[1] - 1e-6)
    edges = np.exp(_edges(np.log(places))) if log else _edges(places)
    return Parameter(name, values[order], order, places, edges, log, False)


def _edges(places: np.ndarray) -> np.ndarray:
    """Return the middles between numbers, and as far beyond the ends."""
    if len(places) == 1:
        return places[0] + np.array([-0.5, 0.5])
    middles = (places[1:] + places[:-1]) / 2
    return np.concatenate([[2 * places[0] - middles[0]], middles, [2 * places[-1] - middles[-1]]])
