"""Quadratic forms of tokens and pairs against explicit sums, closed forms and the statements they appear in."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.observables import (
    log_interaction_gradient,
    norms,
    pair_quadratic_form,
    pair_quadratic_form_rate,
    pairwise_distances,
    quadratic_form,
    quadratic_form_rate,
    quadratic_form_rate_bound,
)


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def free_velocity(x, qk, a):
    """Return dx/dt = A^{−1} ∇f of the free flow with ov = A^{−1} qk."""
    return np.linalg.solve(a, log_interaction_gradient(x, x, qk).swapaxes(-1, -2)).swapaxes(-1, -2)


def test_quadratic_forms_are_x_transposed_b_x_and_see_only_the_symmetric_part():
    b, x = drawn(3, 3), drawn(2, 5, 3, seed=1)
    expected = [[token @ b @ token for token in system] for system in x]
    np.testing.assert_allclose(quadratic_form(b, x), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(quadratic_form((b + b.T) / 2, x), expected, rtol=1e-12, atol=1e-13)


def test_pair_forms_are_the_forms_of_differences():
    b, x = drawn(3, 3), drawn(2, 5, 3, seed=1)
    expected = [[[(i - j) @ b @ (i - j) for j in system] for i in system] for system in x]
    result = pair_quadratic_form(b, x)
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-13)
    assert (result == result.swapaxes(-1, -2)).all()
    np.testing.assert_allclose(pair_quadratic_form(np.eye(3), x), pairwise_distances(x) ** 2, rtol=1e-13)
    np.testing.assert_allclose(quadratic_form(np.eye(3), x), norms(x) ** 2, rtol=1e-13)


def test_pair_forms_do_not_see_a_common_shift_and_resolve_tiny_differences():
    b, x = drawn(3, 3), np.round(drawn(4, 3, seed=1) * 2**20) / 2**20
    np.testing.assert_allclose(pair_quadratic_form(b, x + 1024.0), pair_quadratic_form(b, x), rtol=1e-14)
    near = [[1.0, 1.0], [1.0 + 2.0**-50, 1.0]]
    assert pair_quadratic_form([[3.0, 0.0], [0.0, 1.0]], near)[0][1] == 3 * 2.0**-100
    assert pair_quadratic_form([[3.0, 0.0], [0.0, 1.0]], [[0.1, 0.7], [0.1, 0.7]]) == [[0.0, 0.0], [0.0, 0.0]]


def test_rates_are_the_derivatives_of_the_forms_along_the_velocity():
    b, x, velocity = drawn(3, 3), drawn(2, 5, 3, seed=1), drawn(2, 5, 3, seed=2)
    # The forms are quadratic, so their central differences are exact.
    for form, rate in ((quadratic_form, quadratic_form_rate), (pair_quadratic_form, pair_quadratic_form_rate)):
        central = (form(b, x + velocity) - form(b, x - velocity)) / 2
        np.testing.assert_allclose(rate(b, x, velocity), central, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_along_the_free_flow_with_symmetric_a_pairs_part_and_the_bound_holds(seed):
    dim, tokens = 2 + seed % 3, 3 + seed % 4
    qk, x = drawn(dim, dim, seed=seed), drawn(tokens, dim, seed=seed + 100)
    a = drawn(dim, dim, seed=seed + 200)
    a = a + a.T
    velocity = free_velocity(x, qk, a)
    scale = np.abs(velocity).max() * np.abs(x).max() * np.abs(a).max()
    assert (pair_quadratic_form_rate(a, x, velocity) >= -1e-12 * scale).all()
    assert (quadratic_form_rate(a, x, velocity) >= quadratic_form_rate_bound(x, qk) - 1e-12 * scale).all()


def test_without_symmetry_of_a_some_pairs_move_the_other_way():
    wrong = 0
    for seed in range(50):
        qk, x, a = drawn(2, 2, seed=seed), drawn(4, 2, seed=seed + 100), drawn(2, 2, seed=seed + 200)
        wrong += (pair_quadratic_form_rate(a, x, free_velocity(x, qk, a)) < -1e-9).any()
    assert wrong > 0


def test_the_bound_has_its_closed_forms():
    # One token: 2 − 2 exp(−q), zero where q is zero.
    assert quadratic_form_rate_bound([[2.0, 0.0]], np.diag([0.25, 1.0])) == pytest.approx([2 - 2 / math.e], rel=1e-15)
    assert quadratic_form_rate_bound(np.zeros((6, 2)), np.eye(2)) == pytest.approx(np.full(6, 2.0 - 12), rel=1e-15)
    assert quadratic_form_rate_bound([[100.0]], [[1.0]]) == [2.0]
    assert quadratic_form_rate_bound([[100.0]], [[-1.0]]) == [-math.inf]


def test_each_system_may_have_its_own_matrix():
    matrices, x, velocity = drawn(3, 4, 4), drawn(3, 6, 4, seed=1), drawn(3, 6, 4, seed=2)
    for i in range(3):
        for form in (quadratic_form, pair_quadratic_form):
            np.testing.assert_allclose(form(matrices, x)[i], form(matrices[i], x[i]), rtol=1e-12, atol=1e-13)
        for rate in (quadratic_form_rate, pair_quadratic_form_rate):
            one = rate(matrices[i], x[i], velocity[i])
            np.testing.assert_allclose(rate(matrices, x, velocity)[i], one, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(pair_quadratic_form(matrices, x[0])[2], pair_quadratic_form(matrices[2], x[0]))


def test_pair_forms_have_gradients():
    x = torch.tensor(drawn(4, 3), requires_grad=True)
    b = drawn(3, 3, seed=1)
    (computed,) = torch.autograd.grad(pair_quadratic_form(b, x).sum(), x)
    state = x.detach().numpy()
    # Σ_ij q(x_i − x_j): each token in 2ℓ ordered pairs, 2 (B + B^T) Σ_j (x_i − x_j).
    expected = 2 * (4 * state - state.sum(axis=0)) @ (b + b.T)
    np.testing.assert_allclose(computed.numpy(), expected, rtol=1e-11, atol=1e-12)


def test_forms_have_the_dtype_of_the_states():
    x = torch.eye(3)
    assert quadratic_form(np.eye(3), x).dtype == torch.float32
    assert pair_quadratic_form_rate(np.eye(3), x, np.eye(3)).dtype == torch.float32


def test_what_does_not_fit_is_refused():
    with pytest.raises(ArgumentValueError, match=r"matrix: expected square matrices.*got shape \(2, 3\)"):
        quadratic_form(np.ones((2, 3)), np.eye(3))
    with pytest.raises(ArgumentValueError, match=r"velocity: expected shape \(…, 3, 3\) to fit x, got shape \(2, 3\)"):
        quadratic_form_rate(np.eye(3), np.eye(3), np.ones((2, 3)))
    with pytest.raises(ArgumentValueError, match=r"velocity: expected leading axes that broadcast.*\(5, 2, 3\)"):
        pair_quadratic_form_rate(np.eye(3), np.ones((4, 2, 3)), np.ones((5, 2, 3)))
    with pytest.raises(ArgumentValueError, match=r"\(x_i − x_j\)\^T matrix \(x_i − x_j\): expected finite.*\(0, 1\)"):
        pair_quadratic_form([[1.0]], [[1e200], [0.0]])
