"""Workers on this machine or behind any scheduler of dask.distributed, and the tasks that they are given."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any, cast

import dask.config
import numpy as np
import torch
from distributed import Client, Future, KilledWorker, LocalCluster, as_completed
from distributed.comm.addressing import parse_address
from distributed.comm.registry import get_backend

from tokendynamics.dynamics import Status, Trajectory, simulate
from tokendynamics.numerics import ArgumentTypeError, TokenDynamicsError
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.numerics.resources import usable_processors
from tokendynamics.specification.batch import joined, selected
from tokendynamics.specification.build import Setup
from tokendynamics.sweeps._engine import simulated
from tokendynamics.sweeps._plan import Plan, parse_plan
from tokendynamics.sweeps._versions import WorkerVersionError, check_versions, own_versions
from tokendynamics.sweeps.measures import ALWAYS, MEASURES, measured, of_states
from tokendynamics.sweeps.outcome import unsettled

Arrays = dict[str, np.ndarray]

_ENTRIES = 2**23
"""Numbers of saved states of a batch: 64 MiB."""


def run_task(text: str, name: str, task: tuple[int, ...], versions: Mapping[str, str], engine: str) -> Arrays:
    """Return every variable of a task's systems, in the shape of the task's region of the store.

    Args:
        text: What the sweep's file says.
        name: The file's name, for messages.
        task: Number along each axis.
        versions: Of the client.
        engine: What tries first where the file has no engine; see `first_engine`.

    Raises:
        WorkerVersionError: This process has other versions of what makes the numbers.
        SpecificationError: A point that the specification does not have.
    """
    check_versions(versions)
    plan = _plan(text, name)
    # For good: another thread of this process may be running another task, and more threads would round otherwise.
    torch.set_num_threads(1)
    parts = [_measured(plan, batch, engine) for batch in _batches(plan, task)]
    region = [part.stop - part.start for part in plan.region(task)]
    whole = {each: np.concatenate([part[each] for part in parts]) for each in parts[0]}
    return {each: values.reshape(*region, *values.shape[1:]) for each, values in whole.items()}


@lru_cache(maxsize=4)
def _plan(text: str, name: str) -> Plan:
    return parse_plan(text, name)


def _batches(plan: Plan, task: tuple[int, ...]) -> Iterator[Setup]:
    """Return the systems of a task in batches whose states fit into the memory, as the file alone decides."""
    for setup in joined(map(plan.setup, plan.blocks(task))):
        entries = setup.start[0].numel() * len(setup.times)
        for part in torch.arange(len(setup.start)).split(max(1, _ENTRIES // entries)):
            yield setup if len(part) == len(setup.start) else selected(setup, part)


def _measured(plan: Plan, setup: Setup, engine: str) -> Arrays:
    run = simulated(setup, engine)
    found, rows = _variables(plan, setup, run), np.arange(len(setup.start))
    if plan.table.retry == "none" or run.engine not in _EXPLICIT:
        return found
    for number, options in _further(plan, setup, run.engine):
        again = _worth(plan, setup, run)
        if not again.any():
            break
        rows, setup = rows[again], selected(setup, torch.from_numpy(np.flatnonzero(again)))
        try:
            run = simulate(setup.flow, setup.start, setup.times, events=setup.events, **options)
        except TokenDynamicsError:  # A flow that the engine cannot run.
            break
        better = _variables(plan, setup, run)
        better["right_hand_sides"] += found["right_hand_sides"][rows]
        better["tries"][:] = number
        for name, values in better.items():
            found[name][rows] = values
    return found


_EXPLICIT = ("batched", "compiled")
_IMPLICIT_STEPS, _MANY_STEPS = 2, 3
"""What `tries` calls further ones."""


def _further(plan: Plan, setup: Setup, engine: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return numbers and options of further tries: implicit steps and, where the file says so, many explicit ones.

    The cheaper one comes first. A compiled step takes about a microsecond, an implicit one some hundred, so that a
    hundred times as many compiled steps are tried before; a step of the engine "batched" has no such advantage.
    """
    table = plan.table
    kept = {
        name: value for name, value in setup.options.items() if name in ("rtol", "atol", "max_step", "device", "dtype")
    }
    tries = [(_IMPLICIT_STEPS, {**kept, "engine": "stiff", "max_steps": table.retry_steps})]
    if table.last_steps is not None:
        tries.append((_MANY_STEPS, {**setup.options, "engine": engine, "max_steps": table.last_steps}))
    yield from reversed(tries) if engine == "compiled" else tries


def _worth(plan: Plan, setup: Setup, run: Trajectory) -> np.ndarray:
    """Tell which systems would gain by another try: they have spent their steps before anything was settled."""
    spent = np.asarray(run.status == str(Status.BUDGET))
    return spent & unsettled(setup, run, plan.table) if "outcome" in plan.table.measure else spent


def _variables(plan: Plan, setup: Setup, run: Trajectory) -> Arrays:
    table = plan.table
    found = {name: measured(measure, setup, run, table) for name, measure in ALWAYS.items()}
    found |= {name: measured(MEASURES[name], setup, run, table) for name in table.measure}
    found |= {f"{name}_over_time": of_states(MEASURES[name], run.tensor, table) for name in table.over_time}
    if table.keep == "states":
        found["states"] = run.tensor.numpy()
    return found


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
