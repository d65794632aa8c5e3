"""Which learning rate an arm is run with: the best on the validation split, over seeds of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokendynamics.sweeps.study._plan import PlannedRun, StudyPlan
from tokendynamics.sweeps.study._store import Ended, how_ended
from tokendynamics.training._record import FINISHED


def measured(ended: Ended, split: str, measure: str) -> float:
    """Return a measure of a finished run at its end; NaN of any other."""
    if ended.record is None or ended.status != FINISHED:
        return math.nan
    value = ended.record.measures.get(split, {}).get(measure)
    return math.nan if value is None else float(value)


def best_rate(place: Path, plan: StudyPlan, arm: str) -> float | None:
    """Return the learning rate with the best mean over the seeds; None where none has all its seeds.

    Args:
        place: The folder of the study.
        plan: What it is of.
        arm: Which.
    """
    means = {rate: _mean(place, runs, plan.measure) for rate, runs in plan.tuning_runs(arm).items()}
    return best(means, lower_is_better=plan.lower_is_better)


def best(means: Mapping[float, float], *, lower_is_better: bool) -> float | None:
    """Return the key of the best number, the first of equals; NaN does not count.

    >>> best({0.1: 2.0, 0.2: 1.0, 0.4: float("nan")}, lower_is_better=True)
    0.2
    >>> best({0.1: 2.0, 0.2: 1.0, 0.4: 2.0}, lower_is_better=False)
    0.1
    """
    there = {rate: mean for rate, mean in means.items() if math.isfinite(mean)}
    if not there:
        return None
    return (min if lower_is_better else max)(there, key=there.__getitem__)


def _mean(place: Path, runs: Sequence[PlannedRun], measure: str) -> float:
    return sum(measured(how_ended(place, run), "validation", measure) for run in runs) / len(runs)
