"""The page of a simulation: how it ended, observables over time, paths, systems, statements, versions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np

from tokendynamics.dynamics import Status, Trajectory
from tokendynamics.figures.curves import Column, Curve, Curves, time_axis
from tokendynamics.figures.figure import Charts, Figure, Section, Table, cells
from tokendynamics.figures.lines import LOOKS, evenly
from tokendynamics.figures.palette import BLUE, GRID, INK, PAPER, POSITIONS
from tokendynamics.figures.paths import choose_view
from tokendynamics.figures.recording import Recording
from tokendynamics.figures.svg import WIDE, Drawing, Key, inline
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.report._page import render, shortened
from tokendynamics.report._registry import page_of
from tokendynamics.report.simulation._measures import ANGLE, Ends, Measure, Shown, ends, measures, shown, systems_table
from tokendynamics.specification import Simulation
from tokendynamics.theorems import Certificate
from tokendynamics.words import Convention, duration, moment, number, plural, written

_OVER_TIME_HEIGHT = 250
_DECADES = 100.0
"""From this ratio of largest to smallest on, the axis is logarithmic."""

_CONSTANT = 1e-9
"""What varies by less than this share of its size is said to stay: a curve of it would show rounding."""


def over_time(run: Shown, measure: Measure) -> Figure:
    """Draw one observable over time, or say in words that it stays as it is.

    Args:
        run: What is shown.
        measure: One of its observables.
    """
    defined = measure.values[np.isfinite(measure.values)]
    low, high = float(defined.min()), float(defined.max())
    table = _over_time_table(run, measure)
    if high - low <= _CONSTANT * max(abs(low), abs(high)):
        why = f"Nothing is drawn: it is {number(low)} at all times, to within rounding. {measure.caption}"
        return Figure(measure.ident, measure.question, why)
    drawn = run.drawn
    log = low >= 0 and high > _DECADES * float(defined[defined > 0].min())
    left_out = " Zeros have no place on the logarithmic axis and are left out." if log and low == 0 else ""
    return Figure(
        measure.ident,
        measure.question,
        f"{measure.caption}{_lines_in_words(measure)}{_early(run, measure)}{left_out}",
        Curves(
            _curves(run, measure, drawn),
            measure.axis + (" (log scale)" if log else ""),
            x=partial(clock, run),
            height=_OVER_TIME_HEIGHT,
            log=log,
            columns=_columns(run, measure, drawn),
        ),
        table,
        description=f"{measure.axis} over time: {_described(measure)} The table below holds every value drawn.",
    )


def clock(run: Shown, width: float = WIDE) -> alt.X:
    """Return the axis of time, or of layers where these were counted.

    Args:
        run: What is shown.
        width: Of the plotting area.
    """
    times = run.times[run.drawn]
    name = "Layer" if run.engine == "layers" else "Time t"
    if run.log_times:
        zero = ", without t = 0" if run.times[0] == 0 else ""
        name = f"{name} (log scale{zero})"
    return time_axis(float(times[0]), float(times[-1]), name, log=run.log_times, width=width)


def _few(measure: Measure) -> bool:
    return len(measure.values) <= len(LOOKS)


def _summary(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return lowest, median and highest of the lines at each time; NaN where undefined."""
    some = np.isfinite(values).any(axis=0)
    found = np.full((3, values.shape[1]), np.nan)
    found[:, some] = [f(values[:, some], axis=0) for f in (np.nanmin, np.nanmedian, np.nanmax)]
    return found[0], found[1], found[2]


def _curves(run: Shown, measure: Measure, drawn: np.ndarray) -> list[Curve]:
    x = run.times[drawn].tolist()
    if _few(measure):
        alone = len(measure.values) == 1
        return [
            Curve(
                measure.axis if alone else f"{measure.lines} {name}", x, values[drawn].tolist(), colour, dash=dash,
                stepped=measure.whole,
            )
            for name, values, (colour, dash) in zip(measure.names, measure.values, LOOKS, strict=False)
        ]  # fmt: skip
    low, middle, high = (each[drawn].tolist() for each in _summary(measure.values))
    many = plural(len(measure.values), measure.lines)
    return [Curve(f"median of {many}", x, middle, BLUE, low, high, "lowest to highest", stepped=measure.whole)]


def _columns(run: Shown, measure: Measure, drawn: np.ndarray) -> list[Column]:
    """Return what is said of each time on hover; at most a hundred columns, or they are thinner than a pointer."""
    drawn = drawn[:: max(1, len(drawn) // 100)]
    times = run.times[drawn]
    if len(times) < 2:
        return []
    between = np.sqrt(times[1:] * times[:-1]) if run.log_times else (times[1:] + times[:-1]) / 2
    edges = [float(times[0]), *between.tolist(), float(times[-1])]
    said = []
    for place, (left, right) in zip(drawn, pairwise(edges), strict=True):
        values = measure.values[:, place]
        known = values[np.isfinite(values)]
        when = f"t = {number(float(run.times[place]), 4)}: "
        if not _few(measure) and known.size:
            low, middle, high = (number(float(each)) for each in (known.min(), np.median(known), known.max()))
            text = f"median {middle}, {low} to {high}"
        elif len(measure.values) == 1:
            text = number(float(values[0]))
        else:
            text = ", ".join(number(float(value)) for value in values) if known.size else "all had ended"
        said.append((left, right, when + text))
    return said


def _described(measure: Measure) -> str:
    first, last = (np.flatnonzero(np.isfinite(measure.values).any(axis=0))[place] for place in (0, -1))
    ends = [float(np.nanmedian(measure.values[:, place])) for place in (first, last)]
    of = "" if len(measure.values) == 1 else f" (median of {plural(len(measure.values), measure.lines)})"
    return f"from {number(ends[0])} to {number(ends[1])}{of}."


def _lines_in_words(measure: Measure) -> str:
    if _few(measure):
        return ""
    return f" The line is the median of {plural(len(measure.values), measure.lines)}, the band spans all of them."


def _early(run: Shown, measure: Measure) -> str:
    """Say that a system counts as long as it runs, where some end before the horizon."""
    if run.reached.all():
        return ""
    if _few(measure):
        return " What is drawn ends with the run."
    return (
        " A system counts up to the end of its run: towards the right they become fewer, which alone can move the "
        "median, and the table says how many are left."
    )


def _over_time_table(run: Shown, measure: Measure) -> Table:
    if _few(measure):
        columns = ("Time", *(f"{measure.lines} {name}".capitalize() for name in measure.names))
        columns = ("Time", measure.axis) if len(measure.values) == 1 else columns
        rows = [[float(time), *map(float, values)] for time, values in zip(run.times, measure.values.T, strict=True)]
        return Table(f"{measure.axis} over time", columns, tuple(cells(row) for row in rows))
    low, middle, high = _summary(measure.values)
    counted = np.isfinite(measure.values).sum(axis=0)
    columns = ("Time", "Median", "Lowest", "Highest", f"{measure.lines.capitalize()}s that count")
    numbers = zip(run.times, middle, low, high, strict=True)
    found = [cells([*(float(each) for each in row), int(many)]) for row, many in zip(numbers, counted, strict=True)]
    return Table(f"{measure.axis} over time", columns, tuple(found))


QUESTION = "Where does each token go?"
IDENT = "paths"
_MOST_TOKENS, _MOST_POINTS = 60, 4000
_TABLE_POINTS = 1500
_PATHS_HEIGHT, _NARROW_HEIGHT = 460, 258
_FAR = 1e3
"""Beyond this ratio of the largest to the median norm a drawing to scale shows a few last points and nothing else."""


@dataclass(frozen=True)
class _Paths:
    """The paths of some tokens: (time, token, axis), with names for the axes."""

    times: np.ndarray
    tokens: np.ndarray
    points: np.ndarray
    axes: tuple[str, str]
    said: str
    over_time: bool = False
    circle: bool = False


def paths_figure(run: Shown, system: int) -> Figure:
    """Draw the paths of the tokens of one system.

    Args:
        run: What is shown; the system must be among the chosen ones.
        system: Which, counted from 0.
    """
    place = int(np.flatnonzero(run.systems == system)[0])
    reached = run.reached[place]
    states = run.states[place].numpy()[reached]
    whose = f"System {system}" if run.many > 1 else "The run"
    if reached.sum() < 2:
        return Figure(IDENT, QUESTION, f"Nothing is drawn: {whose.lower()} has fewer than two times that were reached.")
    found = _paths(run, states, np.flatnonzero(reached))
    if float(np.ptp(found.points[..., int(found.over_time) :], axis=0).max(initial=0.0)) == 0:
        return Figure(IDENT, QUESTION, "Nothing is drawn: no token moves.")
    chosen = f"{len(found.tokens)} of {run.tokens} tokens, evenly by number" if len(found.tokens) < run.tokens else ""
    of = f"{whose}{f', {chosen}' if chosen else ''}. " if run.many > 1 or chosen else ""
    return Figure(
        IDENT,
        QUESTION,
        f"{of}{found.said} Rings are starts, discs are ends"
        + ("." if found.over_time else "; one unit is as long on both axes."),
        Charts(lambda width: _chart(run, found, width), _keys(found)),
        _paths_table(found),
        title=f"{QUESTION} Paths from start to end",
        description=f"{plural(len(found.tokens), 'path')}: {found.axes[0]} and {found.axes[1]}. {_ends(found)}",
    )


def _paths(run: Shown, states: np.ndarray, at: np.ndarray) -> _Paths:
    tokens = evenly(run.tokens, _MOST_TOKENS)
    if run.log_times and (run.dim == 1 or _on_circle(run)):
        keep = run.times[at] > 0
        states, at = states[keep], at[keep]
    steps = evenly(len(at), max(2, _MOST_POINTS // len(tokens)))
    states, times = states[steps][:, tokens], run.times[at[steps]]
    letter = "y" if run.on_surface else "x"
    if run.dim == 1:
        name = f"coordinate {letter}"
        clock_name = np.broadcast_to(times[:, None], states.shape[:2])
        points = np.stack([clock_name, states[..., 0]], axis=-1)
        return _Paths(times, tokens, points, ("time", name), f"The coordinate {letter} of each token.", over_time=True)
    if _on_circle(run):
        angles = np.unwrap(np.arctan2(states[..., 1], states[..., 0]), axis=0)
        points = np.stack([np.broadcast_to(times[:, None], angles.shape), np.degrees(angles)], axis=-1)
        said = "The angle of each token on the circle, without jumps: a full turn is 360° more."
        return _Paths(times, tokens, points, ("time", "angle in degrees"), said, over_time=True)
    said, states, unit = _to_scale(run, states)
    view = choose_view(Recording(states, times, None if not run.on_surface else np.eye(run.dim)), None)
    if view.labels is None:
        axes = ("to the right", "upwards")
        said += " Seen from one side without perspective, over the mean of all tokens; what is behind is drawn, too."
    else:
        axes = view.labels
    circle = (run.space == "sphere" or unit) and run.dim == 3
    return _Paths(times, tokens, view.place(states), axes, said.strip(), circle=circle)


def _on_circle(run: Shown) -> bool:
    return run.dim == 2 and run.space == "sphere"


def _to_scale(run: Shown, states: np.ndarray) -> tuple[str, np.ndarray, bool]:
    """Return the states, or their directions where lengths differ too much to be drawn to one scale."""
    sizes = np.abs(states).max(axis=-1)
    largest, middle = float(sizes.max()), float(np.median(sizes))
    if run.on_surface or largest <= _FAR * middle or not (sizes > 0).all():
        return "", states, False
    scaled = states / sizes[..., None]
    units = scaled / np.linalg.norm(scaled, axis=-1, keepdims=True)
    return (
        "Directions x/|x| are drawn, since the lengths differ too much for one scale: a token that runs straight away "
        "from zero stays where it is.",
        units,
        True,
    )


def _chart(run: Shown, found: _Paths, width: float) -> Drawing:
    height = _PATHS_HEIGHT if width >= WIDE else _NARROW_HEIGHT
    x, y = (_time_axes if found.over_time else _plane_axes)(run, found, width, height)
    shades = _shades(found)
    scale = alt.Scale(domain=list(range(len(POSITIONS))), range=list(POSITIONS))
    shade = {"scale": scale, "legend": None}
    lines = [
        {"x": float(a), "y": float(b), "token": int(token), "part": shades[place], "n": step}
        for place, token in enumerate(found.tokens)
        for step, (a, b) in enumerate(found.points[:, place])
    ]
    ends = {
        name: [
            {"x": float(a), "y": float(b), "part": shades[place], "text": f"token {found.tokens[place] + 1}, {name}"}
            for place, (a, b) in enumerate(found.points[step])
        ]
        for name, step in (("start", 0), ("end", -1))
    }
    layers: list[alt.Chart] = [_circle(x, y)] if found.circle else []
    base = alt.Chart(inline(lines)).mark_line(strokeWidth=1.1, opacity=0.8)
    layers.append(base.encode(x=x, y=y, detail="token:N", order="n:Q", stroke=alt.Stroke("part:O", **shade)))
    rings = alt.Chart(inline(ends["start"]), name="hover-starts")
    discs = alt.Chart(inline(ends["end"]), name="hover-ends")
    layers += [
        rings.mark_point(shape="circle", fill=PAPER, size=34, strokeWidth=1.3, opacity=1).encode(
            x=x, y=y, stroke=alt.Stroke("part:O", **shade), description="text:N"
        ),
        discs.mark_point(shape="circle", size=52, stroke=INK, strokeWidth=0.7, opacity=1).encode(
            x=x, y=y, fill=alt.Fill("part:O", **shade), description="text:N"
        ),
    ]
    return alt.layer(*layers, width=width, height=height)


def _shades(found: _Paths) -> list[int]:
    """Return the fifth of the tokens to which each belongs, by its number."""
    most = int(found.tokens[-1]) + 1
    return [min(len(POSITIONS) * int(token) // most, len(POSITIONS) - 1) for token in found.tokens]


def _time_axes(run: Shown, found: _Paths, width: float, height: float) -> tuple[alt.X, alt.Y]:
    del height
    y = alt.Y("y:Q", scale=alt.Scale(zero=False), axis=alt.Axis(title=_capital(found.axes[1]), tickCount=6))
    return clock(run, width), y


def _plane_axes(run: Shown, found: _Paths, width: float, height: float) -> tuple[alt.X, alt.Y]:
    """Return axes on which one unit is as long either way, with what is drawn in the middle."""
    del run
    low, high = found.points.min(axis=(0, 1)), found.points.max(axis=(0, 1))
    if found.circle:
        low, high = np.minimum(low, -1.0), np.maximum(high, 1.0)
    middle, half = (low + high) / 2, (high - low) / 2
    tall = 1.08 * max(float(half[1]), float(half[0]) * height / width)
    wide = tall * width / height
    ticks = 8 if width >= WIDE else 4
    return (
        alt.X("x:Q", scale=alt.Scale(domain=[middle[0] - wide, middle[0] + wide], nice=False),
              axis=alt.Axis(title=_capital(found.axes[0]), tickCount=ticks)),
        alt.Y("y:Q", scale=alt.Scale(domain=[middle[1] - tall, middle[1] + tall], nice=False),
              axis=alt.Axis(title=_capital(found.axes[1]), tickCount=6)),
    )  # fmt: skip


def _circle(x: alt.X, y: alt.Y) -> alt.Chart:
    """Draw the outline of the unit sphere."""
    turn = np.linspace(0, 2 * math.pi, 121)
    rows = [{"x": float(np.cos(a)), "y": float(np.sin(a)), "n": n} for n, a in enumerate(turn)]
    return alt.Chart(alt.Data(values=rows)).mark_line(color=GRID, strokeWidth=1.5).encode(x=x, y=y, order="n:Q")


def _capital(words: str) -> str:
    """Begin with a capital letter, but for the name of a variable."""
    return words[:1].upper() + words[1:] if words[1:2].isalpha() else words


def _keys(found: _Paths) -> list[Key]:
    if len(found.tokens) < len(POSITIONS):
        return []
    names: Sequence[str] = ("first fifth of the tokens", "second", "third", "fourth", "last fifth")
    return [Key(name, "dot", colour) for name, colour in zip(names, POSITIONS, strict=True)]


def _ends(found: _Paths) -> str:
    """Say how far the tokens moved on the paper."""
    moved = found.points[-1] - found.points[0]
    if found.over_time:
        low, high = number(float(moved[:, 1].min())), number(float(moved[:, 1].max()))
        return f"From start to end the second changes by {low} to {high}."
    far = np.linalg.norm(moved, axis=-1)
    return f"Start and end of a path are {number(float(far.min()))} to {number(float(far.max()))} apart."


def _paths_table(found: _Paths) -> Table:
    """Return points of the paths: all, or evenly chosen times where there are many."""
    steps = evenly(len(found.times), max(2, _TABLE_POINTS // len(found.tokens)))
    rows = [
        cells(
            [float(found.times[step]), int(token) + 1, *map(float, found.points[step, place][int(found.over_time) :])]
        )
        for step in steps
        for place, token in enumerate(found.tokens)
    ]
    named = [_capital(name) for name in found.axes[int(found.over_time) :]]
    some = "" if len(steps) == len(found.times) else f", at {len(steps)} of the {len(found.times)} times drawn"
    return Table(f"Points of the paths{some}", ("Time", "Token", *named), tuple(rows))


_SPACES = {"free": "in free space", "sphere": "on the unit sphere", "ellipsoid": "on an ellipsoid"}
_MOST_COUNTS = 6


def shape(run: Shown) -> str:
    """Return what was simulated.

    Args:
        run: What is shown.
    """
    what = f"{plural(run.tokens, 'token')} of dim {run.dim:,}"
    what = what if run.many == 1 else f"{plural(run.many, 'system')} of {what} each"
    return f"{what}{_moved_by(run)}"


def _moved_by(run: Shown) -> str:
    flow = run.flow
    if flow is None:
        return ", under a flow that is not stored (a user-defined function)"
    where = _SPACES.get(run.space, f"in the space {run.space!r}")
    attends = flow.attention
    mask = "causal" if attends.causal else "full"
    linear = " with linear weights" if attends.weights == "linear" else ""
    positions = "" if attends.positions is None else f", with {type(attends.positions).__name__}"
    changing = "" if attends.constant else " with time-varying matrices"
    return f" {where}, under {plural(flow.heads, 'head')} of {mask} attention{linear}{positions}{changing}"


def findings(run: Shown, found: Ends, certificates: Sequence[Certificate] | None) -> list[str]:
    """Return sentences on how the run ended, where the tokens are then, and which statements of the theory held.

    Args:
        run: What is shown.
        found: Its ends.
        certificates: What held of the statements that apply; None where none was asked.
    """
    sentences = [_how_it_ended(run), *_directions(run, found), *_lengths(run, found), *_distances(run, found)]
    broken = int((~found.finite).sum())
    if broken:
        sentences.append(f"{_some(broken, run.many)} ended in a non-finite state, whose measures are undefined.")
    if certificates is not None:
        sentences.append(_certified(certificates))
    return sentences


def _how_it_ended(run: Shown) -> str:
    """Return how all systems ended, by status."""
    parts = []
    for status, count in run.statuses.most_common():
        at = run.end_times[run.status == status]
        low, high = number(float(at.min()), 4), number(float(at.max()), 4)
        when = f"t = {low}" if low == high else f"t = {low} to {high}"
        parts.append((count, status, when))
    if len(parts) == 1:
        count, status, when = parts[0]
        whose = "The run" if run.many == 1 else f"All {run.many:,} systems" if run.many > 2 else "Both systems"
        return f"{whose} {_phrase(status)} at {when}."
    listed = "; ".join(f"{count:,} {_phrase(status)} at {when}" for count, status, when in parts)
    return f"Of {run.many:,} systems, {listed}."


_PHRASES: dict[str, str] = {
    Status.HORIZON: "reached the end of the time interval",
    Status.CONSENSUS: "reached consensus",
    Status.DIVERGED: "diverged",
    Status.EQUILIBRIUM: "came to rest",
    Status.BUDGET: "spent the step budget",
    Status.UNDERFLOW: "stopped because the step size underflowed",
    Status.NOT_FINITE: "stopped because the velocity was not finite",
    Status.INTERRUPTED: "was interrupted",
}


def _phrase(status: str) -> str:
    return _PHRASES.get(status, f"ended as “{status}”")


def _some(count: int, many: int) -> str:
    if many == 1:
        return "The run"
    return f"{plural(count, 'system')} of {many:,}"


def _directions(run: Shown, found: Ends) -> list[str]:
    if run.tokens == 1:
        return ["With one token there is no distance to measure."]
    known = np.isfinite(found.cosine)
    sentences = []
    if (found.finite & ~known).any():
        missing = int((found.finite & ~known).sum())
        sentences.append(f"{_some(missing, run.many)} ended with a token at zero, which has no direction.")
    if not known.any():
        return sentences
    if np.isfinite(found.clusters).any():
        sentences.append(_clusters(run, found))
    both = known & np.isfinite(found.cosine_at_start)
    end = _typical(found.cosine[known], _cosine)
    start = (
        f"; it was {_typical(found.cosine_at_start[both], _cosine)} at t = {number(float(run.times[0]))}"
        if both.any()
        else ""
    )
    whose = "The mean cosine of two tokens" if run.many == 1 else "The mean cosine of two tokens of a system"
    sentences.append(f"{whose} is {end} at the end{start}.")
    return sentences


def _cosine(value: float) -> str:
    """Write a cosine; one near 1 by its difference from 1.

    >>> _cosine(0.5), _cosine(1.0), _cosine(1 - 2e-7)
    ('0.5', '1', '1 − 2 × 10⁻⁷')
    """
    return f"1 − {number(1 - value)}" if 0 < 1 - value < 5e-4 else number(value)


def _typical(values: np.ndarray, write: Callable[[float], str] = number) -> str:
    """Return one number, or the median of several with their range."""
    if len(values) == 1:
        return write(float(values[0]))
    low, middle, high = (write(float(each)) for each in (values.min(), np.median(values), values.max()))
    return middle if low == high else f"{middle} (median; range {low} to {high})"


def _clusters(run: Shown, found: Ends) -> str:
    known = np.isfinite(found.clusters)
    counts = Counter(found.clusters[known].astype(int).tolist())
    linked = f"(tokens at most {math.degrees(ANGLE):g}° apart are linked)"
    widest = number(float(np.nanmax(found.angle)))
    if run.many == 1:
        (count,) = counts
        return (
            f"At the end the directions of the {run.tokens:,} tokens form {plural(count, 'cluster')} {linked}; the "
            f"largest angle between two of them is {widest}°."
        )
    if len(counts) > _MOST_COUNTS:
        spelt = f"{_typical(found.clusters[known])} clusters"
    else:
        spelt = ", ".join(
            f"{plural(count, 'cluster')} in {plural(many, 'system')}" for count, many in sorted(counts.items())
        )
    return (
        f"At the end the directions of a system’s tokens form {spelt} {linked}; the largest angle in any is {widest}°."
    )


def _lengths(run: Shown, found: Ends) -> list[str]:
    """Return how the norms changed, in free space."""
    if run.on_surface or not found.finite.any():
        return []
    whose = "norm of the token" if run.tokens == 1 else "median norm of the tokens"
    end, start = _typical(found.norm[found.finite]), _typical(found.norm_at_start[np.isfinite(found.norm_at_start)])
    largest = (
        ""
        if run.tokens == 1 and run.many == 1
        else f"; the largest of all is {number(float(np.nanmax(found.largest_norm)))}"
    )
    return [f"The {whose} is {end} at the end and was {start} at the start{largest}."]


def _distances(run: Shown, found: Ends) -> list[str]:
    known = np.isfinite(found.distance) & np.isfinite(found.distance_at_start)
    if run.on_surface or not known.any():
        return []
    end, start = _typical(found.distance[known]), _typical(found.distance_at_start[known])
    return [f"The largest distance between two tokens is {end} at the end and was {start} at the start."]


def _certified(certificates: Sequence[Certificate]) -> str:
    if not certificates:
        return "No statement of the theory applies."
    counts = Counter(one.outcome for one in certificates)
    words: dict[str, str] = {"holds": "held", "fails": "failed", "undecided": "undecided"}
    listed = ", ".join(f"{counts[outcome]} {word}" for outcome, word in words.items() if counts[outcome])
    names = ", ".join(one.statement for one in certificates if one.outcome == "fails")
    many = len(certificates)
    apply = "applies" if many == 1 else "apply"
    return f"{plural(many, 'statement')} of the theory {apply}: {listed}{f' ({names})' if names else ''}."


def chosen(run: Shown) -> str:
    """Return which systems and times the curves show; empty where they show all.

    Args:
        run: What is shown.
    """
    parts = []
    if len(run.systems) < run.many:
        parts.append(f"{len(run.systems)} of {run.many:,} systems")
    if len(run.times) < run.kept:
        parts.append(f"{len(run.times)} of {run.kept:,} times")
    rest = " The statements above cover all systems." if len(run.systems) < run.many else ""
    return f"The curves show {' at '.join(parts)}, evenly spaced.{rest}" if parts else ""


@dataclass(frozen=True)
class Account:
    """What is known of a run beyond its trajectory.

    Attributes:
        title: What it is called.
        manifest: How to make it again.
        certificates: What held of the statements that apply; None where none was asked.
        warnings: What the reader is to be warned of.
        files: Names of the data files beside the page.
        system: Whose paths are drawn, counted from 0.
    """

    title: str = "A simulation"
    manifest: Mapping[str, Any] = field(default_factory=dict)
    certificates: tuple[Certificate, ...] | None = None
    warnings: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    system: int = 0


@page_of.register(Trajectory)
def simulation_page(trajectory: Trajectory, account: Account | None = None) -> str:
    """Return the whole page as HTML that needs nothing else.

    Args:
        trajectory: From `tokendynamics.simulate`.
        account: What is known of the run beyond it; None for the record that every trajectory has.

    Returns:
        HTML, to be stored as UTF-8; all text that came from a user is escaped.

    Raises:
        ArgumentValueError: No such system, or a trajectory without tokens.
    """
    if 0 in trajectory.tensor.shape:
        came = f"shape {tuple(trajectory.tensor.shape)}"
        raise ArgumentValueError(expected("trajectory", "at least one system, time, token and feature", came))
    told = _of_trajectory(trajectory) if account is None else account
    run = shown(trajectory, told.system)
    found = ends(run)
    return render(
        "simulation.html.jinja",
        title=f"{told.title}: where do the tokens go?",
        verdict_title="Result",
        sections=_sections(run, found, told),
        conventions=_CONVENTIONS,
        manifest={name: shortened(value) for name, value in told.manifest.items() if name not in _PER_SYSTEM},
        files=told.files,
        scripts=("shared.js",),
        sheets=("page.css",),
        name=told.title,
        shape=f"{shape(run)}, from t = {number(float(run.times[0]))} to {number(run.horizon)}",
        facts=_facts(run, told.manifest),
        findings=[*findings(run, found, told.certificates), *(f"Warning: {each}." for each in told.warnings)],
    )


_PER_SYSTEM = ("counts", "end_times", "status", "horizon")
"""What the page says itself, or what has a number for each system."""


def _of_trajectory(trajectory: Trajectory) -> Account:
    """Return what a trajectory itself records."""
    warned = tuple(note.removeprefix("warning: ") for note in trajectory.notes if note.startswith("warning: "))
    return Account(manifest={"engine": trajectory.engine, "parameters": trajectory.parameters}, warnings=warned)


def _sections(run: Shown, found: Ends, told: Account) -> list[Section]:
    one_time = len(run.times) < 2
    curves = [] if one_time else [over_time(run, measure) for measure in measures(run)]
    single = "Only one time is stored, so there are no curves." if one_time else ""
    sentences = tuple(filter(None, (chosen(run), single)))
    not_paired = run.tokens > 1 and not run.pairs_measured
    notes = (f"Distances and clusters of {run.tokens:,} tokens are not measured over time.",) if not_paired else ()
    sections = [Section("time", "What changes over time?", sentences, figures=tuple(curves), notes=notes)]
    if not one_time:
        sections.append(Section("tokens", QUESTION, figures=(paths_figure(run, told.system),)))
    sections.append(Section("systems", _ended(run), tables=(systems_table(run, found),)))
    if told.certificates:
        sections.append(
            Section("statements", "Which statements of the theory held?", tables=(_certificates(told.certificates),))
        )
    return sections


def _ended(run: Shown) -> str:
    return "How did the run end?" if run.many == 1 else "How did each system end?"


def _certificates(certificates: Sequence[Certificate]) -> Table:
    rows = tuple(
        cells([one.statement, one.outcome, float(one.margin), float(one.tolerance), one.text]) for one in certificates
    )
    columns = ("Statement", "Outcome", "Margin", "Tolerance", "Explanation")
    return Table("Statements that apply to at least one system; a statement holds from margin 0 on", columns, rows)


def _facts(run: Shown, manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("Engine", run.engine), ("With", written(manifest.get("versions")))]
    if "started" in manifest:
        facts.insert(0, ("Made", f"{moment(manifest['started'])}, in {duration(manifest.get('duration_seconds'))}"))
    return [(name, text) for name, text in facts if text]


_CONVENTIONS = (
    Convention(
        "The end",
        "is the last state of a system, at the last time or where its run ended earlier",
        "a diverged system would count with states that it never had",
    ),
    Convention(
        "Systems over time",
        "a system counts in the curves up to the end of its run",
        "systems that ended early would look as if they rested at their last state",
    ),
    Convention(
        "Clusters",
        "are groups of directions joined by angles of at most 5° (single linkage), as in the figures of positional",
        "a wider angle gives fewer clusters, a narrower one more",
    ),
    Convention(
        "Numbering",
        "systems are counted from 0, as in the data; tokens from 1, as in the papers",
        "labels would differ from those of the other figures",
    ),
)


@page_of.register(Simulation)
def specified_page(simulation: Simulation) -> str:
    """Return the page of a simulation.

    Args:
        simulation: From `tokendynamics.specification.run`.
    """
    account = Account(
        title=simulation.file.tables.title or simulation.file.name,
        manifest=simulation.manifest,
        certificates=simulation.certificates,
        warnings=tuple(simulation.warnings),
        files=simulation.files,
        system=simulation.file.tables.output.system,
    )
    return simulation_page(simulation.trajectory, account)
