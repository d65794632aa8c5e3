"""Workers on this machine or behind any scheduler of dask.distributed, and the tasks that they are given."""

from __future__ import annotations

import logging
import signal
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar, cast

import dask.config
from distributed import Client, Future, KilledWorker, LocalCluster, as_completed
from distributed.comm.addressing import parse_address
from distributed.comm.registry import get_backend

from tokendynamics.numerics import TokenDynamicsError
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.resources import open_files_limit, usable_processors
from tokendynamics.sweeps._store import WorkerVersionError, check_versions, own_versions
from tokendynamics.words import plural

_PATIENCE = 10.0
"""Seconds for a scheduler to answer."""
_FILES, _FILES_EACH = 30, 10
"""Open files (sockets and pipes above all) of a run with workers on this machine, and those of each worker.

With fewer, dask neither starts nor ends.
"""
_LOG = logging.getLogger("tokendynamics")

Task = TypeVar("Task")


class SchedulerError(TokenDynamicsError, OSError):
    """No scheduler answers at an address, or it has been lost; the message names it."""


@contextmanager
def connected(scheduler: str | Client | None, workers: int | None) -> Iterator[Client]:
    """Give a client with workers of the right versions.

    Args:
        scheduler: An address such as "tcp://10.0.0.1:8786", or a client; None for workers on this machine.
        workers: How many processes on this machine, of one thread each; None for one for each processor.

    Raises:
        SchedulerError: Nothing answers at the address, or too few files may be open for workers on this machine.
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
    processors, limit = usable_processors(), open_files_limit()
    count = workers or max(1, int(min(processors, (limit - _FILES) // _FILES_EACH)))
    needed = _FILES + _FILES_EACH * count
    if needed > limit:
        wanted = f"at most {limit} open files, the limit of this process"
        advice = "raise it (ulimit -n 1024) or take fewer workers"
        raise SchedulerError("workers", wanted, f"{needed} for {plural(count, 'worker')}", advice)
    if workers is None and count < processors:
        _LOG.warning(
            "%s for %d processors: the limit of open files is %d (ulimit -n)",
            plural(count, "worker"),
            processors,
            limit,
        )
    # Each process of dask opens a port for web pages; without routes it serves none.
    settings = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}
    with _without_signals(), dask.config.set(settings):
        return LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
            # Keys of this run alone: nobody else on the machine can hand tasks, which are code, to the workers.
            security=True,
        )


@contextmanager
def _without_signals() -> Iterator[None]:
    """Block what ends a program in threads and processes that the body starts: the client ends them in order.

    A terminal sends Ctrl-C to all processes of a command. One that comes meanwhile is received at the end of the body.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing import resource_tracker

    ending = {signal.SIGINT, signal.SIGHUP}
    former = signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    try:
        resource_tracker.ensure_running()  # also without SIGHUP, which would end it; it unblocks SIGINT here
        signal.pthread_sigmask(signal.SIG_BLOCK, ending)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _reached(address: str) -> Client:
    try:
        get_backend(parse_address(address)[0])  # a client of an unknown protocol would try to take its leave of it
        return Client(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        wanted = "the address of a scheduler that answers, such as tcp://127.0.0.1:8786"
        advice = "start one with 'dask scheduler', or leave the option out for workers on this machine"
        raise SchedulerError("scheduler", wanted, f"{shown(address)} ({type(error).__name__})", advice) from error


def _check_workers(client: Client) -> None:
    """Refuse workers of other versions, of which the first is named."""
    wanted = own_versions()
    try:
        by_worker = cast("Mapping[str, Any]", client.run(own_versions, on_error="return"))
    except TypeError as error:
        raise SchedulerError("scheduler", "one with workers that answer", str(error)) from error
    for worker, versions in by_worker.items():
        check_versions(wanted, versions if isinstance(versions, dict) else {}, worker)


def threads_of(client: Client) -> int:
    """Return how many tasks the workers can run at a time; 0 where none answers any more."""
    try:
        return sum(cast("Mapping[str, int]", client.nthreads()).values())
    except (OSError, TypeError, ValueError):
        return 0


def ended(
    client: Client,
    run: Callable[..., Any],
    tasks: Iterable[Task],
    arguments: Callable[[Task, str], tuple[Any, ...]],
    *,
    name: Callable[[Task], str],
    lost: str,
    at_a_time: Callable[[], int] | None = None,
    deaths: int = 0,
) -> Iterator[tuple[Task, Future]]:
    """Hand tasks to the workers and yield each with its future as it ends; the others are released with the iteration.

    Args:
        client: From `connected`.
        run: What a worker calls.
        tasks: What is to be done, in order.
        arguments: From a task and its key to the arguments of `run`.
        name: From a task to what is unique in its key.
        lost: What to say when the scheduler is lost; ``{}`` stands for the task.
        at_a_time: Gives the most tasks that are with the scheduler, asked anew after each; None for all of them.
        deaths: How often workers may die over one task before its future is yielded as it is.

    Raises:
        SchedulerError: The scheduler has been lost.
    """
    number, waiting = uuid.uuid4().hex[:8], iter(tasks)
    under_way: dict[Future, tuple[Task, int]] = {}
    completed = as_completed(loop=client.loop)

    def give(task: Task, died: int = 0) -> None:
        key = f"{name(task)}-{number}-{died}"
        future = client.submit(run, *arguments(task, key), key=key, pure=False)
        under_way[future] = task, died
        completed.add(future)

    def room() -> int | None:
        return None if at_a_time is None else max(0, at_a_time() - len(under_way))

    for task in islice(waiting, room()):
        give(task)
    try:
        for future in completed:
            task, died = under_way.pop(future)
            if _died(future, died < deaths):
                give(task, died + 1)
                continue
            if future.status == "cancelled":
                raise SchedulerError(lost.format(task))
            for following in islice(waiting, room()):  # more where workers have joined
                give(following)
            yield task, future
    finally:
        for future in under_way:
            future.release()


def _died(future: Future, again: bool) -> bool:
    """Tell whether a task is to be given out anew: its worker died after it was done, or, with `again`, before."""
    if future.status == "lost":  # the arrays were not fetched yet
        return True
    return again and future.status == "error" and isinstance(future.exception(), KilledWorker)


__all__ = ["SchedulerError", "WorkerVersionError", "connected", "ended", "threads_of"]
