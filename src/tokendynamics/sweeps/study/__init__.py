"""Studies: many training runs with paired seeds, their differences with intervals, and a verdict for each claim.

`study` trains the runs that a file describes and `open_study` reads what they left; `read_plan` and `parse_plan` check
a file without running it. `docs/study.md` shows what a file may say.
"""

from __future__ import annotations

from tokendynamics.sweeps.study._plan import StudyPlan, parse_plan, read_plan
from tokendynamics.sweeps.study._running import study
from tokendynamics.sweeps.study.paired import Claim, PairedComparison, TestedClaim
from tokendynamics.sweeps.study.result import StudyResult, open_study

__all__ = [
    "Claim", "PairedComparison", "StudyPlan", "StudyResult", "TestedClaim", "open_study", "parse_plan", "read_plan",
    "study",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
