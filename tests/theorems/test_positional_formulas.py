"""The quantities behind the statements of `positional`, each against a second route."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from tokendynamics.attention import Attention, RotaryPositions, Sinusoidal
from tokendynamics.dynamics import Flow, Trajectory, simulate
from tokendynamics.dynamics.events import NormAbove
from tokendynamics.spaces import Free
from tokendynamics.theorems import certify
from tokendynamics.theorems.contraction import contraction_form, largest_ratio, norm_bound
from tokendynamics.theorems.outcomes import log_norms, outcomes_of, rests_only_at_zero, slope_condition
from tokendynamics.theorems.statements._positional_3_6 import expanding_directions

QK = torch.tensor([[1.2, 0.3], [0.3, 0.9]], dtype=torch.float64)
A = torch.tensor([[-1.0, 0.25], [0.25, -0.8]], dtype=torch.float64)
X0 = torch.tensor([[0.9, 0.1], [-0.2, 1.1], [0.4, -0.7], [-1.0, 0.3]], dtype=torch.float64)
SYMMETRIC = Flow(Attention(QK, torch.linalg.solve(A, QK)), Free())


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_contraction_form_times_ov_is_qk_at_every_system() -> None:
    qk, ov = drawn(0, 6, 1, 3, 3), drawn(1, 6, 1, 3, 3)
    form = contraction_form(Flow(Attention(qk, ov), Free()))
    assert (form.matrix @ ov[:, 0]).numpy() == pytest.approx(qk[:, 0].numpy(), abs=1e-10)
    assert form.condition.numpy() == pytest.approx(np.linalg.cond(ov[:, 0].numpy()))


def test_the_paper_normalization_counts_as_part_of_ov() -> None:
    plain, paper = (
        contraction_form(Flow(Attention(QK, A, normalization=kind), Free())).matrix for kind in ("plain", "paper")
    )
    assert paper.numpy() == pytest.approx(math.sqrt(2) * plain.numpy())


def test_c_is_the_lowest_relative_eigenvalue_and_no_direction_falls_below_it() -> None:
    skew = torch.tensor([[0.0, 0.5], [-0.5, 0.0]], dtype=torch.float64)
    form = contraction_form(Flow(Attention(QK + skew, torch.linalg.solve(A, QK + skew)), Free()))
    c = float(largest_ratio(form))
    assert c == pytest.approx(scipy.linalg.eigh(QK.numpy(), -A.numpy(), eigvals_only=True)[0])
    u = drawn(2, 2000, 2)
    ratios = (u @ QK * u).sum(dim=-1) / -(u @ A * u).sum(dim=-1)
    assert c <= float(ratios.min()) <= 1.001 * c


@pytest.mark.parametrize(("start", "c", "tokens"), [(3.0, 0.7, 4), (0.01, 2.0, 9), (400.0, 5.0, 2)])
def test_the_bound_solves_the_equation_it_comes_from(start: float, c: float, tokens: int) -> None:
    def rate(t: float, s: np.ndarray) -> np.ndarray:
        return -2 + 2 * tokens * np.exp(-c * s)

    times = np.linspace(0.0, 3.0, 7)
    expected = solve_ivp(rate, (0.0, 3.0), [start], t_eval=times, rtol=1e-11, atol=1e-12, method="LSODA").y[0]
    squared = torch.tensor([start], dtype=torch.float64)
    bound = norm_bound(squared, torch.tensor(c, dtype=torch.float64), tokens, torch.as_tensor(times))
    assert bound[:, 0].numpy() == pytest.approx(expected, rel=1e-8)


def test_directions_are_eigenvectors_of_v_and_not_of_ov() -> None:
    ov = torch.tensor([[0.5, 0.7, 0.0], [0.0, 0.2, 0.4], [0.0, -0.4, 0.2]], dtype=torch.float64)
    result = expanding_directions(Flow(Attention(torch.zeros(3, 3).double(), ov), Free()))
    assert result.rates[result.valid].tolist() == pytest.approx([0.5])
    n = result.normals[result.valid][0]
    assert (n @ ov).numpy() == pytest.approx(0.5 * n.numpy())
    assert float((ov @ n - 0.5 * n).norm()) > 0.1


def test_every_direction_expands_under_the_identity() -> None:
    result = expanding_directions(Flow(Attention(torch.zeros(3, 3).double(), torch.eye(3).double()), Free()))
    assert bool(result.valid.all())


def test_bounds_of_tokens_that_grow_too_fast_are_seen_to_fail() -> None:
    ov = torch.tensor([[0.5, 0.7], [0.0, -1.0]], dtype=torch.float64)
    claimed, true = (Flow(Attention(QK, factor * ov), Free()) for factor in (1.0, 1.5))
    run = simulate(true, torch.tensor([[1.0, 0.3], [0.5, 0.6]], dtype=torch.float64), np.linspace(0.0, 6.0, 13))
    (certificate,) = certify(dataclasses.replace(run, flow=claimed), ["positional-3.6"])
    assert certificate.outcome == "fails"
    assert certificate.margin < 0
    assert 0 < certificate.first_failure < 6


def test_a_direction_that_others_outgrow_is_undecided_in_the_end() -> None:
    ov = torch.diag(torch.tensor([0.1, 3.0], dtype=torch.float64))
    start = torch.tensor([[1.0, 0.0], [0.5, 0.0]], dtype=torch.float64)
    flow = Flow(Attention(torch.zeros(2, 2).double(), ov), Free())
    run = simulate(flow, start, np.linspace(0.0, 4.0, 5))
    assert certify(run, ["positional-3.6"])[0].outcome == "holds"
    grown = run.tensor + torch.tensor([0.0, 1.0]).double() * torch.exp(6 * torch.as_tensor(run.times))[:, None, None]
    (certificate,) = certify(dataclasses.replace(run, tensor=grown), ["positional-3.6"])
    assert certificate.outcome != "holds"


def test_states_that_leave_the_bound_are_seen_to_fail() -> None:
    run = simulate(SYMMETRIC, X0, np.linspace(0.0, 2.0, 5))
    far = torch.linspace(1.0, 4.0, 5).double()[:, None, None] * X0
    outcomes = [
        certify(dataclasses.replace(run, tensor=states), ["positional-3.3"])[0].outcome for states in (run.tensor, far)
    ]
    assert outcomes == ["holds", "fails"]
    (certificate,) = certify(dataclasses.replace(run, tensor=far), ["positional-3.4"])
    assert certificate.outcome == "fails"
    assert certificate.first_failure == 0.5


@pytest.mark.long
def test_the_second_moment_in_the_end_is_the_predicted_one() -> None:
    time = 3e4
    run = simulate(SYMMETRIC, X0, np.array([0.0, time]))
    last = run.tensor[-1]
    measured = last.T @ last / len(last)
    predicted = -torch.linalg.solve(QK, torch.linalg.solve(QK, A).T) / (2 * time)
    assert measured.numpy() == pytest.approx(predicted.numpy(), rel=0.02)


def test_equal_tokens_decay_exponentially_and_the_certificate_asks_no_root_of_time() -> None:
    run = simulate(SYMMETRIC, X0[:1].expand(3, 2).contiguous(), np.linspace(0.0, 20.0, 21))
    (certificate,) = certify(run, ["positional-3.4"])
    assert certificate.outcome == "holds"
    assert "tokens being equal" in certificate.conditions[1].text


@pytest.mark.parametrize(
    ("exponent", "outcome"), [(-0.5, "holds"), (-0.54, "holds"), (-0.7, "undecided"), (-1.5, "fails"), (0.2, "fails")]
)
def test_a_slope_that_cannot_be_on_its_way_fails_and_others_wait(exponent: float, outcome: str) -> None:
    times = np.concatenate([[0.0], np.geomspace(0.1, 1e3, 41)])
    run = simulate(Flow(Attention([[1.0]], [[-1.0]]), Free()), torch.ones(2, 1).double(), np.linspace(0.0, 0.1, 42))
    run = dataclasses.replace(run, times=times)
    states = torch.as_tensor(np.maximum(times, 0.1) ** exponent)[:, None, None] * torch.ones(42, 2, 1)
    assert slope_condition(states, run, np.asarray(2.0)).outcome == outcome


def test_slopes_that_agree_over_two_decades_fail_whatever_came_before() -> None:
    times = np.concatenate([[0.0], np.geomspace(0.1, 1000.0, 81)])
    run = simulate(Flow(Attention([[1.0]], [[-1.0]]), Free()), torch.ones(2, 1).double(), np.linspace(0.0, 0.1, 82))
    run = dataclasses.replace(run, times=times)
    sizes = np.where(times < 10.0, 1.0, (np.maximum(times, 10.0) / 10.0) ** -2.0)
    states = torch.as_tensor(sizes)[:, None, None] * torch.ones(82, 2, 1)
    assert slope_condition(states, run, np.asarray(2.0)).outcome == "fails"


def test_a_short_run_is_undecided_about_the_slope() -> None:
    run = simulate(SYMMETRIC, 0.1 * X0, np.linspace(0.0, 5.0, 21))
    assert certify(run, ["positional-3.4"])[0].outcome == "undecided"


def test_the_logarithm_of_a_norm_does_not_overflow() -> None:
    x = torch.tensor([[3.0, 4.0], [1.0, 0.0]], dtype=torch.float64)
    assert float(log_norms(1e300 * x)) == pytest.approx(math.log(5) + 300 * math.log(10))
    assert float(log_norms(0 * x)) == -math.inf


@pytest.mark.long
def test_outcomes_of_a_batch_are_told_apart() -> None:
    identity = torch.eye(2, dtype=torch.float64)
    ov = torch.stack([-identity, identity, -identity])[:, None]
    line = torch.tensor([[1.0, 1.0], [2.0, 2.0], [-3.0, -3.0]], dtype=torch.float64)
    qk = torch.stack([identity, identity, torch.diag(torch.tensor([1.0, -1.0]).double())])[:, None]
    start = torch.stack([drawn(5, 3, 2), drawn(6, 3, 2), line])
    times = np.concatenate([[0.0], np.geomspace(0.1, 100.0, 31)])
    run = simulate(Flow(Attention(qk, ov), Free()), start, times, events=(NormAbove(1e5),))
    assert outcomes_of(run).tolist() == ["zero", "diverged", "nonzero equilibrium"]


EYE, LAST_THIRD = torch.eye(2, dtype=torch.float64), 500.0


def ends_as(norms: dict[float, float], end: float = 1000.0, ov: float = -1.0, saved: int = 41) -> str:
    """Classify a run of two tokens whose largest norm is norms[t] from each time t on."""
    times = np.concatenate([[0.0], np.geomspace(end / 1e3, end, saved - 1)])
    since = np.searchsorted(list(norms), times, side="right") - 1
    sizes = np.array(list(norms.values()))[since]
    states = torch.as_tensor(sizes)[:, None, None] * torch.tensor([[1.0], [-0.5]], dtype=torch.float64)
    run = simulate(Flow(Attention([[1.0]], [[ov]]), Free()), states[0], np.linspace(0.0, 0.1, saved))
    run = dataclasses.replace(run, times=times, states=states, tensor=states, end_times=np.asarray(end))
    return str(outcomes_of(run))


@pytest.mark.parametrize(
    ("norms", "outcome"),
    [
        ({0: 2.0, LAST_THIRD: 98.0}, "undecided"),
        ({0: 2.0, LAST_THIRD: 102.0}, "diverged"),
        # 50 times the scale of the logits as well, which is 1 here.
        ({0: 1e-3, LAST_THIRD: 49.0}, "undecided"),
        ({0: 1e-3, LAST_THIRD: 51.0}, "diverged"),
        # It must go on growing, by a factor of two in the last third.
        ({0: 1.0, 10: 55.0, LAST_THIRD: 105.0}, "undecided"),
        ({0: 1.0, 10: 55.0, LAST_THIRD: 115.0}, "diverged"),
        ({0: 2.0, LAST_THIRD: 2.0 * 1.0009}, "nonzero equilibrium"),
        ({0: 2.0, LAST_THIRD: 2.0 * 1.0011}, "undecided"),
        # What moved before the last third does not count.
        ({0: 2.0, 100: 7.0}, "nonzero equilibrium"),
        # From 398, the first time saved in it, to 1000: a power of −1/4 is a factor of 0.794.
        ({0: 0.12, LAST_THIRD: 0.12 * 0.80}, "undecided"),
        ({0: 0.12, LAST_THIRD: 0.12 * 0.79}, "zero"),
        # A fall that ends above a tenth of the scale of the logits may turn round.
        ({0: 0.14, LAST_THIRD: 0.101}, "undecided"),
        ({0: 0.14, LAST_THIRD: 0.099}, "zero"),
        ({0: 2.0, LAST_THIRD: 0.0}, "zero"),
        ({0: 0.0}, "zero"),
    ],
)
def test_the_end_of_a_run_is_called_by_its_last_third(norms: dict[float, float], outcome: str) -> None:
    assert ends_as(norms, saved=32) == outcome


def fallen(states: list[list[float]], qk: list[list[float]], ov: list[list[float]], **attention: Any) -> str:
    """Classify a run in which these states halved in the last third and ended as they stand here."""
    end = torch.tensor(states, dtype=torch.float64)
    sizes = torch.where(torch.arange(41) < 38, 2.0, 1.0).double()
    run = simulate(Flow(Attention(qk, ov, **attention), Free()), end, np.linspace(0.0, 0.1, 41))
    times = np.concatenate([[0.0], np.geomspace(1.0, 1000.0, 40)])
    shifted = sizes[:, None, None] * end
    run = dataclasses.replace(run, times=times, states=shifted, tensor=shifted, end_times=np.asarray(1000.0))
    return str(outcomes_of(run))


SINKS = [[-1.0, 0.0], [0.0, -1.0]]


def test_a_fall_is_one_to_zero_where_attention_has_become_uniform() -> None:
    # The second direction has logits of 1e-4 where the first has 1.
    assert fallen([[0.0, 5.0], [0.0, -5.0]], [[1.0, 0.0], [0.0, 1e-4]], SINKS) == "zero"
    assert fallen([[0.0, 11.0], [0.0, -11.0]], [[1.0, 0.0], [0.0, 1e-4]], SINKS) == "undecided"
    assert fallen([[0.11, 0.0], [0.09, 0.0]], [[1.0, 0.0], [0.0, 1e-4]], SINKS) == "undecided"
    # Between different tokens, and negative: logits of the second with the first alone.
    causal = {"causal": True}
    assert fallen([[1.0, 0.0], [0.0, 0.005]], [[0.0, 0.0], [-1.0, 0.0]], SINKS, **causal) == "zero"
    assert fallen([[1.0, 0.0], [0.0, 0.02]], [[0.0, 0.0], [-1.0, 0.0]], SINKS, **causal) == "undecided"


def test_a_fall_is_no_fall_to_zero_where_tokens_can_rest_elsewhere() -> None:
    small, identity = [[0.05, 0.0], [-0.05, 0.0]], [[1.0, 0.0], [0.0, 1.0]]
    indefinite, skew = [[1.0, 0.0], [0.0, -1.0]], [[0.0, 1.0], [-1.0, 0.0]]
    for qk in (indefinite, skew, [[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]):
        assert fallen(small, qk, SINKS) == "undecided"
    assert fallen(small, [[1.0, 3.0], [-3.0, 1.0]], SINKS) == "zero"
    # A singular ov moves nothing along its left kernel.
    assert fallen(small, identity, [[-1.0, 0.0], [0.0, 0.0]]) == "undecided"
    # Heads that cancel each other leave everything at rest.
    assert fallen(small, [identity, identity], [SINKS, identity]) == "undecided"
    # Under a causal mask the first token averages itself alone, then the second, and so on.
    assert fallen(small, indefinite, SINKS, causal=True) == "zero"
    assert fallen(small, indefinite, SINKS, causal=True, weights="linear") == "undecided"


NULL_CONE = {
    "qk": [[0.36, 0.08], [0.95, -0.07]],
    "ov": [[-0.39, -0.44], [-0.17, -0.83]],
    "x0": [[-0.17, -0.51], [0.64, 0.05], [1.67, 0.43], [-1.7, -1.06]],
}
"""sym(qk) is indefinite: up to t = 3000 the largest norm falls from 2.0 to 0.14; then it rises and rests at 0.94."""


@pytest.mark.long
def test_tokens_that_come_to_rest_on_the_null_cone_are_not_called_zero() -> None:
    flow = Flow(Attention(NULL_CONE["qk"], NULL_CONE["ov"]), Free())

    def run(end: float) -> Trajectory:
        times = np.concatenate([[0.0], np.geomspace(1.0, end, 41)])
        return simulate(flow, torch.tensor(NULL_CONE["x0"]).double(), times, rtol=1e-8, atol=1e-13, engine="stiff")

    assert outcomes_of(run(3e3)) == "undecided"
    long = run(1e8)
    assert outcomes_of(long) == "nonzero equilibrium"
    assert math.exp(float(log_norms(long.tensor)[-1])) == pytest.approx(0.943, abs=0.01)


def test_what_stands_still_while_a_schedule_moves_is_no_equilibrium() -> None:
    identity, times = torch.eye(2, dtype=torch.float64), np.linspace(0.0, 300.0, 31)
    still = Sinusoidal(0 * identity, 1.0, 1.0, 0.0)
    for ov, outcome in ((0 * identity, "undecided"), (still, "undecided")):
        run = simulate(Flow(Attention(identity, ov), Free()), identity, times)
        assert outcomes_of(run) == outcome
    # Two opposite tokens without logits average to zero.
    opposite = torch.stack([identity[0], -identity[0]])
    run = simulate(Flow(Attention(0 * identity, -identity), Free()), opposite, times)
    assert outcomes_of(run) == "nonzero equilibrium"
    gated = simulate(Flow(Attention(0 * identity, Sinusoidal(-identity, 1.0, 1.0, 1.0)), Free()), opposite, times)
    assert outcomes_of(gated) == "undecided"


def test_zero_is_the_only_rest_where_it_is_proved() -> None:
    identity = torch.eye(2, dtype=torch.float64)
    weak, strong = (RotaryPositions(size * identity, identity) for size in (0.2, 1.2))
    for positions, proved in ((None, True), (weak, True), (strong, False)):
        flow = Flow(Attention(identity, -identity, positions=positions), Free())
        assert bool(rests_only_at_zero(flow, 4)) is proved
    # The bound grows with the number of tokens.
    many = Flow(Attention(identity, -identity, positions=weak), Free())
    assert not bool(rests_only_at_zero(many, 100))
    moving = Flow(Attention(identity, Sinusoidal(-identity, 1.0, 1.0, 0.0)), Free())
    assert not bool(rests_only_at_zero(moving, 4))


def test_the_logits_of_a_rotary_term_count() -> None:
    small, weak = [[0.05, 0.0], [-0.05, 0.0]], [[1.0, 0.0], [0.0, 1.0]]
    strong = RotaryPositions(10 * torch.eye(2).double(), torch.eye(2).double())
    assert fallen(small, weak, SINKS) == "zero"
    assert fallen(small, weak, SINKS, positions=strong) == "undecided"


def test_no_fall_is_one_to_zero_where_zero_is_left_by_the_mean() -> None:
    small, qk = [[0.05, 0.0], [-0.05, 0.0]], [[1.0, 0.0], [0.0, 1.0]]
    assert fallen(small, qk, [[-1.0, 0.0], [0.0, 1e-3]]) == "undecided"
    # Eigenvalues ±i, whose real parts are zero but for rounding: the mean turns at its size.
    assert fallen(small, qk, [[0.1, 1.01], [-1.0, -0.1]]) == "undecided"
    # Logits that are not normalised vanish with the tokens: a direction grows or dies out by the signs of qk and ov.
    assert fallen(small, qk, [[-1.0, 0.0], [0.0, 1e-3]], weights="linear") == "undecided"
    assert fallen(small, qk, [[-1.0, 0.0], [0.0, -1e-3]], weights="linear") == "zero"
    assert fallen(small, [[-1.0, 0.0], [0.0, -1.0]], [[1.0, 0.0], [0.0, 1e-3]], weights="linear") == "zero"


@pytest.mark.parametrize(
    ("end", "ov", "outcome"),
    [(99.0, -1.0, "undecided"), (101.0, -1.0, "nonzero equilibrium"), (51.0, -2.0, "nonzero equilibrium")],
)
def test_rest_is_believed_after_a_hundred_units_of_time(end: float, ov: float, outcome: str) -> None:
    assert ends_as({0: 2.0}, end=end, ov=ov) == outcome


@pytest.mark.parametrize(
    "attention",
    [
        Attention(EYE, -EYE),
        Attention([[0.0, 1.0], [-1.0, 0.0]], -EYE),
        Attention(0 * EYE, -EYE, positions=RotaryPositions(EYE, EYE)),
        Attention(EYE, -EYE, weights="linear"),
    ],
    ids=["definite", "skew", "rotary", "linear"],
)
def test_small_tokens_that_have_not_moved_yet_are_not_at_rest(attention: Attention) -> None:
    """With mean zero they move at the rate of their logits alone, 1e-8 here: to 0.5 / 1e-8 that is no rest."""
    x = 1e-4 * torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    run = simulate(Flow(attention, Free()), x, np.concatenate([[0.0], np.geomspace(1.0, 1e4, 41)]))
    assert float((run.tensor[-1] - x).norm() / x.norm()) < 1e-3
    assert outcomes_of(run) == "undecided"


@pytest.mark.long
@pytest.mark.parametrize(
    ("sign", "size", "end", "outcome"),
    [
        # With qk ≺ 0 differences grow like those of theorem 3.4 shrink, while the mean dies out slowly.
        (-1.0, 0.03, 200.0, "undecided"),
        (-1.0, 0.03, 2e3, "diverged"),
        (-1.0, 0.001, 1e3, "undecided"),
        (-1.0, 0.001, 1e5, "undecided"),
        # With qk ≻ 0 they shrink, once the run is long for their size.
        (1.0, 0.001, 1e5, "undecided"),
        (1.0, 0.03, 2e3, "zero"),
    ],
)
def test_no_fall_of_the_mean_alone_is_one_to_zero(sign: float, size: float, end: float, outcome: str) -> None:
    shares = torch.tensor([1.0, -1.0, 0.5, -0.5], dtype=torch.float64)
    start = torch.stack([size * shares, torch.full_like(shares, 0.08 if size > 0.01 else 0.8)], dim=-1)
    flow = Flow(Attention(sign * EYE, [[-1.0, 0.0], [0.0, -0.01]]), Free())
    times = np.concatenate([[0.0], np.geomspace(0.01, end, 41)])
    assert outcomes_of(simulate(flow, start, times, engine="stiff", rtol=1e-5, events=(NormAbove(60.0),))) == outcome


def test_no_fall_that_leaves_a_circle_is_one_to_zero() -> None:
    # One token obeys x' = ov x: the first direction dies out, the others turn at a norm of 0.001 for ever.
    ov = torch.tensor([[-0.001, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    flow = Flow(Attention(1e-3 * torch.eye(3).double(), ov, causal=True), Free())
    times = np.concatenate([[0.0], np.geomspace(0.1, 1e4, 41)])
    states = torch.stack(
        [torch.linalg.matrix_exp(float(t) * ov) @ torch.tensor([1.0, 1e-3, 0.0]).double() for t in times]
    )
    run = simulate(flow, states[:1], np.linspace(0.0, 0.1, 42))
    states = states[:, None]
    run = dataclasses.replace(run, times=times, states=states, tensor=states, end_times=np.asarray(1e4))
    assert float(log_norms(states)[-1]) == pytest.approx(math.log(1e-3), abs=2e-3)
    assert outcomes_of(run) == "undecided"


@pytest.mark.parametrize(("end", "outcome"), [(0.4, "undecided"), (110.0, "nonzero equilibrium")])
def test_small_tokens_on_the_null_cone_rest_once_the_run_is_long_for_their_size(end: float, outcome: str) -> None:
    """Logits of tokens on one line of the cone vanish, and their mean does: nothing moves them, ever."""
    line = 1e-3 * torch.tensor([[1.0, 1.0], [2.0, 2.0], [-3.0, -3.0]], dtype=torch.float64)
    flow = Flow(Attention([[1.0, 0.0], [0.0, -1.0]], -EYE), Free())
    size = float(line.norm(dim=-1).max()) ** 2
    times = np.concatenate([[0.0], np.geomspace(1.0, end / size, 41)])
    assert outcomes_of(simulate(flow, line, times, engine="stiff")) == outcome


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("offset", [0.0, 5.0, 20.0])
def test_an_offset_that_slows_time_down_changes_no_outcome(offset: float) -> None:
    flow = Flow(Attention(EYE, -EYE, weights="exponential", offset=offset), Free())
    times = np.concatenate([[0.0], np.geomspace(0.1, 1e3, 41)])
    assert outcomes_of(simulate(flow, drawn(5, 3, 2), np.exp(offset) * times, rtol=1e-6)) == "zero"
    assert outcomes_of(simulate(flow, drawn(5, 3, 2), times)) == ("zero" if offset == 0 else "undecided")


@pytest.mark.parametrize(
    ("start", "end", "outcome"),
    [(3.0, 1.1e-6, "undecided"), (3.0, 0.9e-6, "zero"), (1e-4, 1.1e-10, "undecided"), (1e-4, 0.9e-10, "zero")],
)
def test_a_short_run_tells_only_what_fell_to_a_millionth(start: float, end: float, outcome: str) -> None:
    assert ends_as({0: start, 1: end}, end=3.0) == outcome


@pytest.mark.parametrize(
    ("norms", "end", "outcome"),
    [
        # Rest in the last third (but for 1 %), after steps of the size of t^(−1/2): a factor of ten in two decades.
        ({0: 2.0, 20: 0.5, 2000: 0.05, 8000: 0.0495}, 1e4, "zero"),
        # 100^(−1/4) is a factor of 0.316.
        ({0: 2.0, 20: 0.16, 2000: 0.0501, 8000: 0.0496}, 1e4, "zero"),
        ({0: 2.0, 20: 0.15, 2000: 0.0490, 8000: 0.0485}, 1e4, "undecided"),
        # No lower than a tenth of the scale of the logits: it may turn back.
        ({0: 2.0, 20: 1.0, 2000: 0.101, 8000: 0.100}, 1e4, "undecided"),
        ({0: 2.0, 20: 1.0, 2000: 0.099, 8000: 0.098}, 1e4, "zero"),
        # What returned in the last third is not small, wherever it ended.
        ({0: 2.0, 20: 0.5, 2000: 0.05, 4000: 0.4, 8000: 0.39}, 1e4, "undecided"),
        # Steps are told from rest in long runs alone.
        ({0: 2.0, 20: 0.5, 2000: 0.05, 8000: 0.0495}, 9.9e3, "undecided"),
        # What was larger before T/300 does not make it a fall.
        ({0: 2.0, 10: 0.4, 30: 0.05, 8000: 0.0495}, 1e4, "undecided"),
        # Steps that have come to rest to a thousandth are rest.
        ({0: 2.0, 20: 0.5, 2000: 0.05}, 1e4, "nonzero equilibrium"),
    ],
)
def test_what_falls_in_steps_goes_to_zero_if_it_falls_far_enough(
    norms: dict[float, float], end: float, outcome: str
) -> None:
    assert ends_as(norms, end=end) == outcome


def test_a_run_that_leaves_between_two_saved_times_is_judged_by_the_state_in_which_it_ended() -> None:
    flow = Flow(Attention([[1.0]], [[1.0]]), Free())
    run = simulate(flow, [[1.0], [1.0]], np.array([0.0, 1.0, 3.0, 9.0]), events=(NormAbove(100.0),))
    assert float(run.end_times) == pytest.approx(math.log(100.0), rel=1e-6)
    assert outcomes_of(run) == "diverged"
    assert outcomes_of(simulate(flow, [[1.0], [1.0]], np.array([0.0, 1.0, 3.0]))) == "undecided"


def test_a_run_of_which_nothing_is_saved_in_its_last_third_tells_nothing() -> None:
    times = np.array([0.0, 200.0])
    still = simulate(Flow(Attention([[1.0]], [[0.0]]), Free()), torch.ones(2, 1).double(), times)
    shifted = dataclasses.replace(still, flow=Flow(Attention([[1.0]], [[-1.0]]), Free()))
    assert outcomes_of(shifted) == "undecided"


@pytest.mark.parametrize("size", [1e-250, 1e250])
def test_rest_is_rest_at_any_size(size: float) -> None:
    states = size * torch.tensor([[1.0], [-0.5]], dtype=torch.float64).expand(41, 2, 1)
    run = simulate(Flow(Attention([[0.0]], [[-1.0]]), Free()), states[0], np.linspace(0.0, 1.0, 41))
    run = dataclasses.replace(run, times=np.linspace(0.0, 200.0, 41), tensor=states, end_times=np.asarray(200.0))
    assert outcomes_of(run) == "nonzero equilibrium"
    falling = dataclasses.replace(run, tensor=states * torch.linspace(1.0, 0.9e-6, 41)[:, None, None].double())
    assert outcomes_of(falling) == "zero"
    # Without logits tokens may rest at any size: only a millionth of the start counts.
    still = dataclasses.replace(run, tensor=states * torch.linspace(1.0, 1.1e-6, 41)[:, None, None].double())
    assert outcomes_of(still) == "undecided"
