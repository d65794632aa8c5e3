"""Hardmax weights: shares of the largest logits, and runs from change to change against other routes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from tokendynamics import Attention, Ellipsoid, Flow, Free, Normalized, RotaryPositions, Sphere, simulate
from tokendynamics.dynamics import Trajectory
from tokendynamics.dynamics.events import AtRest, Consensus
from tokendynamics.numerics import ArgumentValueError

EYE = np.eye(2)


def hardmax(qk, ov, space=None, frozen=(), **options) -> Flow:
    return Flow(Attention(qk, ov, weights="hardmax", **options), space or Free(), frozen=frozen)


def shares(x: np.ndarray, qk: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
    """Rows of equal shares of the largest logits, by a plain loop."""
    weights = np.zeros((len(x), len(x)))
    for i, row in enumerate(x @ qk @ x.T):
        visible = np.flatnonzero(np.ones(len(x)) if seen is None else seen[i])
        best = row[visible].max()
        winners = [j for j in visible if row[j] >= best - 1e-12 * np.abs(row[visible]).max()]
        weights[i, winners] = 1 / len(winners)
    return weights


def piecewise(x: np.ndarray, qk: np.ndarray, ov: np.ndarray, times: list[float]) -> tuple[np.ndarray, int]:
    """States at times by SciPy's integrator between changes that its own event functions find, one head."""
    t, states, changes = times[0], [x], 0
    tokens, dim = x.shape
    target = (x @ qk @ x.T).argmax(axis=1)
    for until in times[1:]:
        while t < until:

            def lead(i: int, j: int, to: np.ndarray = target):
                def value(_: float, y: np.ndarray) -> float:
                    y = y.reshape(tokens, dim)
                    return y[i] @ qk @ (y[to[i]] - y[j])

                value.terminal, value.direction = True, -1  # pyright: ignore[reportFunctionMemberAccess]
                return value

            pairs = [(i, j) for i in range(tokens) for j in range(tokens) if j != target[i]]
            run = solve_ivp(
                lambda _, y, to=target: (y.reshape(tokens, dim)[to] @ ov.T).reshape(-1),
                (t, until),
                x.reshape(-1),
                method="DOP853",
                rtol=1e-12,
                atol=1e-13,
                max_step=0.02,
                events=[lead(*pair) for pair in pairs],
            )
            t, x = run.t[-1], run.y[:, -1].reshape(tokens, dim)
            if run.status == 1:
                changes += 1
                receiver, sender = next(pair for pair, hits in zip(pairs, run.t_events, strict=True) if len(hits))
                target = target.copy()
                target[receiver] = sender
        states.append(x)
    return np.stack(states), changes


# --- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 5, 200])
@pytest.mark.parametrize("causal", [False, True])
def test_weights_are_equal_shares_of_the_largest_logits(tokens: int, causal: bool):
    rng = np.random.default_rng(tokens)
    x, qk, ov = rng.normal(size=(tokens, 3)), rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
    x[tokens // 2] = x[0]
    flow = hardmax(qk, ov, causal=causal)
    seen = np.tri(tokens) if causal else None
    assert np.allclose(flow.attention.pattern(x)[0], shares(x, qk, seen), atol=0)
    # Above 128 tokens rows are averaged in pieces.
    assert np.allclose(flow.velocity(x), shares(x, qk, seen) @ x @ ov.T, atol=1e-13)


def test_many_small_systems_have_the_weights_of_each():
    rng = np.random.default_rng(0)
    x, qk = rng.normal(size=(100, 4, 2)), rng.normal(size=(2, 2))
    together = hardmax(qk, EYE).velocity(x)
    assert np.allclose(together, [shares(system, qk) @ system for system in x], atol=1e-14)


def test_the_weights_are_those_of_a_sharp_softmax():
    rng = np.random.default_rng(1)
    x, qk = rng.normal(size=(6, 3)), rng.normal(size=(3, 3))
    sharp = Attention(1e6 * qk, np.eye(3)).pattern(x)
    assert np.allclose(Attention(qk, np.eye(3), weights="hardmax").pattern(x), sharp, atol=1e-12)


def test_logits_that_differ_by_rounding_are_equal():
    x = np.array([[1.0, 0.0], [0.6, 0.8], [0.6 + 1e-17, -0.8]])
    assert hardmax(EYE, EYE).attention.pattern(np.array([[0.1, 0.3], [0.3, 0.1]]) @ EYE).shape == (1, 2, 2)
    pattern = hardmax(EYE, EYE).attention.pattern(np.concatenate([x, [[-1.0, 0.0]]]))[0]
    assert np.allclose(pattern[3], [0, 0, 0, 1])
    tied = hardmax([[0.0, 0.0], [1.0, 0.0]], EYE).attention.pattern(x)[0]  # s_ij = x_i2 x_j1
    assert np.allclose(tied[2], [0, 0.5, 0.5])


def test_the_derivative_is_that_of_fixed_weights():
    rng = np.random.default_rng(2)
    x, qk, ov = rng.normal(size=(4, 3)), rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
    expected_ = np.einsum("ik,ab->iakb", shares(x, qk), ov)
    assert np.allclose(hardmax(qk, ov).jacobian(x), expected_, atol=1e-14)


# --- the engine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_runs_are_those_of_another_integrator_that_finds_the_changes(seed: int):
    rng = np.random.default_rng(seed)
    x, ov = rng.normal(size=(5, 3)), 0.5 * rng.normal(size=(3, 3))
    root = rng.normal(size=(3, 3))
    qk, times = root @ root.T, [0.0, 0.5, 1.0, 2.0]
    run = simulate(hardmax(qk, ov), x, times)
    reached = int(np.asarray(run.reached).sum())
    states, changes = piecewise(x, qk, ov, times[:reached])
    assert run.engine == "hardmax"
    assert np.allclose(np.asarray(run.states)[:reached], states, rtol=0, atol=1e-9 * np.abs(states).max())
    if run.status == "reached the horizon":
        assert int(run.counts["changes"]) == changes


@pytest.mark.long
def test_some_of_these_runs_change_their_weights():
    changes = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        x, ov, root = rng.normal(size=(5, 3)), 0.5 * rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
        changes += int(simulate(hardmax(root @ root.T, ov), x, [0, 2]).counts["changes"])
    assert changes > 8


MASK = np.array([[True, False, False], [False, True, False], [True, True, False]])


def between_two(ov: np.ndarray) -> Flow:
    """One token that sees two which do not move, at (1, 0) and (0, 1), and attends to the one that is nearer."""
    return hardmax(EYE, ov, mask=MASK, frozen=(0, 1))


def test_a_change_happens_where_the_line_between_two_is_crossed():
    # Attends to (1, 0) and moves by (−1, 0.5), then to (0, 1), and by (0.25, 1).
    ov = np.array([[-1.0, 0.25], [0.5, 1.0]])
    start = [[1.0, 0.0], [0.0, 1.0], [2.0, 0.5]]
    run = simulate(between_two(ov), start, [0.0, 0.5, 1.0, 3.0])
    crossing = 1.5 / 1.5
    at = np.array([2.0, 0.5]) + crossing * np.array([-1.0, 0.5])
    assert run.status == "reached the horizon"
    assert int(run.counts["changes"]) == 1
    assert np.allclose(run.states[1][2], [1.5, 0.75], atol=1e-14)
    assert np.allclose(run.states[3][2], at + (3.0 - crossing) * np.array([0.25, 1.0]), atol=1e-11)
    assert np.array_equal(run.states[3][:2], start[:2])


def test_where_each_sender_loses_the_receiver_at_once_the_run_ends_at_the_tie():
    # Attends to (1, 0) and moves by (−1, 0.5), then to (0, 1), and by (0.4, −1).
    ov = np.array([[-1.0, 0.4], [0.5, -1.0]])
    run = simulate(between_two(ov), [[1.0, 0.0], [0.0, 1.0], [2.0, 0.5]], [0.0, 0.5, 4.0])
    assert run.status == "held at a tie"
    assert math.isclose(float(run.end_times), 1.0, abs_tol=1e-11)
    assert np.allclose(run.states[2][2], [1.0, 1.0], atol=1e-11)
    assert list(run.reached) == [True, True, False]
    assert "1 of 1 systems end where a receiver has several largest logits" in " ".join(run.notes)
    assert simulate(between_two(-ov), [[1.0, 0.0], [0.0, 1.0], [2.0, 0.5]], [0.0, 4.0]).notes == ()


@pytest.mark.parametrize("later", [0.0, 7.0])
def test_changes_are_found_at_any_time(later: float):
    ov = np.array([[-1.0, 0.25], [0.5, 1.0]])
    start = [[1.0, 0.0], [0.0, 1.0], [2.0, 0.5]]
    run = simulate(between_two(ov), start, [later, later + 3.0])
    assert np.allclose(run.states[1][2], [1.5, 3.0], atol=1e-11)


def leaders(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of which those that are attended to attend to themselves: a simplex far out, and tokens inside it."""
    rng = np.random.default_rng(seed)
    far = np.array([[3.0, 0.0], [-1.5, 2.6], [-1.5, -2.6]])
    return np.concatenate([far, rng.uniform(-0.5, 0.5, size=(6, 2))]), far


@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("speed", [1.0, 0.4])
def test_tokens_go_straight_to_the_leaders_they_attend_to(seed: int, speed: float):
    x, far = leaders(seed)
    times = np.array([0.0, 0.3, 2.0, 40.0])
    ends = far[(x @ far.T).argmax(axis=1)]
    z = ends + np.exp(-speed * times)[:, None, None] * (x - ends)
    flow = hardmax(EYE, speed * EYE)
    assert np.allclose(simulate(flow, x, times, frame="rescaled").states, z, atol=1e-13)
    grown = simulate(flow, x, times).states * np.exp(-speed * times)[:, None, None]
    assert np.allclose(grown, z, atol=1e-12)


def test_a_sharp_softmax_follows_the_hardmax():
    x, _ = leaders(1)
    flow = Flow(Attention(1e4 * EYE, EYE), Free())
    soft = simulate(flow, x, [0.0, 1.0, 3.0], frame="rescaled", rtol=1e-10)
    assert np.allclose(soft.states, simulate(hardmax(EYE, EYE), x, [0.0, 1.0, 3.0], frame="rescaled").states, atol=1e-7)


def test_two_that_pull_with_equal_strength_share_a_receiver_along_the_line_between_them():
    ov = np.array([[-1.0, 0.5], [0.5, -1.0]])
    run = simulate(between_two(ov), [[1.0, 0.0], [0.0, 1.0], [2.0, 0.5]], [0.0, 4.0])
    assert run.status == "reached the horizon"
    assert np.allclose(run.states[1][2], [1 - 0.25 * 3, 1 - 0.25 * 3], atol=1e-10)


def test_equal_tokens_share_and_stay_equal_and_a_tie_of_symmetry_stays():
    x = [[2.0, 1.0], [2.0, 1.0], [0.0, 0.0], [-2.0, -1.0], [-2.0, -1.0]]
    run = simulate(hardmax(EYE, EYE), x, [0.0, 3.0])
    assert np.allclose(run.states[1], math.exp(3.0) * np.array(x), atol=1e-12)


def test_a_token_that_begins_at_a_tie_takes_the_sender_that_pulls_it_over():
    # At (1, 1) both logits are 1. By half shares it moves by (−0.25, 1): away from (1, 0).
    ov = np.array([[0.5, -1.0], [1.0, 1.0]])
    run = simulate(between_two(ov), [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0.0, 0.5])
    assert np.allclose(run.states[1][2], [0.5, 1.5], atol=1e-12)


def test_two_heads_change_apart():
    ov = np.array([[[-1.0, 0.25], [0.5, 1.0]], [[0.0, 0.0], [0.1, 0.0]]])
    flow = hardmax(np.stack([EYE, [[1.0, 0.0], [0.0, 0.5]]]), ov, mask=MASK, frozen=(0, 1))
    run = simulate(flow, [[1.0, 0.0], [0.0, 1.0], [2.0, 0.5]], [0.0, 10.0])
    # Head 1 leaves (1, 0) where x1 = x2, at 1.5 / 1.6 from (2, 0.5) by (−1, 0.6); head 2 where x1 = x2/2.
    first = 1.5 / 1.6
    x = np.array([2 - first, 0.5 + 0.6 * first])
    second = (x[1] / 2 - x[0]) / (0.25 - 1.1 / 2)
    x = x + second * np.array([0.25, 1.1]) + (10 - first - second) * np.array([0.25, 1.0])
    assert int(run.counts["changes"]) == 2
    assert np.allclose(run.states[1][2], x, atol=1e-10)


# --- what an engine owes ---------------------------------------------------------------------------------------------


def drawn(systems: int = 3) -> tuple[Flow, np.ndarray]:
    rng = np.random.default_rng(5)
    root = rng.normal(size=(3, 3))
    return hardmax(root @ root.T, 0.3 * rng.normal(size=(3, 3))), rng.normal(size=(systems, 5, 3))


@pytest.mark.long
def test_a_batch_is_its_systems_and_a_run_that_goes_on_is_the_whole_run(tmp_path):
    flow, x = drawn()
    times = [0.0, 0.4, 0.8, 1.2]
    run = simulate(flow, x, times)
    for system, states in enumerate(x):
        assert np.array_equal(simulate(flow, states, times).states, run.states[system])
    half = simulate(flow, x, times[:2])
    half.save(tmp_path / "half.zarr")
    rest = simulate(flow, Trajectory.open(tmp_path / "half.zarr"), times[2:])
    assert np.allclose(rest.states, np.asarray(run.states)[:, 2:], atol=1e-11)
    assert list(rest.status) == list(run.status)


def test_events_are_found_between_changes():
    x, _ = leaders(2)
    slow = simulate(hardmax(EYE, EYE), x, [0.0, 100.0], frame="rescaled", events=[AtRest(1e-6)])
    assert slow.status == "equilibrium"
    ends = x[:3][(x @ x[:3].T).argmax(axis=1)]
    furthest = np.linalg.norm(x - ends, axis=1).max()
    assert math.isclose(float(slow.end_times), math.log(furthest / 1e-6), rel_tol=1e-6)
    one = simulate(hardmax(EYE, EYE), [[1.0, 0.0], [0.5, 0.5]], [0.0, 100.0], events=[Consensus(1e-3)])
    assert one.status == "consensus"


def test_single_precision_is_computed_in_double():
    flow, x = drawn(1)
    exact = simulate(flow, x.astype(np.float32).astype(np.float64), [0.0, 1.0]).states
    run = simulate(flow, x.astype(np.float32), [0.0, 1.0])
    assert run.states.dtype == np.float32
    assert np.allclose(run.states, exact, atol=1e-5)


def test_fixed_steps_and_layers_take_hardmax_weights_anywhere():
    rng = np.random.default_rng(3)
    x, qk = rng.normal(size=(5, 3)), np.eye(3)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    fixed = simulate(hardmax(qk, qk, Sphere(), normalization="plain"), x, [0.0, 0.1], step=0.1, method="euler")
    pull = shares(x, qk) @ x
    step = x + 0.1 * (pull - (pull * x).sum(axis=1, keepdims=True) * x)
    assert np.allclose(fixed.states[1], step / np.linalg.norm(step, axis=1, keepdims=True), atol=1e-14)
    layers = simulate(hardmax(qk, qk), x, [0, 1], engine="layers", tau=0.25, residual=0.75)
    assert np.allclose(layers.states[1], 0.75 * x + 0.25 * pull, atol=1e-14)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["batched", "compiled", "stiff"])
def test_engines_that_need_a_smooth_field_refuse_it(engine):
    able = r"expected 'hardmax', 'layers' or 'fixed' \(by step=\) for hardmax weights"
    with pytest.raises(ArgumentValueError, match=able):
        simulate(hardmax(EYE, EYE), EYE, [0.0, 1.0], engine=engine)


@pytest.mark.parametrize(
    ("flow", "reason"),
    [
        (hardmax(EYE, EYE, Sphere()), "outside free space"),
        (hardmax(EYE, EYE, Ellipsoid(EYE)), "outside free space"),
        (hardmax(EYE, EYE, Normalized("pre")), "outside free space"),
        (hardmax(EYE, lambda t: (1 + t) * EYE), "depend on time"),
        (hardmax(EYE, EYE, positions=RotaryPositions(EYE, EYE)), "with positions"),
        (Flow(Attention(EYE, EYE), Free()), "softmax weights"),
    ],
)
def test_what_the_engine_cannot_do_is_said(flow: Flow, reason: str):
    with pytest.raises(ArgumentValueError, match=reason):
        simulate(flow, EYE, [0.0, 1.0], engine="hardmax")
    if flow.attention.weights == "hardmax":
        with pytest.raises(ArgumentValueError, match=f"'layers' or 'fixed' .by step=. for .*{reason}.*'auto'"):
            simulate(flow, EYE, [0.0, 1.0])


def test_tolerances_and_gradients_are_refused():
    with pytest.raises(ArgumentValueError, match="where rtol is given"):
        simulate(hardmax(EYE, EYE), EYE, [0.0, 1.0], rtol=1e-6)
    with pytest.raises(ArgumentValueError, match="gradients are wanted"):
        simulate(hardmax(EYE, EYE), torch.eye(2, dtype=torch.float64, requires_grad=True), [0.0, 1.0])
    with pytest.raises(ArgumentValueError, match="rows of a matrix"):
        simulate(hardmax(EYE, [[1.0, 0.0], [0.0, 2.0]]), np.zeros((600, 2)), [0.0, 1.0])
    with pytest.raises(ArgumentValueError, match="no multiple of the identity"):
        simulate(hardmax(EYE, [[1.0, 0.0], [0.0, 2.0]]), EYE, [0.0, 1.0], frame="rescaled")


@pytest.mark.long
@pytest.mark.parametrize("frame", ["tokens", "rescaled"])
def test_tokens_that_repel_each_other_diverge_and_do_not_become_no_numbers(frame):
    # Each sees the other alone, x' = −(x of the other): the difference of both grows like e^t, rescaled like e^2t.
    flow = hardmax([[1.0]], [[-1.0]], mask=[[False, True], [True, False]])
    run = simulate(flow, [[1.0], [-2.0]], [0.0, 1.0, 2000.0], frame=frame)
    assert run.status == "diverged"
    assert np.isfinite(run.states).all()
    # Both have the size 1.5 e^t then: the bound of 1e100 is noticed within the unit of time in which they grow by e.
    rate = 1.0 if frame == "tokens" else 2.0
    assert 0 <= float(run.end_times) - (100 * math.log(10) - math.log(1.5)) / rate <= 1
    scale = 1.0 if frame == "tokens" else math.e
    sum_, difference = -1.0 * math.exp(-1), 3.0 * math.exp(1)
    expected_ = scale * np.array([[sum_ + difference], [sum_ - difference]]) / 2
    assert np.allclose(run.states[1], expected_, atol=1e-12)


@pytest.mark.few(3)
@pytest.mark.parametrize("rate", [1.0, 5.0, 1e-300])
@pytest.mark.parametrize("end", [1e3, 1e12, 1e308])
def test_tokens_that_all_grow_alike_diverge_whatever_the_horizon(rate, end):
    # Each attends to the first token and ov = rate · 1: nothing moves relative to it, and all grow like e^(rate t).
    run = simulate(hardmax(EYE, rate * EYE), [[1.0, 0.0], [0.6, 0.8]], [0.0, end])
    at = 100 * math.log(10) / rate
    assert run.status == ("diverged" if end > at else "reached the horizon")
    assert run.end_times == pytest.approx(min(end, at), abs=1 / rate)
    assert np.isfinite(run.states).all()


def test_a_field_that_bends_is_followed_to_the_largest_time():
    # The step would be squared: 1e308 has no square.
    run = simulate(hardmax(-EYE, [[1.0, 0.0], [0.0, -1.0]]), [[1.0, 0.0], [0.6, 0.8]], [0.0, 1e308], max_steps=50)
    assert run.status == "step budget spent"


def test_a_budget_of_steps_ends_a_run():
    run = simulate(hardmax(EYE, EYE), leaders(0)[0], [0.0, 50.0], max_steps=3)
    assert run.status == "step budget spent"
