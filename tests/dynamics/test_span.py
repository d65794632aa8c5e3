"""Span reduction is exact: fewer coordinates, the same trajectory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dynamics.products import gate
from tokendynamics.attention import AbsolutePositions, Attention, RotaryPositions
from tokendynamics.dynamics import Flow, Status, simulate
from tokendynamics.dynamics.engines import _batched as batched
from tokendynamics.dynamics.engines.problem import Problem
from tokendynamics.dynamics.engines.tableau import TABLEAUS
from tokendynamics.dynamics.span import SpanReduction
from tokendynamics.spaces import Ellipsoid, Free, Sphere

DIM, TOKENS = 12, 4
RNG = np.random.default_rng(17)
ROOT = RNG.normal(size=(DIM, DIM)) / np.sqrt(DIM)
METRIC = ROOT @ ROOT.T + 0.3 * np.eye(DIM)
START = RNG.normal(size=(2, TOKENS, DIM))
MULTIPLES = np.array([0.7, -0.4])[:, None, None] * np.eye(DIM)
PLACES = AbsolutePositions(ROOT[:TOKENS])
SPACES = {"free": Free(), "sphere": Sphere(), "ellipsoid": Ellipsoid(METRIC)}
TIMES = (0.0, 0.3, 1.0)


def problem_of(flow: Flow, start: np.ndarray = START) -> Problem:
    states = torch.tensor(start)
    field = flow.field(states)
    return Problem(
        field=field,
        start=field.exactly_projected(states),
        times=TIMES,
        rtol=1e-8,
        atol=1e-10,
        events=(),
        max_steps=1000,
        tableau=TABLEAUS["dopri5"],
    )


@pytest.mark.every_value_once
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["constant", "factored", "sinusoidal", "absolute", "periodic", "callable"])
def test_the_reduced_run_is_the_direct_run(kind, causal, space, unchecked):
    qk = gate(kind, 2, DIM, np.random.default_rng(3)).schedule
    flow = Flow(Attention(qk, MULTIPLES, causal=causal), SPACES[space])  # pyright: ignore[reportArgumentType]
    problem = problem_of(flow)
    reduction = SpanReduction.of(problem)
    assert reduction is not None
    assert reduction.problem.start.shape == (2, TOKENS, TOKENS)
    tight = {"rtol": 1e-9, "atol": 1e-11}
    direct = batched.run(replace(problem, **tight))
    reduced = reduction.lifted(batched.run(replace(reduction.problem, **tight)))
    np.testing.assert_allclose(reduced.states, direct.states, rtol=0, atol=1e-6)
    assert flow.space.defect(reduced.states) <= 1e-14
    for t in (0.0, 0.77):
        field, small = flow.field(torch.tensor(START)), reduction.problem.field
        lifted = small.velocity(reduction.problem.start, t) @ reduction.basis.mT
        np.testing.assert_allclose(lifted, field.velocity(problem.start, t), rtol=0, atol=1e-13)


def test_a_simulation_says_when_it_reduces_and_agrees_with_a_fixed_step_that_does_not():
    rotary = RotaryPositions(RNG.normal(size=(2, DIM, 4)), RNG.normal(size=(2, DIM, 4)))
    for positions in (None, rotary):
        flow = Flow(Attention(RNG.normal(size=(2, DIM, DIM)) / 4, MULTIPLES, positions=positions), Ellipsoid(METRIC))
        run = simulate(flow, START, TIMES)
        assert run.notes[0] == "span reduction: 4 coordinates instead of 12"
        fixed = simulate(flow, START, TIMES, step=0.02)
        assert fixed.notes == ()
        np.testing.assert_allclose(run.states, fixed.states, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "flow",
    [
        Flow(Attention(ROOT, ROOT), Sphere()),
        Flow(Attention(ROOT, np.eye(DIM), positions=PLACES), Sphere()),
        Flow(Attention(ROOT, METRIC, positions=PLACES), Ellipsoid(METRIC @ METRIC), "remark_5_1"),
        Flow(Attention(ROOT, lambda t: np.eye(DIM)), Sphere()),
    ],
    ids=["general ov", "absolute positions", "remark 5.1 with absolute positions", "a function of time"],
)
def test_where_tokens_leave_their_span_nothing_is_reduced(flow):
    assert SpanReduction.of(problem_of(flow)) is None
    run, fixed = simulate(flow, START, TIMES), simulate(flow, START, TIMES, step=0.02)
    np.testing.assert_allclose(run.states, fixed.states, rtol=0, atol=1e-6)


def test_tokens_that_depend_on_each_other_or_fill_the_space_are_no_trouble():
    flow = Flow(Attention(ROOT, np.eye(DIM)), Sphere())
    doubled = np.concatenate([START[:, :2], START[:, :2], -START[:, :1]], axis=1)
    run, fixed = simulate(flow, doubled, TIMES), simulate(flow, doubled, TIMES, step=0.02)
    np.testing.assert_allclose(run.states, fixed.states, rtol=0, atol=1e-6)
    np.testing.assert_allclose(run.states[:, :, 0], run.states[:, :, 2], rtol=0, atol=1e-13)
    assert SpanReduction.of(problem_of(flow, RNG.normal(size=(1, 11, DIM)))) is None


class FirstCoordinateBelow:
    """A user's event that reads a coordinate."""

    status = Status.EQUILIBRIUM

    def value(self, field: object, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return x[:, 0, 0] - 0.5


def test_events_of_the_user_see_tokens_in_their_own_coordinates():
    start = np.zeros((TOKENS, DIM))
    start[:, 0] = 1.0
    start[np.arange(TOKENS), np.arange(TOKENS) + 2] = 0.5
    flow = Flow(Attention(0 * ROOT, -np.eye(DIM)), Free())
    # Their mean decays like e^(−t) and each keeps its distance to it: token 1's first coordinate is e^(−t).
    run = simulate(flow, start, [0.0, 2.0], events=[FirstCoordinateBelow()], rtol=1e-10)
    assert str(run.status) == "equilibrium"
    assert float(run.end_times) == pytest.approx(np.log(2), abs=1e-8)
