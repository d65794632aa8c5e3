"""Exponential weights against softmax: the right-hand side in each form, and runs of the same steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from bench.measure import Comparison, alternate, overhead
from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.spaces import Sphere

ALLOWED = 1.05
SIZES = {"many small": (4096, 10, 3), "fifty tokens": (32, 50, 64), "long": (1, 2048, 64)}
"""(system, token, dim): the three forms of the right-hand side."""
ROUNDS, STEPS = 9, 200
_STEP_COUNTED: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-14, "max_steps": STEPS}
"""So tight that each run spends its budget of steps, the same for both."""


def run(quick: bool = False) -> Iterator[Comparison]:
    """Compare with one thread."""
    with limited_threads(1):
        for name, (systems, tokens, dim) in SIZES.items():
            start = Sphere().sample(tokens, dim, (systems,), seed=1)
            ours, other = (_flow(dim, weights).field(start) for weights in ("exponential", "softmax"))
            pairs = alternate(partial(ours.velocity, start, 0.0), partial(other.velocity, start, 0.0), ROUNDS)
            error = _error(ours.velocity(start, 0.0), start)
            title = f"right-hand side, exponential against softmax weights, {name} ({systems} × {tokens} × {dim})"
            yield overhead(title, pairs, at_most=ALLOWED, error=error)
        for engine in ("batched", "compiled"):
            yield _steps(engine, 64 if quick else 1024)


def _flow(dim: int, weights: Literal["softmax", "exponential"]) -> Flow:
    qk = torch.eye(dim, dtype=torch.float64)
    attention = Attention(qk, qk, weights=weights, offset=1.0 if weights == "exponential" else 0.0)
    return Flow(attention, Sphere())


def _error(velocity: Tensor, start: Tensor) -> str:
    """Compare with the sums written out, for the first system."""
    x = start[0]
    weights = (x @ x.mT - 1.0).exp() / len(x)
    pull = weights @ x / x.shape[-1] ** 0.5
    plain = pull - (pull * x).sum(dim=-1, keepdim=True) * x
    return f"{float((velocity[0] - plain).abs().max() / plain.abs().max()):.0e}"


def _steps(engine: Literal["batched", "compiled"], systems: int) -> Comparison:
    start = Sphere().sample(10, 3, (systems,), seed=2)
    flows = [_flow(3, weights) for weights in ("exponential", "softmax")]
    works = [lambda flow=flow: simulate(flow, start, [0.0, 1e3], engine=engine, **_STEP_COUNTED) for flow in flows]
    pairs = alternate(works[0], works[1], ROUNDS)
    title = f"{STEPS} steps of {engine}, exponential against softmax weights, {systems} systems of 10 × 3"
    return overhead(title, pairs, at_most=ALLOWED, error="the same steps")
