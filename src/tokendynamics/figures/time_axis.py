"""One number, or one for each system, over time: any, or the distances between tokens and their norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tokendynamics import observables
from tokendynamics.figures import style as style
from tokendynamics.figures._print import draw
from tokendynamics.figures.axes import Axis
from tokendynamics.figures.curves import Curve, Curves, Rule
from tokendynamics.figures.palette import PRINTED
from tokendynamics.figures.recording import Simulated, read_times, timed_run, to_numpy
from tokendynamics.figures.style import SINGLE, panel_for, paper_style
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_tensor
from tokendynamics.numerics.signatures import typed_arguments

Log: TypeAlias = Literal["none", "values", "times", "both"]
"""Which axes are logarithmic."""

_ENOUGH_FOR_A_BAND = 10


@paper_style()
@typed_arguments
def over_time(
    times: ArrayLike,
    values: ArrayLike,
    label: str,
    *,
    log: Log = "none",
    names: Sequence[str] = (),
    many: str = "systems",
    references: Mapping[str, float] | None = None,
    time_label: str = "time t",
    axes: Axes | None = None,
    width: float = SINGLE,
) -> Figure:
    """Draw a functional over time: one line, a few lines with names, or many systems with their median.

    Many lines without names are drawn thin, under their median; from ten lines on a band holds the middle 80 %
    (10 % to 90 % quantile at each time). Named lines differ in colour and dash.

    Args:
        times: Shape (time,), increasing.
        values: Shape (time,), or (line, time); further leading axes count as lines.
        label: What the values are, with their unit: the label of the vertical axis.
        log: Which axes are logarithmic; values or times that are not positive are then left out, and the axis
            label says so.
        names: One name for each line, at most six; empty for none.
        many: What the lines are, for the legend of the median.
        references: Horizontal lines to compare with, by name, such as ``{"−50e": −135.9}``.
        time_label: The label of the horizontal axis.
        axes: A panel to draw on; None for a new figure.
        width: Width in inches of a new figure.

    Returns:
        The figure.

    Raises:
        ArgumentTypeError, ArgumentValueError: Times and values that do not fit, names that do not fit the lines,
            an unknown `log`, or nothing positive on a logarithmic axis.

    Same kind of figure as `asymptotic` Figures 1–5 (right) and 6.

    >>> figure = over_time([0.0, 1.0, 2.0], [1.0, 0.1, 0.01], "E", log="values")
    >>> figure.axes[0].lines[0].get_ydata().tolist(), figure.axes[0].get_yscale()
    ([1.0, 0.1, 0.01], 'log')
    """
    lines = to_numpy(as_tensor(values, "values", ndim_at_least=1, axes="(…, time)"))
    if not lines.size:
        raise ArgumentValueError("values", "at least one line and time", f"shape {lines.shape}")
    lines = lines.reshape(-1, lines.shape[-1])
    clock = read_times(times, lines.shape[-1])
    _check_names(names, lines.shape[0])
    time_label, label = _checked_scales(log, clock, lines, time_label, label)
    figure, panel = panel_for(axes, width)
    rules = [Rule(level, name) for name, level in (references or {}).items()]
    axis = Axis(time_label, log=log in ("times", "both"))
    curves = _curves(clock, lines, names, many)
    draw(Curves(curves, label, axis=axis, log=log in ("values", "both"), rules=rules), panel)
    if len(lines) > 1 or names:
        panel.legend(ncols=2 if len(names) > 3 else 1, columnspacing=1.2)
    return figure


def _curves(times: np.ndarray, lines: np.ndarray, names: Sequence[str], many: str) -> list[Curve]:
    """Return lines with names, one without, or thin ones under their median with a band if there are enough of them."""
    if names:
        looks = zip(names, lines, PRINTED, strict=False)
        return [Curve(name, times, line, colour, dash=dash) for name, line, (colour, dash) in looks]
    if len(lines) == 1:
        return [Curve("", times, lines[0], style.PATH)]
    median = Curve(f"median of {len(lines)} {many}", times, np.median(lines, axis=0), style.PATH, width=2.6)
    if len(lines) >= _ENOUGH_FOR_A_BAND:
        low, high = np.quantile(lines, [0.1, 0.9], axis=0)
        median = replace(median, low=low, high=high, band=f"middle 80 % of {len(lines)} {many}")
    return [*(Curve("", times, line, style.THIN, width=0.8) for line in lines), median]


def _checked_scales(log: Log, times: np.ndarray, lines: np.ndarray, time_label: str, label: str) -> tuple[str, str]:
    if log not in get_args(Log):
        raise ArgumentValueError("log", "one of " + ", ".join(map(repr, get_args(Log))), repr(log))
    if log in ("times", "both"):
        time_label += _left_out("times", times)
    if log in ("values", "both"):
        label += _left_out("values", lines)
    return time_label, label


def _left_out(argument: str, numbers: np.ndarray) -> str:
    if not (numbers > 0).any():
        raise ArgumentValueError(argument, "something positive for a logarithmic axis", "nothing", "use log='none'")
    if (numbers < 0).any():
        return " (not positive: left out)"
    return " (zeros left out)" if (numbers == 0).any() and argument == "values" else ""


def _check_names(names: Sequence[str], count: int) -> None:
    if isinstance(names, str) or (names and len(names) != count):
        came = repr(names) if isinstance(names, str) else f"{len(names)} names"
        raise ArgumentValueError("names", f"one name for each of {count} lines", came)
    if len(names) > len(PRINTED):
        advice = "leave them out to draw thin lines and their median"
        raise ArgumentValueError("names", f"at most {len(PRINTED)} names", len(names), advice)


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
        raise ArgumentValueError("states", f"2 to {_MOST_TOKENS} tokens", f"{count}", advice)
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
    return names if 1 < len(names) <= len(PRINTED) else []
