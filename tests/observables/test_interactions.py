"""Sums over senders, their logarithms and gradients, against explicit sums, closed forms and autograd."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.observables import (
    interaction_energy,
    interaction_sums,
    log_interaction,
    log_interaction_gradient,
    log_interaction_sums,
)


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def test_the_interaction_is_the_log_of_the_sum_over_senders_at_any_points():
    u, x, qk = drawn(2, 3), drawn(5, 3, seed=1), drawn(3, 3, seed=2)
    expected = [math.log(sum(math.exp(point @ qk @ token) for token in x)) for point in u]
    np.testing.assert_allclose(log_interaction(u, x, qk), expected, rtol=1e-13)


def test_the_gradient_is_that_of_automatic_differentiation():
    u = torch.tensor(drawn(4, 3), requires_grad=True)
    x, qk = drawn(5, 3, seed=1), drawn(3, 3, seed=2)
    states = torch.tensor(x)
    (expected,) = torch.autograd.grad(log_interaction(u, states, qk).sum(), u)
    result = log_interaction_gradient(u.detach(), states, qk)
    np.testing.assert_allclose(result.numpy(), expected.numpy(), rtol=1e-12, atol=1e-14)


def test_the_interaction_is_convex():
    x, qk = drawn(5, 3, seed=1), drawn(3, 3, seed=2)
    left, right = drawn(50, 3, seed=3), drawn(50, 3, seed=4)
    middle = log_interaction((left + right) / 2, x, qk)
    assert (middle <= (log_interaction(left, x, qk) + log_interaction(right, x, qk)) / 2 + 1e-14).all()


def test_coincident_senders_have_closed_forms():
    token, qk, u = drawn(3), drawn(3, 3, seed=1), drawn(4, 3, seed=2)
    x = np.repeat(token[None], 6, axis=0)
    np.testing.assert_allclose(log_interaction(u, x, qk), u @ qk @ token + math.log(6), rtol=1e-13)
    np.testing.assert_allclose(log_interaction_gradient(u, x, qk), np.repeat([qk @ token], 4, axis=0), rtol=1e-13)


def test_sums_are_the_exponentials_of_the_interaction_at_the_tokens():
    x, qk = drawn(2, 5, 3), drawn(3, 3, seed=1)
    expected = [[sum(math.exp(a @ qk @ b) for b in system) for a in system] for system in x]
    np.testing.assert_allclose(interaction_sums(x, qk, normalization="plain"), expected, rtol=1e-13)
    np.testing.assert_allclose(interaction_sums(x, qk), math.sqrt(3) * np.array(expected), rtol=1e-13)
    np.testing.assert_allclose(log_interaction_sums(x, qk), np.log(math.sqrt(3) * np.array(expected)), rtol=1e-13)
    plain = log_interaction_sums(x, qk, normalization="plain")
    np.testing.assert_allclose(plain, log_interaction(x, x, qk), rtol=1e-14)
    np.testing.assert_allclose(np.exp(plain).sum(axis=-1), interaction_energy(x, qk), rtol=1e-13)


def test_causal_sums_run_over_the_token_and_those_before_it():
    x, qk = drawn(5, 3), drawn(3, 3, seed=1)
    result = interaction_sums(x, qk, normalization="plain", causal=True)
    np.testing.assert_allclose(
        result, [sum(math.exp(x[i] @ qk @ x[j]) for j in range(i + 1)) for i in range(5)], rtol=1e-13
    )
    np.testing.assert_allclose(interaction_sums(x[:3], qk, normalization="plain", causal=True), result[:3], rtol=1e-14)


def test_without_logits_every_sum_counts_the_tokens():
    x = drawn(7, 4)
    np.testing.assert_allclose(interaction_sums(x, np.zeros((4, 4)), normalization="plain"), np.full(7, 7.0))
    np.testing.assert_allclose(interaction_sums(x, np.zeros((4, 4))), np.full(7, 14.0))
    np.testing.assert_allclose(interaction_sums(x, np.zeros((4, 4)), causal=True), 2.0 * np.arange(1, 8))


def test_rotating_points_tokens_and_form_together_changes_nothing():
    u, x, qk = drawn(2, 3), drawn(5, 3, seed=1), drawn(3, 3, seed=2)
    rotation = np.linalg.qr(drawn(3, 3, seed=3))[0]
    turned = rotation.T @ qk @ rotation
    np.testing.assert_allclose(
        log_interaction(u @ rotation, x @ rotation, turned), log_interaction(u, x, qk), rtol=1e-12
    )
    np.testing.assert_allclose(
        log_interaction_gradient(u @ rotation, x @ rotation, turned),
        log_interaction_gradient(u, x, qk) @ rotation,
        rtol=1e-12,
        atol=1e-14,
    )


def test_logarithms_and_gradients_are_finite_where_the_sums_overflow():
    x = [[40.0], [30.0]]
    assert interaction_sums(x, [[1.0]]) == [math.inf, math.inf]
    assert log_interaction_sums(x, [[1.0]]) == pytest.approx([1600, 1200], rel=1e-15)
    assert log_interaction_gradient(x, x, [[2.0]]) == [[80.0], [80.0]]


def test_each_system_may_have_its_own_form_and_points():
    u, x, qk = drawn(3, 2, 4), drawn(3, 5, 4, seed=1), drawn(3, 4, 4, seed=2)
    for i in range(3):
        for function in (log_interaction, log_interaction_gradient):
            np.testing.assert_allclose(function(u, x, qk)[i], function(u[i], x[i], qk[i]), rtol=1e-12)
        np.testing.assert_allclose(interaction_sums(x, qk)[i], interaction_sums(x[i], qk[i]), rtol=1e-12)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ArgumentValueError, match=r"u: expected shape \(…, point, 3\) to fit x, got shape \(1, 2\)"):
        log_interaction(np.ones((1, 2)), np.eye(3), np.eye(3))
    with pytest.raises(ArgumentValueError, match=r"qk: expected shape \(…, 3, 3\) to fit x, got shape \(2, 2\)"):
        log_interaction_gradient(np.eye(3), np.eye(3), np.eye(2))
    with pytest.raises(ArgumentValueError, match=r"normalization: expected 'paper' or 'plain', got 'none'"):
        interaction_sums(np.eye(3), np.eye(3), normalization="none")
    with pytest.raises(ArgumentValueError, match=r"u\^T qk x_j: expected finite numbers, got inf at index \(0, 0\)"):
        log_interaction_sums([[1e200]], [[1.0]])
