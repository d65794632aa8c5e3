"""Rescaled tokens against tokens: the right-hand side in each form, and runs of the same number of steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from scipy.linalg import expm
from torch import Tensor

from bench.measure import Comparison, alternate, overhead
from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.dynamics.rescaled import rescaled
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.spaces import Free

ALLOWED = 1.2
SIZES = {"many small": (4096, 10, 3), "fifty tokens": (32, 50, 64), "long": (1, 2048, 64)}
"""(system, token, dim): the three forms of the right-hand side."""
OV = ("multiple", "any")
ROUNDS, STEPS = 9, 200
_STEP_COUNTED: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-14, "max_steps": STEPS}
"""So tight that each run spends its budget of steps, the same for both."""


def run(quick: bool = False) -> Iterator[Comparison]:
    """Compare with one thread."""
    with limited_threads(1):
        for name, (systems, tokens, dim) in SIZES.items():
            start = Free().sample(tokens, dim, (systems,), seed=1)
            times = torch.linspace(0.0, 1.0, systems, dtype=torch.float64)
            for ov in OV:
                other = _flow(dim, ov).field(start)
                in_frame = rescaled(other)
                pairs = alternate(partial(in_frame.velocity, start, times), partial(other.velocity, start, 0.0), ROUNDS)
                what = "ov a multiple of the identity" if ov == "multiple" else "any ov"
                title = (
                    f"right-hand side, rescaled tokens against tokens, {what}, {name} ({systems} × {tokens} × {dim})"
                )
                yield overhead(title, pairs, at_most=ALLOWED, error=_error(in_frame, other, start))
        for engine in ("batched", "compiled"):
            yield _steps(engine, 64 if quick else 1024)


def _flow(dim: int, ov: str) -> Flow:
    qk = torch.eye(dim, dtype=torch.float64) / dim
    drawn = torch.from_numpy(np.random.default_rng(3).normal(size=(dim, dim))) / dim**0.5
    return Flow(Attention(qk, 0.5 * torch.eye(dim, dtype=torch.float64) if ov == "multiple" else drawn), Free())


def _error(in_frame: Any, other: Any, start: Tensor) -> str:
    """Compare with ``exp(−tV) (x' − V x)`` at x = exp(tV) z, for the last system at t = 1."""
    growth = other.attention.ov.matrix_at(0.0)[0].numpy()
    power, z = torch.from_numpy(expm(growth)), start[-1:]
    x = z @ power.mT
    plain = (other.velocity(x, 0.0) - x @ torch.from_numpy(growth).mT) @ torch.linalg.inv(power).mT
    return f"{float((in_frame.velocity(z, 1.0) - plain).abs().max() / plain.abs().max()):.0e}"


def _steps(engine: Literal["batched", "compiled"], systems: int) -> Comparison:
    start = Free().sample(10, 3, (systems,), seed=2)
    flow = _flow(3, "multiple")
    in_frame, plain_run = (
        partial(simulate, flow, start, [0.0, 1e3], engine=engine, frame=frame, **_STEP_COUNTED)
        for frame in ("rescaled", "tokens")
    )
    pairs = alternate(in_frame, plain_run, ROUNDS)
    title = f"{STEPS} steps of {engine}, rescaled tokens against tokens, {systems} systems of 10 × 3"
    return overhead(title, pairs, at_most=ALLOWED, error="the same steps")
