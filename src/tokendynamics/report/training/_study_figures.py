"""The drawings of a study over steps, layers and learning rates: a line for each arm, over its finished seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tokendynamics.figures.figure import Figure
from tokendynamics.figures.lines import Rule
from tokendynamics.numerics.intervals import student_quantile
from tokendynamics.numerics.printable import printable
from tokendynamics.report.training._lines import Line, thinned
from tokendynamics.report.training._over_steps import over_steps
from tokendynamics.report.training._through_layers import MEASURES, STATES, Band, through_layers
from tokendynamics.sweeps.study import StudyResult
from tokendynamics.training.record import FINISHED
from tokendynamics.words import percent


def finished_only(result: StudyResult, name: str) -> np.ndarray:
    """Return a variable of the dataset over arms and seeds first, NaN where a run did not finish."""
    values = result.dataset[name].transpose("arm", "seed", ...)
    return values.where(result.dataset["status"] == FINISHED).transpose(*values.dims).values


def places_of(result: StudyResult) -> dict[str, int]:
    """Return which look each arm has in all figures: the first is that of the reference."""
    others = [arm.name for arm in result.arms if arm.name != result.reference]
    return {name: place for place, name in enumerate([result.reference, *others])}


def validation(result: StudyResult) -> tuple[Figure, ...]:
    """Draw the measure on the validation split over steps, and its paired differences from the reference.

    Args:
        result: What the study found.
    """
    values, steps = finished_only(result, "validation"), result.dataset["step"].values.astype(np.float64)
    places, unit, level = places_of(result), result.unit, percent(result.confidence)
    arms = [str(arm) for arm in result.dataset["arm"].values]
    lines = {
        arm: _mean_line(arm, places[arm], steps, row, result.confidence) for arm, row in zip(arms, values, strict=True)
    }
    band = f"Line: mean over the seeds that finished. Band: its {level} t-interval, from two seeds on."
    together = over_steps(
        "validation",
        "How does each arm learn?",
        unit.capitalize(),
        f"On the validation split. {band} Bands that overlap may hide a difference: arms share their seeds, see below.",
        [lines[arm] for arm in places],
    )
    reference = values[arms.index(result.reference)]
    differences = {
        arm: _mean_line(f"{arm} − {result.reference}", places[arm], steps, row - reference, result.confidence)
        for arm, row in zip(arms, values, strict=True)
    }
    better = "below" if result.lower_is_better else "above"
    apart = over_steps(
        "validation-differences",
        f"When do arms part from {printable(result.reference)}?",
        f"Difference in {unit}",
        f"On the validation split, seed by seed, over seeds that both arms finished. {band} An arm is better {better} "
        "zero. Intervals at many steps: one that excludes zero at some of them decides nothing.",
        [differences[arm] for arm in places if arm != result.reference],
        rules=(Rule(0.0, printable(result.reference), "right"),),
    )
    return together, apart


def layers(result: StudyResult) -> tuple[Figure, ...]:
    """Draw norms and distances through the layers of all networks.

    Args:
        result: What the study found.
    """
    band = Band(
        " Line: median over the seeds that finished. Band: from the lowest to the highest.", ("lowest", "highest")
    )
    return tuple(through_layers(measure, _states(result, f"token_{measure}"), band) for measure in MEASURES)


def _states(result: StudyResult, name: str) -> Mapping[str, list[Line]]:
    values, depths = finished_only(result, name), result.dataset["layer"].values.astype(np.float64)
    arms = {str(arm): place for place, arm in enumerate(result.dataset["arm"].values)}
    states = [str(state) for state in result.dataset["state"].values]
    return {
        state: [
            _median_line(arm, place, depths, values[arms[arm], :, states.index(state)])
            for arm, place in places_of(result).items()
        ]
        for state in STATES
        if state in states
    }


def _mean_line(name: str, place: int, x: np.ndarray, values: np.ndarray, confidence: float) -> Line:
    """Return mean and t-interval over seeds, (seed, x), at places where any seed has a value."""
    there = np.isfinite(values)
    at = np.flatnonzero(there.any(axis=0))
    found = np.array([_interval(values[there[:, column], column], confidence) for column in at]).reshape(-1, 3)
    return thinned(Line(printable(name), place, x[at], *found.T))


def _interval(values: np.ndarray, confidence: float) -> tuple[float, float, float]:
    """Return the mean and the ends of its t-interval; NaN for those of one value."""
    many, mean = len(values), float(values.mean())
    if many < 2:
        return mean, math.nan, math.nan
    half = student_quantile(confidence, many - 1) * float(values.std(ddof=1)) / math.sqrt(many)
    return mean, mean - half, mean + half


def _median_line(name: str, place: int, x: np.ndarray, values: np.ndarray) -> Line:
    at = np.flatnonzero(np.isfinite(values).any(axis=0))
    found = [function(values[:, at], axis=0) for function in (np.nanmedian, np.nanmin, np.nanmax)]
    return Line(printable(name), place, x[at], *found)
