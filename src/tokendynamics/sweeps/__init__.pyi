"""The public names of the package: `lazy_loader` imports each on first use, and type checkers read this file."""

from .systems._plan import Plan as Plan
from .systems._plan import parse_plan as parse_plan
from .systems._plan import read_plan as read_plan
from .systems._store import open_store as open_store
from .systems.results import fractions as fractions
from .systems.results import report as report
from .systems.running import sweep as sweep
