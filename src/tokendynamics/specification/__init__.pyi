"""The public names of the package: `lazy_loader` imports each on first use, and type checkers read this file."""

from . import examples as examples
from ._file import SpecificationFile as SpecificationFile
from ._file import parse as parse
from ._file import read as read
from ._section import SpecificationError as SpecificationError
from ._simulation import InterruptedRun as InterruptedRun
from ._simulation import Simulation as Simulation
from ._simulation import check as check
from ._simulation import run as run
