"""The engine "compiled" against the plain loop that does the same a number at a time."""

from __future__ import annotations

import numpy as np
import pytest

from dynamics.generic_loop import generic_loop
from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.spaces import Free, Sphere

HORIZON, RTOL = 2.0, 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("space", [Free(), Sphere()], ids=["free", "sphere"])
@pytest.mark.parametrize(("tokens", "dim"), [(5, 3), pytest.param(3, 6, marks=pytest.mark.slow)])
def test_compiled_takes_the_steps_of_the_plain_loop(space: Free | Sphere, causal: bool, tokens: int, dim: int):
    rng = np.random.default_rng(tokens)
    qk, ov, sphere = rng.normal(size=(dim, dim)), 0.6 * rng.normal(size=(dim, dim)), isinstance(space, Sphere)
    # Nineteen systems: lanes are filled three times, the last time in part.
    starts = np.asarray(space.project(0.8 * rng.normal(size=(19, tokens, dim))))
    flow, atol = Flow(Attention(qk, ov, causal=causal), space), RTOL / 100
    run = simulate(flow, starts, [0.0, HORIZON], rtol=RTOL, atol=atol, engine="compiled", method="dopri5")
    ends, attempts = generic_loop(starts, qk, ov, HORIZON, RTOL, atol, causal=causal, sphere=sphere)
    assert run.status.tolist() == ["reached the horizon"] * len(starts)
    np.testing.assert_allclose(run.states[:, -1], ends, rtol=0, atol=20 * RTOL * np.abs(ends).max())
    # The controller of the lanes knows logarithms to four digits: a step near the bound may fall on its other side.
    counted = run.counts["accepted"] + run.counts["rejected"]
    np.testing.assert_allclose(counted, attempts, rtol=0.1, atol=1)
    assert abs(counted.sum() - attempts.sum()) <= 0.02 * attempts.sum()
    # Every attempt takes six right-hand sides, and the field at the start is found by one more round of them.
    np.testing.assert_array_equal(run.counts["right_hand_sides"], 6 * (counted + 1))


@pytest.mark.slow
def test_the_plain_loop_is_right_by_itself():
    """Two tokens on the circle with qk = β I and ov = I: their half angle a obeys a' = −√2 w sin a cos a."""
    beta, half = 1.3, 0.7
    start = np.array([[[np.cos(half), np.sin(half)], [np.cos(half), -np.sin(half)]]])
    ends, _ = generic_loop(start, beta * np.eye(2), np.eye(2), HORIZON, 1e-10, 1e-12, causal=False, sphere=True)
    steps = 4000
    for _ in range(steps):
        # Classical Runge–Kutta on the one angle that is left.
        h, k = HORIZON / steps, []
        for share in (0.0, 0.5, 0.5, 1.0):
            angle = half + share * h * (k[-1] if k else 0.0)
            weight = 1 / (1 + np.exp(beta * (1 - np.cos(2 * angle))))
            k.append(-weight * np.sin(2 * angle) / np.sqrt(2))
        half += h * (k[0] + 2 * k[1] + 2 * k[2] + k[3]) / 6
    np.testing.assert_allclose(ends[0, 0], [np.cos(half), np.sin(half)], rtol=0, atol=1e-9)
