"""The public names of the package: `lazy_loader` imports each on first use, and type checkers read this file."""

from ._plan import StudyPlan as StudyPlan
from ._plan import parse_plan as parse_plan
from ._plan import read_plan as read_plan
from ._running import study as study
from .paired import Claim as Claim
from .paired import PairedComparison as PairedComparison
from .paired import TestedClaim as TestedClaim
from .result import StudyResult as StudyResult
from .result import open_study as open_study
