"""One task of a sweep: its systems are drawn, simulated as batches, measured, and tried again where that helps.

Everything follows from the text of the file and the number of the task: neither the worker nor the order matters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from tokendynamics.dynamics import Status, Trajectory, simulate
from tokendynamics.numerics._errors import TokenDynamicsError
from tokendynamics.specification._batch import joined, selected
from tokendynamics.specification._build import Setup
from tokendynamics.sweeps._engine import simulated
from tokendynamics.sweeps._measures import ALWAYS, MEASURES, measured, of_states
from tokendynamics.sweeps._outcome import unsettled
from tokendynamics.sweeps._plan import Plan, parse_plan
from tokendynamics.sweeps._versions import check_versions

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
