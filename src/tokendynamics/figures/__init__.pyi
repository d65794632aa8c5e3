"""The public names of the package, each imported on first use: the figures of pages need no matplotlib."""

from ._animate import animate as animate
from ._heat_map import heat_map as heat_map
from ._phase_diagram import phase_diagram as phase_diagram
from ._phase_plane import phase_plane as phase_plane
from ._scene import tokens as tokens
from .style import DOUBLE as DOUBLE
from .style import SINGLE as SINGLE
from .style import Figure as Figure
from .style import panels as panels
from .style import save as save
from .time_axis import distances as distances
from .time_axis import norms as norms
from .time_axis import over_time as over_time
