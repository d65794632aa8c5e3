"""A sweep of 20,000 small systems: what it costs beyond the simulations, and how long a million would take."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from distributed import Client

from bench.measure import Comparison, overhead, rounds_of
from tokendynamics.dynamics import simulate
from tokendynamics.specification.build import Setup, build
from tokendynamics.sweeps import Plan, parse_plan, sweep
from tokendynamics.sweeps.systems.running import joined

SYSTEMS, SYSTEMS_QUICKLY, TASK = 20_000, 5_000, 2_500
MILLION, ALLOWED = 1_000_000, 3600.0
ROUNDS = 3
SPEC = """
[attention]
qk = { law = "normal" }
ov = { law = "normal" }

[space]
kind = "sphere"

[start]
law = "uniform"
tokens = 10
dim = 3

[time]
end = 10.0
points = 2

[solver]
rtol = 1e-6
engine = "compiled"

[sweep]
seed = 1
measure = ["consensus"]
"""


def run(quick: bool = False) -> Iterator[Comparison]:
    """Overhead in this process by processor time; then on workers of this machine, by the clock."""
    plan = _plan(SYSTEMS_QUICKLY if quick else SYSTEMS)
    setups = [_setup(plan, task) for task in np.ndindex(*plan.tasks)]
    with Client(
        processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None, set_as_default=False
    ) as client:
        works = {"ours": lambda: _swept(plan, client), "other": lambda: _simulated(setups)}
        taken = rounds_of(works, ROUNDS, clock=time.process_time)
    name = f"sweep of {plan.systems} systems of 10 × 3, each with matrices of its own"
    pairs = [(one["ours"], one["other"]) for one in taken]
    yield overhead(
        f"{name}, drawn, measured and stored, against simulating them", pairs, at_most=2.5, error="the same runs"
    )
    yield _pace()


def _pace() -> Comparison:
    """Two sweeps on workers of this machine: their start and end are paid once, the rest for every system."""
    few, many = (_plan(systems) for systems in (SYSTEMS_QUICKLY, SYSTEMS))
    begin = time.perf_counter()
    _swept(few, None)
    middle = time.perf_counter()
    _swept(many, None)
    shorter, longer = middle - begin, time.perf_counter() - middle
    of_one = (longer - shorter) / (many.systems - few.systems)
    seconds = shorter + of_one * (MILLION - few.systems)
    share = seconds / ALLOWED
    return Comparison(
        f"a million systems of a sweep on {os.cpu_count()} workers, at the pace from {few.systems} to {many.systems}",
        seconds, ALLOWED, share, (share, share), "≤ an hour for a million", 0 < share <= 1,
        f"start and end of the workers and {few.systems} systems take {shorter:.0f} s",
    )  # fmt: skip


def _plan(systems: int) -> Plan:
    return parse_plan(f"{SPEC}draws = {systems}\ntask = {TASK}\n", "bench")


def _setup(plan: Plan, task: tuple[int, ...]) -> Setup:
    return next(iter(joined(build(plan.file(block.point), block.draws) for block in plan.blocks(task))))


def _simulated(setups: list[Setup]) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for setup in setups:
        simulate(setup.flow, setup.start, setup.times, events=setup.events, **setup.options)
    torch.set_num_threads(threads)


def _swept(plan: Plan, client: Client | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sweep(plan, Path(folder) / "sweep.zarr", client)
