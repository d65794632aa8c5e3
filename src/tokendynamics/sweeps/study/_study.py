"""One `study`: from a file to its result, through a folder that a study which was stopped continues with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokendynamics.numerics._arguments import as_count
from tokendynamics.numerics._errors import ArgumentTypeError, ArgumentValueError, StorageError, expected, shown
from tokendynamics.numerics._extras import require
from tokendynamics.numerics._signatures import typed_arguments
from tokendynamics.provenance._progress import Progress, reporting
from tokendynamics.provenance._swap import recover, staging
from tokendynamics.provenance._whole import full_disk_as_storage_error
from tokendynamics.sweeps._record import add_run
from tokendynamics.sweeps.study._dataset import dataset_of
from tokendynamics.sweeps.study._plan import PlannedRun, StudyPlan, read_plan
from tokendynamics.sweeps.study._result import StudyResult
from tokendynamics.sweeps.study._store import (
    check_same,
    chosen_rates,
    how_ended,
    stored_plan,
    write_chosen,
    write_study,
)
from tokendynamics.sweeps.study._tuning import best_rate

if TYPE_CHECKING:
    from distributed import Client


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
    plan, place = _plan(spec), Path(store)
    recover(place)
    there = _check(plan, place, resume)
    place.parent.mkdir(parents=True, exist_ok=True)
    with _resumable(place), reporting(progress) as report:
        if not there:
            with staging(place) as staged:
                write_study(staged, place, plan)
        called = command or f"tokendynamics.sweeps.study.study({plan.file!r}, …)"
        with _recorded(plan, place, called):
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
    """Tune the arms and run what is compared of those that have a learning rate."""
    rates = dict.fromkeys(plan.arms) if plan.tables.tuning is None else _tuned(plan, place, run)
    run(f"Training {plan.name}", [each for arm, rate in rates.items() for each in plan.runs(arm, rate)])


def _tuned(plan: StudyPlan, place: Path, run: Callable[[str, Sequence[PlannedRun]], None]) -> dict[str, float]:
    """Run what tuning lacks and choose the learning rates, for good; an arm without one is left out."""
    chosen = chosen_rates(place)
    untuned = [arm for arm in plan.arms if arm not in chosen]
    grids = [runs for arm in untuned for runs in plan.tuning_runs(arm).values()]
    run(f"Tuning {plan.name}", [each for runs in grids for each in runs])
    chosen |= {arm: rate for arm in untuned if (rate := best_rate(place, plan, arm)) is not None}
    if chosen:
        write_chosen(place, chosen)
    return {arm: chosen[arm] for arm in plan.arms if arm in chosen}


def _run(
    place: Path,
    report: Progress,
    scheduler: str | Client | None,
    workers: int | None,
    what: str,
    runs: Sequence[PlannedRun],
) -> None:
    """Train the runs that have not come to an end."""
    from tokendynamics.sweeps.study._queue import finished_runs, training_workers

    waiting = [run for run in runs if not how_ended(place, run).settled]
    done = len(runs) - len(waiting)
    if runs:
        report(done, len(runs), what)
    if waiting:
        with training_workers(scheduler, workers) as client:
            for _ in finished_runs(client, place, waiting):
                done += 1
                report(done, len(runs), what)


@contextmanager
def _recorded(plan: StudyPlan, place: Path, command: str) -> Iterator[None]:
    """Write down one more call that the folder was filled by, whether it comes to the end or is stopped."""
    started = datetime.now(UTC)
    try:
        yield
    finally:
        add_run(place, command, plan.identity(), {}, seed=None, started=started)


def _plan(spec: Any) -> StudyPlan:
    if isinstance(spec, StudyPlan):
        return spec
    if isinstance(spec, str | Path):
        return read_plan(spec)
    raise ArgumentTypeError(expected("spec", "the path of a study's file, or the result of `read_plan`", shown(spec)))


def _check(plan: StudyPlan, place: Path, resume: bool) -> bool:
    """Refuse what cannot be run before anything is; tell whether there is a folder to go on with."""
    there = place.exists() and (not place.is_dir() or any(place.iterdir()))
    if not there:
        plan.check()
    elif not resume:
        advice = "continue it with --resume (resume=True), or choose another one"
        raise ArgumentValueError(expected("store", "a name where nothing is", str(place), advice))
    else:
        check_same(place, plan)
    return there


@contextmanager
def _resumable(place: Path) -> Iterator[None]:
    """Say of a full disk that the study can go on."""
    try:
        with full_disk_as_storage_error(place):
            yield
    except StorageError as error:
        raise StorageError(f"{error}; finished runs are kept: free space, then continue with --resume") from error
