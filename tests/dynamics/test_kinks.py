"""Gates |sin| have kinks: few of them cost no accuracy, many are stepped over."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from tokendynamics.attention import Attention, Sinusoidal
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.spaces import Sphere

TIMES = np.array([0.0, 1.0, 2.5, 4.0])


def drawn(seed):
    rng = np.random.default_rng(seed)
    gates = rng.uniform(1, 2, (2, 3)), rng.uniform(1, 6, (2, 3)), rng.uniform(0, 6, (2, 3))
    return rng.normal(size=(2, 3, 3)), gates, rng.normal(size=(2, 3, 3)), Sphere().sample(5, 3, seed=seed).numpy()


def solved_from_kink_to_kink(matrix, gates, ov, start):
    """SciPy between the zeros of the sines, found one by one, where nothing has a kink."""
    amplitude, frequency, phase = gates

    def velocity(t, flat):
        y = flat.reshape(5, 3)
        y = y / np.linalg.norm(y, axis=1, keepdims=True)
        total = np.zeros_like(y)
        for a, w, p, m, u in zip(amplitude, frequency, phase, matrix, ov, strict=True):
            weights = np.exp(y @ (np.abs(a * np.sin(w * t + p))[:, None] * m) @ y.T)
            total += (weights / weights.sum(1, keepdims=True)) @ y @ u.T / math.sqrt(3)
        return (total - (total * y).sum(1, keepdims=True) * y).ravel()

    zeros = [(k * math.pi - p) / w for w, p in zip(frequency.flat, phase.flat, strict=True) for k in range(20)]
    stops = sorted({*TIMES, *(zero for zero in zeros if 0 < zero < TIMES[-1])})
    states, flat = [start], start.ravel()
    for left, right in pairwise(stops):
        flat = solve_ivp(velocity, (left, right), flat, method="DOP853", rtol=1e-13, atol=1e-14).y[:, -1]
        if right in TIMES:
            states.append(flat.reshape(5, 3))
    return np.stack(states)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_few_gates_with_kinks_are_integrated_to_the_tolerance(seed, engine):
    matrix, gates, ov, start = drawn(seed)
    flow = Flow(Attention(Sinusoidal(matrix, *gates, absolute=True), ov), Sphere())
    # The quick run of the compiled engine has the method that other tests compile.
    method = {"method": "dopri5"} if engine == "compiled" and seed == 0 else {}
    run = simulate(flow, start, TIMES, rtol=1e-10, atol=1e-12, engine=engine, **method)
    wanted = solved_from_kink_to_kink(matrix, gates, ov, start)
    np.testing.assert_allclose(run.states, wanted, rtol=0, atol=1e-9 if engine == "batched" else 1e-8)
    if engine == "batched":
        assert int(run.counts["rejected"]) < 5


def test_corners_are_the_zeros_of_the_sines_and_none_without_the_absolute_value():
    gates = Sinusoidal(torch.eye(2).double(), 1.0, [math.pi, 0.0], [0.0, 1.0], absolute=True)
    np.testing.assert_allclose(gates.corners(-1.5, 2.5), [-1.0, 0.0, 1.0, 2.0], atol=1e-14)
    assert Sinusoidal(torch.eye(2).double(), 1.0, math.pi, 0.0).corners(0.0, 10.0) == []
    many = Sinusoidal(torch.eye(65).double(), 1.0, 1.0, 0.0, absolute=True)
    assert many.corners(0.0, 10.0) == []
