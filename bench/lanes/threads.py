"""Threads of the engine "compiled": the processor time of all together should be that of one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from bench.flows import many_small
from bench.measure import NO_TARGET, Comparison
from tokendynamics.dynamics import simulate

ROUNDS, AT_MOST = 7, 1.15


def run() -> Iterator[Comparison]:
    """One thread and two in turn, on systems that take seconds; not judged where there is one processor only."""
    flow, starts = many_small.flow().ours(), many_small.entry(quick=False).starts.repeat(4, 1, 1)
    threads, ends = torch.get_num_threads(), {}

    def work(count: int) -> None:
        torch.set_num_threads(count)
        ends[count] = simulate(flow, starts, [0.0, many_small.HORIZON], engine="compiled").tensor

    try:
        taken = [{count: _both(partial(work, count)) for count in (1, 2)} for _ in range(ROUNDS + 1)][1:]
    finally:
        torch.set_num_threads(threads)
    same = "the same to the last bit" if np.array_equal(ends[1].numpy(), ends[2].numpy()) else "DIFFERENT"
    for number, (what, limit) in enumerate((("processor time", AT_MOST), ("the clock's time", None))):
        ratios = [one[2][number] / one[1][number] for one in taken]
        ratio = statistics.median(ratios)
        two, single = (statistics.median(one[count][number] for one in taken) for count in (2, 1))
        yield Comparison(
            f"{len(starts)} systems of {many_small.TOKENS} × {many_small.DIM}, {what} of two threads against one",
            two, single, ratio, (min(ratios), max(ratios)), f"≤ {limit:g} × the time" if limit else NO_TARGET,
            limit is None or (ratio <= limit and same != "DIFFERENT"), same,
        )  # fmt: skip


def _both(work: Callable[[], object]) -> tuple[float, float]:
    cpu, clock = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - clock
