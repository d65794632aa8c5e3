"""Runs handed to workers: each a task of dask.distributed, whose process trains in the study's folder."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import dask.config
from distributed import Client, Future, KilledWorker, as_completed

from tokendynamics.sweeps._cluster import SchedulerError, connected
from tokendynamics.sweeps._versions import own_versions
from tokendynamics.sweeps.study._plan import PlannedRun
from tokendynamics.sweeps.study._process import run_process
from tokendynamics.sweeps.study._store import write_failure

PROGRAM = ("-m", "tokendynamics.training")
"""What trains the folder that follows."""

_DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"


@contextmanager
def training_workers(scheduler: str | Client | None, workers: int | None) -> Iterator[Client]:
    """Give a client as `connected` does; workers on this machine leave Ctrl-C to it, which ends their runs in order."""
    with dask.config.set({"distributed.worker.preload": [_DEAF]}), connected(scheduler, workers) as client:
        yield client


def finished_runs(client: Client, place: Path, runs: Sequence[PlannedRun]) -> Iterator[PlannedRun]:
    """Train runs and yield each as it ends, however it does; those under way are ended with the iteration.

    Raises:
        SchedulerError: The scheduler has been lost.
        WorkerVersionError: A worker has other versions.
        ArgumentValueError: A worker does not see the folder.
    """
    store, directory, versions, number = str(place.resolve()), str(Path.cwd()), own_versions(), uuid.uuid4().hex[:8]
    under_way: dict[Future, PlannedRun] = {}
    for run in runs:
        key = f"train-{number}-{run.place}"
        arguments = (store, run.place, run.experiment.as_json(), PROGRAM, directory, versions, key)
        under_way[client.submit(run_process, *arguments, key=key, pure=False)] = run
    try:
        for future in as_completed(list(under_way), loop=client.loop):
            run = under_way[future]
            _check(future, place / run.place)
            yield run
    finally:
        for future in under_way:
            future.release()


def _check(future: Future, folder: Path) -> None:
    """Raise what stops the whole study; that workers died over a run is how this run ended."""
    if future.status == "cancelled":
        raise SchedulerError("scheduler: it was lost; finished runs are in the folder: resume")
    error = future.exception() if future.status == "error" else None
    if isinstance(error, KilledWorker):
        folder.mkdir(parents=True, exist_ok=True)
        write_failure(folder, "several workers died in turn on it; is the memory of a worker enough?")
    elif isinstance(error, BaseException):
        raise error
