"""How the cost of many small systems grows with tokens, dimensions, systems and cores."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from bench.flows import generic, peers
from bench.flows.peers import Solver
from bench.flows.sphere_flow import SphereFlow
from bench.measure import Curve, rounds_of
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.spaces import Sphere

HORIZON, RTOL, ROUNDS, ROUNDS_QUICKLY = 10.0, 1e-6, 5, 3
TOKENS, DIM, SYSTEMS = 10, 3, 2048


class Grid(NamedTuple):
    """Where the curves are measured."""

    tokens: Sequence[int] = (2, 4, 8, 16, 32, 64, 128)
    dims: Sequence[int] = (2, 3, 4, 6, 8, 12, 16)
    systems: Sequence[int] = (1, 8, 64, 512, 4096, 32768, 131072)


QUICK = Grid(tokens=(4, 8, 16, 32), dims=(2, 3, 8), systems=(1, 8, 64, 512, 4096))


def run(quick: bool = False) -> Iterator[Curve]:
    """Processor time on one core for the first three, the clock's for the last; first calls are not counted."""
    grid, rounds = (QUICK, ROUNDS_QUICKLY) if quick else (Grid(), ROUNDS)
    with limited_threads(1):
        yield _curve("tokens", grid.tokens, lambda tokens: (tokens, DIM, SYSTEMS // max(1, tokens // 8)), rounds)
        yield _curve("dimensions", grid.dims, lambda dim: (TOKENS, dim, SYSTEMS), rounds)
        yield _curve("systems", grid.systems, lambda systems: (TOKENS, DIM, systems), rounds)
    yield _of_cores(4 * SYSTEMS, rounds)


def _curve(along: str, at: Sequence[int], sizes: Callable[[int], tuple[int, int, int]], rounds: int) -> Curve:
    costs: dict[str, list[float]] = {}
    for here in at:
        tokens, dim, systems = sizes(here)
        flow, starts = _drawn(tokens, dim, systems)
        solvers: dict[str, Solver] = {
            "compiled": peers.ours(flow, "compiled"),
            "batched": peers.ours(flow),
            "plain numba loop": generic.solver(flow),
        }
        works = {name: partial(solve, starts, HORIZON, RTOL) for name, solve in solvers.items()}
        taken = rounds_of(works, rounds, clock=time.process_time)
        for name in solvers:
            costs.setdefault(name, []).append(1e6 * statistics.median(one[name] for one in taken) / systems)
    fixed = {
        "tokens": f"{DIM} dimensions",
        "dimensions": f"{TOKENS} tokens",
        "systems": f"{TOKENS} tokens, {DIM} dimensions",
    }
    title = f"Processor time for a system to t = {HORIZON:g} on one core, {fixed[along]}"
    return Curve(title, along, [float(here) for here in at], costs, "µs/system")


def _of_cores(systems: int, rounds: int) -> Curve:
    flow, starts = _drawn(TOKENS, DIM, systems)
    solve, before = peers.ours(flow, "compiled"), torch.get_num_threads()
    at = range(1, (os.cpu_count() or 1) + 1)

    def work(threads: int) -> None:
        torch.set_num_threads(threads)
        solve(starts, HORIZON, RTOL)

    try:
        works = {str(threads): partial(work, threads) for threads in at}
        clock = rounds_of(works, rounds)
        spent = rounds_of(works, rounds, clock=time.process_time)
    finally:
        torch.set_num_threads(before)
    costs = {
        name: [1e6 * statistics.median(one[str(threads)] for one in taken) / systems for threads in at]
        for name, taken in (("compiled, by the clock", clock), ("compiled, processor time", spent))
    }
    title = f"{systems} systems of {TOKENS} tokens in {DIM} dimensions on several cores"
    return Curve(title, "cores", [float(threads) for threads in at], costs, "µs/system")


def _drawn(tokens: int, dim: int, systems: int) -> tuple[SphereFlow, torch.Tensor]:
    generator = torch.Generator().manual_seed(dim)
    qk, ov = torch.randn(2, 1, dim, dim, generator=generator, dtype=torch.float64)
    return SphereFlow(qk, ov), Sphere().sample(tokens, dim, (systems,), seed=1)
