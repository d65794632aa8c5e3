"""What is compiled, as processors without AVX-512, and those without fused products, would run it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from llvmlite.binding import get_host_cpu_features

# As in the Makefile.
SETS = {
    "sse2": ("x86-64", "+64bit,+sse2"),
    "avx2": ("haswell", "+64bit,+sse4.2,+avx,+avx2,+fma,+bmi,+bmi2,+lzcnt,+popcnt"),
}
ROOT = Path(__file__).parents[2]


# Fused products are what is here nearly everywhere: of what is run each time, those without them are the news.
@pytest.fixture(params=["sse2", pytest.param("avx2", marks=pytest.mark.slow)])
def run_there(request: pytest.FixtureRequest, tmp_path: Path):
    """Runs tests in a process of its own, whose code is compiled for an older processor."""
    name, features = SETS[request.param]
    here = get_host_cpu_features() if platform.machine() in ("x86_64", "AMD64") else {}
    if not all(here.get(feature.removeprefix("+")) for feature in features.split(",")):
        pytest.skip(f"this processor does not have {features}")
    older = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | older, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run


@pytest.mark.slow
def test_lanes_and_their_exponential(run_there):
    """Also without fused products, where sums are rounded otherwise."""
    assert " passed" in run_there("tests/dynamics/test_lanes.py")


@pytest.mark.slow
def test_contract_steps_and_independence_of_the_engine(run_there):
    files = ("test_engine_contract.py", "test_compiled_against_generic.py", "test_compiled_lanes.py", "test_order.py")
    assert " passed" in run_there(*(f"tests/dynamics/{name}" for name in files), "-k", "compiled")
