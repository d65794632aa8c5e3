"""A flow that violates exactly one hypothesis of a statement of `positional` is refused for that one and no other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tokendynamics.attention import AbsolutePositions, Attention, RotaryPositions, Sinusoidal
from tokendynamics.dynamics import Flow
from tokendynamics.spaces import Free, Sphere
from tokendynamics.theorems import Check, check
from tokendynamics.theorems.contraction import contraction_form, symmetric_contraction

EYE = torch.eye(2, dtype=torch.float64)
QK = torch.tensor([[1.0, 0.2], [0.2, 0.8]], dtype=torch.float64)
A = torch.tensor([[-1.0, 0.3], [0.3, -0.7]], dtype=torch.float64)
SKEW = torch.tensor([[0.0, 0.3], [-0.3, 0.0]], dtype=torch.float64)
INDEFINITE = torch.tensor([[1.0, 0.4], [0.4, -0.8]], dtype=torch.float64)
OV = torch.linalg.solve(A, QK)
GROWING = torch.tensor([[0.5, 0.7], [0.0, -1.0]], dtype=torch.float64)
ROTATION = torch.tensor([[0.1, -1.0], [1.0, 0.1]], dtype=torch.float64)
X0 = torch.tensor([[0.9, 0.1], [-0.2, 1.1], [0.4, -0.7]], dtype=torch.float64)
ABSOLUTE = AbsolutePositions.sinusoidal(3, 2)
ROTARY = RotaryPositions(EYE, 0.5 * EYE)


def of_form(form: torch.Tensor, qk: torch.Tensor = QK, **options: object) -> Flow:
    return Flow(Attention(qk, torch.linalg.solve(form, qk), **options), Free())


def flow(qk: object = QK, ov: object = OV, space: object = None, **options: object) -> Flow:
    return Flow(Attention(qk, ov, **options), space or Free())


def moving(matrix: torch.Tensor) -> Sinusoidal:
    """Equal to the matrix at t = 0."""
    return Sinusoidal(matrix, 1.0, 2.0, math.pi / 2)


ANY_FORM = [
    ("free space", flow(space=Sphere())),
    ("softmax weights", flow(weights="linear")),
    ("one head", flow(torch.stack([QK, QK]), torch.stack([OV, OV]))),
    ("qk constant in time", flow(moving(QK))),
    ("ov constant in time", flow(ov=moving(OV))),
    ("ov invertible", flow(ov=torch.tensor([[-1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64))),
    ("A symmetric", of_form(A + SKEW)),
]
NO_POSITIONS = [("no positions", flow(positions=ABSOLUTE)), ("no positions", flow(positions=ROTARY))]
FULL = [("full mask", flow(causal=True))]
SIGNS = [
    ("A negative definite", of_form(-A)),
    ("A negative definite", of_form(INDEFINITE)),
    ("qk symmetric", of_form(A, QK + SKEW)),
    ("qk positive definite", of_form(A, INDEFINITE)),
]
EXPANDING = [
    ("free space", flow(ov=GROWING, space=Sphere())),
    ("softmax weights", flow(ov=GROWING, weights="linear")),
    ("ov constant in time", flow(ov=moving(GROWING))),
    ("ov has a real positive eigenvalue", flow(ov=-EYE)),
    ("ov has a real positive eigenvalue", flow(ov=ROTATION)),
    ("ov has a real positive eigenvalue, with an eigenvector", flow(torch.stack([QK, QK]), torch.stack([GROWING, A]))),
    (
        "ov has a real positive eigenvalue, with an eigenvector",
        flow(torch.stack([QK, QK]), torch.stack([EYE, -0.5 * EYE])),
    ),
]


def placed(cases: list[tuple[str, Flow]], positions: object) -> list[tuple[str, Flow]]:
    """The same cases with positions."""
    made = []
    for name, one in cases:
        there = one.attention
        attention = Attention(there.qk, there.ov, causal=there.causal, weights=there.weights, positions=positions)
        made.append((name, Flow(attention, one.space)))
    return made


CASES = [
    *(("positional-3.1", *case) for case in [*ANY_FORM, *NO_POSITIONS, *FULL]),
    *(("positional-3.3", *case) for case in [*ANY_FORM, *NO_POSITIONS]),
    *(("positional-3.4", *case) for case in [*ANY_FORM, *NO_POSITIONS, *FULL, *SIGNS]),
    *(("positional-3.6", *case) for case in EXPANDING),
    ("positional-3.6", "no positions", flow(ov=GROWING, positions=ABSOLUTE)),
    ("positional-3.6", "no positions", flow(ov=GROWING, positions=ROTARY)),
    *(("positional-C.1", *case) for case in placed([*ANY_FORM, *FULL, *SIGNS], ABSOLUTE)),
    ("positional-C.1", "absolute positions", flow()),
    ("positional-C.1", "absolute positions", flow(positions=ROTARY)),
    *(("positional-C.2", *case) for case in placed(EXPANDING, ABSOLUTE)),
    ("positional-C.2", "absolute positions", flow(ov=GROWING)),
    *(("positional-C.3", *case) for case in placed(EXPANDING, ROTARY)),
    ("positional-C.3", "rotary positions", flow(ov=GROWING, positions=ABSOLUTE)),
]


def checked(name: str, one: Flow) -> Check:
    return next(entry for entry in check(one, X0) if entry.statement == name)


@pytest.mark.parametrize(("statement", "hypothesis", "violating"), CASES)
def test_the_one_violated_hypothesis_is_named(statement: str, hypothesis: str, violating: Flow) -> None:
    result = checked(statement, violating)
    assert not result.applies
    assert result.prediction is None
    assert len(result.reasons) == 1, result.reasons
    assert result.reasons[0].startswith(hypothesis)
    (violated,) = [one for one in result.hypotheses if one.holds is False]
    assert violated.margin is None or violated.margin <= 0


@pytest.mark.parametrize(
    ("statement", "obedient"),
    [
        ("positional-3.1", of_form(INDEFINITE, QK + SKEW)),
        ("positional-3.3", of_form(INDEFINITE, QK + SKEW, causal=True)),
        ("positional-3.4", flow()),
        ("positional-3.6", flow(moving(QK), GROWING, causal=True)),
        ("positional-C.1", flow(positions=ABSOLUTE)),
        ("positional-C.2", flow(ov=GROWING, positions=ABSOLUTE, causal=True)),
        ("positional-C.3", flow(ov=GROWING, positions=ROTARY, causal=True)),
    ],
)
def test_a_flow_that_satisfies_all_is_accepted(statement: str, obedient: Flow) -> None:
    result = checked(statement, obedient)
    assert result.applies, result.reasons
    assert all(one.margin is None or one.margin >= 0 for one in result.hypotheses)


def test_a_singular_value_matrix_is_reported_with_its_rank() -> None:
    result = checked("positional-3.1", flow(ov=torch.tensor([[1.0, 2.0], [2.0, 4.0]], dtype=torch.float64)))
    assert "rank 1 of 2" in result.reasons[0]
    assert "undefined" in result.reasons[0]


def test_a_false_claim_is_refused_even_where_all_that_it_supposes_is_given() -> None:
    asymmetric = of_form(A + SKEW)
    for name in ("positional-remark-3.2", "positional-remark-3.5"):
        (reason,) = checked(name, asymmetric).reasons
        assert reason.startswith("the remark is false: ")
    assert (
        "it predicts the outcome “zero”; the eigenvalues of ov"
        in checked("positional-remark-3.5", asymmetric).reasons[0]
    )


def test_a_false_claim_is_not_judged_on_a_flow_it_does_not_speak_of() -> None:
    on_a_sphere = flow(QK + SKEW, space=Sphere())
    for name in ("positional-remark-3.2", "positional-remark-3.5"):
        assert checked(name, on_a_sphere).reasons == ("free space: the space is sphere",)
    # A matrix that varies has the signs and the spectrum of no moment in particular.
    assert checked("positional-remark-3.5", flow(moving(QK + SKEW))).reasons[0].startswith("qk constant in time")
    assert len(checked("positional-remark-3.5", flow(moving(QK + SKEW))).reasons) == 1


def test_the_remarks_leave_symmetric_matrices_to_the_theorems() -> None:
    assert checked("positional-remark-3.2", flow()).reasons[0].startswith("A not symmetric")
    assert checked("positional-remark-3.5", flow()).reasons[0].startswith("A or qk not symmetric")


def ill_conditioned(dim: int, size: float, seed: int) -> torch.Tensor:
    """A matrix whose singular values go from 1 down to `size`."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.normal(size=(dim, dim)))[0] for _ in range(2))
    return torch.from_numpy(left * np.geomspace(1, size, dim) @ right)


@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-9])
def test_rounding_in_a_is_allowed_as_much_as_the_condition_of_ov_makes(size: float) -> None:
    ov = ill_conditioned(4, size, 3)
    a = torch.from_numpy(np.diag([1.0, -2.0, 3.0, 0.5]) + 0.1)
    exact, tilted = a @ ov, (a + 1e3 * np.finfo(float).eps / size * torch.ones(4, 4).triu(1)) @ ov
    for qk, holds in ((exact, True), (tilted, False)):
        form = contraction_form(Flow(Attention(qk, ov), Free()))
        (_, computed) = symmetric_contraction(form)
        assert computed.holds is holds
        assert computed.tolerance == pytest.approx(max(1e-12, 16 * 4 * np.finfo(float).eps / size), rel=1e-3)


def test_an_ill_conditioned_system_does_not_loosen_the_others() -> None:
    ov = torch.stack([ill_conditioned(3, 1e-9, 0), ill_conditioned(3, 0.5, 1)])[:, None]
    a = torch.eye(3).double() + torch.tensor([[0.0, 3e-6, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    flow = Flow(Attention(a @ ov, ov), Free())
    (_, computed) = symmetric_contraction(contraction_form(flow))
    assert computed.holds is False
    assert computed.at is not None
    assert computed.at.tolist() == [True, False]
    assert "is 3 × 10⁻⁶, at most 1 × 10⁻¹² allowed" in computed.text
