"""A system that violates exactly one hypothesis is refused for that one and no other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from tokendynamics.attention import AbsolutePositions, Attention, Periodic, Sinusoidal
from tokendynamics.dynamics import Flow
from tokendynamics.spaces import Ellipsoid, Free, Sphere
from tokendynamics.theorems import Check, check

EYE = torch.eye(3, dtype=torch.float64)
P = torch.tensor(
    [[0.9432, 0.0587, -0.1813], [0.0587, 0.8450, -0.1013], [-0.1813, -0.1013, 0.5519]], dtype=torch.float64
)
SKEW = torch.tensor([[0.0, 0.3, 0.1], [-0.3, 0.0, 0.2], [-0.1, -0.2, 0.0]], dtype=torch.float64)
OV = torch.tensor([[0.7, 0.2, 0.0], [0.2, -0.4, 0.1], [0.0, 0.1, 0.3]], dtype=torch.float64)
REGULAR = EYE + SKEW + 0.2 * P
POSITIONS = AbsolutePositions.sinusoidal(4, 3)
ON_ONE_SIDE = torch.tensor([[1.0, 0.1, 0.2], [0.8, -0.5, 0.1], [0.9, 0.3, -0.6], [0.7, 0.2, 0.5]], dtype=torch.float64)
ON_BOTH_SIDES = torch.cat([ON_ONE_SIDE[:3], -ON_ONE_SIDE[3:]])
AROUND = torch.tensor([[1.0, 0, 0], [-1.0, 1, 0], [-1.0, -1, 1], [0, 0, -1.0]], dtype=torch.float64)
AT_THE_ANTIPODE = torch.cat([ON_ONE_SIDE[:3], -ON_ONE_SIDE[:1]])
LINE = torch.tensor([[1.0], [1.0]], dtype=torch.float64)

MULTIPLE = "ov is a multiple of the identity"

Case = tuple[str, str, Callable[[], Flow], Tensor]


def gradient(**changes: object) -> Flow:
    return _flow({"qk": P, "ov": EYE, "space": Ellipsoid(P)}, changes)


def half_space(**changes: object) -> Flow:
    qk = Sinusoidal(torch.stack([P, SKEW]), 1.0, 2.0, 0.5)
    return _flow({"qk": qk, "ov": torch.stack([EYE, EYE]), "space": Ellipsoid(P)}, changes)


def causal(**changes: object) -> Flow:
    qk = Sinusoidal(P + SKEW, 1.0, 2.0, 0.5, absolute=True)
    return _flow({"qk": qk, "ov": EYE, "space": Sphere(), "causal": True}, changes)


def other_projection(**changes: object) -> Flow:
    made = {"qk": P, "ov": REGULAR, "space": Ellipsoid(REGULAR.mT @ REGULAR), "causal": True}
    return _flow({**made, "projection": "remark_5_1"}, changes)


def eigenvector(**changes: object) -> Flow:
    return _flow({"qk": P + SKEW, "ov": OV, "space": Sphere(), "causal": True}, changes)


def _flow(made: dict, changes: dict) -> Flow:
    options = {**made, **changes}
    space, projection = options.pop("space"), options.pop("projection", "orthogonal")
    return Flow(Attention(options.pop("qk"), options.pop("ov"), **options), space, projection=projection)


def top(ov: Tensor) -> Tensor:
    """Tokens on the side of the top eigenvector of ov."""
    v = torch.linalg.eigh((ov + ov.mT) / 2).eigenvectors[:, -1:]
    return AROUND * (AROUND @ v).sign()


GRADIENT: list[tuple[str, Callable[[], Flow]]] = [
    ("tokens on an ellipsoid", lambda: gradient(space=Free())),
    ("softmax weights", lambda: gradient(weights="linear")),
    ("no positions", lambda: gradient(positions=POSITIONS)),
    ("full mask", lambda: gradient(causal=True)),
    ("one head", lambda: gradient(qk=torch.stack([P, P]), ov=torch.stack([EYE, EYE]))),
    ("ov is the identity", lambda: gradient(ov=2 * EYE)),
    ("qk constant in time", lambda: gradient(qk=Periodic(torch.stack([P, P + EYE]), 1.0))),
    ("qk symmetric", lambda: gradient(qk=P + SKEW)),
    ("qk positive definite", lambda: gradient(qk=P - EYE)),
    ("M = c · qk", lambda: gradient(space=Sphere())),
]
CASES: list[Case] = [
    *((name, claim, flow, AROUND) for name in ("asymptotic-3.1", "asymptotic-3.2") for claim, flow in GRADIENT),
    ("asymptotic-4.1", "tokens on an ellipsoid", lambda: half_space(space=Free()), ON_ONE_SIDE),
    ("asymptotic-4.1", "softmax weights", lambda: half_space(weights="linear"), ON_ONE_SIDE),
    ("asymptotic-4.1", "no positions", lambda: half_space(positions=POSITIONS), ON_ONE_SIDE),
    ("asymptotic-4.1", "full mask", lambda: half_space(causal=True), ON_ONE_SIDE),
    ("asymptotic-4.1", "the multiples are positive", lambda: half_space(ov=torch.stack([EYE, -EYE])), ON_ONE_SIDE),
    ("asymptotic-4.1", "the multiples are positive", lambda: half_space(ov=torch.stack([EYE, 0 * EYE])), ON_ONE_SIDE),
    ("asymptotic-4.1", MULTIPLE, lambda: half_space(ov=torch.stack([EYE, P])), ON_ONE_SIDE),
    ("asymptotic-4.1", "start in an open half space", half_space, AROUND),
    ("asymptotic-5.1", "tokens on the sphere", lambda: causal(space=Ellipsoid(P)), AROUND),
    ("asymptotic-5.1", "dim at least 2", lambda: causal(qk=[[1.0]], ov=[[1.0]]), LINE),
    ("asymptotic-5.1", "softmax weights", lambda: causal(weights="linear"), AROUND),
    ("asymptotic-5.1", "no positions", lambda: causal(positions=POSITIONS), AROUND),
    ("asymptotic-5.1", "causal mask", lambda: causal(causal=False), AROUND),
    ("asymptotic-5.1", MULTIPLE, lambda: causal(ov=OV), AROUND),
    ("asymptotic-5.1", "the multiples are positive", lambda: causal(ov=-EYE), AROUND),
    ("asymptotic-5.1", "no token at the antipode of token 1", causal, AT_THE_ANTIPODE),
    ("asymptotic-remark-5.1", "remark_5_1 projection", lambda: other_projection(projection="orthogonal"), AROUND),
    ("asymptotic-remark-5.1", "softmax weights", lambda: other_projection(weights="linear"), AROUND),
    ("asymptotic-remark-5.1", "no positions", lambda: other_projection(positions=POSITIONS), AROUND),
    ("asymptotic-remark-5.1", "causal mask", lambda: other_projection(causal=False), AROUND),
    ("asymptotic-remark-5.1", "no token at the antipode of token 1", other_projection, AT_THE_ANTIPODE),
    ("asymptotic-6.1", "tokens on the sphere", lambda: eigenvector(space=Ellipsoid(P)), top(OV)),
    (
        "asymptotic-6.1",
        "orthogonal projection",
        lambda: eigenvector(ov=torch.diag(torch.tensor([1.0, -1.0, -1.0]).double()), projection="remark_5_1"),
        ON_ONE_SIDE,
    ),
    ("asymptotic-6.1", "softmax weights", lambda: eigenvector(weights="linear"), top(OV)),
    ("asymptotic-6.1", "no positions", lambda: eigenvector(positions=POSITIONS), top(OV)),
    ("asymptotic-6.1", "causal mask", lambda: eigenvector(causal=False), top(OV)),
    ("asymptotic-6.1", "one head", lambda: eigenvector(qk=torch.stack([P, P]), ov=torch.stack([OV, OV])), top(OV)),
    ("asymptotic-6.1", "ov constant in time", lambda: eigenvector(ov=Periodic(torch.stack([OV, P]), 1.0)), top(OV)),
    ("asymptotic-6.1", "ov symmetric", lambda: eigenvector(ov=OV + SKEW), top(OV)),
    ("asymptotic-6.1", "top eigenvalue of ov positive", lambda: eigenvector(ov=OV - EYE), top(OV)),
    ("asymptotic-6.1", "top eigenvalue of ov simple", lambda: eigenvector(ov=EYE), top(OV)),
    ("asymptotic-6.1", "all v·y_i of one sign", eigenvector, torch.cat([top(OV)[:3], -top(OV)[3:]])),
]
SATISFIED: list[tuple[str, Callable[[], Flow], Tensor]] = [
    ("asymptotic-3.1", gradient, AROUND),
    ("asymptotic-3.2", gradient, AROUND),
    ("asymptotic-4.1", half_space, ON_ONE_SIDE),
    ("asymptotic-5.1", causal, AROUND),
    ("asymptotic-remark-4.2", causal, AROUND),
    ("asymptotic-remark-5.1", other_projection, AROUND),
    ("asymptotic-6.1", eigenvector, top(OV)),
    ("asymptotic-6.1", eigenvector, -top(OV)),
]


def found(statement: str, flow: Flow, start: Tensor, times: Sequence[float] | None = None) -> Check:
    return {one.statement: one for one in check(flow, start, times)}[statement]


@pytest.mark.parametrize(("statement", "flow", "start"), SATISFIED)
def test_a_statement_applies_where_its_hypotheses_hold(statement: str, flow: Callable[[], Flow], start: Tensor) -> None:
    result = found(statement, flow(), start)
    assert result.reasons == ()
    assert result.applies
    assert result.prediction is not None
    assert all(one.margin is None or one.margin >= 0 for one in result.hypotheses)


@pytest.mark.parametrize(("statement", "violated", "flow", "start"), CASES, ids=[f"{c[0]} {c[1]}" for c in CASES])
def test_the_one_violated_hypothesis_is_named_and_no_other(
    statement: str, violated: str, flow: Callable[[], Flow], start: Tensor
) -> None:
    result = found(statement, flow(), start)
    assert not result.applies
    assert result.prediction is None
    assert [one.name for one in result.hypotheses if one.holds is False] == [violated]
    assert [reason.partition(":")[0] for reason in result.reasons] == [violated]
    assert all(one.margin is None or one.margin <= 0 for one in result.hypotheses if one.holds is False)


def test_circuits_and_start_are_measured_only_on_a_flow_of_the_right_structure() -> None:
    both = found("asymptotic-6.1", eigenvector(ov=OV + SKEW, causal=False, weights="linear"), AROUND)
    assert [reason.partition(":")[0] for reason in both.reasons] == ["softmax weights", "causal mask"]
    assert not any("ov" in one.name for one in both.hypotheses)


def test_a_large_flow_of_another_structure_is_not_measured() -> None:
    asked = []

    def counted(time: float) -> Tensor:
        asked.append(time)
        return torch.stack([P, P])

    flow = Flow(Attention(counted, torch.stack([EYE, EYE]), weights="linear"), Sphere())
    asked.clear()
    checks = check(flow, AROUND, [0.0, 20.0])
    assert [one.statement for one in checks if one.applies] == ["asymptotic-remark-4.2"]
    # Its shape is asked at the first time, and nothing at other times.
    assert set(asked) == {0.0}


def test_a_check_is_printed_as_one_line() -> None:
    applies, refused = (found(name, causal(), AROUND) for name in ("asymptotic-5.1", "asymptotic-4.1"))
    assert str(applies) == f"asymptotic-5.1: applies if {applies.assumed[0]}: {applies.prediction.text}"
    assert str(refused) == "asymptotic-4.1: does not apply: full mask: the mask is causal"
    assert len(repr(refused)) < 100


def test_what_a_callable_does_at_all_times_is_assumed_and_never_checked() -> None:
    flow = half_space(qk=lambda t: torch.stack([P * math.cos(t), SKEW]), ov=lambda t: torch.stack([EYE, EYE]))
    result = found("asymptotic-4.1", flow, ON_ONE_SIDE, [0.0, 20.0])
    assert result.applies
    unmeasured = [one for one in result.hypotheses if one.holds is None]
    assert [one.name for one in unmeasured] == [MULTIPLE, "qk bounded"]
    assert all(one.margin is None for one in unmeasured)
    assert [text.partition(":")[0] for text in result.assumed] == [one.name for one in unmeasured]


def test_a_callable_that_leaves_the_multiples_of_the_identity_is_refused() -> None:
    flow = half_space(ov=lambda t: torch.stack([EYE, EYE + 1e-3 * t * P]))
    reasons = found("asymptotic-4.1", flow, ON_ONE_SIDE, [0.0, 20.0]).reasons
    assert [reason.partition(":")[0] for reason in reasons] == [MULTIPLE]


def test_jumps_of_qk_break_no_hypothesis() -> None:
    qk = Periodic(torch.stack([P, P + 0.25 * EYE]), 1.0)
    assert found("asymptotic-4.1", gradient(qk=qk), ON_ONE_SIDE).applies
    assert found("asymptotic-5.1", causal(qk=qk), AROUND).applies
    assert found("asymptotic-6.1", eigenvector(qk=qk), top(OV)).applies
    assert not found("asymptotic-3.1", gradient(qk=qk), ON_ONE_SIDE).applies
    still = Periodic(torch.stack([P, P]), 1.0)
    assert found("asymptotic-3.1", gradient(qk=still), ON_ONE_SIDE).applies


def test_margins_are_those_of_the_worst_system_of_a_batch() -> None:
    shallow = torch.tensor([[1.0, 0.05, 0.0], [-1.0, 0.05, 0.0], [0.0, 1.0, 0.1], [0.0, 1.0, 0.0]]).double()
    batch = torch.stack([ON_ONE_SIDE, shallow])
    alone, both = (found("asymptotic-4.1", half_space(), start) for start in (shallow, batch))
    assert both.applies
    assert both.hypotheses[-1].margin == alone.hypotheses[-1].margin == pytest.approx(0.05, rel=2e-3)
    assert not found("asymptotic-4.1", half_space(), torch.stack([ON_ONE_SIDE, AROUND])).applies


def test_the_margin_is_the_distance_to_violation() -> None:
    defect = 3e-6
    changed = EYE.clone()
    changed[0, 1] += defect
    hypothesis = next(
        one for one in found("asymptotic-5.1", causal(ov=changed), AROUND).hypotheses if one.holds is False
    )
    assert hypothesis.margin == pytest.approx(-defect, rel=1e-6)
    gap = next(one for one in found("asymptotic-6.1", eigenvector(), top(OV)).hypotheses if "simple" in one.name)
    values = torch.linalg.eigvalsh(OV)
    assert gap.margin == pytest.approx(float((values[2] - values[1]) / values.abs().max()), rel=1e-6)


def test_the_projection_of_remark_5_1_leaves_the_identity_as_value_matrix() -> None:
    # Its field is Σ w_ij (y_j − (y_i^T M y_j) y_i): with a full mask theorem 4.1 speaks of it.
    result = found("asymptotic-4.1", other_projection(causal=False), ON_ONE_SIDE)
    assert result.applies
