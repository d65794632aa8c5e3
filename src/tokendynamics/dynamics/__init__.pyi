"""The public names of the package: `lazy_loader` imports each on first use, and type checkers read this file."""

from . import events as events
from ._flow import Flow as Flow
from ._noise import Noise as Noise
from ._trajectory import Trajectory as Trajectory
from .events import Status as Status
from .simulation import Interrupted as Interrupted
from .simulation import simulate as simulate
