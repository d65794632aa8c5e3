"""Figures fit for print: tokens, phase planes, functionals, distances and norms over time, phase diagrams, films.

Every function takes plain data or a `tokendynamics.dynamics.Trajectory`, draws on a panel it is given or on a new
figure, and returns the `matplotlib.figure.Figure`. Nothing is interpolated: lines join the states that were saved.
`save` writes PNG, SVG and PDF; `animate` writes GIF and MP4; `panels` makes room for several plots in one figure.
Neither pyplot nor matplotlib's settings are touched.
"""

from __future__ import annotations

from matplotlib.figure import Figure

from tokendynamics.plots._animate import animate
from tokendynamics.plots._files import save
from tokendynamics.plots._heat_map import heat_map
from tokendynamics.plots._phase_diagram import phase_diagram
from tokendynamics.plots._phase_plane import phase_plane
from tokendynamics.plots._scene import tokens
from tokendynamics.plots.style import DOUBLE, SINGLE, panels
from tokendynamics.plots.time_axis import distances, norms, over_time

__all__ = [
    "DOUBLE", "SINGLE", "Figure", "animate", "distances", "heat_map", "norms", "over_time", "panels",
    "phase_diagram", "phase_plane", "save", "tokens",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
