"""10,000 systems of ten tokens in three dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from bench.flows import equal_error, generic, peers
from bench.flows.costs import costs
from bench.flows.equal_error import Contender, Entry, Race
from bench.flows.sphere_flow import SphereFlow
from bench.measure import Comparison, Cost
from tokendynamics.numerics.resources import limited_threads
from tokendynamics.spaces import Sphere

SYSTEMS, TOKENS, DIM, HORIZON = 10_000, 10, 3, 10.0
CHECKED, CHECKED_QUICKLY = 40, 10
BATCH = 1000
"""Systems the batched peers step together: with more, their stages leave the cache and each system costs more."""
ERRORS = (1e-6, 1e-9)
REFERENCE_RTOL = 1e-13
ROUNDS = 3
TARGETS = {
    ("ours, compiled", "scipy DOP853"): 100,
    ("ours, compiled", "torchdiffeq dopri5"): None,
    ("ours, compiled", "torchode dopri5"): None,
    ("ours, compiled", "diffrax Tsit5"): 12,
    ("ours, compiled", "diffrax Dopri5"): 12,
    ("ours, compiled", "generic numba loop"): 8,
    ("ours, compiled", "ours, batched"): None,
    ("ours, batched", "scipy DOP853"): 6,
}
"""How many times faster the first must be at the larger of the errors; at the smaller it is told."""


def entry(quick: bool) -> Entry:
    """One head, full mask, constant matrices."""
    built = flow()
    installed = partial(peers.where_installed, flow=built)
    checked = CHECKED_QUICKLY if quick else CHECKED
    contenders = [
        Contender("ours, compiled", lambda: peers.ours(built, "compiled"), SYSTEMS, alone=True),
        Contender("ours, batched", lambda: peers.ours(built), SYSTEMS, alone=True),
        Contender("generic numba loop", lambda: generic.solver(built), BATCH, alone=True),
        Contender("scipy DOP853", lambda: peers.scipy(built), checked, alone=True),
        Contender("torchdiffeq dopri5", installed("torchdiffeq"), BATCH),
        Contender("torchode dopri5", installed("torchode"), BATCH),
        Contender("diffrax Tsit5", installed("diffrax"), BATCH),
        Contender("diffrax Dopri5", installed("diffrax", method="Dopri5"), BATCH),
    ]
    return Entry(Sphere().sample(TOKENS, DIM, (SYSTEMS,), seed=1), HORIZON, contenders)


def run(quick: bool = False) -> Iterator[Comparison | Cost]:
    """One core: all solvers at equal error."""
    taking_part = entry(quick)
    checked = taking_part.starts[: CHECKED_QUICKLY if quick else CHECKED]
    with limited_threads(1):
        exact = peers.scipy(flow())(checked, HORIZON, REFERENCE_RTOL).states
        race = Race(f"{SYSTEMS} systems of {TOKENS} × {DIM}", taking_part, HORIZON, exact)
        for wanted in ERRORS[: 1 if quick else None]:
            timed = equal_error.run(race, wanted, ROUNDS)
            for (one, other), at_least in TARGETS.items():
                judged = at_least if wanted == ERRORS[0] or one == "ours, batched" else None
                yield equal_error.against(race, timed, wanted, one, other, judged)
            if wanted == ERRORS[0]:
                yield from costs("many_small", timed, taking_part.contenders, quick)


def flow() -> SphereFlow:
    """One head, full mask, constant matrices."""
    generator = torch.Generator().manual_seed(0)
    qk, ov = torch.randn(2, 1, DIM, DIM, generator=generator, dtype=torch.float64)
    return SphereFlow(qk, ov)
