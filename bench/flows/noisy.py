"""Many paths with noise: the engine "sde" against the same steps written by hand, for all paths at once and one by one.

By hand: Heun's method for Stratonovich noise, projected at each step, on `SphereFlow`'s right-hand side and numbers of
PyTorch's generator. It takes as many right-hand sides as ours and half the numbers, and is of weak order one.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from bench.flows.many_small import flow
from bench.flows.sphere_flow import SphereFlow
from bench.measure import Comparison, alternate, speedup
from tokendynamics.dynamics import Noise, simulate
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.spaces import Sphere

SYSTEMS, TOKENS, DIM, HORIZON, STEP, STRENGTH = 10_000, 10, 3, 1.0, 0.02, 0.3
FEW = 10
"""Paths that are timed one by one."""
ROUNDS = 3
GOAL = 20.0


def run(quick: bool = False) -> Iterator[Comparison]:
    """Compare with one thread; times one by one are those of all paths, from a few."""
    systems = 1000 if quick else SYSTEMS
    start, built = Sphere().sample(TOKENS, DIM, (systems,), seed=1), flow()
    size = f"{systems} paths of {TOKENS} × {DIM}, {round(HORIZON / STEP)} steps"
    with limited_threads(1):
        error = _error(start, built)
        few = alternate(lambda: ours(start, built), lambda: one_by_one(start[:FEW], built), ROUNDS)
        pairs = [(mine, theirs * systems / FEW) for mine, theirs in few]
        yield speedup(f"{size}: against a loop over paths", pairs, at_least=GOAL, error=error)
        pairs = alternate(lambda: ours(start, built), lambda: by_hand(start, built, 1), ROUNDS)
        yield speedup(f"{size}: against all paths at once, by hand", pairs, at_least=0.5, error=error)
        if find_spec("diffrax"):
            peer = diffrax(built)
            pairs = alternate(lambda: ours(start, built), lambda: peer(start), ROUNDS)
            yield speedup(f"{size}: against diffrax, vmap over paths", pairs, at_least=0.5, error=error)


def ours(start: Tensor, built: SphereFlow) -> Tensor:
    """Return the ends of our run."""
    noise = Noise(STRENGTH, seed=1)
    return simulate(built.ours(), start, [0.0, HORIZON], noise=noise, step=STEP).tensor[:, -1]


def by_hand(start: Tensor, built: SphereFlow, seed: int) -> Tensor:
    """Return the ends of all paths, stepped together."""
    velocity, random = built.torch(start.shape[1]), torch.Generator().manual_seed(seed)
    root, now, y = STRENGTH * STEP**0.5, torch.zeros(()), start

    def change(at: Tensor, normal: Tensor) -> Tensor:
        return STEP * velocity(now, at) + root * (normal - (normal * at).sum(dim=-1, keepdim=True) * at)

    with torch.inference_mode():
        for _ in range(round(HORIZON / STEP)):
            normal = torch.randn(y.shape, dtype=y.dtype, generator=random)
            first = change(y, normal)
            second = change(torch.nn.functional.normalize(y + first, dim=-1), normal)
            y = torch.nn.functional.normalize(y + (first + second) / 2, dim=-1)
    return y


def one_by_one(start: Tensor, built: SphereFlow) -> Tensor:
    """Return the ends of paths, each by itself."""
    return torch.cat([by_hand(path[None], built, number) for number, path in enumerate(start)])


def diffrax(built: SphereFlow) -> Any:
    """Return diffrax's Heun for Stratonovich noise with the same steps, compiled, over all paths."""
    jax, dfx = import_module("jax"), import_module("diffrax")
    jax.config.update("jax_enable_x64", True)
    drift = built.jax()

    def diffusion(t: Any, y: Any, args: Any) -> Any:
        unit = y / jax.numpy.linalg.norm(y, axis=-1, keepdims=True)
        inside = jax.numpy.eye(DIM) - unit[:, :, None] * unit[:, None, :]
        return STRENGTH * jax.numpy.eye(TOKENS)[:, None, :, None] * inside[:, :, None, :]

    def one(start: Any, key: Any) -> Any:
        path = dfx.UnsafeBrownianPath(shape=(TOKENS, DIM), key=key)
        terms = dfx.MultiTerm(dfx.ODETerm(drift), dfx.ControlTerm(diffusion, path))
        run = dfx.diffeqsolve(
            terms, dfx.Heun(), 0.0, HORIZON, STEP, start, saveat=dfx.SaveAt(t1=True), adjoint=dfx.DirectAdjoint(),
        )  # fmt: skip
        return run.ys[-1]

    compiled = jax.jit(jax.vmap(one))

    def solve(start: Tensor) -> Any:
        return compiled(start.numpy(), jax.random.split(jax.random.PRNGKey(0), len(start))).block_until_ready()

    return solve


def _error(start: Tensor, built: SphereFlow) -> str:
    """Compare the mean length of the mean token, in law."""
    ends = (ours(start, built), by_hand(start, built, 1))
    lengths = [end.mean(dim=-2).norm(dim=-1) for end in ends]
    spread = float(torch.cat(lengths).std()) * (2 / len(start)) ** 0.5
    return f"means of |mean y| {float(lengths[0].mean()):.4f} and {float(lengths[1].mean()):.4f} (± {spread:.4f})"
