"""Tokens on their sphere or ellipsoid, on the circle, in the plane, or along their principal directions."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.plots.recording import Run, read_run
from tokendynamics.plots.scene import Scene
from tokendynamics.plots.style import SINGLE, panel_for, paper_style
from tokendynamics.plots.view import choose_view
from tokendynamics.spaces import Space


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
        The figure; write it with `tokendynamics.plots.save`.

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
