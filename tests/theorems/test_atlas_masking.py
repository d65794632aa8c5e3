"""Statements of `masking`: what holds within their hypotheses, and what outside them."""

from __future__ import annotations

from typing import Any, Literal

import mpmath
import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor

import tokendynamics as td
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.theorems import predict_interaction_window, predict_strong_centers
from tokendynamics.theorems.atlas._masking import COUNTEREXAMPLE

Engine = Literal["batched", "compiled", "stiff"]
RUNS = [(engine, rtol) for engine in ("batched", "compiled", "stiff") for rtol in (1e-4, 1e-7, 1e-10)]
EYE = np.eye(2)


def circle(angles: Any) -> Tensor:
    """Tokens on the circle."""
    radians = torch.as_tensor(angles, dtype=torch.float64)
    return torch.stack([radians.cos(), radians.sin()], dim=-1)


def flow(qk: Any, ov: Any, *, causal: bool = True, weights: Any = "softmax", positions: Any = None) -> td.Flow:
    return td.Flow(td.Attention(qk, ov, causal=causal, weights=weights, positions=positions), td.Sphere())


def certified(statement: str, of: td.Flow, start: Tensor, times: Any, engine: Any = "auto", rtol: float = 1e-8) -> Any:
    """Run and return the certificate."""
    run = td.simulate(of, start, np.asarray(times, dtype=float), engine=engine, rtol=rtol, atol=rtol)
    return td.certify(run, [statement])[0]


def reasons(statement: str, of: td.Flow, start: Any) -> list[str]:
    """Name the hypotheses that are violated."""
    (checked,) = td.check(of, start, statements=[statement])
    return [text.split(":")[0] for text in checked.reasons]


def random_systems(statement: str, systems: int, seed: int) -> tuple[td.Flow, Tensor, np.ndarray]:
    """Draw systems within the hypotheses, a start, and output times."""
    rng = np.random.default_rng(seed)
    late = np.concatenate([[0.0], np.geomspace(0.1, 40.0, 6)])
    if statement == "masking-4.1":
        multiples = rng.uniform(0.5, 3.0, (systems, 1, 1, 1)) * np.eye(3)
        return flow(rng.normal(size=(systems, 1, 3, 3)), multiples), sphere(rng, systems, 4, 3), late
    if statement == "masking-table-1-space":
        frames = np.linalg.qr(rng.normal(size=(systems, 4, 4)))[0]
        ov = np.zeros((systems, 4, 4))
        ov[:, :2, :2] = 1.5 * np.eye(2)
        ov[:, 2:, 2:] = rng.uniform(-1, 1, (systems, 2, 2)) / 2
        ov = frames @ ov @ frames.transpose(0, 2, 1)
        return flow(rng.normal(size=(systems, 1, 4, 4)), ov[:, None]), sphere(rng, systems, 4, 4), late
    betas = rng.uniform(10.0, 400.0, (systems, 1, 1, 1))
    # The second token is a strong center at every one of these temperatures.
    angles = rng.uniform(0, 2 * np.pi, (systems, 7))
    angles[:, 1] = angles[:, 0] + rng.uniform(0.5, 3.0, systems)
    ov = rng.uniform(0.5, 2.0, (systems, 1, 1, 1)) * EYE
    return flow(betas * EYE, ov), circle(angles), np.concatenate([[0.0], np.geomspace(0.01, 100.0, 8)])


def sphere(rng: np.random.Generator, *shape: int) -> Tensor:
    """Uniform tokens."""
    return torch.nn.functional.normalize(torch.from_numpy(rng.normal(size=shape)), dim=-1)


@pytest.mark.long
@pytest.mark.every_value_once
@pytest.mark.parametrize(("engine", "rtol"), RUNS)
@pytest.mark.parametrize("statements", [["masking-table-1-space"], ["masking-4.1"], ["masking-5.1", "masking-B"]])
def test_nothing_fails_within_the_hypotheses(statements: list[str], engine: Engine, rtol: float) -> None:
    systems = 6 if engine == "stiff" else 32
    of, start, times = random_systems(statements[0], systems, seed=int(-np.log10(rtol)))
    assert all(checked.applies for checked in td.check(of, start, statements=statements))
    run = td.simulate(of, start, times, engine=engine, rtol=rtol, atol=rtol)
    for certificate in td.certify(run, statements):
        assert "fails" not in certificate.outcomes, certificate.text
        if len(statements) == 2:
            assert certificate.outcome == "holds", certificate.text
        else:
            assert (certificate.outcomes == "holds").sum() >= systems // 2


PAIR = circle([0.0, 1.0])
THREE = circle([0.0, 1.0, 2.5])
OF_THE_CIRCLE = (
    ({"causal": False}, "causal mask"),
    ({"weights": "linear"}, "softmax weights"),
    ({"positions": td.AbsolutePositions(np.zeros((3, 2)))}, "no positions"),
    ({"qk": np.stack([EYE, EYE]), "ov": np.stack([EYE, EYE])}, "one head"),
)


@pytest.mark.parametrize(
    ("statement", "changes", "reason"),
    [
        *[(name, *one) for name in ("masking-4.1", "masking-5.1", "masking-B") for one in OF_THE_CIRCLE],
        ("masking-4.1", {"qk": td.Periodic([EYE, 2 * EYE], period=1.0)}, "qk constant in time"),
        ("masking-4.1", {"ov": -EYE}, "the multiples are positive"),
        ("masking-4.1", {"ov": np.diag([1.0, 2.0])}, "ov is a multiple of the identity"),
        ("masking-4.1", {"start": circle([0.0, 1.0, np.pi])}, "no token at the antipode of token 1"),
        ("masking-5.1", {"qk": np.diag([10.0, 11.0])}, "qk is a multiple of the identity"),
        ("masking-5.1", {"qk": -10 * EYE}, "β above 0"),
        ("masking-5.1", {"ov": -EYE}, "the multiples are positive"),
        ("masking-5.1", {"start": circle([0.0, 0.1, 0.2])}, "a token farther than τ from all before it"),
        ("masking-5.1", {"start": circle([0.0])}, "at least two tokens"),
        ("masking-B", {"qk": 0 * EYE}, "β above 0"),
        ("masking-C.1", {"qk": -EYE}, "β above 0"),
        ("masking-C.1", {"qk": np.diag([1.0, 2.0])}, "qk is a multiple of the identity"),
        ("masking-C.1", {"causal": False}, "causal mask"),
    ],
)
def test_each_hypothesis_broken_alone_is_named_on_the_circle(
    statement: str, changes: dict[str, Any], reason: str
) -> None:
    case = {"qk": 10 * EYE, "ov": EYE, "start": THREE, **changes}
    start = case.pop("start")
    assert reasons(statement, flow(case.pop("qk"), case.pop("ov"), **case), start) == [reason]


def test_the_space_is_named() -> None:
    free = td.Flow(td.Attention(EYE, EYE, causal=True), td.Free())
    for statement in ("masking-4.1", "masking-table-1-simple", "masking-table-1-space", "masking-5.1", "masking-B"):
        assert reasons(statement, free, PAIR) == ["tokens on the sphere"]
    in_space = td.Flow(td.Attention(np.eye(3), np.eye(3), causal=True), td.Sphere())
    assert reasons("masking-5.1", in_space, np.eye(3)) == ["tokens on the circle"]


TOP = np.diag([1.0, 1.0, 0.2, -0.3])


@pytest.mark.parametrize(
    ("ov", "first", "reason"),
    [
        (np.diag([1.0, 0.9, 0.2, -0.3]), [1, 1, 1, 1], "an eigenspace L of dim 2 or more"),
        (np.diag([-1.0, -1.0, -1.2, -1.3]), [1, 1, 1, 1], "its eigenvalue above 0"),
        (TOP + 0.1 * np.eye(4)[[0]].T @ np.eye(4)[[3]], [1, 1, 1, 1], "ov keeps what is orthogonal to L"),
        (TOP + 4 * np.eye(4)[[2]].T @ np.eye(4)[[3]], [1, 1, 1, 1], "z·ov z below λ|z|² off L"),
        (TOP, [0, 0, 1, 1], "token 1 not orthogonal to L"),
    ],
)
def test_each_hypothesis_of_the_eigenspace_broken_alone_is_named(ov: np.ndarray, first: list, reason: str) -> None:
    start = torch.tensor([first, [0.0, 1, 2, 3], [1, 0, -1, 2]], dtype=torch.float64)
    start = torch.nn.functional.normalize(start, dim=-1)
    assert reasons("masking-table-1-space", flow(np.eye(4), ov), start) == [reason]


@pytest.mark.parametrize(
    ("ov", "reason"),
    [
        (np.diag([1.0, 1.0]), "that eigenvalue real and simple"),
        (np.array([[1.0, -1.0], [1.0, 1.0]]), "that eigenvalue real and simple"),
        (np.diag([-1.0, -2.0]), "an eigenvalue of ov above 0"),
    ],
)
def test_each_hypothesis_of_the_eigenvector_broken_alone_is_named(ov: np.ndarray, reason: str) -> None:
    assert reasons("masking-table-1-simple", flow(EYE, ov), PAIR) == [reason]


# --- outside the hypotheses ------------------------------------------------------------------------------------------


def test_with_a_full_mask_the_first_token_and_the_centers_move() -> None:
    seen = flow(10 * EYE, EYE, causal=False)
    start = circle([0.0, 1.0, 1.3])
    for statement in ("masking-4.1", "masking-5.1", "masking-B"):
        assert certified(statement, seen, start, np.linspace(0, 5, 6)).outcome == "fails"


@pytest.mark.long
def test_values_that_mix_the_eigenspace_with_the_rest_turn_token_1_or_drive_it_away_at_first() -> None:
    start = torch.nn.functional.normalize(torch.tensor([[1.0, 1, 1, 1], [0, 1, 2, 3]]).double(), dim=-1)
    for row, conditions in ((2, ["holds", "fails", "holds"]), (0, ["fails", "holds", "undecided"])):
        ov = TOP + 4 * np.eye(4)[[row]].T @ np.eye(4)[[3]]
        certificate = certified("masking-table-1-space", flow(np.eye(4), ov), start, np.linspace(0, 60, 121))
        assert [one.outcome.item() for one in certificate.conditions] == conditions


def test_a_value_matrix_that_turns_has_no_eigenspace_and_nothing_is_said() -> None:
    turning = flow(EYE, [[1.0, -1.0], [1.0, 1.0]])
    assert certified("masking-table-1-space", turning, PAIR, np.linspace(0, 5, 6)).outcome == "undecided"


# --- the conjecture that is false ------------------------------------------------------------------------------------


def test_the_counterexample_rests_at_the_root_of_its_equation_and_comes_back_when_pushed() -> None:
    angle = float(mpmath.findroot(lambda t: mpmath.exp(-mpmath.sin(t) * (1 - mpmath.cos(t))) + mpmath.cos(t) / 2, 2.7))
    assert COUNTEREXAMPLE["angles"] == pytest.approx((0.0, angle), abs=1e-14)
    of = flow(COUNTEREXAMPLE["qk"], COUNTEREXAMPLE["ov"])
    assert of.velocity(circle(COUNTEREXAMPLE["angles"])).abs().max() < 1e-15
    assert reasons("masking-table-1-simple", of, circle([0.3, 2.0])) == []
    pushed = circle([[0.02, angle - 0.02], [-0.02, angle + 0.02]])
    run = td.simulate(of, pushed, np.linspace(0, 150, 4))
    assert torch.allclose(run.tensor[:, -1], circle(COUNTEREXAMPLE["angles"]).expand(2, 2, 2), atol=1e-6)
    (certificate,) = td.certify(run, ["masking-table-1-simple"])
    assert certificate.outcomes.tolist() == ["fails"] * 2


@pytest.mark.long
@pytest.mark.parametrize("rtol", [1e-4, 1e-10])
def test_one_start_in_six_ends_at_the_counterexample(rtol: float) -> None:
    of = flow(COUNTEREXAMPLE["qk"], COUNTEREXAMPLE["ov"])
    start = circle(np.random.default_rng(5).uniform(0, 2 * np.pi, (200, 2)))
    certificate = certified("masking-table-1-simple", of, start, np.linspace(0, 150, 4), rtol=rtol)
    share = (certificate.outcomes == "fails").mean()
    assert share == pytest.approx(0.16, abs=3 * np.sqrt(0.16 * 0.84 / 200))
    assert (certificate.outcomes == "holds").mean() == pytest.approx(1 - share, abs=0.011)


def test_the_same_rest_is_unstable_without_logits_and_says_nothing() -> None:
    # With qk = 0 token 2 rests where 1 = −cos θ / 2 has no root; orthogonal to ξ it rests for ever, unstably.
    of = flow(np.zeros((2, 2)), np.diag([1.0, 0.5]))
    run = td.simulate(of, circle([np.pi / 2, np.pi / 2]), np.linspace(0, 20, 3))
    assert td.certify(run, ["masking-table-1-simple"])[0].outcome == "undecided"


# --- interaction window and strong centers ---------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [1e-3, 0.5, 1.0, 7.0, 300.0, 1e6, 1e12])
def test_the_pull_is_largest_at_the_window(beta: float) -> None:
    mpmath.mp.dps = 40
    b = mpmath.mpf(beta)
    tau = mpmath.acos((mpmath.sqrt(4 * b**2 + 1) - 1) / (2 * b))
    assert float(predict_interaction_window(beta)) == pytest.approx(float(tau), rel=1e-14)
    assert (b + mpmath.mpf(1) / 2) ** (-0.5) < tau < b ** (-0.5)
    assert abs(mpmath.diff(lambda x: mpmath.exp(b * (mpmath.cos(x) - 1)) * mpmath.sin(x), tau)) < 1e-15


@pytest.mark.parametrize("beta", [0.0, -1.0, np.nan, np.inf, [1.0, -2.0]])
def test_a_window_needs_a_positive_temperature(beta: Any) -> None:
    with pytest.raises(ArgumentValueError, match=r"^beta: "):
        predict_interaction_window(beta)


@pytest.mark.long
def test_a_center_stays_within_its_window_and_leaves_after_it() -> None:
    beta, apart = 30.0, 0.5
    of = flow(beta * EYE, EYE)
    # Token 2 alone: θ' = −ω h(θ)/(1 + e^{β(cos θ − 1)}). For every r the window ends at (δ − r)/(2 ω h(r)).
    tau = float(predict_interaction_window(beta))
    omega = 1 / np.sqrt(2)
    ends = []
    for r in np.linspace(tau, apart, 6)[1:-1]:
        h = mpmath.exp(beta * (mpmath.cos(r) - 1)) * mpmath.sin(r)
        ends.append((float((apart - r) / 2 / (omega * h)), (apart - r) / 2))
    for end, move in ends:
        run = td.simulate(of, circle([0.0, apart]), [0.0, end, 100 * end])
        shifted = apart - torch.atan2(run.tensor[1:, 1, 1], run.tensor[1:, 1, 0]).numpy()
        assert shifted[0] < move < shifted[1]
    longest = max(end for end, _ in ends)
    (checked,) = td.check(of, circle([0.0, apart]), statements=["masking-5.1"])
    until = float(str(checked.prediction).rsplit("until t = ", 1)[1].replace(",", ""))
    assert longest <= until < 1.1 * longest  # its widths r are more than those above
    late = td.simulate(of, circle([0.0, apart]), [0.0, 1e3 * longest])
    assert td.certify(late, ["masking-5.1"])[0].outcome == "undecided"


def test_windows_longer_than_any_number_are_compared_in_logarithms() -> None:
    of = flow(1e5 * EYE, EYE)
    (checked,) = td.check(of, circle([0.0, 1.0, 4.0]), statements=["masking-5.1"])
    exponent = str(checked.prediction).rsplit("× 10", 1)[1].translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789"))
    assert int(exponent) > 1e4
    assert certified("masking-5.1", of, circle([0.0, 1.0, 4.0]), [0.0, 1e3, 1e8]).outcome == "holds"


def test_the_second_token_comes_as_fast_as_its_bound_where_logits_vanish() -> None:
    # qk = 0: both tokens weigh ½, and tan(θ/2) shrinks exactly like exp(−ωct/2).
    times = np.linspace(0, 6, 7)
    run = td.simulate(flow(np.zeros((2, 2)), 3 * EYE), circle([0.0, 2.5]), times, rtol=1e-11, atol=1e-12)
    angle = torch.atan2(run.tensor[:, 1, 1], run.tensor[:, 1, 0]).numpy()
    assert np.tan(angle / 2) == pytest.approx(np.tan(1.25) * np.exp(-3 * times / np.sqrt(8)), rel=1e-8)
    assert td.certify(run, ["masking-4.1"])[0].conditions[-1].outcome == "holds"


# --- the number of strong centers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "beta"), [(2, 30.0), (3, 5.0), (5, 1.0), (2, 0.1)])
def test_uniform_starts_have_the_expected_number_of_strong_centers(dim: int, beta: float) -> None:
    rng = np.random.default_rng(dim)
    start, radius = sphere(rng, 400, 30, dim), float(predict_interaction_window(beta))
    angles = torch.arccos((start @ start.mT).clamp(-1, 1)).numpy()
    before = np.tri(30, k=-1, dtype=bool)
    counts = (np.where(before, angles, np.inf).min(axis=2) > radius).sum(axis=1)
    expected = float(predict_strong_centers(30, dim, radius))
    assert counts.mean() == pytest.approx(expected, abs=4 * counts.std() / 20)
    of = flow(beta * np.eye(dim), np.eye(dim))
    certificate = certified("masking-C.1", of, start, [0.0, 1e-3])
    assert certificate.outcome == "holds", certificate.text
    (checked,) = td.check(of, start, statements=["masking-C.1"])
    assert checked.applies
    # Starts drawn from half of the sphere have fewer of them, and ten systems say nothing.
    half = torch.cat([start[..., :1].abs(), start[..., 1:]], dim=-1)
    assert certified("masking-C.1", of, half, [0.0, 1e-3]).outcome == "undecided"
    assert certified("masking-C.1", of, start[:10], [0.0, 1e-3]).outcome == "undecided"


def test_infinitely_many_tokens_have_the_inverse_of_the_share_of_a_cap() -> None:
    radii = np.array([0.1, 0.5, 1.5, 2.5])
    assert predict_strong_centers(None, 2, radii) == pytest.approx(np.pi / radii, rel=1e-12)
    assert predict_strong_centers(None, 3, radii) == pytest.approx(1 / np.sin(radii / 2) ** 2, rel=1e-12)
    assert predict_strong_centers(10**7, 3, radii) == pytest.approx(predict_strong_centers(None, 3, radii), rel=1e-12)
    # In four dimensions the area of a cap is the integral of sin²:
    # ∫ sin² is (t − sin t cos t)/2 up to 2.5, and π/2 up to π.
    cap = (2.5 - np.sin(2.5) * np.cos(2.5)) / np.pi
    assert float(predict_strong_centers(None, 4, 2.5)) == pytest.approx(1 / cap, rel=1e-12)
    assert predict_strong_centers(30, 4, [1e-200, 1e-105, 1e-30]) == pytest.approx(30.0, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0, 2, 0.5), "tokens"),
        ((5, 1, 0.5), "dim"),
        ((5, 2, 0.0), "radius"),
        ((5, 2, [1.0, 4.0]), "radius"),
        ((None, 4, 1e-105), "radius"),
    ],
)
def test_numbers_that_no_sphere_has_are_refused(arguments: tuple, named: str) -> None:
    with pytest.raises(ArgumentValueError, match=rf"^{named}: "):
        predict_strong_centers(*arguments)


# --- Theorem 5.2: frozen tokens ---------------------------------------------------------------------------------------


def beside_frozen(frozen: int, moving: int, beta: Any, *, c: Any = 1.0, weights: Any = "softmax") -> td.Flow:
    """Tokens that see the first ones, which are frozen, and nobody else."""
    mask = np.zeros((frozen + moving, frozen + moving), dtype=bool)
    mask[:, :frozen] = True
    qk, ov = (np.asarray(factor)[..., None, None] * EYE for factor in (beta, c))
    return td.Flow(td.Attention(qk, ov, mask=mask, weights=weights), td.Sphere(), frozen=range(frozen))


def force(angle: float, frozen: np.ndarray, beta: float) -> float:
    """Return the torque of frozen tokens on one at an angle, up to a factor above 0."""
    logs = beta * (np.cos(frozen - angle) - 1)
    return float(np.sum(np.exp(logs - logs.max()) * np.sin(frozen - angle)))


def next_rest(angle: float, frozen: np.ndarray, beta: float) -> float:
    """Return where a token that goes one way only comes to rest: the next zero of the torque."""
    way = np.sign(force(angle, frozen, beta))
    fine = angle + way * np.linspace(0.0, 2 * np.pi, 4_001)
    after = next(place for place in fine[1:] if way * force(place, frozen, beta) < 0)
    root: Any = brentq(force, after - (fine[1] - fine[0]), after, args=(frozen, beta), xtol=1e-13)
    return root


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.every_value_once
@pytest.mark.parametrize("weights", ["softmax", "exponential"])
@pytest.mark.parametrize(
    ("engine", "rtol", "count"),
    [("batched", 1e-4, 30), ("batched", 1e-10, 30), pytest.param("stiff", 1e-7, 70, marks=pytest.mark.slow)],
)
def test_tokens_come_to_rest_near_frozen_ones(engine: Any, rtol: float, count: int, weights: str) -> None:
    rng, times = np.random.default_rng(5), [0.0, 0.1, 0.5, 2.0, 10.0, 300.0 if weights == "softmax" else 40.0]
    for frozen, moving in [(1, 3), (2, 3), (5, 3)]:
        betas = rng.uniform(0.5, 40.0, (count, 1)) if weights == "softmax" else rng.uniform(0.2, 2.0, (count, 1))
        of = beside_frozen(frozen, moving, betas, c=rng.uniform(0.5, 2.0, (count, 1)), weights=weights)
        start = circle(rng.uniform(0, 2 * np.pi, (count, frozen + moving)))
        (check,) = td.check(of, start, statements=["masking-5.2"])
        assert check.applies
        certificate = certified("masking-5.2", of, start, times, engine=engine, rtol=rtol)
        assert "fails" not in certificate.outcomes
        assert (certificate.outcomes == "holds").mean() > 0.9


@pytest.mark.long
def test_a_token_goes_to_the_next_rest_on_its_way() -> None:
    rng = np.random.default_rng(6)
    for beta in (2.0, 20.0):
        angles = rng.uniform(0, 2 * np.pi, (12, 6))
        run = td.simulate(beside_frozen(4, 2, beta), circle(angles), [0.0, 1000.0], rtol=1e-11, atol=1e-13)
        tau = float(predict_interaction_window(beta))
        for entry, states in zip(angles, run.tensor[:, -1].numpy(), strict=True):
            for angle, state in zip(entry[4:], states[4:], strict=True):
                rest = next_rest(angle, entry[:4], beta)
                assert np.abs(state - [np.cos(rest), np.sin(rest)]).max() < 1e-6
                assert np.abs((entry[:4] - rest + np.pi) % (2 * np.pi) - np.pi).min() < tau


@pytest.mark.parametrize("wide", [False, True])
def test_between_two_frozen_tokens_the_window_decides(wide: bool) -> None:
    """Halfway between them a rest is stable exactly where they are within 2τ: no distance below τ would do."""
    tau = float(predict_interaction_window(30.0))
    half = tau * (1.05 if wide else 0.95)
    start = circle([-half, half, 0.02 * tau])
    certificate = certified("masking-5.2", beside_frozen(2, 1, 30.0), start, np.linspace(0, 500, 20))
    assert certificate.outcome == "holds"
    end = td.simulate(beside_frozen(2, 1, 30.0), start, [0.0, 500.0]).tensor[-1, 2]
    assert (float(torch.atan2(end[1], end[0])) > 0.5 * tau) == wide


def test_how_near_a_frozen_token_others_come() -> None:
    beta, apart = 30.0, 0.9
    tau = float(predict_interaction_window(beta))

    def pull(angle: float) -> float:
        return np.exp(beta * (np.cos(angle) - 1)) * np.sin(angle)

    reach: Any = brentq(lambda r: pull(r) - pull(apart - tau), 0.0, tau, xtol=1e-15)
    start = circle([0.0, apart, 0.02])
    (check,) = td.check(beside_frozen(2, 1, beta), start, statements=["masking-5.2"])
    assert f"{reach:.3g}" in str(check.prediction)
    rest = next_rest(0.02, np.array([0.0, apart]), beta)
    assert 0 < rest < reach
    doubled = circle([0.0, 0.0, apart, apart, 0.02])  # Two frozen tokens at one place weigh twice.
    (again,) = td.check(beside_frozen(4, 1, beta), doubled, statements=["masking-5.2"])
    assert f"{reach:.3g}" in str(again.prediction)


@pytest.mark.parametrize("beta", [3.0, 9.0])
def test_the_least_speed_of_the_hypothesis_is_that_of_the_flow(beta: float) -> None:
    of, start = beside_frozen(2, 1, beta), circle([[0.0, 2.0, 1.1]])
    (check,) = td.check(of, start, statements=["masking-5.2"])
    speed = float(of.velocity(start)[0, 2].norm())
    assert check.hypotheses[-1].margin == pytest.approx(np.sqrt(2) * speed, rel=1e-9)


def test_each_hypothesis_about_frozen_tokens_broken_alone_is_named() -> None:
    start = circle([0.0, 2.0, 1.2, 3.0])
    assert reasons("masking-5.2", beside_frozen(2, 2, 4.0), start) == []
    named = {
        "β above 0": beside_frozen(2, 2, -4.0),
        "the multiples are positive": beside_frozen(2, 2, 4.0, c=-1.0),
        "a frozen token and one that moves": td.Flow(td.Attention(4 * EYE, EYE), td.Sphere()),
        "moving tokens see frozen tokens alone": td.Flow(td.Attention(4 * EYE, EYE), td.Sphere(), frozen=[0, 1]),
        "softmax or exponential weights": beside_frozen(2, 2, 4.0, weights="linear"),
    }
    for name, of in named.items():
        assert reasons("masking-5.2", of, start) == [name]
    halfway = circle([0.0, 2.0, 1.0, 3.0])
    assert reasons("masking-5.2", beside_frozen(2, 2, 4.0), halfway) == [
        "no moving token at rest away from frozen ones"
    ]
    # One moving token sees itself, with a full mask, which only slows it.
    alone = td.Flow(td.Attention(4 * EYE, EYE), td.Sphere(), frozen=[0, 1, 3])
    assert reasons("masking-5.2", alone, start) == []


@pytest.mark.long
def test_tokens_that_are_repelled_or_see_others_leave_frozen_tokens() -> None:
    start = circle([0.0, 0.8, 2.6, 2.7, 2.8])
    times = np.linspace(0.0, 20.0, 21)
    seeing = td.Flow(td.Attention(EYE, EYE), td.Sphere(), frozen=[0])
    for of in (beside_frozen(1, 4, 1.0, c=-1.0), seeing):
        assert certified("masking-5.2", of, start, times).outcome == "fails"
    nobody = td.Flow(td.Attention(EYE, EYE), td.Sphere())
    certificate = certified("masking-5.2", nobody, start, times)
    assert (certificate.outcome, "no frozen token is seen" in certificate.text) == ("undecided", True)
