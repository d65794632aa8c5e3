"""The expected loss in closed form against sampled sequences, at the error that the sample has.

The closed form is right to rounding; the sampling is given a relative standard error of one in a thousand, far less
than that, and its time for as many sequences as this takes (measured in blocks of a size that suits it).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from bench.measure import Comparison, alternate, speedup
from tokendynamics.circuits import PairTask
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.circuits.landscape import CategoriesOnly, PositionsOnly

CATEGORIES, POSITIONS, BLOCK, ROUNDS = 10, 50, 2000, 5
RELATIVE_ERROR = 1e-3
_CALLS = 100


def run() -> Iterator[Comparison]:
    """3.1 and 3.3 of `logical`."""
    draw = torch.Generator().manual_seed(0)
    task = PairTask(random_functional(CATEGORIES, seed=0), POSITIONS)
    wide = torch.randn(POSITIONS, POSITIONS, generator=draw, dtype=torch.float64) / 10
    narrow = torch.randn(CATEGORIES, CATEGORIES, generator=draw, dtype=torch.float64)
    yield _against_sampling("3.1", PositionsOnly(task.law, POSITIONS), task, wide, narrow)
    yield _against_sampling("3.3", CategoriesOnly(task.q_true, task.law, POSITIONS), task, narrow, wide)


def _against_sampling(
    name: str, landscape: PositionsOnly | CategoriesOnly, task: PairTask, q: Tensor, v: Tensor
) -> Comparison:
    sampled = _positions_only if name == "3.1" else _categories_only
    losses = torch.cat([sampled(task, q, v, seed) for seed in range(20)])
    exact = float(landscape.loss(q, v))
    needed = (float(losses.std()) / (RELATIVE_ERROR * exact)) ** 2
    off = abs(float(losses.mean()) - exact) / (float(losses.std()) / math.sqrt(len(losses)))

    def closed() -> None:
        for _ in range(_CALLS):
            landscape.loss(q, v)

    pairs = alternate(closed, lambda: sampled(task, q, v, 0), ROUNDS)
    whole = [(ours / _CALLS, other * needed / BLOCK) for ours, other in pairs]
    error = f"sampling: 1e-3 ({needed:.0f} sequences), {off:.1f} standard errors off; closed form: rounding"
    return speedup(f"expected loss of {name}, N 10, M 50, against sampling", whole, at_least=1000, error=error)


def _positions_only(task: PairTask, q: Tensor, v: Tensor, seed: int) -> Tensor:
    """Squared errors of sequences, (sample,)."""
    one_hot = task.embed(task.sample(BLOCK, seed))[..., : task.categories]
    outputs = (q.T @ one_hot)[:, 1:] @ v.T
    return (one_hot[:, :-1] - outputs).square().sum(dim=(-2, -1))


def _categories_only(task: PairTask, q: Tensor, v: Tensor, seed: int) -> Tensor:
    x = task.sample(BLOCK, seed)
    functionals = q[(x - 1)[:, None, :], (x - 1)[:, :, None]]
    outputs = (functionals * v).sum(dim=-1)
    return (task.targets(x) - outputs)[:, 1:].square().sum(dim=-1)
