"""Where the tokens of one system go: paths on paper, or one coordinate over time where there is only one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np

from tokendynamics.figures.figure import Figure, Table, cells, nothing
from tokendynamics.figures.palette import GRID, INK, PAPER, POSITIONS
from tokendynamics.figures.recording import Recording
from tokendynamics.figures.svg import WIDE, Drawing, Key, draw_for_screens, inline
from tokendynamics.figures.view import choose_view
from tokendynamics.report.simulation._over_time import clock
from tokendynamics.report.simulation._shown import Shown, evenly
from tokendynamics.words import number, plural

QUESTION = "Where does each token go?"
IDENT = "paths"
_MOST_TOKENS, _MOST_POINTS = 60, 4000
_TABLE_POINTS = 1500
_HEIGHT, _NARROW_HEIGHT = 460, 258
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
        return nothing(
            IDENT, QUESTION, f"Nothing is drawn: {whose.lower()} has fewer than two times that were reached."
        )
    found = _paths(run, states, np.flatnonzero(reached))
    if float(np.ptp(found.points[..., int(found.over_time) :], axis=0).max(initial=0.0)) == 0:
        return nothing(IDENT, QUESTION, "Nothing is drawn: no token moves.")
    chosen = f"{len(found.tokens)} of {run.tokens} tokens, evenly by number" if len(found.tokens) < run.tokens else ""
    of = f"{whose}{f', {chosen}' if chosen else ''}. " if run.many > 1 or chosen else ""
    return Figure(
        ident=IDENT,
        question=QUESTION,
        svg=draw_for_screens(
            lambda width: _chart(run, found, width),
            ident=IDENT,
            title=f"{QUESTION} Paths from start to end",
            description=f"{plural(len(found.tokens), 'path')}: {found.axes[0]} and {found.axes[1]}. {_ends(found)}",
            keys=_keys(found),
        ),
        caption=f"{of}{found.said} Rings are starts, discs are ends"
        + ("." if found.over_time else "; one unit is as long on both axes."),
        table=_table(found),
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
    height = _HEIGHT if width >= WIDE else _NARROW_HEIGHT
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


def _table(found: _Paths) -> Table:
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
