"""Where the theorems hold beyond the print: multiples, bounded circuits, a rate, and the precision that came."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from tokendynamics.attention import Attention, Periodic, Sinusoidal
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.spaces import Ellipsoid, Free, Sphere
from tokendynamics.theorems import Certificate, Check, certify, check
from tokendynamics.theorems.statements._asymptotic_4_1 import width_rate

EYE = torch.eye(3, dtype=torch.float64)
FORM = torch.tensor([[1.2, 0.3, 0.0], [0.3, 0.9, -0.2], [0.0, -0.2, 0.7]], dtype=torch.float64)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def one_sided(seed: int, tokens: int = 5) -> Tensor:
    start = drawn(seed, tokens, 3)
    start[:, 0] = start[:, 0].abs() + 0.3
    return start


def the(statement: str, flow: Flow, start: Tensor, times: Sequence[float] | None = None) -> Check:
    return next(one for one in check(flow, start, times) if one.statement == statement)


def certified(statement: str, flow: Flow, start: Tensor, end: float = 20.0) -> Certificate:
    run = simulate(flow, start, np.linspace(0.0, end, 21), engine="batched")
    return certify(run, [statement])[0]


@pytest.mark.few(3)
@pytest.mark.parametrize("statement", ["asymptotic-3.1", "asymptotic-3.2"])
@pytest.mark.parametrize("beta", [0.5, 1.0, 25.0, 1000.0])
def test_the_gradient_flow_needs_qk_up_to_a_positive_factor(statement: str, beta: float) -> None:
    for flow in (Flow(Attention(beta * EYE, EYE), Sphere()), Flow(Attention(FORM, EYE), Ellipsoid(beta * FORM))):
        assert the(statement, flow, drawn(1, 4, 3)).applies
        assert certified(statement, flow, drawn(1, 4, 3), end=2.0).outcome != "fails"
    other = Flow(Attention(FORM, EYE), Ellipsoid(beta * FORM + 1e-6 * beta * torch.diag(EYE[0])))
    negative = Flow(Attention(-beta * EYE, EYE), Sphere())
    for flow in (other, negative):
        assert not the(statement, flow, drawn(1, 4, 3)).applies


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(4))
def test_heads_may_have_positive_multiples_of_the_identity(seed: int) -> None:
    multiples = drawn(seed, 2).abs() + 0.2
    ov = multiples[:, None, None] * EYE
    full, causal = (Flow(Attention(drawn(seed + 9, 2, 3, 3), ov, causal=mask), Sphere()) for mask in (False, True))
    for statement, flow in (("asymptotic-4.1", full), ("asymptotic-5.1", causal)):
        result = the(statement, flow, one_sided(seed))
        assert result.applies
        share = 1.0 if flow is full else 0.5
        assert result.prediction is not None
        assert result.prediction.rate == pytest.approx(share * float(multiples.sum()) / math.sqrt(3))
        assert certified(statement, flow, one_sided(seed), end=60.0).outcome == "holds"


def test_a_multiple_that_is_not_above_zero_is_refused() -> None:
    start = one_sided(0)
    for ov in (-EYE, 0 * EYE, Sinusoidal(EYE, 1.0, 1e-4, math.pi / 2), Sinusoidal(EYE, 1.0, 1.0, 0.0, absolute=True)):
        assert not the("asymptotic-4.1", Flow(Attention(EYE, ov), Sphere()), start).applies
        assert not the("asymptotic-5.1", Flow(Attention(EYE, ov, causal=True), Sphere()), start).applies
    layers = Periodic(torch.stack([EYE, 0.5 * EYE]), 1.0)
    assert the("asymptotic-4.1", Flow(Attention(EYE, layers), Sphere()), start).applies
    assert not the(
        "asymptotic-4.1", Flow(Attention(EYE, Periodic(torch.stack([EYE, -EYE]), 1.0)), Sphere()), start
    ).applies


def bounded_flow(seed: int) -> Flow:
    """One or two heads whose qk is constant, gated or a period of layers, on a sphere or an ellipsoid."""
    heads, qk = 1 + seed % 2, 0.5 * drawn(seed, 4, 1 + seed % 2, 3, 3)
    kinds = (qk[0], Sinusoidal(qk[0], 1.5, 2.0, 0.3), Periodic(qk, 1.0))
    ov = (drawn(seed + 50, heads).abs() + 0.5)[:, None, None] * EYE
    return Flow(Attention(kinds[seed % 3], ov), Sphere() if seed % 4 < 2 else Ellipsoid(FORM))


def independent_rate(flow: Flow, start: np.ndarray) -> float:
    """Compute the proved rate with numpy, from the largest norms of qk over a fine grid of times."""
    metric = np.eye(3) if flow.geometry.metric is None else flow.geometry.metric.numpy()
    y = start / np.sqrt(np.einsum("id,de,ie->i", start, metric, start))[:, None]
    grid = np.linspace(0, 4 * math.pi, 4001)
    norms = np.max([np.linalg.norm(flow.attention.qk.matrix_at(t).numpy(), 2, axis=(1, 2)) for t in grid[:-1]], axis=0)
    multiples = flow.attention.ov.matrix_at(0.0).numpy()[:, 0, 0]
    directions = np.random.default_rng(0).normal(size=(20000, 3))
    inverse = np.linalg.inv(metric)
    reach = np.sqrt(np.einsum("nd,de,ne->n", directions, inverse, directions))
    deepest = ((y @ directions.T).min(axis=0) / reach).max()
    weights = multiples * np.exp(-2 * norms * np.linalg.norm(inverse, 2))
    return float(weights.sum() * deepest / math.sqrt(3))


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(12))
def test_widths_in_the_half_space_fall_at_least_at_the_proved_rate(seed: int) -> None:
    flow, start = bounded_flow(seed), one_sided(seed)
    result = the("asymptotic-4.1", flow, start)
    assert result.applies
    rate = float(width_rate(flow, start))
    # The deepest half space of a random search is at most as deep, and depths are measured in the plain length here.
    assert rate == pytest.approx(independent_rate(flow, start.numpy()), rel=0.25)
    assert certified("asymptotic-4.1", flow, start, end=3.0).outcome != "fails"


def test_tokens_that_come_together_too_slowly_refute_the_rate_at_a_finite_time() -> None:
    flow, start = Flow(Attention(0 * EYE, EYE, normalization="plain"), Sphere()), one_sided(3)
    run = simulate(flow, start, np.linspace(0.0, 4.0, 9), engine="batched")
    assert certify(run, ["asymptotic-4.1"])[0].outcome == "undecided"  # and nothing violated so far
    # The states of a run at a tenth of the speed.
    slow = simulate(flow, start, np.linspace(0.0, 0.4, 9), engine="batched")
    forged = dataclasses.replace(run, states=slow.states, tensor=slow.tensor)
    computed = certify(forged, ["asymptotic-4.1"])[0]
    assert computed.outcome == "fails"
    assert "at the proved rate" in computed.text
    assert computed.first_failure is not None


@pytest.mark.parametrize("seed", range(3))
def test_flows_that_violate_the_hypotheses_refute_the_certificate(seed: int) -> None:
    away = Flow(Attention(EYE, -EYE), Sphere())
    assert certified("asymptotic-4.1", away, one_sided(seed)).outcome == "fails"
    assert not the("asymptotic-4.1", away, one_sided(seed)).applies


def test_nothing_is_proved_of_a_rate_where_qk_is_not_known_at_all_times() -> None:
    flow = Flow(Attention(lambda t: EYE * math.cos(t), EYE), Sphere())
    assert float(width_rate(flow, one_sided(0))) == 0.0
    assert the("asymptotic-4.1", flow, one_sided(0), [0.0, 20.0]).applies


def test_symmetry_is_measured_in_the_precision_that_came() -> None:
    defect = torch.zeros(3, 3, dtype=torch.float64)
    defect[0, 1] = 5e-8
    off = FORM + defect
    for dtype, accepted in ((torch.float32, True), (torch.float64, False)):
        qk = off.to(dtype)
        gradient = Flow(Attention(qk, EYE.to(dtype)), Ellipsoid(FORM.to(dtype)))
        assert the("asymptotic-3.1", gradient, drawn(1, 4, 3)).applies is accepted
        values = Flow(Attention(EYE.to(dtype), qk, causal=True), Sphere())
        top = torch.linalg.eigh(FORM).eigenvectors[:, -1]
        assert the("asymptotic-6.1", values, top + 0.1 * drawn(2, 4, 3)).applies is accepted
        free = Flow(Attention(qk, -EYE.to(dtype)), Free())
        assert the("positional-3.4", free, drawn(1, 4, 3)).applies is accepted
    assert certified("asymptotic-3.1", Flow(Attention(off.float(), EYE.float()), Ellipsoid(FORM.float())),
                     drawn(1, 4, 3).float()).outcome == "holds"  # fmt: skip


def test_an_ill_conditioned_ov_excuses_no_visible_asymmetry() -> None:
    ov = torch.diag(torch.tensor([1.0, 1e-13], dtype=torch.float64))
    symmetric = torch.tensor([[-2.0, 0.5], [0.5, -1.0]], dtype=torch.float64)
    skewed = symmetric + torch.tensor([[0.0, 0.1], [0.0, 0.0]], dtype=torch.float64)
    start = drawn(0, 3, 2)
    assert the("positional-3.1", Flow(Attention(symmetric @ ov, ov), Free()), start).applies
    assert not the("positional-3.1", Flow(Attention(skewed @ ov, ov), Free()), start).applies
    mild = torch.diag(torch.tensor([1.0, 1e-3], dtype=torch.float64))
    assert the("positional-3.1", Flow(Attention(symmetric @ mild, mild), Free()), start).applies
    assert not the("positional-3.1", Flow(Attention(skewed @ mild, mild), Free()), start).applies


@pytest.mark.long
def test_every_hypothesis_on_matrices_is_measured_in_the_precision_that_came() -> None:
    turn = torch.linalg.qr(drawn(4, 3, 3)).Q
    double, start = turn @ torch.diag(torch.tensor([1.0, 1.0, -0.5]).double()) @ turn.mT, one_sided(1)
    around = torch.cat([one_sided(0), -one_sided(0)])  # 0 is in their hull
    for dtype in (torch.float64, torch.float32):
        eye, form, values = EYE.to(dtype), FORM.to(dtype), (EYE + 0.3 * FORM @ turn).to(dtype)
        metric = Ellipsoid(values.numpy().T @ values.numpy())
        remark = Flow(Attention(form, values, causal=True), metric, "remark_5_1")
        assert the("asymptotic-remark-5.1", remark, start).applies
        assert certified("asymptotic-remark-5.1", remark, start).conditions[0].outcome == "holds"
        uneven = FORM + 5e-8 * EYE.roll(1, 0) if dtype == torch.float32 else FORM
        falling = Flow(Attention(-uneven.to(dtype), eye, weights="hardmax"), Free())
        assert the("hardmax-3", falling, around).applies
        rooted = Flow(Attention(form, double.to(dtype), normalization="plain"), Free())
        assert the("masks-rooted", rooted, start).applies
        twice = Flow(Attention(form, double.to(dtype), causal=True), Sphere())
        assert not the("masking-table-1-simple", twice, start).applies
    with pytest.raises(ArgumentValueError, match=r"expected the metric ov\^T ov"):
        Flow(Attention(FORM, EYE + 0.3 * FORM, causal=True), Ellipsoid((EYE + 0.3 * FORM).square()), "remark_5_1")


def test_an_asymmetry_that_is_allowed_leaves_the_top_eigenvalue_real() -> None:
    step = torch.finfo(torch.float32).eps
    for gap, applies in ((1.0, False), (1000.0, True)):
        ov = torch.tensor([[1 + gap * step, 2 * step, 0.0], [-2 * step, 1.0, 0.0], [0.0, 0.0, -0.5]])
        assert bool((torch.linalg.eigvals(ov.double()).imag == 0).all()) is applies
        flow = Flow(Attention(EYE.float(), ov, causal=True), Sphere())
        assert the("asymptotic-6.1", flow, one_sided(0)).applies is applies
