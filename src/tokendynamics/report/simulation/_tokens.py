"""Where each token goes: the paths of one system from start to end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokendynamics.figures.curves import evenly
from tokendynamics.figures.figure import Figure, Section, Table, cells
from tokendynamics.figures.planes import Paths, capital
from tokendynamics.figures.recording import Recording, choose_view
from tokendynamics.report.simulation._run import Shown, clock
from tokendynamics.words import number, plural

_IDENT, _QUESTION = "paths", "Where does each token go?"
_MOST_TOKENS, _MOST_POINTS = 60, 4000
_TABLE_POINTS = 1500
_FAR = 1e3
"""Beyond this ratio of the largest to the median norm a drawing to scale shows a few last points and nothing else."""


@dataclass(frozen=True)
class _Seen:
    """What is drawn of the paths of some tokens, at which times, and what is said of it."""

    drawn: Paths
    times: np.ndarray
    caption: str

    @property
    def over_time(self) -> bool:
        """Whether the first axis is time."""
        return self.drawn.clock is not None


def section(run: Shown, system: int) -> Section | None:
    """Return the section: the paths of the tokens of one system, which is among the chosen ones; None for one time."""
    return None if len(run.times) < 2 else Section("tokens", _QUESTION, figures=(_paths_figure(run, system),))


def _paths_figure(run: Shown, system: int) -> Figure:
    """Draw the paths of the tokens of one system."""
    place = int(np.flatnonzero(run.systems == system)[0])
    reached = run.reached[place]
    states = run.states[place].numpy()[reached]
    whose = f"System {system}" if run.many > 1 else "The run"
    if reached.sum() < 2:
        return Figure(
            _IDENT, _QUESTION, f"Nothing is drawn: {whose.lower()} has fewer than two times that were reached."
        )
    paths = _paths(run, states, np.flatnonzero(reached))
    if float(np.ptp(paths.drawn.points[..., int(paths.over_time) :], axis=0).max(initial=0.0)) == 0:
        return Figure(_IDENT, _QUESTION, "Nothing is drawn: no token moves.")
    many, (first, second) = len(paths.drawn.tokens), paths.drawn.names
    chosen = f"{many} of {run.tokens} tokens, evenly by number" if many < run.tokens else ""
    of = f"{whose}{f', {chosen}' if chosen else ''}. " if run.many > 1 or chosen else ""
    steps = evenly(len(paths.times), max(2, _TABLE_POINTS // len(paths.drawn.tokens)))
    rows = [
        cells(
            [
                float(paths.times[step]),
                int(token) + 1,
                *map(float, paths.drawn.points[step, place][int(paths.over_time) :]),
            ]
        )
        for step in steps
        for place, token in enumerate(paths.drawn.tokens)
    ]
    named = [capital(name) for name in paths.drawn.names[int(paths.over_time) :]]
    some = "" if len(steps) == len(paths.times) else f", at {len(steps)} of the {len(paths.times)} times drawn"
    return Figure(
        _IDENT,
        _QUESTION,
        f"{of}{paths.caption} Rings are starts, discs are ends"
        + ("." if paths.over_time else "; one unit is as long on both axes."),
        paths.drawn,
        Table(f"Points of the paths{some}", ("Time", "Token", *named), tuple(rows)),
        title=f"{_QUESTION} Paths from start to end",
        description=f"{plural(many, 'path')}: {first} and {second}. {_ends(paths)}",
    )


def _paths(run: Shown, states: np.ndarray, at: np.ndarray) -> _Seen:
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
        return _Seen(
            Paths(tokens, points, ("time", name), clock(run)), times, f"The coordinate {letter} of each token."
        )
    if _on_circle(run):
        angles = np.unwrap(np.arctan2(states[..., 1], states[..., 0]), axis=0)
        points = np.stack([np.broadcast_to(times[:, None], angles.shape), np.degrees(angles)], axis=-1)
        caption = "The angle of each token on the circle, without jumps: a full turn is 360° more."
        return _Seen(Paths(tokens, points, ("time", "angle in degrees"), clock(run)), times, caption)
    caption, states, unit = _to_scale(run, states)
    view = choose_view(Recording(states, times, None if not run.on_surface else np.eye(run.dim)), None)
    if view.labels is None:
        axes = ("to the right", "upwards")
        caption += " Seen from one side without perspective, over the mean of all tokens; what is behind is drawn, too."
    else:
        axes = view.labels
    circle = (run.space == "sphere" or unit) and run.dim == 3
    return _Seen(Paths(tokens, view.place(states), axes, circle=circle), times, caption.strip())


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


def _ends(paths: _Seen) -> str:
    """Say how far the tokens moved on the paper."""
    displacements = paths.drawn.points[-1] - paths.drawn.points[0]
    if paths.over_time:
        low, high = number(float(displacements[:, 1].min())), number(float(displacements[:, 1].max()))
        return f"From start to end the second changes by {low} to {high}."
    far = np.linalg.norm(displacements, axis=-1)
    return f"Start and end of a path are {number(float(far.min()))} to {number(float(far.max()))} apart."
