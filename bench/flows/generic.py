"""The loop of the tests that does a number at a time, as a solver: what a user of numba would write."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from bench.flows.peers import ATOL, Solved, Solver
from bench.flows.sphere_flow import SphereFlow

STAGES = 6


def solver(flow: SphereFlow) -> Solver:
    """Of one head with constant matrices."""
    assert flow.gates is None
    assert flow.ov is not None
    loop, qk, ov = _module().generic_loop, flow.qk[0].numpy(), flow.ov[0].numpy()

    def solve(starts: Tensor, horizon: float, rtol: float) -> Solved:
        options = {"causal": flow.causal, "sphere": True}
        ends, attempts = loop(starts.numpy(), qk, ov, horizon, rtol, ATOL * rtol, **options)
        return Solved(torch.from_numpy(ends), 1 + STAGES * float(attempts.mean()))

    return solve


def _module() -> ModuleType:
    # The tests are no package: one of another project may have that name.
    spec = spec_from_file_location("generic_loop", Path(__file__).parents[2] / "tests/dynamics/generic_loop.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
