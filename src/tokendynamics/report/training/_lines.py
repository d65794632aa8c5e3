"""Lines of several arms, or of several quantities of one run: over steps, and through layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tokendynamics.figures.figure import Figure, Given, Table, cells, nothing
from tokendynamics.figures.lines import Column, Curve, Mark, Rule, curve_keys, curves_chart, time_axis
from tokendynamics.figures.svg import WIDE, Specification, draw_for_screens, plain
from tokendynamics.report.simulation._measures import evenly
from tokendynamics.report.simulation._page import LOOKS
from tokendynamics.words import Convention, number

MOST_POINTS = 200
"""Points of a line that are drawn and tabulated: as many as a drawing can show."""

_MARKED = 30
"""Most points of a line that are marked."""
_MARKS: tuple[Mark, ...] = ("disc", "ring", "triangle")
_MOST_COLUMNS = 100


@dataclass(frozen=True)
class Line:
    """One line.

    Attributes:
        name: In the legend.
        place: Which of the looks it has: an arm has the same in all figures of a page.
        x: Places on the axis, rising.
        values: NaN where undefined.
        low: Lower ends of a band; None for no band.
        high: Upper ends.
    """

    name: str
    place: int
    x: np.ndarray
    values: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    def drawn(self, log: bool) -> bool:
        """Whether an axis has something of it."""
        return bool((np.isfinite(self.values) & ((self.values > 0) | (not log))).any())


def look(place: int) -> tuple[str, tuple[float, ...]]:
    """Return colour and dash; beyond the first few, colours come again with other dashes.

    >>> look(0)[0] == look(6)[0], look(0)[1] == look(6)[1], len({look(place) for place in range(36)})
    (True, False, 36)
    """
    many = len(LOOKS)
    return LOOKS[place % many][0], LOOKS[(place + place // many) % many][1]


def thinned(line: Line) -> Line:
    """Return the line at no more than `MOST_POINTS` places, evenly, with both ends."""
    kept = evenly(len(line.x), MOST_POINTS) if len(line.x) else slice(0)
    band = [None if each is None else each[kept] for each in (line.low, line.high)]
    return Line(line.name, line.place, line.x[kept], line.values[kept], *band)


def curve(line: Line) -> Curve:
    """Return what is drawn of a line."""
    colour, dash = look(line.place)
    values, low, high = (None if each is None else each.tolist() for each in (line.values, line.low, line.high))
    mark = _MARKS[line.place % len(_MARKS)] if len(line.x) <= _MARKED else ""
    return Curve(line.name, line.x.tolist(), values or [], colour, low=low, high=high, dash=dash, mark=mark)


def columns(lines: Sequence[Line], heading: str, first: float, last: float) -> list[Column]:
    """Return what is said of each place on hover.

    Args:
        lines: All of the drawing.
        heading: What a place is, such as "step".
        first: Where the drawing begins.
        last: Where it ends.
    """
    places = _places(lines)
    places = places[evenly(len(places), _MOST_COLUMNS)] if len(places) else places
    if len(places) < 2:
        return []
    edges = [first, *((places[1:] + places[:-1]) / 2).tolist(), last]
    said = []
    for place, (left, right) in zip(places, pairwise(edges), strict=True):
        at = [(line, np.flatnonzero(line.x == place)) for line in lines]
        told = [f"{line.name}: {_with_band(line, int(found[0]))}" for line, found in at if len(found)]
        said.append((left, right, "\n".join([f"{heading} {number(float(place), 7)}", *told])))
    return said


def described(lines: Sequence[Line]) -> str:
    """Return where each line begins and ends, in words."""
    parts = []
    for line in lines:
        known = line.values[np.isfinite(line.values)]
        ends = f"{number(float(known[0]))} at first, {number(float(known[-1]))} at last" if len(known) else "none"
        parts.append(f"{line.name}: {ends}")
    return "; ".join(parts) + "."


def table(caption: str, heading: str, lines: Sequence[Line], ends: tuple[str, str] = ("low", "high")) -> Table:
    """Return every number drawn.

    Args:
        caption: What they are.
        heading: What a place is.
        lines: Those of the drawing.
        ends: What the ends of a band are called.
    """
    names = [heading]
    for line in lines:
        names += [line.name] + ([] if line.low is None else [f"{line.name}, {end}" for end in ends])
    rows = []
    for place in _places(lines):
        row: list[Given] = [int(place) if float(place).is_integer() else float(place)]
        for line in lines:
            at = np.flatnonzero(line.x == place)
            given = [line.values] + ([] if line.low is None or line.high is None else [line.low, line.high])
            row += [float(each[at[0]]) if len(at) else None for each in given]
        rows.append(cells(row))
    return Table(caption, tuple(names), tuple(rows))


def _places(lines: Sequence[Line]) -> np.ndarray:
    return np.unique(np.concatenate([line.x for line in lines])) if lines else np.array([])


def _with_band(line: Line, at: int) -> str:
    value = number(float(line.values[at]))
    if line.low is None or line.high is None or not math.isfinite(line.low[at]):
        return value
    return f"{value} ({number(float(line.low[at]))} to {number(float(line.high[at]))})"


_STEPS_HEIGHT = 260
_ROOM = 1.02
"""By how much an axis is longer than the last step, so that the mark there is whole."""


def over_steps(
    ident: str,
    question: str,
    axis: str,
    caption: str,
    lines: Sequence[Line],
    *,
    log: bool = False,
    rules: Sequence[Rule] = (),
    ends: tuple[str, str] = ("low", "high"),
) -> Figure:
    """Draw lines over steps, or say that there is nothing to draw.

    Args:
        ident: For links.
        question: What the figure answers.
        axis: What the numbers are.
        caption: The convention in words.
        lines: What is drawn.
        log: Whether the vertical axis is logarithmic; what is not above zero is then left out.
        rules: Values that are marked across.
        ends: What the ends of a band are called in the table.
    """
    shown = [line for line in lines if line.drawn(log)]
    numbers = table(f"{axis} over steps", "Step", lines, ends)
    if not shown:
        return replace(nothing(ident, question, f"Nothing is drawn: there is no number. {caption}"), table=None)
    last = _ROOM * max(float(line.x.max()) for line in shown)
    marked = [rule.value for rule in rules]
    curves, title = [curve(line) for line in shown], f"{axis} (log scale)" if log else axis
    hovered = columns(shown, "step", 0.0, last)
    return Figure(
        ident=ident,
        question=question,
        svg=draw_for_screens(
            lambda width: curves_chart(
                curves, x=time_axis(0.0, last, "Step", width=width), title=title, width=width, height=_STEPS_HEIGHT,
                log=log, domain=(min(marked), max(marked)) if marked else None, rules=rules, columns=hovered,
            ),
            ident=ident,
            title=question,
            description=f"{axis} over steps. {described(shown)} The table below holds every value drawn.",
            keys=curve_keys(curves),
        ),
        caption=caption,
        table=numbers,
    )  # fmt: skip


STATES = {"full": "The whole network", "bare": "Attention alone"}
"""The entries of a record's layers, with their labels."""

MEASURES = {
    "norm": ("Do the tokens grow?", "Mean norm", "Norm of a token, the mean over tokens,"),
    "distance": (
        "Do the tokens draw together?",
        "Mean distance",
        "Distance of two tokens of a sequence, the mean over pairs,",
    ),
}

ATTENTION_ALONE = Convention(
    "Attention alone",
    "is x ← x + attention(x) from the same embeddings with the same weights, without norms, feed-forward parts and "
    "dropout",
    "norms hide growth and feed-forward parts restore distance, so the effect of attention would not show",
)

_LAYERS_HEIGHT = 240
_BESIDE = 75
"""Of a second chart: its axis, and the gap before it."""

_CAPTION = (
    "{of} after each layer, on the test split. The whole network: before the last norm. Attention alone: the same "
    "weights without norms and feed-forward parts, x ← x + attention(x), from the same embeddings. The axes differ."
)
_ONE = "{of} after each layer, on the test split. Only {what} was measured."


@dataclass(frozen=True)
class Band:
    """What the lines of a figure are, where each is of several networks.

    Attributes:
        caption: In words.
        ends: What the ends are called in a table.
    """

    caption: str = ""
    ends: tuple[str, str] = ("low", "high")


def through_layers(measure: str, lines: Mapping[str, Sequence[Line]], band: Band) -> Figure:
    """Draw one measure through the layers.

    Args:
        measure: A key of `MEASURES`.
        lines: By a key of `STATES`, over layers.
        band: What their bands are.
    """
    question, axis, of = MEASURES[measure]
    ident = f"layers-{measure}"
    shown = {state: [line for line in lines.get(state, ()) if line.drawn(log=True)] for state in STATES}
    shown = {state: some for state, some in shown.items() if some}
    if not shown:
        return nothing(ident, question, f"Nothing to plot: no {axis.lower()} above zero was measured.")
    first = next(iter(shown.values()))
    parts = [f"{STATES[state]}: {described(some)}" for state, some in shown.items()]
    what = STATES[next(iter(shown))].lower()
    caption = _CAPTION.format(of=of) if len(shown) == len(STATES) else _ONE.format(of=of, what=what)
    return Figure(
        ident=ident,
        question=question,
        svg=draw_for_screens(
            lambda width: _charts(shown, axis, width),
            ident=ident,
            title=f"{question} {axis} through the layers",
            description=f"{axis}. {' '.join(parts)} The table below holds every value.",
            keys=curve_keys([curve(line) for line in first]),
        ),
        caption=f"{caption}{band.caption}",
        table=_table(axis, shown, band),
    )


def _charts(shown: Mapping[str, Sequence[Line]], axis: str, width: float) -> Specification:
    beside = width >= WIDE and len(shown) > 1
    each = (width - _BESIDE) / 2 if beside else width
    charts = [_chart(some, STATES[state], axis, each) for state, some in shown.items()]
    return {"hconcat": charts, "spacing": 16} if beside else {"vconcat": charts, "spacing": 18}


def _chart(lines: Sequence[Line], name: str, axis: str, width: float) -> Specification:
    last = int(max(line.x.max() for line in lines))
    drawn = curves_chart(
        [curve(line) for line in lines], last=last, title=f"{axis} (log scale)", width=width,
        height=_LAYERS_HEIGHT, log=True,
        columns=columns(lines, "layer", -0.6, last + 1.0),
    )  # fmt: skip
    return {**plain(drawn), "title": {"text": name, "anchor": "start", "offset": 6}}


def _table(axis: str, shown: Mapping[str, Sequence[Line]], band: Band) -> Table:
    """Put both states into one table: a line has a column, or three, in each."""
    named = [
        Line(f"{line.name}, {'as it is' if state == 'full' else 'attention alone'}", *_numbers(line))
        for state, some in shown.items()
        for line in some
    ]
    return table(f"{axis} after each layer", "Layer", named, band.ends)


def _numbers(line: Line) -> tuple:
    return line.place, line.x, line.values, line.low, line.high
