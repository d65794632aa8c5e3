"""`asymptotic` Figure 5: 100 starts of 50 tokens in 500 dimensions, two causal heads behind |2 sin(wt + φ)| gates."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from bench.flows import equal_error, peers
from bench.flows.costs import costs
from bench.flows.equal_error import Contender, Entry, Race
from bench.flows.sphere_flow import SphereFlow
from bench.measure import Comparison, Cost, rounds_of, share, speedup
from tokendynamics import observables
from tokendynamics.dynamics.engines.problem import Problem
from tokendynamics.dynamics.engines.tableau import TABLEAUS
from tokendynamics.dynamics.span import SpanReduction
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.spaces import Sphere

STARTS, TOKENS, DIM, HEADS = 100, 50, 500, 2
HORIZON, CONSENSUS = 160.0, 1e-3
"""E of every start is below `CONSENSUS` at the horizon."""
CHECKED, REFERENCE_RTOL, WANTED = 20.0, 1e-9, 1e-5
"""Errors are measured at the time CHECKED, on the way: at the end all tokens stand where the first one always was."""
BLOCK, FEW, ALONE = 10, 4, 2
"""Starts of a run: ours runs 100 as ten blocks of 10, one after the other; a peer's cost is proportional to them."""
ROUNDS, RUNS = 7, 2


def entry(quick: bool) -> Entry:
    """The flow to consensus; quickly only as far as errors are measured."""
    flow, starts = _flow_and_starts()
    contenders = [
        Contender("ours, batched", lambda: peers.ours(flow), ALONE if quick else BLOCK, alone=True),
        Contender("scipy DOP853", lambda: peers.scipy(flow), ALONE, alone=True),
        Contender("torchdiffeq dopri5", peers.where_installed("torchdiffeq", flow), ALONE if quick else FEW),
        Contender("diffrax Tsit5", peers.where_installed("diffrax", flow), ALONE if quick else FEW),
    ]
    return Entry(starts, CHECKED if quick else HORIZON, contenders)


def run(quick: bool = False) -> Iterator[Comparison | Cost]:
    """The right-hand side in both forms, then whole runs."""
    flow, starts = _flow_and_starts()
    with limited_threads(1):
        yield from _right_hand_sides(flow, starts)
        yield from _whole_runs(flow, starts, quick)


def _flow_and_starts() -> tuple[SphereFlow, Tensor]:
    generator = torch.Generator().manual_seed(0)
    flow = _flow(generator)
    box = torch.rand(STARTS, TOKENS, DIM, generator=generator, dtype=torch.float64) - 0.5
    return flow, Sphere().project(box)


def _flow(generator: torch.Generator) -> SphereFlow:
    qk = torch.rand(HEADS, DIM, DIM, generator=generator, dtype=torch.float64) - 0.5
    frequency, phase = torch.rand(2, HEADS, DIM, generator=generator, dtype=torch.float64)
    return SphereFlow(qk, gates=(frequency, 2 * math.pi * phase), causal=True)


def _right_hand_sides(flow: SphereFlow, starts: Tensor) -> Iterator[Comparison]:
    field, t = flow.ours().field(starts), torch.full((STARTS,), 0.3, dtype=torch.float64)
    problem = Problem(
        field=field,
        start=starts,
        times=(0.0, 1.0),
        rtol=1e-8,
        atol=1e-10,
        events=(),
        max_steps=1,
        tableau=TABLEAUS["dopri5"],
    )
    reduction = SpanReduction.of(problem)
    assert reduction is not None
    reduced, coordinates = reduction.problem.field, reduction.problem.start
    rows, matrix = starts.reshape(-1, DIM), flow.qk[0]
    direct = field.velocity(starts, t)
    lifted = reduced.velocity(coordinates, t) @ reduction.basis.mT
    plain = torch.stack([flow.torch(TOKENS)(t[0], start[None])[0] for start in starts[:BLOCK]])
    seconds = rounds_of(
        {
            "direct": lambda: field.velocity(starts, t),
            "product": lambda: rows @ matrix,
            "reduced": lambda: reduced.velocity(coordinates, t),
        },
        ROUNDS,
        clock=time.process_time,
    )
    operations = 2 * len(rows) * DIM * DIM
    # Queries and logits of every head; ov is the identity, so that the heads' weights are summed before the average.
    needed = HEADS * (operations + 2 * len(rows) * TOKENS * DIM) + 2 * len(rows) * TOKENS * DIM
    name = f"{STARTS} starts of {TOKENS} × {DIM}, {HEADS} causal gated heads"
    rates = [(needed / one["direct"] / 1e9, operations / one["product"] / 1e9) for one in seconds]
    error = f"differs from the plain form by {_largest(direct[:BLOCK] - plain):.0e} of {_largest(direct):.0e}"
    yield share(f"{name}, direct right-hand side, of the matrix product's rate", rates, at_least=0.8, error=error)
    error = f"differs from direct by {_largest(lifted - direct):.0e} of {_largest(direct):.0e}"
    pairs = [(one["reduced"], one["direct"]) for one in seconds]
    yield speedup(f"{name}, right-hand side in the span against direct", pairs, at_least=3, error=error)


def _whole_runs(flow: SphereFlow, starts: Tensor, quick: bool) -> Iterator[Comparison | Cost]:
    exact, taking_part = peers.scipy(flow)(starts[:ALONE], CHECKED, REFERENCE_RTOL).states, entry(quick)
    alike = f"each alike; {STARTS} take {STARTS} times as long"
    workload = f"starts of {TOKENS} × {DIM} to t = {taking_part.horizon:g} ({alike})"
    race = Race(workload, taking_part, CHECKED, exact)
    race = race if quick else replace(race, arrived=_consensus)
    timed = equal_error.run(race, WANTED, RUNS)
    # torchode hands over a time for every system: gates would have to be written otherwise.
    for other, at_least in (("scipy DOP853", 3.5), ("torchdiffeq dopri5", 3.5), ("diffrax Tsit5", None)):
        # The targets are about the whole way to consensus.
        judged = None if quick else at_least
        yield equal_error.against(race, timed, WANTED, "ours, batched", other, judged)
    yield from costs("wide", timed, taking_part.contenders, quick)


def _consensus(states: Tensor) -> tuple[bool, str]:
    largest = float(observables.consensus(states).max())
    return largest < CONSENSUS, f"E {largest:.1e}"


def _largest(x: Tensor) -> float:
    return float(x.abs().max())
