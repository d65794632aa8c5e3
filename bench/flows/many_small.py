"""10,000 systems of ten tokens in three dimensions."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench.flows import equal_error, peers
from bench.flows.equal_error import Contender, Race
from bench.flows.sphere_flow import SphereFlow
from bench.measure import Comparison
from tokendynamics.numerics._resources import limited_threads
from tokendynamics.spaces import Sphere

SYSTEMS, TOKENS, DIM, HORIZON = 10_000, 10, 3, 10.0
CHECKED = 40
BATCH = 1000
"""Systems the batched peers step together: with more, their stages leave the cache and each system costs more."""
ERRORS = (1e-6, 1e-9)
REFERENCE_RTOL = 1e-13
ROUNDS = 3


def run() -> Iterator[Comparison]:
    """One core, one head, full mask, constant matrices."""
    generator = torch.Generator().manual_seed(0)
    qk, ov = torch.randn(2, 1, DIM, DIM, generator=generator, dtype=torch.float64)
    flow = SphereFlow(qk, ov)
    starts = Sphere().sample(TOKENS, DIM, (SYSTEMS,), seed=1)
    with limited_threads(1):
        exact = peers.scipy(flow)(starts[:CHECKED], HORIZON, REFERENCE_RTOL)
        race = Race(f"{SYSTEMS} systems of {TOKENS} × {DIM}", starts, HORIZON, exact, HORIZON)
        ours = Contender("ours", peers.ours(flow), SYSTEMS)
        others = [
            Contender("scipy DOP853", peers.scipy(flow), CHECKED, at_least=6),
            Contender("torchdiffeq dopri5", peers.where_installed("torchdiffeq", flow), BATCH),
            Contender("torchode dopri5", peers.where_installed("torchode", flow), BATCH),
            Contender("diffrax Tsit5", peers.where_installed("diffrax", flow), BATCH),
            Contender("diffrax Dopri5", peers.where_installed("diffrax", flow, method="Dopri5"), BATCH),
        ]
        for wanted in ERRORS:
            yield from equal_error.run(race, ours, others, wanted, ROUNDS)
