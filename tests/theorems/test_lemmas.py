"""Lemmas and formulas of the papers that no statement of the registry covers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from torch import Tensor

from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.spaces import Ellipsoid, Free, Sphere

SYSTEMS, TOKENS, DIM = 200, 5, 3


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def definite(seed: int, *leading: int) -> Tensor:
    factor = drawn(seed, *leading, DIM, DIM)
    return factor @ factor.mT / DIM + 0.3 * torch.eye(DIM, dtype=torch.float64)


def test_weights_lie_between_the_bounds_of_lemma_4_1() -> None:
    qk, metric = drawn(1, SYSTEMS, DIM, DIM), definite(2, SYSTEMS)
    y = Ellipsoid(metric).sample(TOKENS, DIM, (SYSTEMS,), seed=3)
    exponentials = (y @ qk @ y.mT).exp()
    weights = exponentials / exponentials.sum(dim=-1, keepdim=True) / math.sqrt(DIM)
    # K bounds the length of a token: the longest axis of its ellipsoid.
    reach = torch.linalg.eigvalsh(metric)[:, 0] ** -1 * torch.linalg.matrix_norm(qk, 2)
    lowest, highest = weights.amin(dim=(-2, -1)), weights.amax(dim=(-2, -1))
    assert bool((lowest >= (-2 * reach).exp() / (TOKENS * math.sqrt(DIM))).all())
    assert bool((highest <= (2 * reach).exp()).all())
    # The upper bound of a softmax is smaller than the printed one, and no smaller one serves all flows.
    assert bool((highest <= 1 / math.sqrt(DIM)).all())


def test_the_normalizer_of_equation_4_as_printed_is_the_senders() -> None:
    x, qk = drawn(4, TOKENS, DIM).numpy(), drawn(5, DIM, DIM).numpy()
    exponentials = np.exp(x @ qk @ x.T)  # receiver, sender
    normalizer = np.diag(1 / (math.sqrt(DIM) * exponentials.sum(axis=1)))
    printed, meant = (normalizer @ exponentials.T).T, normalizer @ exponentials
    assert meant.sum(axis=1) == pytest.approx(np.full(TOKENS, 1 / math.sqrt(DIM)), rel=1e-12)
    assert np.abs(printed.sum(axis=1) * math.sqrt(DIM) - 1).max() > 0.1
    identity = torch.eye(DIM, dtype=torch.float64)
    attention = Attention(qk, identity, normalization="paper")
    velocity = Flow(attention, Free()).velocity(torch.as_tensor(x), 0.0)
    np.testing.assert_allclose(velocity.numpy(), meant @ x, rtol=1e-12)


@pytest.mark.long
def test_the_second_eigenvector_attracts_the_sphere_orthogonal_to_the_first() -> None:
    # Lemma 6.1 gives it an empty domain of attraction; it is unstable, and yet attracts a set of measure zero.
    ov = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    flow = Flow(Attention(torch.zeros(DIM, DIM).double(), ov, causal=True, normalization="plain"), Sphere())
    times = np.array([0.0, 4.0, 12.0])
    start = torch.tensor([[0.0, 0.6, 0.8]], dtype=torch.float64)
    run = simulate(flow, start, times, rtol=1e-11, atol=1e-13)
    expected = expm(12.0 * ov.numpy()) @ start[0].numpy()
    assert run.states[-1, 0] == pytest.approx(expected / np.linalg.norm(expected), abs=1e-8)
    assert run.states[-1, 0, 1] == pytest.approx(1.0, abs=1e-9)
    beside = torch.tensor([[1e-6, 0.6, 0.8]], dtype=torch.float64)
    left = simulate(flow, beside / beside.norm(), np.array([0.0, 30.0]), rtol=1e-11, atol=1e-13)
    assert left.states[-1, 0, 0] == pytest.approx(1.0, abs=1e-6)


def test_the_sum_of_equation_12_falls_by_twice_the_weighted_squared_speed() -> None:
    qk, form = definite(6, SYSTEMS), -definite(7, SYSTEMS)
    flow = Flow(Attention(qk.unsqueeze(-3), torch.linalg.solve(form, qk).unsqueeze(-3)), Free())
    x = 0.5 * drawn(8, SYSTEMS, TOKENS, DIM)
    velocity = flow.velocity(x, 0.0)
    step = 1e-6
    sums = [((y @ qk) @ y.mT).exp().sum(dim=(-2, -1)) for y in (x + step * velocity, x - step * velocity)]
    slope = (sums[0] - sums[1]) / (2 * step)
    speed = -((velocity @ form) * velocity).sum(dim=-1)
    fall = -2 * (speed * ((x @ qk) @ x.mT).exp().sum(dim=-1)).sum(dim=-1)
    assert bool((slope < 0).all())
    torch.testing.assert_close(slope, fall, rtol=1e-5, atol=1e-6)


def test_the_keys_of_equation_28_need_brackets() -> None:
    query, lower, skew = (drawn(seed, DIM, DIM) for seed in (9, 10, 11))
    signed = torch.tril(lower, -1) + torch.eye(DIM)
    symmetric, skew = signed @ torch.diag(drawn(12, DIM).exp()) @ signed.mT, skew - skew.mT
    w = symmetric + skew
    printed = torch.linalg.solve(query, symmetric) + skew
    meant = torch.linalg.solve(query, w)
    torch.testing.assert_close(query @ meant, w, rtol=1e-9, atol=1e-12)
    assert float((query @ printed - w).abs().max()) > 0.1
