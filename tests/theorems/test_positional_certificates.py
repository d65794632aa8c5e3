"""On hundreds of random systems that satisfy the hypotheses of `positional` the statements apply and hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tokendynamics.attention import AbsolutePositions, Attention, RotaryPositions, Sinusoidal
from tokendynamics.dynamics import Flow, Trajectory, simulate
from tokendynamics.spaces import Free
from tokendynamics.theorems import Certificate, Check, certify, check

SYSTEMS, TOKENS, DIM = 200, 5, 3
BRIEF, SHORT = np.linspace(0.0, 0.4, 5), np.linspace(0.0, 0.8, 9)
LONG = np.concatenate([[0.0], np.geomspace(1.0, 600.0, 26)])
POSITIONS, PLANAR = AbsolutePositions.sinusoidal(TOKENS, DIM), AbsolutePositions.sinusoidal(8, 2)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def definite(seed: int, dim: int = DIM) -> Tensor:
    """Symmetric matrices (system, head, dim, dim) with eigenvalues between 0.7 and 1.5."""
    axes = torch.linalg.qr(drawn(seed, SYSTEMS, 1, dim, dim)).Q
    generator = torch.Generator().manual_seed(seed + 1)
    values = 0.7 + 0.8 * torch.rand(SYSTEMS, 1, dim, 1, generator=generator, dtype=torch.float64)
    matrix = axes @ (values * axes.mT)
    return (matrix + matrix.mT) / 2


def symmetric_form(qk: Tensor, form: Tensor, **options: object) -> Flow:
    """The flow with A = form."""
    return Flow(Attention(qk, torch.linalg.solve(form, qk), **options), Free())


def expanding(seed: int, **options: object) -> Flow:
    """Any qk; ov = T diag(λ) T^{−1} with λ > 0 first, so that the first row of T^{−1} is a left eigenvector."""
    basis = torch.eye(DIM, dtype=torch.float64) + 0.3 * drawn(seed, SYSTEMS, 1, DIM, DIM)
    rates = torch.tensor([0.8, 0.5, -0.6], dtype=torch.float64)
    ov = basis @ torch.diag(rates) @ basis.inverse()
    return Flow(Attention(drawn(seed + 1, SYSTEMS, 1, DIM, DIM), ov, **options), Free())


def the(result: list[Check], name: str) -> Check:
    return next(one for one in result if one.statement == name)


def certified(run: Trajectory, name: str) -> Certificate:
    assert the(check(run.flow, run.tensor[:, 0]), name).applies
    (certificate,) = certify(run, [name])
    return certificate


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("sign", [-1, 1, 0])
def test_pairs_drift_apart_in_the_symmetric_form_and_tokens_obey_its_rate(sign: int) -> None:
    form = definite(10) - 1.1 * torch.eye(DIM) if sign == 0 else sign * definite(10)
    flow = symmetric_form(drawn(11, SYSTEMS, 1, DIM, DIM), form)
    run = simulate(flow, drawn(12, SYSTEMS, TOKENS, DIM), BRIEF, max_steps=300)
    for name in ("positional-3.1", "positional-3.3"):
        certificate = certified(run, name)
        assert certificate.outcome == "holds"
        assert (certificate.outcomes == "holds").sum() == SYSTEMS


@pytest.mark.long
@pytest.mark.parametrize("causal", [False, True])
def test_tokens_stay_below_the_explicit_bound(causal: bool) -> None:
    skew = drawn(20, SYSTEMS, 1, DIM, DIM)
    qk = definite(21) + 0.2 * (skew - skew.mT)
    flow = symmetric_form(qk, -definite(23), causal=causal)
    run = simulate(flow, 2 * drawn(24, SYSTEMS, TOKENS, DIM), np.linspace(0.0, 2.0, 6))
    certificate = certified(run, "positional-3.3")
    assert certificate.outcome == "holds"
    assert len(certificate.conditions) == 2


@pytest.mark.slow
def test_tokens_tend_to_zero_like_one_over_the_root_of_time() -> None:
    run = simulate(symmetric_form(definite(30, 2), -definite(32, 2)), drawn(34, SYSTEMS, 8, 2), LONG, engine="batched")
    certificate = certified(run, "positional-3.4")
    assert certificate.outcome == "holds"
    assert certificate.tolerance == 0.05


@pytest.mark.slow
def test_tokens_tend_to_minus_their_positions() -> None:
    flow = symmetric_form(definite(40, 2), -definite(42, 2), positions=PLANAR)
    run = simulate(flow, drawn(44, SYSTEMS, 8, 2), LONG, engine="batched")
    certificate = certified(run, "positional-C.1")
    assert certificate.outcome == "holds"
    assert float((run.tensor[:, -1] + PLANAR.table).abs().max()) < 0.15


@pytest.mark.long
@pytest.mark.parametrize("causal", [False, True])
def test_the_hull_along_an_eigenvector_of_v_grows_as_predicted(causal: bool) -> None:
    run = simulate(expanding(50, causal=causal), drawn(53, SYSTEMS, TOKENS, DIM), SHORT, max_steps=500)
    assert certified(run, "positional-3.6").outcome == "holds"


@pytest.mark.long
def test_the_bounds_hold_for_two_heads_with_a_common_eigenvector_and_a_moving_qk() -> None:
    basis = torch.eye(DIM, dtype=torch.float64) + 0.3 * drawn(60, SYSTEMS, 1, DIM, DIM)
    rates = torch.tensor([[0.8, 0.5, -0.6], [0.1, -0.4, 0.3]], dtype=torch.float64)
    # The first row of basis^{−1} is shared by both heads; the rest of the second differs by a rotation within it.
    turn = torch.block_diag(torch.eye(1).double(), torch.tensor([[0.8, -0.6], [0.6, 0.8]], dtype=torch.float64))
    bases = torch.cat([basis, basis @ turn], dim=1)
    ov = bases @ torch.diag_embed(rates) @ bases.inverse()
    qk = Sinusoidal(drawn(61, 2, DIM, DIM), 1.0, 3.0, 0.2)
    run = simulate(Flow(Attention(qk, ov), Free()), drawn(62, SYSTEMS, TOKENS, DIM), SHORT, max_steps=500)
    certificate = certified(run, "positional-3.6")
    assert certificate.outcome == "holds"


@pytest.mark.long
def test_the_bounds_hold_for_tokens_with_absolute_positions() -> None:
    run = simulate(expanding(70, positions=POSITIONS), drawn(73, SYSTEMS, TOKENS, DIM), SHORT, max_steps=500)
    assert certified(run, "positional-C.2").outcome == "holds"


@pytest.mark.long
def test_the_bounds_hold_for_tokens_with_rotary_positions() -> None:
    rotary = RotaryPositions(drawn(80, DIM, 2), drawn(81, DIM, 2), scale=0.7)
    run = simulate(expanding(82, positions=rotary), drawn(85, SYSTEMS, TOKENS, DIM), SHORT, max_steps=500)
    assert certified(run, "positional-C.3").outcome == "holds"


def test_tokens_on_one_side_grow_at_the_rate_of_the_eigenvalue() -> None:
    ov = torch.tensor([[0.5, 0.7], [0.0, -1.0]], dtype=torch.float64)
    # n^T ov = 0.5 n^T for n = (1.5, 0.7), which is no eigenvector of ov.
    flow = Flow(Attention([[0.3, -0.8], [1.0, 0.1]], ov), Free())
    x0 = torch.tensor([[1.0, 0.3], [0.5, -0.6], [2.0, 1.0]], dtype=torch.float64)
    n = torch.tensor([1.5, 0.7], dtype=torch.float64) / np.hypot(1.5, 0.7)
    result = the(check(flow, x0), "positional-3.6")
    assert result.applies
    least = float((x0 @ n).min())
    assert f"{least:.4g} exp(0.5 t)" in result.prediction.text
    run = simulate(flow, x0, np.linspace(0.0, 8.0, 9))
    lower = least * torch.exp(0.5 * torch.as_tensor(run.times))
    assert bool((run.tensor.norm(dim=-1).amin(dim=-1) >= lower * (1 - 1e-6)).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_many_starts_of_one_flow_in_the_paper_normalization_hold_in_either_precision(dtype: torch.dtype) -> None:
    qk, form, value = definite(90)[0].to(dtype), -definite(92)[0].to(dtype), definite(94)[0].to(dtype)
    start = drawn(96, SYSTEMS, TOKENS, DIM).to(dtype)
    contracting = symmetric_form(qk, form, normalization="paper")
    run = simulate(contracting, start, SHORT, rtol=1e-6)
    for name in ("positional-3.1", "positional-3.3"):
        assert certified(run, name).outcome == "holds"
    run = simulate(Flow(Attention(qk, value, normalization="paper"), Free()), start, SHORT, rtol=1e-6)
    assert certified(run, "positional-3.6").outcome == "holds"
