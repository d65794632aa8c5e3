"""Studies: many training runs with paired seeds, their differences with intervals, and a verdict for each claim."""

from __future__ import annotations

from tokendynamics.sweeps.study._claims import Claim, TestedClaim
from tokendynamics.sweeps.study._paired import Comparison
from tokendynamics.sweeps.study._result import Arm, StudyResult

__all__ = ["Arm", "Claim", "Comparison", "StudyResult", "TestedClaim"]
