"""One `sweep`: from a file to a dataset, through a store that a sweep which was stopped continues with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xarray as xr

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, StorageError
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.numerics.extras import require
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.progress import Progress, reporting
from tokendynamics.provenance.swap import recover, staging
from tokendynamics.provenance.whole import full_disk_as_storage_error
from tokendynamics.sweeps._engine import first_engine
from tokendynamics.sweeps._layout import check_room, layout, size
from tokendynamics.sweeps._open import open_store
from tokendynamics.sweeps._plan import Plan, read_plan
from tokendynamics.sweeps._record import write_record
from tokendynamics.sweeps._store import Store, check_same

if TYPE_CHECKING:
    from distributed import Client


@typed_arguments
def sweep(
    spec: str | Path | Plan,
    store: str | Path,
    scheduler: str | Client | None = None,
    workers: int | None = None,
    *,
    resume: bool = False,
    progress: bool | Progress = False,
    command: str | None = None,
) -> xr.Dataset:
    """Run every system of a sweep and return what was kept of them, from the store.

    Results depend on the file alone: they are the same to the last bit for any number of workers, in any order, and
    for a sweep that was stopped and resumed.

    Args:
        spec: The path of a sweep's file, or what `read_plan` or `parse_plan` gave.
        store: Folder of the Zarr store.
        scheduler: Address of a scheduler of dask.distributed, or a client; None for workers on this machine.
        workers: Processes on this machine; None for one for each processor.
        resume: Go on with a store that is there; without it a store is refused.
        progress: True for a progress bar, or a function; see `Progress`.
        command: What to record as the command that makes this again; None for the Python call.

    Returns:
        Dataset with the axes of the design and `draw` as dims, read from the store when it is used.

    Raises:
        SpecificationError: What is wrong in the file, with its line.
        ArgumentValueError: A store in the way or of another specification, or a sweep too large for the disk.
        SchedulerError: No scheduler answers.
        WorkerVersionError: A worker has other versions.
        StorageError: The disk is full; the sweep can be resumed.
    """
    require("sweeps", "sweep", "running on many workers")
    plan, place, engine = _plan(spec), Path(store), first_engine()
    variables = layout(plan)
    recover(place)
    there = _check(plan, place, size(plan, variables), resume, engine)
    place.parent.mkdir(parents=True, exist_ok=True)
    with _resumable(place), limited_threads(None), reporting(progress) as report, staging(place) as staged:
        written = Store(place, plan, variables, staged, engine)
        if not there or next(written.missing(), None) is not None:
            called = command or f"tokendynamics.sweep({plan.name!r}, …)"
            _fill(written, scheduler, workers, report, called, there=there)
    return open_store(place)


def _fill(
    store: Store, scheduler: str | Client | None, workers: int | None, report: Progress, command: str, *, there: bool
) -> None:
    """Run the tasks that a store lacks; it is made once the workers are known to be fit."""
    from tokendynamics.sweeps._cluster import connected, results, threads_of

    plan, started, missing = store.plan, datetime.now(UTC), list(store.missing())
    before = done = plan.systems - sum(_systems(plan, task) for task in missing)
    report(done, plan.systems, what := f"Sweeping {plan.name}")
    with connected(scheduler, workers) as client:
        if not there:
            store.create()
        try:
            for task, arrays in results(client, plan.text, plan.name, missing, store.engine):
                store.write(task, arrays)
                done += _systems(plan, task)
                report(done, plan.systems, what)
        finally:
            write_record(store.path, plan, started, done - before, threads_of(client), command)


def _plan(spec: Any) -> Plan:
    if isinstance(spec, Plan):
        return spec
    if isinstance(spec, str | Path):
        return read_plan(spec)
    raise ArgumentTypeError(expected("spec", "the path of a sweep's file, or the result of `read_plan`", shown(spec)))


def _check(plan: Plan, place: Path, needed: int, resume: bool, engine: str) -> bool:
    """Refuse what cannot be run before anything is; tell whether there is a store to go on with."""
    there = place.exists() and (not place.is_dir() or any(place.iterdir()))
    if not there:
        plan.check()
        check_room(needed, place)
    elif not resume:
        advice = "continue it with --resume (resume=True), or choose another one"
        raise ArgumentValueError(expected("store", "a name where nothing is", str(place), advice))
    else:
        check_same(place, plan, engine)
    return there


@contextmanager
def _resumable(place: Path) -> Iterator[None]:
    """Say of a full disk that the sweep can go on."""
    try:
        with full_disk_as_storage_error(place):
            yield
    except StorageError as error:
        raise StorageError(f"{error}; finished tasks are kept: free space, then continue with --resume") from error


def _systems(plan: Plan, task: tuple[int, ...]) -> int:
    return math.prod(part.stop - part.start for part in plan.region(task))
