"""One `study`: from a file to its result, through a folder that a study which was stopped continues with."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from tokendynamics.numerics import ArgumentTypeError
from tokendynamics.numerics.arguments import as_count
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.numerics.extras import require
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.owned import MANIFEST
from tokendynamics.provenance.progress import Progress
from tokendynamics.provenance.swap import staging
from tokendynamics.sweeps._store import filling, own_versions, recorded
from tokendynamics.sweeps.study._plan import PlannedRun, StudyPlan, read_plan
from tokendynamics.sweeps.study._process import run_process
from tokendynamics.sweeps.study._store import (
    NOT_RUN,
    Ended,
    check_same,
    chosen_rates,
    how_ended,
    stored_plan,
    write_chosen,
    write_failure,
    write_study,
)
from tokendynamics.sweeps.study.paired import at_end
from tokendynamics.sweeps.study.result import StudyResult
from tokendynamics.training.record import FINISHED

if TYPE_CHECKING:
    from distributed import Client


PROGRAM = ("-m", "tokendynamics.training")
"""What trains the folder that follows."""


@typed_arguments
def study(
    spec: str | Path | StudyPlan,
    store: str | Path,
    scheduler: str | Client | None = None,
    workers: int | None = None,
    *,
    resume: bool = False,
    progress: bool | Progress = False,
    command: str | None = None,
) -> StudyResult:
    """Train every run of a study and return what was found.

    Each run is a process of its own on one thread, with the paired seeds of the file. Learning rates are tuned first,
    by the validation split and on seeds of their own; the test split is read of the runs that are compared alone. A
    run that fails is a status of that run, and the others go on.

    Args:
        spec: The path of a study's file, or what `read_plan` or `parse_plan` gave.
        store: Folder of the runs. With a scheduler elsewhere it must be one that all workers share.
        scheduler: Address of a scheduler of dask.distributed, or a client; None for workers on this machine.
        workers: Runs at a time on this machine; None for one for each processor.
        resume: Go on with a folder that is there: runs that ended are not run again, those that were stopped go on from
            their last checkpoint, those that failed are tried again.
        progress: True for a progress bar, or a function; see `Progress`.
        command: What to record as the command that makes this again; None for the Python call.

    Raises:
        SpecificationError: What is wrong in the file, with its line.
        ArgumentValueError: A folder in the way or of another study, or one that a worker does not see.
        SchedulerError: No scheduler answers.
        WorkerVersionError: A worker has other versions.
        StorageError: The disk is full; the study can be resumed.
    """
    require("sweeps", "study", "running on many workers")
    require("training", "study", "training")
    if workers is not None:
        as_count(workers, "workers")
    if not isinstance(spec, str | Path | StudyPlan):
        wanted = "the path of a study's file, or the result of `read_plan`"
        raise ArgumentTypeError(expected("spec", wanted, shown(spec)))
    plan, place = spec if isinstance(spec, StudyPlan) else read_plan(spec), Path(store)
    begun = filling(
        place,
        resume=resume,
        progress=progress,
        check_new=plan.check,
        check_same=lambda: check_same(place, plan),
        kept="runs",
    )
    with begun as (there, report):
        if not there:
            with staging(place) as staged:
                write_study(staged, place, plan)
        called = command or f"tokendynamics.sweeps.study.study({plan.source.name!r}, …)"
        with recorded(place, called, plan.identity(), seed=None):
            _train(plan, place, partial(_run, place, report, scheduler, workers))
    return open_study(place)


@typed_arguments
def open_study(store: str | Path) -> StudyResult:
    """Return what the runs of a study have left so far.

    Args:
        store: Its folder.

    Raises:
        ArgumentValueError: No folder of a study, or a damaged one.
    """
    place = Path(store)
    return StudyResult(dataset_of(stored_plan(place), place))


def _train(plan: StudyPlan, place: Path, run: Callable[[str, Sequence[PlannedRun]], None]) -> None:
    """Tune the arms and run what is compared of those that have a learning rate.

    Learning rates are chosen for good; an arm without one is left out.
    """
    rates: dict[str, float | None] = dict.fromkeys(plan.arms)
    if plan.tables.tuning is not None:
        chosen = chosen_rates(place)
        untuned = [arm for arm in plan.arms if arm not in chosen]
        grids = [runs for arm in untuned for runs in plan.tuning_runs(arm).values()]
        run(f"Tuning {plan.name}", [each for runs in grids for each in runs])
        chosen |= {arm: rate for arm in untuned if (rate := best_rate(place, plan, arm)) is not None}
        if chosen:
            write_chosen(place, chosen)
        rates = {arm: chosen[arm] for arm in plan.arms if arm in chosen}
    run(f"Training {plan.name}", [each for arm, rate in rates.items() for each in plan.runs(arm, rate)])


def _run(
    place: Path,
    report: Progress,
    scheduler: str | Client | None,
    workers: int | None,
    what: str,
    runs: Sequence[PlannedRun],
) -> None:
    """Train the runs that have not come to an end, each in a process that a worker starts in the study's folder."""
    from distributed import KilledWorker

    from tokendynamics.sweeps._cluster import connected, ended

    waiting = [run for run in runs if not how_ended(place, run).settled]
    done = len(runs) - len(waiting)
    if runs:
        report(done, len(runs), what)
    if not waiting:
        return
    store, directory, versions = str(place.resolve()), str(Path.cwd()), own_versions()
    with connected(scheduler, workers, deaf=True) as client:
        for run, future in ended(
            client,
            run_process,
            waiting,
            lambda run, key: (store, run.place, run.experiment.as_json(), PROGRAM, directory, versions, key),
            name=lambda run: f"train-{run.place}",
            lost="scheduler: it was lost; finished runs are in the folder: resume",
        ):
            error = future.exception() if future.status == "error" else None
            if isinstance(error, KilledWorker):
                (place / run.place).mkdir(parents=True, exist_ok=True)
                write_failure(
                    place / run.place, "several workers died in turn on it; is the memory of a worker enough?"
                )
            elif isinstance(error, BaseException):
                raise error
            done += 1
            report(done, len(runs), what)


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
    means = {
        rate: sum(measured(how_ended(place, run), "validation", plan.measure) for run in runs) / len(runs)
        for rate, runs in plan.tuning_runs(arm).items()
    }
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


STATES = ("full", "bare")
_OF_LAYERS = {"token_norm": "norm", "token_distance": "distance"}

Rows = Sequence[Sequence[Ended]]


def dataset_of(plan: StudyPlan, place: Path) -> xr.Dataset:
    """Return what the runs in a study's folder have left."""
    rates = {arm: experiment.recipe.learning_rate for arm, experiment in plan.arms.items()}
    if plan.tables.tuning is not None:
        chosen = chosen_rates(place)
        rates = {arm: chosen.get(arm) for arm in plan.arms}
    unchosen = [Ended(NOT_RUN, "no learning rate was chosen")] * len(plan.seeds)
    rows = [
        unchosen if rate is None else [how_ended(place, run) for run in plan.runs(arm, rate)]
        for arm, rate in rates.items()
    ]
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
    return {int(entry["step"]): _number(entry.get(measure)) for entry in validation}


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
        "specification": plan.source.text,
        "manifest": path.read_text(encoding="utf-8") if path.is_file() else "{}",
    }


def _number(value: float | None) -> float:
    return np.nan if value is None else float(value)
