"""Distances between tokens and norms of tokens over time."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tokendynamics import observables
from tokendynamics.numerics.arguments import ArrayLike
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.plots import style
from tokendynamics.plots.over_time import Log, over_time
from tokendynamics.plots.recording import Simulated, timed_run
from tokendynamics.plots.style import SINGLE

_MOST_TOKENS = 200


@typed_arguments
def distances(
    times: ArrayLike | Simulated,
    states: ArrayLike | None = None,
    *,
    geometry: Literal["euclidean", "sphere"] = "euclidean",
    log: Log = "none",
    system: int | None = None,
    axes: Axes | None = None,
    width: float = SINGLE,
) -> Figure:
    """Draw the distance of every pair of tokens over time.

    Up to six pairs (four tokens) have a line each with a name, counted from 1 as in the papers; more are drawn
    thin, under their median and with a band that holds the middle 80 %.

    Args:
        times: Shape (time,), increasing; or a trajectory, which has its own states.
        states: Shape (time, token, dim), or (system, time, token, dim) with `system`.
        geometry: ``"euclidean"`` for |x_i − x_j|, ``"sphere"`` for the angle in radians; see
            `tokendynamics.observables.pairwise_distances`.
        log: Which axes are logarithmic; pairs of equal tokens are then left out, and the label says so.
        system: Which system of a batch to draw.
        axes: A panel to draw on; None for a new figure.
        width: Width in inches of a new figure.

    Returns:
        The figure.

    Raises:
        ArgumentTypeError, ArgumentValueError: States that are not one run, times that do not fit, fewer than two
            or more than 200 tokens.

    Same kind of figure as `positional` Figure 1.

    >>> import torch
    >>> states = torch.tensor([[[0.0, 0.0], [3.0, 4.0]], [[0.0, 0.0], [0.6, 0.8]]], dtype=torch.float64)
    >>> figure = distances([0.0, 1.0], states)
    >>> figure.axes[0].lines[0].get_ydata().tolist()
    [5.0, 1.0]
    """
    times, run = timed_run(times, states, system)
    count = run.shape[1]
    if not 2 <= count <= _MOST_TOKENS:
        advice = "choose some of the tokens" if count > 2 else ""
        raise ArgumentValueError(expected("states", f"2 to {_MOST_TOKENS} tokens", f"{count}", advice))
    first, second = np.triu_indices(count, k=1)
    pairs = observables.pairwise_distances(torch.from_numpy(run), geometry=geometry)[:, first, second].T
    names = [f"tokens {i + 1}, {j + 1}" for i, j in zip(first, second, strict=True)]
    label = "distance $|x_i - x_j|$" if geometry == "euclidean" else "angle between tokens (rad)"
    few = _few(names)
    return _from_zero(over_time(times, pairs, label, names=few, many="pairs", log=log, axes=axes, width=width), axes)


@typed_arguments
def norms(
    times: ArrayLike | Simulated,
    states: ArrayLike | None = None,
    *,
    log: Log = "values",
    system: int | None = None,
    axes: Axes | None = None,
    width: float = SINGLE,
) -> Figure:
    """Draw the Euclidean norm of every token over time, on a logarithmic axis unless told otherwise.

    Up to six tokens have a line each with a name, counted from 1 as in the papers; more are drawn thin, under
    their median. A straight line is exponential growth (`positional` Theorem 3.6); with ``log="both"`` a slope of
    −1/2 is the slow decay of `positional` Theorem 3.4.

    Args:
        times: Shape (time,), increasing; or a trajectory, which has its own states.
        states: Shape (time, token, dim), or (system, time, token, dim) with `system`.
        log: Which axes are logarithmic; tokens at zero are then left out, and the label says so.
        system: Which system of a batch to draw.
        axes: A panel to draw on; None for a new figure.
        width: Width in inches of a new figure.

    Returns:
        The figure.

    Raises:
        ArgumentTypeError, ArgumentValueError: States that are not one run, or times that do not fit.

    >>> import torch
    >>> figure = norms([0.0, 1.0], torch.tensor([[[3.0, 4.0]], [[0.3, 0.4]]], dtype=torch.float64))
    >>> figure.axes[0].lines[0].get_ydata().tolist()
    [5.0, 0.5]
    """
    times, run = timed_run(times, states, system)
    lengths = observables.norms(torch.from_numpy(run)).T
    names = [f"token {i + 1}" for i in range(run.shape[1])]
    label, few = "norm $|x_i|$", _few(names)
    return _from_zero(over_time(times, lengths, label, names=few, many="tokens", log=log, axes=axes, width=width), axes)


def _from_zero(figure: Figure, axes: Axes | None) -> Figure:
    """Let the axis of a length begin at zero, where it is not logarithmic."""
    panel = figure.axes[0] if axes is None else axes
    if panel.get_yscale() == "linear":
        panel.set_ylim(bottom=0)
    return figure


def _few(names: list[str]) -> list[str]:
    return names if 1 < len(names) <= len(style.LINES) else []
