"""First calls of the engine "compiled" in fresh processes: without a cache, and from the cache of the one before."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from bench.measure import NOTHING_COMPARED, Comparison

DIMS, DIMS_QUICKLY = (2, 3, 4, 8, 16), (3,)
ALLOWED, ALLOWED_FROM_CACHE, REPEATS = 6.0, 1.5, 3

# Processor time of the process and not the clock's: whatever else the machine does. PyTorch and this package are
# imported before; numba belongs to the first call.
_CALL = """
import os, sys
import torch
from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.spaces import Sphere
torch.set_num_threads(1)
dim = int(sys.argv[1])
qk, ov = torch.randn(2, dim, dim, dtype=torch.float64)
flow, starts = Flow(Attention(qk, ov), Sphere()), Sphere().sample(10, dim, (8,), seed=0)
def spent():
    return sum(os.times()[:2])
begin = spent()
simulate(flow, starts, [0.0, 1.0], engine="compiled")
first = spent() - begin
begin = spent()
simulate(flow, starts, [0.0, 1.0], engine="compiled")
print(first - (spent() - begin))
"""


def run(quick: bool = False) -> Iterator[Comparison]:
    """Seconds of processor time that a first call takes more than a second one, imports of numba included."""
    for dim in DIMS_QUICKLY if quick else DIMS:
        with tempfile.TemporaryDirectory() as cache:
            cold = [_first_call(dim, cache)]
            cached = [_first_call(dim, cache) for _ in range(REPEATS)]
        yield _judged(f"first call in {dim} dimensions, without a cache", cold, ALLOWED)
        yield _judged(f"first call in {dim} dimensions, from the cache", cached, ALLOWED_FROM_CACHE)


def _first_call(dim: int, cache: str) -> float:
    environment = os.environ | {"NUMBA_CACHE_DIR": cache}
    command = [sys.executable, "-c", _CALL, str(dim)]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def _judged(name: str, seconds: list[float], allowed: float) -> Comparison:
    median = statistics.median(seconds)
    return Comparison(
        f"{name}, processor time", median, allowed, median / allowed, (min(seconds) / allowed, max(seconds) / allowed),
        f"≤ {allowed:g} s", median <= allowed, NOTHING_COMPARED,
    )  # fmt: skip
