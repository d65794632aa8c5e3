"""The public names of the package: `lazy_loader` imports each on first use, and type checkers read this file."""

from . import examples as examples
from ._simulation import InterruptedRun as InterruptedRun
from ._simulation import Simulation as Simulation
from ._simulation import check as check
from ._simulation import run as run
from .file import SpecificationFile as SpecificationFile
from .file import parse as parse
from .file import read as read
from .section import SpecificationError as SpecificationError
