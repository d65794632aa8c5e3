"""Tokens and the surface they live on: on the sphere or ellipsoid, the circle, the plane, or principal directions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tokendynamics.figures import style as style
from tokendynamics.figures.recording import Recording, Run, View, choose_view, read_run
from tokendynamics.figures.style import SINGLE, panel_for, paper_style
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.spaces import Space

_MERIDIANS, _PARALLELS, _POINTS = 12, 5, 121


def wire(metric: np.ndarray) -> list[np.ndarray]:
    """Return meridians and parallels of y^T M y = 1 in three dimensions, each of shape (point, 3).

    They are those of the unit sphere carried over by M^(−1/2), and every point is scaled back onto the surface, so
    that |y^T M y − 1| is at the level of rounding.

    >>> curves = wire(np.diag([1.0, 4.0, 9.0]))
    >>> max(float(abs(np.einsum("pi,ij,pj->p", c, np.diag([1.0, 4.0, 9.0]), c) - 1).max()) for c in curves) < 1e-14
    True
    """
    values, vectors = np.linalg.eigh(metric)
    root = (vectors / np.sqrt(values)) @ vectors.T
    turn = np.linspace(0, 2 * np.pi, _POINTS)
    half = np.linspace(-np.pi / 2, np.pi / 2, _POINTS)
    longitudes = np.arange(_MERIDIANS) * 2 * np.pi / _MERIDIANS
    latitudes = (np.arange(_PARALLELS) + 1) * np.pi / (_PARALLELS + 1) - np.pi / 2
    meridians = [_on_sphere(np.full_like(half, longitude), half) for longitude in longitudes]
    parallels = [_on_sphere(turn, np.full_like(turn, latitude)) for latitude in latitudes]
    curves = [curve @ root for curve in meridians + parallels]
    return [curve / np.sqrt(np.einsum("pi,ij,pj->p", curve, metric, curve))[:, None] for curve in curves]


def outline(metric: np.ndarray, paper: np.ndarray) -> np.ndarray:
    """Return the edge of the shadow of y^T M y = 1 under the orthonormal rows of `paper`, shape (point, 2).

    The shadow of the ellipsoid is the ellipse z^T (C M^(−1) C^T)^(−1) z = 1 with C = `paper`, in any dimension.

    >>> edge = outline(np.diag([1.0, 4.0]), np.eye(2))
    >>> edge.max(axis=0).round(3).tolist()
    [1.0, 0.5]
    """
    turn = np.linspace(0, 2 * np.pi, 2 * _POINTS - 1)
    shape = np.linalg.cholesky(paper @ np.linalg.solve(metric, paper.T))
    return np.stack([np.cos(turn), np.sin(turn)], axis=-1) @ shape.T


def _on_sphere(longitude: np.ndarray, latitude: np.ndarray) -> np.ndarray:
    flat = np.cos(latitude)
    return np.stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], axis=-1)


_MARGIN = 1.06
_POKE, _LABEL = 0.32, 0.14


@dataclass(frozen=True)
class Scene:
    """One run seen from one side, on one panel.

    Artists carry labels that begin with an underscore (``_path 3``, ``_start``, ``_wire``), so that they can be
    found again and stay out of legends.
    """

    axes: Axes
    recording: Recording
    view: View

    def surroundings(self, last: str) -> None:
        """Draw all that does not move: surface, axes, limits and what the circles mean."""
        self.axes.set_aspect("equal")
        if self.view.labels is None:
            self.axes.set_axis_off()
            corners = self._solid_surface() if self.recording.metric is not None else self._free_axes()
        else:
            self.axes.set_xlabel(self.view.labels[0])
            self.axes.set_ylabel(self.view.labels[1])
            corners = self._flat_surface()
        self._limits(np.concatenate([corners, self.view.place(self.recording.states).reshape(-1, 2)]))
        self._legend(last)

    def tokens(self, count: int) -> list[Artist]:
        """Draw the first `count` saved states: the paths so far, where they began, and where the tokens are now."""
        states = self.recording.states[:count]
        points, front = self.view.place(states), self.view.in_front(states, self.recording.metric)
        drawn = [artist for token in range(points.shape[1]) for artist in self._path(token, points, front)]
        drawn += self._circles("start", points[0], front[0], style.START, style.START)
        drawn += self._circles("end", points[-1], front[-1], style.END, style.END_HIDDEN)
        return drawn

    def _path(self, token: int, points: np.ndarray, front: np.ndarray) -> list[Artist]:
        path, seen = points[:, token], front[:, token]
        hidden = not bool(seen.all())
        colour = style.PATH_HIDDEN if hidden else style.PATH
        label = f"_path {token + 1}"
        drawn: list[Artist] = list(
            self.axes.plot(*path.T, color=colour, lw=0.9, label=label, zorder=2 if hidden else 5)
        )
        if hidden and seen.any():
            parts = front_parts(path, seen)
            drawn += self.axes.plot(*parts.T, color=style.PATH, lw=0.9, label=f"{label} front", zorder=5)
        return drawn

    def _circles(self, name: str, points: np.ndarray, front: np.ndarray, fill: str, pale: str) -> list[Artist]:
        above = 1 if name == "end" else 0
        look = {"ls": "none", "marker": "o", "ms": 4.6, "mew": 0.7}
        drawn: list[Artist] = []
        if not front.all():
            behind = {"mfc": pale, "mec": style.WIRE, "zorder": 3 + above / 2, "label": f"_{name} hidden"}
            drawn += self.axes.plot(*points[~front].T, **look, **behind)
        if front.any():
            drawn += self.axes.plot(
                *points[front].T, **look, mfc=fill, mec=style.INK, zorder=6 + above / 2, label=f"_{name}"
            )
        return drawn

    def _solid_surface(self) -> np.ndarray:
        metric = self.recording.metric
        if metric is None:
            raise ValueError("a free run has no surface")
        edge = outline(metric, self.view.paper)
        self.axes.fill(*edge.T, fc=style.SURFACE, ec="none", zorder=0.8, label="_surface")
        self.axes.plot(*edge.T, color=style.AXIS, lw=0.7, zorder=4.5, label="_outline")
        for curve in wire(metric):
            placed, front = self.view.place(curve), self.view.in_front(curve, metric)
            self.axes.plot(*placed.T, color=style.WIRE_HIDDEN, lw=0.4, zorder=1, label="_wire")
            if front.any():
                seen = front_parts(placed, front)
                self.axes.plot(*seen.T, color=style.WIRE, lw=0.45, zorder=4, label="_wire front")
        crossings = 1 / np.sqrt(np.diag(metric))
        size = float(np.abs(edge).max())
        if not np.allclose(crossings, crossings[0]) or not np.isclose(crossings[0], 1):
            lengths = ", ".join(f"{length:.3g}" for length in crossings)
            self._note(f"axes leave the surface at {lengths}")
        return np.concatenate([edge, self._three_axes(crossings, crossings + _POKE * size, size)])

    def _free_axes(self) -> np.ndarray:
        length = rounded_size(float(np.abs(self.recording.states).max()))
        self._note(f"axes of length {length:g} from the origin")
        return self._three_axes(np.zeros(3), np.full(3, length), length)

    def _three_axes(self, begin: np.ndarray, end: np.ndarray, size: float) -> np.ndarray:
        """Draw the coordinate axes from where they leave the surface, and return the room that they take."""
        tips = []
        for k, direction in enumerate(np.eye(3)):
            from_, to = self.view.place(begin[k] * direction), self.view.place(end[k] * direction)
            seen = bool(self.view.in_front(direction, self.recording.metric))
            colour, zorder = (style.MUTED, 4.6) if seen else (style.WIRE, 1.2)
            arrow = {"arrowstyle": "-|>,head_width=0.12,head_length=0.3", "color": colour, "lw": 0.7}
            arrow |= {"shrinkA": 0, "shrinkB": 0}
            self.axes.annotate("", tuple(to), tuple(from_), arrowprops=arrow, zorder=zorder)
            away = to / max(float(np.hypot(*to)), 0.3 * size)
            at = to + _LABEL * size * away
            text = f"{self.recording.letter}[{k}]"
            ink, above = (style.INK, 7) if seen else (style.AXIS, zorder)
            self.axes.text(at[0], at[1], text, ha="center", va="center", fontsize=7, color=ink, zorder=above)
            tips.append(at + _LABEL * size * np.sign(away))
        return np.stack(tips)

    def _flat_surface(self) -> np.ndarray:
        if self.recording.metric is None:
            return np.empty((0, 2))
        edge = outline(self.recording.metric, self.view.paper)
        self.axes.plot(*edge.T, color=style.WIRE, lw=0.7, zorder=1, label="_outline")
        return edge

    def _limits(self, points: np.ndarray) -> None:
        low, high = points.min(axis=0), points.max(axis=0)
        middle, half = (low + high) / 2, (high - low) / 2
        # A run at rest has no extent: show one unit of its own size around it.
        half = np.maximum(half, 0.05 * half.max()) if half.max() > 0 else np.maximum(np.abs(middle).max(), 1) * 0.5
        reach = _MARGIN * np.broadcast_to(half, 2)
        self.axes.set_xlim(middle[0] - reach[0], middle[0] + reach[0])
        self.axes.set_ylim(middle[1] - reach[1], middle[1] + reach[1])

    def _note(self, text: str) -> None:
        self.axes.text(
            0.5, 0.0, text, transform=self.axes.transAxes, ha="center", va="top", fontsize=7, color=style.MUTED
        )

    def _legend(self, last: str) -> None:
        look = {"ls": "none", "marker": "o", "ms": 4.6, "mew": 0.7, "mec": style.INK}
        circles = [
            Line2D([], [], mfc=fill, label=text, **look) for fill, text in (("white", "start"), (style.END, last))
        ]
        look = {"handlelength": 0.8, "handletextpad": 0.4, "columnspacing": 1.0, "borderaxespad": 0.0}
        if self.view.labels is None:
            self.axes.legend(handles=circles, loc="upper left", **look)
        else:
            # Above the panel, where no path can run through it.
            self.axes.legend(handles=circles, loc="lower right", bbox_to_anchor=(1, 1.01), ncols=2, **look)


def front_parts(points: np.ndarray, front: np.ndarray) -> np.ndarray:
    """Return the pieces of a path (point, 2) with an end in front, in one array with a NaN row after each piece.

    >>> front_parts(np.array([[0.0, 0], [1, 0], [2, 0], [3, 0]]), np.array([True, False, False, False])).tolist()
    [[0.0, 0.0], [1.0, 0.0], [nan, nan]]
    """
    seen = front[:-1] | front[1:]
    gap = np.full((1, points.shape[1]), np.nan)
    pieces = [gap[:0]]
    for run in np.split(np.arange(seen.size), np.flatnonzero(np.diff(seen)) + 1):
        if run.size and seen[run[0]]:
            pieces += [points[run[0] : run[-1] + 2], gap]
    return np.concatenate(pieces)


def rounded_size(size: float) -> float:
    """Return the largest of 1, 2, 5 times a power of ten that is not above `size`; 1 for no size at all.

    >>> rounded_size(0.7), rounded_size(3.0), rounded_size(0.0)
    (0.5, 2.0, 1.0)
    """
    if not size > 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(size))
    return float(max(step * power for step in (1, 2, 5) if step * power <= size * (1 + 1e-12)))


@paper_style()
@typed_arguments
def tokens(
    states: Run,
    *,
    space: Space | None = None,
    system: int | None = None,
    view: tuple[float, float] | None = None,
    axes: Axes | None = None,
    width: float = SINGLE,
) -> Figure:
    """Draw the paths of all tokens of one run: white circles at the start, grey ones at the end, blue between.

    In three dimensions the surface y^T M y = 1 is drawn as a wire, and what it hides is paler; the view is
    orthographic. In two dimensions the paths are drawn as they are. In more than three dimensions they are
    projected on the first two principal directions of all saved states (not shifted), the axis labels say so, and
    the outline is the edge of the surface's shadow. Lines join the saved states; nothing is interpolated. What a run
    did not reach is not drawn.

    Args:
        states: A `tokendynamics.dynamics.Trajectory`, or states of shape (time, token, dim) or
            (system, time, token, dim).
        space: `Free()`, `Sphere()` or `Ellipsoid(metric)`; None for that of the trajectory, and for free tokens
            where plain states came.
        system: Which system of a batch to draw.
        view: (azimuth, elevation) in degrees, dim 3 only; None for a view that faces the tokens.
        axes: A panel to draw on; None for a new figure.
        width: Width in inches of a new figure.

    Returns:
        The figure; write it with `tokendynamics.figures.save`.

    Raises:
        ArgumentTypeError, ArgumentValueError: States that are not one run, that are not finite, or that do not lie
            on the surface of `space`.

    Same kind of figure as `asymptotic` Figures 1, 3 and 4 (left) and `positional` Figure 2.

    >>> import torch
    >>> angle = torch.linspace(0, 1, 5, dtype=torch.float64)
    >>> path = torch.stack([torch.cos(angle), torch.sin(angle)], dim=-1)[:, None, :]
    >>> figure = tokens(path)
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['_path 1', '_start', '_end']
    """
    recording = read_run(states, space=space, times=None, system=system)
    chosen = choose_view(recording, view)
    figure, panel = panel_for(axes, width, height=0.92 * width)
    scene = Scene(panel, recording, chosen)
    scene.surroundings(last="end")
    scene.tokens(recording.states.shape[0])
    return figure
