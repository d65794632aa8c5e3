"""The interaction potential and energy against closed forms and explicit sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.observables import interaction_energy, log_interaction_energy, log_potential, potential


def test_the_potential_is_minus_half_the_sum_over_all_ordered_pairs():
    random = np.random.default_rng(0)
    x, qk = random.standard_normal((4, 3)), random.standard_normal((3, 3))
    total = sum(math.exp(x[i] @ qk @ x[j]) for i in range(4) for j in range(4))
    assert potential(x, qk) == pytest.approx(-total / 2, rel=1e-13)


def test_ten_tokens_in_consensus_on_their_ellipsoid_have_potential_minus_50_e():
    random = np.random.default_rng(1)
    root = random.standard_normal((3, 3))
    qk = root @ root.T + np.eye(3)
    token = random.standard_normal(3)
    x = np.repeat(token[None] / math.sqrt(token @ qk @ token), 10, axis=0)
    assert potential(x, qk) == pytest.approx(-50 * math.e, rel=1e-13)


def test_the_gradient_of_the_potential_is_what_theorem_3_1_says():
    random = np.random.default_rng(2)
    root = random.standard_normal((3, 3))
    qk = root @ root.T
    x = torch.tensor(random.standard_normal((4, 3)), requires_grad=True)
    (computed,) = torch.autograd.grad(potential(x, qk), x)
    state = x.detach().numpy()
    weights = np.exp(state @ qk @ state.T)
    # −½ Σ_ij exp(x_i·qk x_j) with qk symmetric: each token appears twice.
    np.testing.assert_allclose(computed.numpy(), -(weights @ state) @ qk, rtol=1e-12)


def test_the_log_potential_is_finite_where_the_potential_overflows():
    x, qk = [[40.0], [40.0]], [[1.0]]
    assert potential(x, qk) == -math.inf
    assert log_potential(x, qk) == pytest.approx(1600 + math.log(2), rel=1e-15)
    small = np.random.default_rng(3).standard_normal((5, 3))
    assert log_potential(small, np.eye(3)) == pytest.approx(math.log(-potential(small, np.eye(3))), rel=1e-13)


def test_the_interaction_energy_is_minus_twice_the_potential_and_has_a_stable_logarithm():
    random = np.random.default_rng(6)
    x, qk = random.standard_normal((2, 4, 3)), random.standard_normal((3, 3))
    total = [sum(math.exp(a @ qk @ b) for a in system for b in system) for system in x]
    np.testing.assert_allclose(interaction_energy(x, qk), total, rtol=1e-13)
    np.testing.assert_allclose(interaction_energy(x, qk), -2 * potential(x, qk), rtol=1e-14)
    np.testing.assert_allclose(log_interaction_energy(x, qk), np.log(total), rtol=1e-13)
    assert interaction_energy([[40.0]], [[1.0]]) == math.inf
    assert log_interaction_energy([[40.0], [40.0]], [[1.0]]) == pytest.approx(1600 + math.log(4), rel=1e-15)


def test_tokens_at_zero_have_the_squared_number_of_tokens_as_their_energy():
    assert interaction_energy(np.zeros((7, 2)), np.eye(2)) == pytest.approx(49, rel=1e-15)


def test_each_system_may_have_its_own_matrix():
    random = np.random.default_rng(5)
    matrices, x = random.standard_normal((3, 4, 4)), random.standard_normal((3, 6, 4))
    for i in range(3):
        np.testing.assert_allclose(potential(x, matrices)[i], potential(x[i], matrices[i]), rtol=1e-13)


def test_energies_have_the_dtype_of_the_states():
    x = torch.eye(3)
    assert potential(x, np.eye(3)).dtype == torch.float32
    assert log_potential(x, np.eye(3)).dtype == torch.float32
    assert interaction_energy(x, np.eye(3)).dtype == torch.float32


def test_matrices_that_do_not_fit_are_refused():
    with pytest.raises(ArgumentValueError, match=r"qk: expected shape \(…, 3, 3\) to fit x, got shape \(2, 2\)"):
        potential(np.eye(3), np.eye(2))
    with pytest.raises(ArgumentValueError, match=r"qk: expected square matrices.*got shape \(2, 3\)"):
        potential(np.eye(3), np.ones((2, 3)))
    with pytest.raises(ArgumentValueError, match=r"qk: expected leading axes that broadcast.*\(4,\)"):
        potential(np.ones((4, 2, 3)), np.ones((5, 3, 3)))


def test_logits_that_overflow_are_refused_and_located():
    with pytest.raises(ArgumentValueError, match=r"x_i\^T qk x_j: expected finite numbers, got inf at index \(0, 0\)"):
        potential([[1e200]], [[1.0]])
