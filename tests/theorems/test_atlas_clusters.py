"""Statements of `clusters`: what holds within their hypotheses, and what outside them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from scipy.integrate import simpson, solve_ivp
from scipy.optimize import linprog
from scipy.special import softmax
from torch import Tensor

import tokendynamics as td

Engine = Literal["batched", "compiled", "stiff"]
EYE = np.eye(2)
TIMES = np.linspace(0, 9, 7)


def flow(qk: Any, ov: Any, *, causal: bool = False, weights: Any = "softmax", positions: Any = None) -> td.Flow:
    return td.Flow(td.Attention(qk, ov, causal=causal, weights=weights, positions=positions), td.Free())


def certified(statement: str, of: td.Flow, start: Any, times: Any = TIMES, **options: Any) -> Any:
    """Run and return the certificate."""
    run = td.simulate(of, torch.as_tensor(start, dtype=torch.float64), times, **options)
    return td.certify(run, [statement])[0]


def reasons(statement: str, of: td.Flow, start: Any) -> list[str]:
    """Name the hypotheses that are violated."""
    (checked,) = td.check(of, np.asarray(start, dtype=float), statements=[statement])
    return [text.split(":")[0] for text in checked.reasons]


def definite(rng: np.random.Generator, systems: int, dim: int) -> np.ndarray:
    """Symmetric matrices with eigenvalues from 0.5 to 1.5, (system, 1, dim, dim)."""
    frames = np.linalg.qr(rng.normal(size=(systems, dim, dim)))[0]
    values = rng.uniform(0.5, 1.5, (systems, 1, dim))
    return (frames * values @ frames.transpose(0, 2, 1))[:, None]


def fastest(rng: np.random.Generator, systems: int, count: int) -> np.ndarray:
    """Value matrices in three dimensions with the eigenvalue 1 `count` times and others below 0.5 in modulus."""
    values = np.zeros((systems, 3, 3))
    values[:, range(count), range(count)] = 1.0
    values[:, count:, count:] = rng.uniform(-0.25, 0.25, (systems, 3 - count, 3 - count))
    frames = np.linalg.qr(rng.normal(size=(systems, 3, 3)))[0] + 0.2 * rng.normal(size=(systems, 3, 3))
    return (frames @ values @ np.linalg.inv(frames))[:, None]


def random_systems(family: str, systems: int, seed: int) -> tuple[td.Flow, Tensor, np.ndarray]:
    """Draw systems within the hypotheses, a start, and output times."""
    rng = np.random.default_rng(seed)
    multiples = rng.uniform(0.5, 1.0, (systems, 1, 1, 1))
    long = np.concatenate([[0.0], np.geomspace(0.05, 300.0, 25)])
    times = {"repelling": long, "any": np.linspace(0, 5, 6)}.get(family, np.linspace(0, 16, 7))
    drawn = {
        "polytope": lambda: flow(definite(rng, systems, 2), multiples * EYE),
        "any": lambda: flow(rng.normal(size=(systems, 2, 2, 2)), np.stack([EYE, 0.5 * EYE]), causal=True),
        "line": lambda: flow(rng.uniform(0.3, 2.0, (systems, 1, 1, 1)), multiples),
        "levels": lambda: flow(definite(rng, systems, 3), fastest(rng, systems, 1)),
        "space": lambda: flow(definite(rng, systems, 3), fastest(rng, systems, 2)),
        "open": lambda: flow(rng.normal(size=(systems, 1, 2, 2)), multiples * EYE),
        "identity": lambda: flow(multiples * EYE, multiples * EYE),
        "repelling": lambda: flow(multiples * EYE, -EYE),
    }[family]()
    if family in ("levels", "space"):
        times = times / 2
    return drawn, torch.from_numpy(rng.normal(size=(systems, 6, drawn.dim))), times


FAMILIES = {
    "polytope": ["clusters-3.1", "clusters-8-hull"],
    "any": ["clusters-8-hull"],
    "line": ["clusters-2.1"],
    "levels": ["clusters-4"],
    "space": ["clusters-5"],
    "open": ["clusters-12", "clusters-8-hull"],
    "identity": ["clusters-7"],
    "repelling": ["clusters-8-repelling"],
}
# A first run compiles each kind of circuit; one of them is enough where time counts.
RUNS = [
    pytest.param(
        family, engine, rtol, marks=[pytest.mark.slow] if engine == "compiled" and family != "polytope" else []
    )
    for family in FAMILIES
    for engine in ("batched", "compiled", "stiff")
    for rtol in (1e-4, 1e-7, 1e-10)
]


@pytest.mark.few(4)
@pytest.mark.every_value_once
@pytest.mark.parametrize(("family", "engine", "rtol"), RUNS)
def test_nothing_fails_within_the_hypotheses(family: str, engine: Engine, rtol: float) -> None:
    systems = 4 if engine == "stiff" else 32
    of, start, times = random_systems(family, systems, seed=int(-np.log10(rtol)))
    assert all(checked.applies for checked in td.check(of, start, statements=FAMILIES[family]))
    run = td.simulate(of, start, times, engine=engine, rtol=rtol, atol=rtol)
    for certificate in td.certify(run, FAMILIES[family]):
        assert "fails" not in certificate.outcomes, certificate.text
        assert (certificate.outcomes == "holds").sum() >= systems // 2, certificate.text


START = [[1.0, 0.5], [-0.3, 1.2], [0.4, -1.1], [-1.0, -0.2]]
FAR = {"polytope": 600.0, "any": 600.0, "line": 600.0, "open": 600.0, "levels": 10.0, "space": 10.0}


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.every_value_once
@pytest.mark.parametrize("rtol", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("family", FAR)
def test_nothing_fails_of_rescaled_tokens_at_any_horizon(family: str, rtol: float) -> None:
    """To λt = 1000, where x is about e^1000; less far where other directions of ov shrink tokens, which grow in z."""
    of, start, _ = random_systems(family, 12, seed=30 + int(-np.log10(rtol)))
    times = np.concatenate([np.linspace(0.0, 6.0, 7), np.geomspace(8.0, FAR[family], 4)])
    run = td.simulate(of, start, times, engine="batched", rtol=rtol, atol=rtol, frame="rescaled")
    assert "diverged" not in run.status
    for certificate in td.certify(run, FAMILIES[family]):
        assert "fails" not in certificate.outcomes, certificate.text
        assert (certificate.outcomes == "holds").sum() >= 9, certificate.text


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["compiled", "stiff"])
def test_nothing_fails_of_rescaled_tokens_in_other_engines(engine: Engine) -> None:
    of, start, _ = random_systems("polytope", 6, seed=40)
    run = td.simulate(of, start, [0.0, 2.0, 20.0, 1000.0], engine=engine, frame="rescaled")
    for certificate in td.certify(run, FAMILIES["polytope"]):
        assert "fails" not in certificate.outcomes, certificate.text
        assert (certificate.outcomes == "holds").sum() >= 4, certificate.text


@pytest.mark.long
@pytest.mark.parametrize(
    ("statement", "qk", "ov"),
    [
        ("clusters-8-hull", EYE, np.diag([1.0, -0.2])),
        ("clusters-3.1", np.array([[0.2, 3.0], [-3.0, 0.2]]), EYE),
        ("clusters-12", EYE, -EYE),
    ],
)
def test_outside_the_hypotheses_rescaled_tokens_do_the_opposite(statement: str, qk: Any, ov: Any) -> None:
    start = 4 * np.array(START) if statement == "clusters-3.1" else START
    run = td.simulate(flow(qk, ov), start, np.linspace(0, 3, 13), frame="rescaled")
    assert td.certify(run, [statement])[0].outcome == "fails"


@pytest.mark.long
def test_both_frames_give_the_same_margins() -> None:
    of, start, _ = random_systems("polytope", 8, seed=50)
    times = [0.0, 1.0, 3.0, 9.0]
    frames: tuple[Literal["tokens", "rescaled"], ...] = ("tokens", "rescaled")
    pair = [
        td.certify(td.simulate(of, start, times, frame=frame, rtol=1e-10, atol=1e-12), ["clusters-3.1"])[0]
        for frame in frames
    ]
    for first, second in zip(pair[0].conditions, pair[1].conditions, strict=True):
        np.testing.assert_allclose(first.margin, second.margin, atol=1e-6)


SQUARE = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]


@pytest.mark.long
def test_four_tokens_of_a_square_refute_the_codimension_conjecture() -> None:
    """k = d = 2: at most three points, but the four keep their directions, by symmetry.

    Of z = r(t) times the square, r' = r (w − w' − 1) with weights w of itself and w' of the opposite token.
    """
    of = flow(EYE, EYE)
    (checked,) = td.check(of, np.array(SQUARE), statements=["clusters-4-codimension"])
    assert checked.applies
    runs: tuple[tuple[Literal["tokens", "rescaled"], float], ...] = (("rescaled", 1000.0), ("tokens", 10.0))
    for frame, until in runs:
        run = td.simulate(of, SQUARE, [0.0, until], frame=frame, rtol=1e-10, atol=1e-12)
        (certificate,) = td.certify(run, ["clusters-4-codimension"])
        assert certificate.outcome == "fails", certificate.text
        assert certificate.margin == -0.5
        if frame == "rescaled":

            def slope(t: float, r: np.ndarray) -> np.ndarray:
                logits = np.exp(2 * min(t, 300.0)) * r[0] ** 2 * np.array([1.0, -1.0, 0.0, 0.0])
                weights = softmax(logits)
                return r * (weights[0] - weights[1] - 1)

            size = solve_ivp(slope, (0, 30), [1.0], rtol=1e-10, atol=1e-12).y[0, -1]
            np.testing.assert_allclose(run.tensor[-1].numpy(), size * np.array(SQUARE), atol=1e-7)
    early = td.simulate(of, SQUARE, [0.0, 0.5], frame="rescaled")
    assert td.certify(early, ["clusters-4-codimension"])[0].outcome == "undecided"
    alike = td.simulate(of, np.array(SQUARE)[[0, 1, 2]], [0.0, 1000.0], frame="rescaled")
    assert td.certify(alike, ["clusters-4-codimension"])[0].outcome == "holds"


@pytest.mark.long
def test_the_codimension_conjecture_is_counted_in_the_part_that_grows() -> None:
    """k = 1: tokens that differ in the shrinking direction alone are on one line."""
    of = flow(EYE, np.diag([1.0, -0.1]))
    start = [[1.0, 0.3], [1.0, -0.4], [-1.0, 0.1], [-1.0, 0.0], [-1.0, 0.2]]
    run = td.simulate(of, start, [0.0, 8.0], frame="rescaled")
    assert td.certify(run, ["clusters-4-codimension"])[0].outcome == "holds"
    jordan = td.simulate(flow(EYE, [[1.0, 1.0], [0.0, 1.0]]), START, [0.0, 2.0], frame="rescaled")
    assert td.certify(jordan, ["clusters-4-codimension"])[0].outcome == "undecided"


LINE = [[-1.0], [0.3], [0.9]]
IN_SPACE = [[1.0, 0.5, 0.1], [-0.3, 1.2, 0.4], [0.4, -1.1, -0.8], [-1.0, -0.2, 0.3]]
STRUCTURE = (
    ({"causal": True}, "full mask"),
    ({"weights": "linear"}, "softmax weights"),
    ({"positions": td.AbsolutePositions(np.ones((4, 2)))}, "no positions"),
    ({"qk": np.stack([EYE, EYE]), "ov": np.stack([EYE, EYE])}, "one head"),
)
CHANGING = td.Periodic([EYE, 2 * EYE], period=1.0)
ASYMMETRIC = np.array([[1.0, 0.9], [-0.9, 1.0]])


@pytest.mark.parametrize(
    ("statement", "changes", "named"),
    [
        *[(name, *one) for name in ("clusters-3.1", "clusters-7") for one in STRUCTURE],
        ("clusters-3.1", {"qk": CHANGING}, "qk constant in time"),
        ("clusters-3.1", {"ov": CHANGING}, "ov constant in time"),
        ("clusters-3.1", {"qk": ASYMMETRIC}, "qk symmetric"),
        ("clusters-3.1", {"qk": np.diag([1.0, -1.0])}, "qk positive definite"),
        ("clusters-3.1", {"ov": -EYE}, "the multiples are positive"),
        ("clusters-3.1", {"ov": np.diag([1.0, 2.0])}, "ov is a multiple of the identity"),
        ("clusters-8-hull", {"weights": "linear"}, "softmax weights"),
        ("clusters-8-hull", {"ov": -EYE}, "the multiples are positive"),
        ("clusters-8-hull", {"ov": CHANGING}, "ov constant in time"),
        ("clusters-7", {"qk": -EYE}, "β above 0"),
        ("clusters-7", {"qk": np.diag([1.0, 2.0])}, "qk is a multiple of the identity"),
        ("clusters-7", {"ov": -EYE}, "the multiples are positive"),
        ("clusters-8-repelling", {"ov": EYE}, "the multiple is negative"),
        ("clusters-8-repelling", {"ov": -np.diag([1.0, 2.0])}, "ov is a multiple of the identity"),
        ("clusters-8-repelling", {"qk": -EYE, "ov": -EYE}, "β above 0"),
        ("clusters-8-repelling", {"ov": -EYE, "causal": True}, "full mask"),
        ("clusters-4", {"qk": np.diag([-1.0, 1.0]), "ov": np.diag([2.0, 1.0])}, "φ·qk φ above 0"),
        ("clusters-4", {"ov": np.diag([-2.0, 1.0])}, "the largest eigenvalue λ of ov above 0"),
        ("clusters-4", {"ov": np.diag([2.0, -2.0])}, "all others smaller in modulus"),
        ("clusters-4", {"ov": [[1.0, -1.0], [1.0, 1.0]]}, "all others smaller in modulus"),
        ("clusters-4", {"ov": EYE}, "λ simple"),
        *[(name, *one) for name in ("clusters-4-codimension", "clusters-12") for one in STRUCTURE],
        ("clusters-4-codimension", {"ov": -EYE}, "an eigenvalue of ov with a real part above 0"),
        ("clusters-4-codimension", {"ov": CHANGING}, "ov constant in time"),
        ("clusters-12", {"ov": -EYE}, "the multiples are positive"),
        ("clusters-12", {"qk": CHANGING}, "qk constant in time"),
        ("clusters-12", {"ov": np.diag([1.0, 2.0])}, "ov is a multiple of the identity"),
        ("clusters-5", {"ov": [[1.0, 1.0], [0.0, 1.0]]}, "λ with as many eigenvectors as its multiplicity"),
        ("clusters-5", {"qk": ASYMMETRIC, "ov": np.diag([2.0, 1.0])}, "qk symmetric"),
        ("clusters-5", {"ov": np.diag([2.0, -2.0])}, "all others smaller in modulus"),
        ("clusters-2.1", {"qk": [[1.0]], "ov": [[1.0]], "start": [[1.0], [0.3], [1.0]]}, "no two tokens equal"),
        ("clusters-2.1", {"qk": [[-1.0]], "ov": [[1.0]], "start": LINE}, "qk above 0"),
        ("clusters-2.1", {"qk": [[1.0]], "ov": [[-1.0]], "start": LINE}, "the multiples are positive"),
        ("clusters-2.1", {}, "tokens on a line"),
    ],
)
def test_each_hypothesis_broken_alone_is_named(statement: str, changes: dict[str, Any], named: str) -> None:
    case = {"qk": EYE, "ov": EYE, "start": START, **changes}
    start = case.pop("start")
    assert reasons(statement, flow(case.pop("qk"), case.pop("ov"), **case), start) == [named]


def test_the_space_is_named() -> None:
    sphere = td.Flow(td.Attention(EYE, EYE, causal=False), td.Sphere())
    unit = np.array(START) / np.linalg.norm(START, axis=1, keepdims=True)
    for statements in FAMILIES.values():
        for statement in statements:
            assert reasons(statement, sphere, unit)[0] == "free space"


# --- outside the hypotheses ------------------------------------------------------------------------------------------


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("statement", "qk", "ov", "start"),
    [
        ("clusters-8-hull", EYE, np.diag([1.0, 2.0]), START),
        ("clusters-8-hull", EYE, -EYE, START),
        ("clusters-3.1", np.array([[0.2, 3.0], [-3.0, 0.2]]), EYE, 4 * np.array(START)),
        ("clusters-2.1", [[-1.0]], [[1.0]], LINE),
        ("clusters-4", np.eye(3), np.diag([-1.0, 0.2, 0.3]), IN_SPACE),
        ("clusters-5", np.eye(3), np.diag([-1.0, -1.0, 0.3]), IN_SPACE),
        ("clusters-7", EYE, -EYE, START),
        ("clusters-7", -EYE, EYE, START),
        ("clusters-8-repelling", EYE, EYE, START),
    ],
)
def test_outside_the_hypotheses_the_opposite_happens(statement: str, qk: Any, ov: Any, start: Any) -> None:
    assert certified(statement, flow(qk, ov), start, np.linspace(0, 3, 13)).outcome == "fails"


@pytest.mark.long
def test_a_defective_eigenvalue_has_no_space_and_nothing_is_said() -> None:
    jordan = flow(EYE, [[1.0, 1.0], [0.0, 1.0]])
    assert certified("clusters-5", jordan, START).outcome == "undecided"
    assert certified("clusters-4", flow(EYE, EYE), START).outcome == "undecided"
    assert certified("clusters-2.1", flow(EYE, EYE), START).outcome == "undecided"


# --- other routes ----------------------------------------------------------------------------------------------------


def rescaled(qk: np.ndarray, start: np.ndarray, until: float) -> np.ndarray:
    """Integrate z = exp(−t) x itself: z_i' = Σ_j w_ij z_j − z_i with logits e^{2t} z_i·qk z_j."""

    def slope(t: float, flat: np.ndarray) -> np.ndarray:
        z = flat.reshape(start.shape)
        return (softmax(np.exp(2 * t) * (z @ qk @ z.T), axis=1) @ z - z).ravel()

    return (
        solve_ivp(slope, (0, until), start.ravel(), method="LSODA", rtol=1e-9, atol=1e-11).y[:, -1].reshape(start.shape)
    )


def test_rescaled_tokens_are_those_of_the_equation_in_z_and_stay_in_the_hull_of_the_start() -> None:
    rng = np.random.default_rng(3)
    qk, start = definite(rng, 1, 2)[0, 0], rng.normal(size=(7, 2))
    run = td.simulate(flow(qk, EYE), start, [0.0, 4.0, 10.0], rtol=1e-10, atol=1e-12)
    z = run.tensor.numpy() * np.exp(-run.times)[:, None, None]
    assert z[1] == pytest.approx(rescaled(qk, start, 4.0), abs=1e-6)
    for before, after in ((z[0], z[1]), (z[1], z[2])):
        for point in after:
            # Weights of a convex combination of the earlier tokens.
            sums = np.vstack([before.T, np.ones(len(before))])
            slack = np.hstack([sums, np.eye(3), -np.eye(3)])
            cost = np.r_[np.zeros(len(before)), np.ones(6)]
            assert linprog(cost, A_eq=slack, b_eq=np.r_[point, 1.0]).fun < 1e-8
    # In the end x·qk x of every token is its largest product with a vertex.
    limits = rescaled(qk, start, 14.0)
    products = limits @ qk @ limits.T
    assert np.diag(products) == pytest.approx(products.max(axis=1), abs=1e-4)
    assert np.abs(z[2] - limits).max() < 1e-3


def test_the_token_in_the_middle_of_a_symmetric_line_keeps_the_one_free_row() -> None:
    of = flow([[1.0]], [[1.0]])
    run = td.simulate(of, [[-0.8], [0.0], [0.8]], [0.0, 1.0, 2.0])
    weights = of.attention.pattern(run.tensor[-1])[0]
    assert weights.numpy() == pytest.approx(np.array([[1, 0, 0], [1 / 3, 1 / 3, 1 / 3], [0, 0, 1]]), abs=1e-6)
    (certificate,) = td.certify(run, ["clusters-2.1"])
    assert certificate.outcome == "holds"
    early = td.certify(td.simulate(of, [[-0.1], [0.0], [0.1]], [0.0, 0.1]), ["clusters-2.1"])[0]
    assert early.outcome == "undecided"


def test_the_functional_is_the_left_eigenvector_with_value_one_at_the_right_one() -> None:
    ov = np.array([[1.0, 0.4, 0.0], [0.0, 0.3, 0.2], [0.0, -0.2, 0.3]])
    values, left = np.linalg.eig(ov.T)
    functional = np.real(left[:, np.argmax(np.real(values))])
    functional /= functional[0]  # φ is the first axis
    run = td.simulate(flow(np.eye(3), ov), np.array(IN_SPACE), np.linspace(0, 9, 10))
    levels = run.tensor.numpy() @ functional * np.exp(-run.times)[:, None]
    assert (np.diff(levels.max(axis=1)) <= 1e-7).all()
    assert (np.diff(levels.min(axis=1)) >= -1e-7).all()
    known = np.array([0.0, levels[-1].min(), levels[-1].max()])
    assert np.abs(levels[-1][:, None] - known).min(axis=1).max() < 1e-3
    assert td.certify(run, ["clusters-4"])[0].outcome == "holds"


def test_a_defect_of_the_proof_is_no_defect_of_the_statement_in_its_witness() -> None:
    # The square root of this qk does not keep F, the first axis, and G, the second.
    certificate = certified(
        "clusters-5", flow([[2.0, 1.0], [1.0, 1.0]], np.diag([1.0, 0.5])), START, np.linspace(0, 12, 7)
    )
    assert certificate.outcome == "holds", certificate.text


@pytest.mark.long
def test_the_integral_of_speeds_is_what_the_potential_loses() -> None:
    of = flow(EYE, -2 * EYE)
    run = td.simulate(of, np.array(START), np.linspace(0, 5, 401), rtol=1e-11, atol=1e-12)
    x = run.tensor.numpy()
    weights = np.exp(x @ x.transpose(0, 2, 1))
    speeds = np.stack([of.velocity(state) for state in x])
    spent = (weights.sum(axis=2) * (speeds**2).sum(axis=2)).sum(axis=1)
    lost = weights.sum(axis=(1, 2))
    # h' = −2 Σ_i Z_i |x_i'|²/c with Z_i ≥ 1, and so ∫ Σ_i |x_i'|² ≤ c (h(0) − h)/2.
    assert simpson(spent, x=run.times) == pytest.approx(2 * (lost[0] - lost[-1]) / 2, rel=1e-3)
    assert td.certify(run, ["clusters-8-repelling"])[0].conditions[-1].outcome == "holds"
