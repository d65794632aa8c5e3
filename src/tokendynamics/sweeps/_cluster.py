"""Workers on this machine or behind any scheduler of dask.distributed, and the tasks that they are given."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, cast

import dask.config
from distributed import Client, Future, KilledWorker, LocalCluster, as_completed
from distributed.comm.addressing import parse_address
from distributed.comm.registry import get_backend

from tokendynamics.numerics._errors import ArgumentTypeError, TokenDynamicsError, expected, shown
from tokendynamics.numerics._resources import usable_processors
from tokendynamics.sweeps._task import Arrays, run_task
from tokendynamics.sweeps._versions import WorkerVersionError, check_versions, own_versions

_PATIENCE = 10.0
"""Seconds for a scheduler to answer."""
_AHEAD = 3
"""Tasks of each thread of the workers that are with the scheduler at a time: memory stays flat however many follow."""
_DEATHS = 5
"""Workers that may die over one task before it is taken for the cause."""

Task = tuple[int, ...]


class SchedulerError(TokenDynamicsError, OSError):
    """No scheduler answers at an address, or it has been lost; the message names it."""


@contextmanager
def connected(scheduler: str | Client | None, workers: int | None) -> Iterator[Client]:
    """Give a client with workers of the right versions.

    Args:
        scheduler: An address such as "tcp://10.0.0.1:8786", or a client; None for workers on this machine.
        workers: How many processes on this machine, of one thread each; None for one for each processor.

    Raises:
        SchedulerError: Nothing answers at the address.
        WorkerVersionError: A worker has other versions.
    """
    if isinstance(scheduler, Client):
        _check_workers(scheduler)
        yield scheduler
    elif scheduler is None:
        with _local(workers) as cluster, Client(cluster, set_as_default=False) as client:
            yield client
    else:
        with _reached(scheduler) as client:
            _check_workers(client)
            yield client


def _local(workers: int | None) -> LocalCluster:
    # Each process of dask opens a port for web pages; without routes it serves none.
    with dask.config.set({"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}):
        return LocalCluster(
            n_workers=workers or usable_processors(),
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
            # Keys of this run alone: nobody else on the machine can hand tasks, which are code, to the workers.
            security=True,
        )


def _reached(address: str) -> Client:
    try:
        get_backend(parse_address(address)[0])  # a client of an unknown protocol would try to take its leave of it
        return Client(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        wanted = "the address of a scheduler that answers, such as tcp://127.0.0.1:8786"
        came = f"{shown(address)} ({type(error).__name__})"
        advice = "start one with 'dask scheduler', or leave the option out for workers on this machine"
        raise SchedulerError(expected("scheduler", wanted, came, advice)) from error


def _check_workers(client: Client) -> None:
    """Refuse workers of other versions, of which the first is named."""
    wanted = own_versions()
    try:
        found = cast("Mapping[str, Any]", client.run(own_versions, on_error="return"))
    except TypeError as error:
        raise SchedulerError(expected("scheduler", "one with workers that answer", str(error))) from error
    for worker, versions in found.items():
        check_versions(wanted, versions if isinstance(versions, dict) else {}, worker)


def threads_of(client: Client) -> int:
    """Return how many tasks the workers can run at a time; 0 where none answers any more."""
    try:
        return sum(cast("Mapping[str, int]", client.nthreads()).values())
    except (OSError, TypeError, ValueError):
        return 0


def results(client: Client, text: str, name: str, tasks: Iterable[Task], engine: str) -> Iterator[tuple[Task, Arrays]]:
    """Run tasks and return their arrays, in the order in which they end.

    Raises:
        SchedulerError: The scheduler has been lost, or a task ended one worker after the other.
        WorkerVersionError: A worker that came later has other versions.
    """
    versions, run, waiting = own_versions(), uuid.uuid4().hex[:8], iter(tasks)
    under_way: dict[Future, tuple[Task, int]] = {}
    ended = as_completed(loop=client.loop)

    def give(task: Task, deaths: int = 0) -> None:
        key = f"sweep-{run}-{'-'.join(map(str, task))}-{deaths}"
        future = client.submit(run_task, text, name, task, versions, engine, key=key, pure=False)
        under_way[future] = task, deaths
        ended.add(future)

    for task in islice(waiting, max(2, _AHEAD * threads_of(client))):
        give(task)
    for future in ended:
        task, deaths = under_way.pop(future)
        arrays = _result(future, task, deaths)
        if arrays is None:
            give(task, deaths + 1)
            continue
        for following in islice(waiting, 1):
            give(following)
        yield task, arrays


def _result(future: Future, task: Task, deaths: int) -> Arrays | None:
    """Return a task's arrays; None where its worker died with it, or with them, and another one shall try."""
    if future.status == "lost":  # its worker died with the arrays, before they were fetched
        return None
    if future.status == "finished":
        return future.result()
    if future.status == "cancelled":
        raise SchedulerError(f"scheduler: it was lost during task {task}; finished tasks are in the store: resume")
    error = future.exception()
    if isinstance(error, KilledWorker):
        if deaths < _DEATHS:
            return None
        raise SchedulerError(f"workers: several died in turn on task {task}; is the memory of a worker enough?")
    if isinstance(error, Exception):
        raise error
    raise ArgumentTypeError(f"task {task}: {error}")


__all__ = ["SchedulerError", "WorkerVersionError", "connected", "results"]
