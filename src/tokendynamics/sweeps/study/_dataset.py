"""From the records of a study to its dataset; `StudyResult` says what is in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.provenance._owned import MANIFEST
from tokendynamics.sweeps.study._paired import at_end
from tokendynamics.sweeps.study._plan import StudyPlan
from tokendynamics.sweeps.study._store import NOT_RUN, Ended, chosen_rates, how_ended
from tokendynamics.sweeps.study._tuning import measured

STATES = ("full", "bare")
_OF_LAYERS = {"token_norm": "norm", "token_distance": "distance"}

Rows = Sequence[Sequence[Ended]]


def dataset_of(plan: StudyPlan, place: Path) -> xr.Dataset:
    """Return what the runs in a study's folder have left."""
    rates = _learning_rates(plan, place)
    rows = [_ended(plan, place, arm, rates[arm]) for arm in plan.arms]
    measure, runs = plan.measure, ("arm", "seed")
    dataset = xr.Dataset(
        {
            "measure": (runs, _each(rows, lambda run: measured(run, "test", measure))),
            "final_validation": (runs, _each(rows, lambda run: measured(run, "validation", measure))),
            "status": (runs, _words(rows, "status")),
            "reason": (runs, _words(rows, "reason")),
            "seconds": (runs, _each(rows, lambda run: np.nan if run.record is None else run.record.seconds)),
            "learning_rate": (("arm",), np.array([np.nan if rate is None else rate for rate in rates.values()])),
        },
        {"arm": list(plan.arms), "seed": list(plan.seeds)},
        _attributes(plan, place),
    )
    return dataset.merge(_over_steps(rows, measure)).merge(_over_layers(rows)).merge(_tuning(plan, place))


def _learning_rates(plan: StudyPlan, place: Path) -> dict[str, float | None]:
    if plan.tables.tuning is None:
        return {arm: experiment.recipe.learning_rate for arm, experiment in plan.arms.items()}
    chosen = chosen_rates(place)
    return {arm: chosen.get(arm) for arm in plan.arms}


def _ended(plan: StudyPlan, place: Path, arm: str, rate: float | None) -> list[Ended]:
    if rate is None:
        return [Ended(NOT_RUN, "no learning rate was chosen")] * len(plan.seeds)
    return [how_ended(place, run) for run in plan.runs(arm, rate)]


def _each(rows: Rows, value: Callable[[Ended], float]) -> np.ndarray:
    return np.array([[value(run) for run in row] for row in rows], dtype=np.float64)


def _words(rows: Rows, name: str) -> np.ndarray:
    return np.array([[getattr(run, name) for run in row] for row in rows])


def _over_steps(rows: Rows, measure: str) -> xr.Dataset:
    """Return the measure on the validation split at each step at which any run was evaluated."""
    evaluated = [
        [{} if run.record is None else _by_step(run.record.validation, measure) for run in row] for row in rows
    ]
    steps = sorted({step for row in evaluated for run in row for step in run})
    values = np.array([[[run.get(step, np.nan) for step in steps] for run in row] for row in evaluated])
    shape = (len(rows), len(rows[0]), len(steps))
    return xr.Dataset({"validation": (("arm", "seed", "step"), values.reshape(shape))}, {"step": steps})


def _by_step(validation: Sequence[Mapping[str, Any]], measure: str) -> dict[int, float]:
    return {int(each["step"]): _number(each.get(measure)) for each in validation}


def _over_layers(rows: Rows) -> xr.Dataset:
    """Return norms and distances through the layers; networks of fewer layers than another have NaN beyond."""
    found = [[{} if run.record is None else run.record.layers for run in row] for row in rows]
    depth = max(
        (len(values) for row in found for run in row for state in run.values() for values in state.values()), default=0
    )
    arrays = {name: np.full((len(rows), len(rows[0]), len(STATES), depth), np.nan) for name in _OF_LAYERS}
    for i, row in enumerate(found):
        for j, run in enumerate(row):
            for k, state in enumerate(STATES):
                for name, key in _OF_LAYERS.items():
                    values = run.get(state, {}).get(key, [])
                    arrays[name][i, j, k, : len(values)] = [_number(value) for value in values]
    dims = ("arm", "seed", "state", "layer")
    coordinates = {"state": list(STATES), "layer": np.arange(depth)}
    return xr.Dataset({name: (dims, array) for name, array in arrays.items()}, coordinates)


def _tuning(plan: StudyPlan, place: Path) -> xr.Dataset:
    if plan.tables.tuning is None:
        return xr.Dataset()
    runs = [list(plan.tuning_runs(arm).values()) for arm in plan.arms]
    ended = [[[how_ended(place, run) for run in row] for row in arm] for arm in runs]
    values = np.array([_each(arm, lambda run: measured(run, "validation", plan.measure)) for arm in ended])
    dims = ("arm", "rate", "tuning_seed")
    coordinates = {"rate": plan.tables.tuning.learning_rate, "tuning_seed": plan.tables.tuning.seeds}
    status = np.array([_words(arm, "status") for arm in ended])
    chosen, tried = chosen_rates(place), plan.tables.tuning.learning_rate
    ends = [at_end(chosen.get(arm, np.nan), tried) or "" for arm in plan.arms]
    variables = {"tuning": (dims, values), "tuning_status": (dims, status), "learning_rate_at_end": (("arm",), ends)}
    return xr.Dataset(variables, coordinates)


def _attributes(plan: StudyPlan, place: Path) -> dict[str, Any]:
    path = place / MANIFEST
    return {
        "name": plan.name,
        "preset": plan.preset,
        "measure": plan.measure,
        "better": "lower" if plan.lower_is_better else "higher",
        "reference": plan.tables.study.reference,
        "confidence": plan.tables.study.confidence,
        "claims": json.dumps(plan.identity()["claims"]),
        "specification": plan.text,
        "manifest": path.read_text(encoding="utf-8") if path.is_file() else "{}",
    }


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)
