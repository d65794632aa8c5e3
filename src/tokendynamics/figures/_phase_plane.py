"""Paths of two coordinates, with the velocity that one token would have elsewhere."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tokendynamics.figures import style as style
from tokendynamics.figures._scene import Scene, rounded_size
from tokendynamics.figures.recording import Recording, Run, Simulated, View, is_rescaled, read_run, to_numpy
from tokendynamics.figures.style import SINGLE, panel_for, paper_style
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike
from tokendynamics.numerics.signatures import typed_arguments

_GRID = 15


@runtime_checkable
class VelocityField(Protocol):
    """What is needed of a flow: `tokendynamics.dynamics.Flow` has it."""

    def velocity(self, x: Any, t: float = 0.0) -> Any:
        """Return the velocities of states (…, token, dim) at time `t`."""
        ...


@paper_style()
@typed_arguments
def phase_plane(
    states: Run,
    *,
    components: tuple[int, int] = (0, 1),
    flow: VelocityField | None = None,
    probe: int | None = None,
    frame: int = 0,
    times: ArrayLike | None = None,
    system: int | None = None,
    axes: Axes | None = None,
    width: float = SINGLE,
) -> Figure:
    """Draw two coordinates of every token of one run against each other, white at the start, grey at the end.

    With `probe`, arrows show the velocity that token `probe` would have at each place of the plane while the other
    tokens, and its own other coordinates, are held where they are in saved state `frame`. Arrow lengths are
    proportional to the speed; the arrow above the panel gives the scale.

    Args:
        states: A `tokendynamics.dynamics.Trajectory`, or states (time, token, dim) or (system, time, token, dim).
        components: The coordinates on the horizontal and the vertical axis, counted from 0.
        flow: The flow whose velocity is drawn; None for that of the trajectory.
        probe: The token that is moved about, counted from 0; None for no arrows.
        frame: The saved state in which the other tokens are held, counted from 0, or from the end if negative.
        times: Times of plain states, for flows that change with time; None for time 0.
        system: Which system of a batch to draw.
        axes: A panel to draw on; None for a new figure.
        width: Width in inches of a new figure.

    Returns:
        The figure.

    Raises:
        ArgumentTypeError, ArgumentValueError: States that are not one run, an index out of range, a probe without
            a flow, or a flow on a surface (its velocity is defined on the surface only: use `tokens`).

    Same kind of figure as `positional` Figures 2, 5 and 9.

    >>> import torch
    >>> figure = phase_plane(torch.rand(6, 2, 3, dtype=torch.float64), components=(2, 0))
    >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
    ('x[2]', 'x[0]')
    """
    recording = read_run(states, space=None, times=times, system=system)
    for component in components:
        _check_index("components", component, recording.dim)
    letter = recording.letter
    labels = (f"{letter}[{components[0]}]", f"{letter}[{components[1]}]")
    view = View(np.eye(recording.dim)[list(components)], None, labels)
    flat = Recording(recording.states, recording.times, metric=None)
    figure, panel = panel_for(axes, width, height=0.92 * width)
    scene = Scene(panel, flat, view)
    scene.surroundings(last="end")
    if probe is not None:
        _arrows(panel, recording, components, _flow_of(states, flow), probe, frame)
    scene.tokens(flat.states.shape[0])
    return figure


def _arrows(
    axes: Axes, recording: Recording, components: tuple[int, int], flow: VelocityField, probe: int, frame: int
) -> None:
    steps, token_count, _ = recording.states.shape
    _check_index("probe", probe, token_count)
    _check_index("frame", frame, steps)
    time = 0.0 if recording.times is None else float(recording.times[frame])
    across, up = np.meshgrid(_middles(*axes.get_xlim()), _middles(*axes.get_ylim()))
    states = np.repeat(recording.states[frame][None], across.size, axis=0)
    states[:, probe, components[0]], states[:, probe, components[1]] = across.ravel(), up.ravel()
    velocity = to_numpy(torch.as_tensor(flow.velocity(torch.from_numpy(states), time)))[:, probe, list(components)]
    speed = np.hypot(*velocity.T)
    fastest = float(speed.max())
    cell = float(across[0, 1] - across[0, 0])
    arrows = axes.quiver(
        *(across.ravel(), up.ravel(), *velocity.T),
        angles="xy",
        scale_units="xy",
        scale=(fastest or 1.0) / (0.95 * cell),
        width=0.0035,
        color=style.AXIS,
        zorder=1,
        label="_velocity",
    )
    held = "" if recording.times is None else f" at t = {time:g}"
    axes.set_xlabel(f"{axes.get_xlabel()}\narrows: velocity of token {probe + 1}, others held{held}")
    key = rounded_size(fastest)
    look = {"labelpos": "E", "labelsep": 0.05, "labelcolor": style.INK, "fontproperties": {"size": 7}}
    axes.quiverkey(arrows, 0.03, 1.045, key, f"speed {key:g}", **look)
    # A title stands above the key, not on it.
    axes.set_title(axes.get_title(loc="left"), loc="left", pad=16)


def _middles(low: float, high: float) -> np.ndarray:
    """Return the middles of the cells of a grid."""
    return low + (high - low) * (np.arange(_GRID) + 0.5) / _GRID


def _flow_of(states: Run, flow: VelocityField | None) -> VelocityField:
    if is_rescaled(states):
        advice = "draw it without a probe, or take frame='tokens'"
        raise ArgumentValueError("probe", "None for rescaled tokens", "an index", advice)
    if flow is None and isinstance(states, Simulated):
        flow = states.flow
    if flow is None:
        raise ArgumentValueError("flow", "a flow, since probe is given", "none", "pass flow= or a trajectory")
    space = getattr(flow, "space", None)
    if space is not None and space.constrained:
        advice = "its velocity exists on the surface only: draw tokens() without a probe"
        raise ArgumentValueError("flow", "a flow of free tokens", f"one on the {space.name}", advice)
    return flow


def _check_index(argument: str, index: int, count: int) -> None:
    if not -count <= index < count:
        raise ArgumentValueError(argument, f"an index from 0 to {count - 1}", index)
