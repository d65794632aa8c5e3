"""Every reference solution: states by every engine, velocities, layers, attention and rotary kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynamics.golden_cases import CASES, CONTINUOUS, DISCRETE, flow_of, read, states_of
from tokendynamics.dynamics import simulate

ROTARY = [path for path in CASES if "W_li" in read(path)]

# Steps of the fixed engine that keep its error below the tolerance; horizons above 10 would cost too many of them.
FIXED_STEPS = {path: 0.04 for path in CONTINUOUS if read(path)["times"][-1] <= 10}
FIXED_STEPS |= {path: 0.02 for path in FIXED_STEPS if path.stem.startswith("A03")}
FIXED_STEPS |= {path: 0.01 for path in FIXED_STEPS if path.stem.startswith("C04")}


def wide(path):
    return states_of(read(path))[0].shape[-1] > 3


RUNS = [
    # The engine "compiled" is compiled once for each number of features: those of 4 are slow.
    pytest.param(
        engine, path, id=f"{engine}-{path.stem}", marks=[pytest.mark.slow] * (engine == "compiled" and wide(path))
    )
    for engine in ("batched", "compiled", "stiff", "fixed")
    for path in (FIXED_STEPS if engine == "fixed" else CONTINUOUS)
]


def every(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


def largest_error(result, wanted):
    return np.abs(np.asarray(result) - wanted).max() / np.abs(wanted).max()


def test_the_reference_solutions_are_there():
    assert len(CASES) >= 18
    assert {read(path)["model"] for path in CASES} == {
        "continuous_eq7",
        "discrete_eq6",
        "free_eq2",
        "ape_eq5",
        "rope_eq8",
    }


@pytest.mark.long
@pytest.mark.few(6)
@pytest.mark.every_value_once
@pytest.mark.parametrize(("engine", "path"), RUNS)
def test_every_state_is_reproduced_by_every_engine(engine, path, unchecked):
    case = read(path)
    start, states, times = states_of(case)
    options = {"step": FIXED_STEPS[path]} if engine == "fixed" else {"rtol": 1e-10, "atol": 1e-12}
    run = simulate(flow_of(case), start, times, engine=engine, **options)
    assert run.engine == engine
    assert str(run.status) == "reached the horizon"
    assert run.reached.all()
    assert largest_error(run.states, states) <= max(1e-8, 100 * case["est_abs_error"])


@every(CASES)
def test_velocities_at_the_given_states_are_the_stored_ones(path):
    case = read(path)
    flow, (_, states, times) = flow_of(case), states_of(case)
    for x, t, stored in zip(states, times, case["functionals"], strict=True):
        wanted = np.array(stored["rhs"])
        scale = max(1.0, np.abs(wanted).max())
        np.testing.assert_allclose(flow.velocity(x, t), wanted, rtol=0, atol=1e-12 * scale, err_msg=f"time {t}")


@every(DISCRETE)
def test_every_layer_is_reproduced_one_by_one_and_by_the_engine(path):
    case = read(path)
    flow, (start, states, times) = flow_of(case), states_of(case)
    for k in range(len(times) - 1):
        np.testing.assert_allclose(flow.step(states[k], k, case["tau"]), states[k + 1], rtol=0, atol=1e-11)
    run = simulate(flow, start, times, engine="layers", tau=case["tau"])
    assert str(run.status) == "reached the horizon"
    np.testing.assert_allclose(run.states, states, rtol=0, atol=1e-11)
    assert int(run.counts["accepted"]) == len(times) - 1


@every(CASES)
def test_the_pattern_times_the_weight_factor_is_the_stored_attention(path):
    case = read(path)
    flow, (_, states, times) = flow_of(case), states_of(case)
    for x, t, stored in zip(states, times, case["functionals"], strict=True):
        wanted = np.array(stored["alpha"] if "alpha" in stored else [stored["attention"]])
        computed = np.asarray(flow.attention.pattern(x, t)) * flow.weight_factor
        np.testing.assert_allclose(computed, wanted, rtol=1e-11, atol=1e-14, err_msg=f"time {t}")


@every(ROTARY)
def test_logits_of_rotary_cases_are_those_of_the_stored_kernels(path):
    case = read(path)
    flow, (_, states, _) = flow_of(case), states_of(case)
    kernels = np.array(case["W_li"])
    for x in states:
        wanted = np.einsum("ld,lide,ie->li", x, kernels, x)
        np.testing.assert_allclose(flow.attention.logits(x)[0], wanted, rtol=1e-12, atol=1e-12)
    # Kernel by kernel: unit vectors as tokens l and i read out one entry each.
    tokens, dim = kernels.shape[1], kernels.shape[-1]
    for a in range(dim):
        for b in range(dim):
            x = np.zeros((2, tokens, dim))
            x[0, :, a], x[1, :, b] = 1.0, 1.0
            receivers, senders = flow.attention.queries_and_keys(torch.tensor(x), 0.0)
            computed = receivers[0, 0] @ senders[1, 0].T
            np.testing.assert_allclose(computed, kernels[:, :, a, b], rtol=1e-12, atol=1e-14)
