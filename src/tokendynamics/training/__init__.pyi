"""The public names of the package: `lazy_loader` imports each on first use, and type checkers read this file."""

from . import tasks as tasks
from ._experiment import Experiment as Experiment
from ._experiment import Multipliers as Multipliers
from ._experiment import Recipe as Recipe
from ._presets import PRESETS as PRESETS
from ._presets import preset as preset
from ._record import Record as Record
from ._run import train as train
from ._samples import Samples as Samples
from .monitor._monitor import Monitor as Monitor
from .tasks import TASKS as TASKS
