"""Events whose value is positive at both ends of a step and not between: found in every engine, every kind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from tokendynamics.attention import Attention, Sinusoidal
from tokendynamics.dynamics import Flow, Status, simulate
from tokendynamics.dynamics.engines._crossings import crossings
from tokendynamics.dynamics.events import AtRest, Consensus, NormAbove
from tokendynamics.spaces import Free

pytestmark = pytest.mark.usefixtures("unchecked")

ZERO, EYE = np.zeros((2, 2)), np.eye(2)
# |x| = e^{sin t}.
SWING = Flow(Attention(ZERO, Sinusoidal(EYE, 1.0, 1.0, math.pi / 2)), Free())
PERIODS = 3
OPTIONS: dict[str, dict[str, Any]] = {"fixed": {"step": 0.25, "method": "dopri5"}}
ENGINES = ["batched", "compiled", "stiff", "fixed"]
FEW_COMPILED = [
    pytest.param(engine, None, marks=pytest.mark.slow if engine == "compiled" else ()) for engine in ENGINES
]
# A compiled kernel of order 8 with events takes ten seconds.
OF_ORDER_8 = [("batched", "dop853"), pytest.param("compiled", "dop853", marks=pytest.mark.slow)]


@dataclass(frozen=True)
class BelowLine:
    """The first coordinate of the first token falls below a bound: an event of the caller's own."""

    bound: float
    status: Status = Status.CONSENSUS
    then: str = "end"

    def value(self, field: object, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return x[:, 0, 0] - self.bound


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.every_value_once
@pytest.mark.parametrize(("engine", "method"), [*FEW_COMPILED, *OF_ORDER_8])
@pytest.mark.parametrize("height", [0.9, 0.999])
def test_a_norm_that_passes_its_bound_within_a_step_is_seen(engine, method, height):
    exact = math.asin(height) + 2 * math.pi * np.arange(PERIODS)
    options = OPTIONS.get(engine, {"rtol": 1e-6, "atol": 1e-12, "method": method})
    times = [0.0, 2 * math.pi * PERIODS]
    noted = simulate(
        SWING, [[1.0, 0.0]], times, engine=engine, events=[NormAbove(math.exp(height), then="record")], **options
    )
    assert noted.recorded is not None
    assert int(noted.recorded.counts[0]) == PERIODS
    np.testing.assert_allclose(noted.recorded.times[0], exact, atol=1e-2)
    ended = simulate(SWING, [[1.0, 0.0]], times, engine=engine, events=[NormAbove(math.exp(height))], **options)
    assert str(ended.status) == "diverged"
    assert float(ended.end_times) == pytest.approx(exact[0], abs=0.5 if engine == "fixed" else 1e-2)


@pytest.mark.parametrize("engine", ["batched", "stiff", "fixed"])
def test_an_event_of_the_callers_own_is_looked_for_within_steps(engine):
    # x = e^{sin t} is below e^{−0.999} around t = 3π/2 only.
    options = OPTIONS.get(engine, {"rtol": 1e-6, "atol": 1e-12})
    run = simulate(
        SWING, [[1.0, 0.0]], [0.0, 2 * math.pi], engine=engine, events=[BelowLine(math.exp(-0.999))], **options
    )
    assert str(run.status) == "consensus"
    assert float(run.end_times) == pytest.approx(math.pi + math.asin(0.999), abs=0.5 if engine == "fixed" else 1e-2)


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize(("engine", "method"), [*((engine, None) for engine in ENGINES), *OF_ORDER_8])
def test_directions_that_agree_for_a_moment_are_seen(engine, method):
    # Without logits x_i − mean stands still; the mean turns once in 2π. Directions agree where the mean is far along
    # the difference of the tokens.
    turn = np.array([[0.0, -1.0], [1.0, 0.0]])
    flow, start = Flow(Attention(ZERO, turn), Free()), np.array([[1.0, 3.0], [-1.0, 3.0]])
    exact = []
    grid = np.linspace(0, 4 * math.pi, 400_001)
    mean = 3.0 * np.stack([-np.sin(grid), np.cos(grid)], axis=-1)
    chord = [mean + np.array([side, 0.0]) for side in (1.0, -1.0)]
    unit = [one / np.linalg.norm(one, axis=-1, keepdims=True) for one in chord]
    below = 0.02
    value = np.linalg.norm(unit[0] - unit[1], axis=-1) - below
    exact = grid[1:][(value[:-1] > 0) & (value[1:] <= 0)]
    # In long steps such a moment can lie between the first two samples, which are near each other.
    options = OPTIONS.get(engine, {"rtol": 1e-5, "atol": 1e-10, "method": method})
    run = simulate(flow, start, [0.0, 4 * math.pi], engine=engine, events=[Consensus(below, then="record")], **options)
    assert run.recorded is not None
    assert int(run.recorded.counts[0]) == len(exact) == 4
    np.testing.assert_allclose(run.recorded.times[0], exact, atol=2e-3)


@pytest.mark.parametrize(
    ("engine", "method"),
    [("batched", None), pytest.param("compiled", None, marks=pytest.mark.slow), ("stiff", None), *OF_ORDER_8],
)
def test_a_moment_of_rest_is_recorded(engine, method):
    # A token on the way past a saddle: x' = (−1, 1) x from (1, 1e-4) has its least speed at t = log(1e4)/2.
    flow = Flow(Attention(ZERO, np.diag([-1.0, 1.0])), Free())
    least = math.sqrt(2 * 1e-4)
    events = [AtRest(1.001 * least, then="record")]
    run = simulate(flow, [[1.0, 1e-4]], [0.0, 9.0], engine=engine, method=method, rtol=1e-4, events=events)
    assert run.recorded is not None
    assert int(run.recorded.counts[0]) == 1
    assert float(run.recorded.times[0, 0]) == pytest.approx(math.log(1e4) / 2, abs=0.1)


def swings(rows: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Values with two falls to zero within the step in row 0, one of them narrow in row 1, none in rows 2 and 3."""
    height = torch.tensor([0.0, 0.999, 1.01, -1.5], dtype=torch.float64)[rows]
    count = torch.tensor([2.0, 1.0, 1.0, 1.0], dtype=torch.float64)[rows]
    return torch.cos(2 * math.pi * count * share) + height


def test_all_falls_of_a_value_within_a_step_are_found():
    rows = torch.arange(4)
    ends = (swings(rows, torch.full((4,), end, dtype=torch.float64)) for end in (0.0, 1.0))
    computed, shares = crossings(swings, *ends)
    assert sorted(computed.tolist()) == [0, 0, 1]
    np.testing.assert_allclose(sorted(shares[computed == 0].tolist()), [0.125, 0.625], atol=1e-12)
    narrow = math.acos(-0.999) / (2 * math.pi)
    np.testing.assert_allclose(shares[computed == 1].tolist(), [narrow], atol=1e-9)


def test_a_value_that_rises_above_zero_and_falls_again_within_a_step_is_found():
    def bump(rows: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        return 1e-4 - (share - 0.47) ** 2

    ends = (bump(torch.arange(1), torch.tensor([end], dtype=torch.float64)) for end in (0.0, 1.0))
    computed, shares = crossings(bump, *ends)
    assert computed.tolist() == [0]
    assert float(shares) == pytest.approx(0.48, abs=1e-9)


@pytest.mark.parametrize(("bound", "looked_at"), [(1e6, False), (1.0001, True)])
def test_implicit_steps_are_looked_into_only_where_the_event_can_be_reached(monkeypatch, bound, looked_at):
    asked = []

    def noting(self, field, x, t):
        asked.append(float(t[0]))
        return norm(self, field, x, t)

    norm = NormAbove.value
    monkeypatch.setattr(NormAbove, "value", noting)
    decays = Flow(Attention(ZERO, -EYE), Free())
    run = simulate(decays, [[1.0, 0.0]], [0.0, 1.0], engine="stiff", events=[NormAbove(bound)])
    accepted = int(run.counts["accepted"])
    # The guard against overflow is one of these events too: twice at the start, then at the end of each step.
    assert (len(asked) > 2 * (accepted + 2)) is looked_at
