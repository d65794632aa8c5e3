"""One `sweep`: from a file to a dataset, task by task, through a store that a stopped sweep continues with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from tokendynamics.attention import Attention, RotaryPositions
from tokendynamics.attention.schedules import Constant, Schedule
from tokendynamics.dynamics import Status, Trajectory, simulate
from tokendynamics.dynamics.engines.table import OF_LAYERS, SMALL, UnsuitableEngineError
from tokendynamics.numerics import ArgumentTypeError, TokenDynamicsError
from tokendynamics.numerics.extras import missing, require
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.progress import Progress
from tokendynamics.provenance.swap import staging
from tokendynamics.spaces import Ellipsoid, Normalized, Space
from tokendynamics.specification.build import Setup
from tokendynamics.sweeps._store import check_versions, filling, is_recorded, own_versions, recorded
from tokendynamics.sweeps.systems._plan import Plan, parse_plan, read_plan
from tokendynamics.sweeps.systems._store import Store, check_room, check_same, layout, open_store, size
from tokendynamics.sweeps.systems.measures import ALWAYS, MEASURES, measured, of_states, unsettled

if TYPE_CHECKING:
    from distributed import Client, Future

Arrays = dict[str, np.ndarray]
Task = tuple[int, ...]

_AHEAD = 3
"""Tasks of each thread of the workers that are with the scheduler at a time: memory stays flat however many follow."""
_DEATHS = 5
"""Workers that may die over one task before it is taken for the cause."""


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
        Dataset of shape (axis, …, draw): the axes of the design and `draw` are its dims. It is read from the store
        when it is used.

    Raises:
        SpecificationError: What is wrong in the file, with its line.
        ArgumentValueError: A store in the way or of another specification, or a sweep too large for the disk.
        SchedulerError: No scheduler answers.
        WorkerVersionError: A worker has other versions.
        StorageError: The disk is full or cannot be written; the sweep can be resumed.
    """
    require("sweeps", "sweep", "running on many workers")
    plan, place = spec if isinstance(spec, Plan) else read_plan(spec), Path(store)
    engine = plan.engine or first_engine()
    variables = layout(plan)

    def check_new() -> None:
        plan.check()
        check_room(size(plan, variables), place)

    begun = filling(
        place,
        resume=resume,
        progress=progress,
        check_new=check_new,
        check_same=lambda: check_same(place, plan, engine),
        kept="tasks",
    )
    with begun as (there, report), limited_threads(None), staging(place) as staged:
        written = Store(place, plan, variables, staged, engine)
        if not there or next(written.missing(), None) is not None or not is_recorded(place):
            _fill(written, scheduler, workers, report, command or f"tokendynamics.sweep({plan.name!r}, …)", there=there)
    return open_store(place)


def _fill(
    store: Store, scheduler: str | Client | None, workers: int | None, report: Progress, command: str, *, there: bool
) -> None:
    """Run the tasks that a store lacks; it is made once the workers are known to be fit."""
    from tokendynamics.sweeps._cluster import connected, ended, threads_of

    plan, started, lacking = store.plan, datetime.now(UTC), list(store.missing())
    before = done = plan.systems - sum(_systems(plan, task) for task in lacking)
    report(done, plan.systems, what := f"Sweeping {plan.name}")
    with connected(scheduler, workers) as client:
        if not there:
            store.create()
        versions = own_versions()
        tasks = ended(
            client,
            run_task,
            lacking,
            lambda task, _: (plan.text, plan.name, task, versions, store.engine),
            name=lambda task: f"sweep-{'-'.join(map(str, task))}",
            lost="scheduler: it was lost during task {}; finished tasks are in the store: resume",
            at_a_time=lambda: max(2, _AHEAD * threads_of(client)),
            deaths=_DEATHS,
        )
        with recorded(store.path, command, plan.identity(), seed=plan.table.seed, started=started) as run:
            try:
                for task, future in tasks:
                    store.write(task, _arrays(future, task))
                    done += _systems(plan, task)
                    report(done, plan.systems, what)
            finally:
                run |= {"systems": done - before, "workers": threads_of(client)}


def _systems(plan: Plan, task: Task) -> int:
    return math.prod(part.stop - part.start for part in plan.region(task))


def _arrays(future: Future, task: Task) -> Arrays:
    """Return a task's arrays.

    Raises:
        SchedulerError: It ended one worker after the other.
        WorkerVersionError: A worker that came later has other versions.
    """
    from distributed import KilledWorker

    from tokendynamics.sweeps._cluster import SchedulerError

    error = future.exception() if future.status == "error" else None
    if isinstance(error, KilledWorker):
        raise SchedulerError(f"workers: several died in turn on task {task}; is the memory of a worker enough?")
    if error is not None and not isinstance(error, Exception):
        raise ArgumentTypeError(f"task {task}: {error}")
    return future.result()


def run_task(text: str, name: str, task: Task, versions: Mapping[str, str], engine: str) -> Arrays:
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
    parts: list[Arrays] = []
    for setup in joined(map(plan.setup, plan.blocks(task))):
        # In batches whose states fit into the memory, as the file alone decides.
        entries = setup.start[0].numel() * len(setup.times)
        for systems in torch.arange(len(setup.start)).split(max(1, _ENTRIES // entries)):
            batch = setup if len(systems) == len(setup.start) else _part(setup, systems)
            parts.append(_measured(plan, batch, engine))
    region = [part.stop - part.start for part in plan.region(task)]
    whole = {variable: np.concatenate([part[variable] for part in parts]) for variable in parts[0]}
    return {variable: values.reshape(*region, *values.shape[1:]) for variable, values in whole.items()}


_plan = lru_cache(maxsize=4)(parse_plan)


_ENTRIES = 2**23
"""Numbers of saved states of a batch: 64 MiB."""


def _measured(plan: Plan, setup: Setup, engine: str) -> Arrays:
    run = simulated(setup, engine)
    values, rows = _variables(plan, setup, run), np.arange(len(setup.start))
    if plan.table.retry == "none" or run.engine not in ("batched", "compiled"):
        return values
    for number, options in _further(plan, setup, run.engine):
        # Another try is worth it where the steps were spent before anything was settled.
        again = np.asarray(run.status == str(Status.BUDGET))
        if "outcome" in plan.table.measure:
            again &= unsettled(setup, run)
        if not again.any():
            break
        left = selected(setup, torch.from_numpy(np.flatnonzero(again)))
        try:
            run = simulate(left.flow, left.start, left.times, events=left.events, **options)
        except TokenDynamicsError:  # A flow that the engine cannot run: another try may be of another engine.
            continue
        rows, setup = rows[again], left
        better = _variables(plan, setup, run)
        better["right_hand_sides"] += values["right_hand_sides"][rows]
        better["tries"][:] = number
        for name, of_rows in better.items():
            values[name][rows] = of_rows
    return values


_IMPLICIT_STEPS, _MANY_STEPS = 2, 3
"""What `tries` calls further ones."""


def _further(plan: Plan, setup: Setup, engine: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return numbers and options of further tries: implicit steps and, where the file says so, many explicit ones.

    The cheaper one comes first. A compiled step takes about a microsecond, an implicit one some hundred, so that a
    hundred times as many compiled steps are tried before; a step of the engine "batched" has no such advantage.
    """
    table, shared = plan.table, ("rtol", "atol", "max_step", "device", "dtype", "frame")
    kept = {name: value for name, value in setup.options.items() if name in shared}
    tries = [(_IMPLICIT_STEPS, {**kept, "engine": "stiff", "max_steps": table.retry_steps})]
    if table.last_steps is not None:
        tries.append((_MANY_STEPS, {**setup.options, "engine": engine, "max_steps": table.last_steps}))
    yield from reversed(tries) if engine == "compiled" else tries


def _variables(plan: Plan, setup: Setup, run: Trajectory) -> Arrays:
    table, angle = plan.table, plan.table.cluster_angle
    kept = ALWAYS | {name: MEASURES[name] for name in table.measure}
    values = {name: measured(measure, setup, run, angle) for name, measure in kept.items()}
    values |= {f"{name}_over_time": of_states(MEASURES[name], run.tensor, angle) for name in table.over_time}
    if table.keep == "states":
        values["states"] = run.tensor.numpy()
    return values


def first_engine() -> str:
    """Return the engine that tries first where the file has none: "compiled" with the extra `fast`, or "batched".

    The client decides for all workers, and the store records it: the last bits of the two differ.
    """
    return "batched" if missing("fast") else "compiled"


def simulated(setup: Setup, engine: str) -> Trajectory:
    """Run a batch for the first time.

    Args:
        setup: What was built.
        engine: From `first_engine`; it serves where the file has no engine and the flow is small and of a kind that
            the engine knows, and `simulate` chooses elsewhere.
    """
    options = setup.options
    # The file chose an engine, or what "compiled" does not do.
    decided = (
        options.get("engine", "auto") != "auto"
        or options.get("dtype", torch.float64) != torch.float64
        or not options.keys().isdisjoint({"step", *OF_LAYERS})
    )
    system = setup.flow, setup.start, setup.times
    if engine == "compiled" and not decided and setup.start[0].numel() <= SMALL:
        try:
            return simulate(*system, events=setup.events, **{**options, "engine": engine})
        except UnsuitableEngineError:
            pass
    return simulate(*system, events=setup.events, **options)


def _part(setup: Setup, systems: Tensor) -> Setup:
    """Return neighbouring systems of a batch, with the noise that they have in the whole."""
    part, noise = selected(setup, systems), setup.options.get("noise")
    if noise is None:
        return part
    return replace(part, options=setup.options | {"noise": replace(noise, first=noise.first + int(systems[0]))})


def selected(setup: Setup, systems: Tensor) -> Setup:
    """Return some systems of a batch, by index."""
    flow = setup.flow
    space = flow.space
    if isinstance(space, Ellipsoid) and space.metric is not None and space.metric.ndim > 2:
        space = Ellipsoid(space.metric[systems])
    chosen = flow.with_attention(flow.attention.select(systems), space)
    return replace(setup, flow=chosen, start=setup.start[systems])


def joined(setups: Iterable[Setup]) -> Iterator[Setup]:
    """Join neighbours that can be simulated together: of one shape, with constant matrices and the same options."""
    group: list[Setup] = []
    for setup in setups:
        if group and not _joinable(group[0], setup):
            yield _batch(group)
            group = []
        group.append(setup)
    if group:
        yield _batch(group)


def _joinable(one: Setup, other: Setup) -> bool:
    return (
        one.start.shape[1:] == other.start.shape[1:]
        and one.times.tolist() == other.times.tolist()
        and (one.events, one.options) == (other.events, other.options)
        and (one.flow.projection, one.flow.frozen) == (other.flow.projection, other.flow.frozen)
        and _attention_options(one.flow.attention) == _attention_options(other.flow.attention)
        and one.flow.attention.qk.shape[-3:] == other.flow.attention.qk.shape[-3:]
        and _constant(one.flow.attention)
        and _constant(other.flow.attention)
        and _alike(one.flow.space, other.flow.space)
    )


def _alike(one: Space, other: Space) -> bool:
    """Tell whether spaces differ in nothing but a metric."""
    if isinstance(one, Normalized):
        return isinstance(other, Normalized) and one.geometry == other.geometry
    return type(one) is type(other)


def _attention_options(attention: Attention) -> tuple[object, ...]:
    positions = attention.positions
    rotary: tuple[object, ...] = ()
    if isinstance(positions, RotaryPositions):
        rotary = positions.base, positions.scale, positions.query.shape[-2:]
    mask = None if attention.mask is None else attention.mask.tolist()
    return (
        attention.causal, mask, attention.weights, attention.offset, attention.normalization, type(positions),
        *rotary,
    )  # fmt: skip


def _constant(attention: Attention) -> bool:
    """Tell whether everything is a dense matrix that does not depend on time."""
    known = attention.positions is None or isinstance(attention.positions, RotaryPositions)
    return known and all(isinstance(schedule, Constant) for schedule in attention.schedules)


def _batch(setups: Sequence[Setup]) -> Setup:
    if len(setups) == 1:
        return setups[0]
    attentions, first = [setup.flow.attention for setup in setups], setups[0]
    counts = [len(setup.start) for setup in setups]
    positions = first.flow.attention.positions
    if isinstance(positions, RotaryPositions):
        turning = [attention.positions for attention in attentions if isinstance(attention.positions, RotaryPositions)]
        query, key = (_matrices([getattr(rotation, side) for rotation in turning], counts) for side in ("query", "key"))
        positions = positions.with_schedules(query, key)
    qk, ov = (_matrices([getattr(attention, name) for attention in attentions], counts) for name in ("qk", "ov"))
    spaces: list[Space] = [setup.flow.space for setup in setups]
    metrics = [space.metric for space in spaces if isinstance(space, Ellipsoid) and space.metric is not None]
    flow = first.flow.with_attention(
        first.flow.attention.with_schedules(qk, ov, positions),
        Ellipsoid(_cat(metrics, counts, 2)) if metrics else spaces[0],
    )
    return replace(first, flow=flow, start=torch.cat([setup.start for setup in setups]))


def _matrices(schedules: Sequence[Schedule], counts: Sequence[int]) -> Tensor:
    """Return one matrix where all share it, or else that of each system."""
    return _cat([schedule.matrix_at(0.0) for schedule in schedules], counts, 3)


def _cat(tensors: Sequence[Tensor], counts: Sequence[int], axes: int) -> Tensor:
    if all(tensor.ndim == axes and torch.equal(tensor, tensors[0]) for tensor in tensors):
        return tensors[0]
    expanded = (tensor.expand(count, *tensor.shape[-axes:]) for tensor, count in zip(tensors, counts, strict=True))
    return torch.cat(list(expanded))
