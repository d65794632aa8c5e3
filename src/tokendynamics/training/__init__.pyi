"""The public names of the package: `lazy_loader` imports each on first use, and type checkers read this file."""

from . import tasks as tasks
from ._run import train as train
from ._training_run import Samples as Samples
from .experiment import Experiment as Experiment
from .experiment import Multipliers as Multipliers
from .experiment import Recipe as Recipe
from .experiment import preset as preset
from .monitor._monitor import Monitor as Monitor
from .record import Record as Record
from .tasks import TASKS as TASKS
