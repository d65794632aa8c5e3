"""The engine "compiled" as compiled for older processors, against the plain loop compiled for the same."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace

from bench.measure import NO_TARGET, Comparison

SETS = {
    "AVX2": ("haswell", "+64bit,+sse4.2,+avx,+avx2,+fma,+bmi,+bmi2,+lzcnt,+popcnt"),
    "SSE2": ("x86-64", "+64bit,+sse2"),
}


def run() -> Iterator[Comparison]:
    """A process for each, with a cache of its own; nothing where processors are of another kind."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return
    for name, (processor, features) in SETS.items():
        with tempfile.TemporaryDirectory() as cache:
            older = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": cache}
            command = [sys.executable, "-m", "bench.lanes.older"]
            done = subprocess.run(command, env=os.environ | older, capture_output=True, text=True, check=True)
        numbers = json.loads(done.stdout.splitlines()[-1])
        row = Comparison(**(numbers | {"spread": tuple(numbers["spread"])}))
        yield replace(row, workload=f"{row.workload}, compiled for {name}", target=NO_TARGET, met=True)


if __name__ == "__main__":
    from bench.lanes.sizes import compared

    print(json.dumps(asdict(next(compared(10, 3)))))
