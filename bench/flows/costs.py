"""What a solver costs beside its time: a process of its own for each, which says memory and the price of a first call.

``python -m bench.flows.costs WORKLOAD SOLVER RTOL QUICK`` is that process.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from bench.flows.equal_error import Contender, Timed
from bench.measure import Cost

WORKLOADS = ("many_small", "wide", "long_sequence", "metastable")
FEW = 8
"""Systems of a first call: what it costs then is not what the systems cost."""


def costs(workload: str, timed: dict[str, Timed], contenders: list[Contender], quick: bool) -> Iterator[Cost]:
    """One row for every solver, with what it does in a fresh process; those that are not installed are left out."""
    for one in contenders:
        if one.name not in timed:
            continue
        solver_timed = timed[one.name]
        with tempfile.TemporaryDirectory() as cache:
            fresh = _fresh(workload, one.name, solver_timed.setting.rtol, quick, cache)
            again = (
                _fresh(workload, one.name, solver_timed.setting.rtol, quick, cache) if "compiled" in one.name else None
            )
        scaled = [1e3 * one_round for one_round in solver_timed.seconds]
        yield Cost(
            workload=workload,
            solver=one.name,
            systems=one.systems,
            rtol=solver_timed.setting.rtol,
            error=solver_timed.setting.error,
            right=solver_timed.right,
            milliseconds=statistics.median(scaled),
            spread=(min(scaled), max(scaled)),
            right_hand_sides=solver_timed.solved.right_hand_sides,
            peak=fresh["peak"] / 1e6,
            first=fresh["first"],
            cached=None if again is None else again["first"],
        )


def _fresh(workload: str, solver: str, rtol: float, quick: bool, cache: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.flows.costs", workload, solver, repr(rtol), str(int(quick))]
    environment = os.environ | {"NUMBA_CACHE_DIR": cache}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _main(workload: str, solver: str, rtol: float, quick: bool) -> dict[str, float]:
    torch.set_num_threads(1)
    entry: Any = import_module(f"bench.flows.{workload}").entry(quick)
    one = next(contender for contender in entry.contenders if contender.name == solver)
    few = entry.starts[: min(FEW, one.systems)]
    begin = time.process_time()
    work = one.make()
    work(few, entry.horizon, rtol)
    middle = time.process_time()
    work(few, entry.horizon, rtol)
    first = (middle - begin) - (time.process_time() - middle)
    before = _peak()
    work(entry.starts[: one.systems], entry.horizon, rtol)
    return {"first": first, "peak": _peak() - before}


def _peak() -> int:
    # VmHWM and not ru_maxrss: the latter starts from the resident size of the process that forked this one.
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)["VmHWM"].split()[0]) * 1024


if __name__ == "__main__":
    name, solver, rtol, quick = sys.argv[1:]
    print(json.dumps(_main(name, solver, float(rtol), bool(int(quick)))))
