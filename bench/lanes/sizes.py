"""The engine "compiled" against the plain loop, from 4 to 32 tokens in 2 to 8 dimensions, on one core."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from bench.flows import generic, peers
from bench.flows.sphere_flow import SphereFlow
from bench.lanes import bound
from bench.measure import NO_TARGET, NOTHING_COMPARED, Comparison, rounds_of, share, speedup
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.spaces import Sphere

TOKENS, DIMS = (4, 8, 16, 32), (2, 3, 4, 6, 8)
TOKENS_QUICKLY, DIMS_QUICKLY = (4, 10, 32), (2, 3, 8)
HORIZON, RTOL, AT_LEAST, SHARE, ROUNDS = 10.0, 1e-6, 8, 0.8, 5
FEW, FEW_CALLS = (1, 8), 40
"""Batches too small to fill the lanes, or just large enough, and how often they run in a round."""
WORK = 1_600_000
"""Systems times products of a right-hand side: so many are timed that every size takes about as long."""


def run(quick: bool = False) -> Iterator[Comparison]:
    """Processor time of both on the same systems, at the same tolerances: pair, norm and controller are the same."""
    with limited_threads(1):
        for dim in DIMS_QUICKLY if quick else DIMS:
            for tokens in TOKENS_QUICKLY if quick else TOKENS:
                yield from compared(tokens, dim)
        for systems in FEW:
            yield few_compared(systems)


def few_compared(systems: int) -> Comparison:
    """A batch of one call: beside the loop it pays for checks, arrays and the trajectory."""
    flow, starts = _flow(3), Sphere().sample(10, 3, (systems,), seed=1)
    ours, plain = peers.ours(flow, "compiled"), generic.solver(flow)
    works = {
        "ours": lambda: [ours(starts, HORIZON, RTOL) for _ in range(FEW_CALLS)],
        "plain": lambda: [plain(starts, HORIZON, RTOL) for _ in range(FEW_CALLS)],
    }
    taken = rounds_of(works, ROUNDS, clock=time.process_time)
    difference = float((ours(starts, HORIZON, RTOL).states - plain(starts, HORIZON, RTOL).states).abs().max())
    return speedup(
        f"{systems} systems of 10 × 3 in one call, compiled against the plain numba loop",
        [(one["ours"], one["plain"]) for one in taken],
        at_least=1,
        error=f"ends differ by {difference:.0e} at rtol {RTOL:.0e}",
    )


def _flow(dim: int) -> SphereFlow:
    generator = torch.Generator().manual_seed(dim)
    qk, ov = torch.randn(2, 1, dim, dim, generator=generator, dtype=torch.float64)
    return SphereFlow(qk, ov)


def compared(tokens: int, dim: int) -> Iterator[Comparison]:
    """Yield how much faster one size is than the plain loop, and its share of the bound by operation count."""
    flow, systems = _flow(dim), 8 * max(25, WORK // (8 * tokens * tokens * dim))
    starts = Sphere().sample(tokens, dim, (systems,), seed=1)
    ours, plain = peers.ours(flow, "compiled"), generic.solver(flow)
    ends = {name: solve(starts, HORIZON, RTOL) for name, solve in (("ours", ours), ("plain", plain))}
    works = {"ours": lambda: ours(starts, HORIZON, RTOL), "plain": lambda: plain(starts, HORIZON, RTOL)}
    rate_of, taken = bound.works(), []
    for _ in range(ROUNDS):
        seconds = rounds_of(works, 1, uncounted=0, clock=time.process_time)[0]
        rates = {kind: measured() for kind, measured in rate_of.items()}
        least = systems * bound.seconds(tokens, dim, ends["ours"].right_hand_sides, rates)
        taken.append((seconds["ours"], seconds["plain"], least))
    difference = float((ends["ours"].states - ends["plain"].states).abs().max())
    name = f"{systems} systems of {tokens} × {dim}, compiled"
    of_bound = share(
        f"{name}, of the bound by operation count", [(1 / ours, 1 / least) for ours, _, least in taken],
        at_least=SHARE, error=NOTHING_COMPARED, unit="/s",
    )  # fmt: skip
    faster = speedup(
        f"{name} against the plain numba loop", [(ours, plain) for ours, plain, _ in taken],
        at_least=AT_LEAST, error=f"ends differ by {difference:.0e} at rtol {RTOL:.0e}",
    )  # fmt: skip
    yield replace(faster, target=f"{faster.target}, or ≥ {SHARE:g} of the bound below", met=faster.met or of_bound.met)
    yield replace(of_bound, target=NO_TARGET, met=True)
