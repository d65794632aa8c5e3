"""Figures: tokens, phase planes, functionals, distances and norms over time, phase diagrams, films; what pages draw.

Every public function takes plain data or a `tokendynamics.dynamics.Trajectory`, draws on a panel it is given or on a
new figure, and returns the `matplotlib.figure.Figure`. Nothing is interpolated: lines join the states that were saved.
`save` writes PNG, SVG and PDF; `animate` writes GIF and MP4; `panels` makes room for several panels in one figure.
Neither pyplot nor matplotlib's settings are touched.
"""

from tokendynamics.numerics.extras import lazy_names as _lazy_names

__getattr__, __dir__, __all__ = _lazy_names(__name__, __file__)
