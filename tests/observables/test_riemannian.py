"""The metric in which the ellipsoid flow is a gradient: the identity of theorem 3.1 and its hypotheses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.observables import interaction_sums, potential, riemannian_metric


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def positive_definite(dim, seed):
    root = drawn(dim, dim, seed=seed)
    return root @ root.T + 0.2 * np.eye(dim)


def on_ellipsoid(x, metric):
    return x / np.sqrt(np.einsum("...i,ij,...j->...", x, metric, x))[..., None]


def tangent(y, vectors, metric):
    return vectors - np.einsum("...i,ij,...j->...", y, metric, vectors)[..., None] * y


def velocity(y, qk, metric, factor):
    """Return the flow with one head, ov = I and the full mask, from its definition."""
    weights = np.exp(y @ qk @ y.T)
    weights = factor * weights / weights.sum(axis=1, keepdims=True)
    return tangent(y, weights @ y, metric)


def slope(y, direction, qk):
    """Return dV(direction), by automatic differentiation."""
    states = torch.tensor(y, requires_grad=True)
    (gradient,) = torch.autograd.grad(potential(states, qk), states)
    return float((gradient.numpy() * direction).sum())


def test_the_metric_is_the_weighted_sum_of_its_definition():
    first, second, x, qk = drawn(4, 3), drawn(4, 3, seed=1), drawn(4, 3, seed=2), drawn(3, 3, seed=3)
    for normalization in ("paper", "plain"):
        z = interaction_sums(x, qk, normalization=normalization)
        expected = sum(z[i] * first[i] @ qk @ second[i] for i in range(4))
        result = riemannian_metric(first, second, x, qk, normalization=normalization)
        assert result == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("normalization", ["paper", "plain"])
def test_the_velocity_is_minus_the_gradient_of_the_potential_in_this_metric(seed, normalization):
    dim, tokens = 2 + seed % 4, 2 + seed % 5
    metric = positive_definite(dim, seed)
    y = on_ellipsoid(drawn(tokens, dim, seed=seed + 50), metric)
    field = velocity(y, metric, metric, 1 / math.sqrt(dim) if normalization == "paper" else 1.0)
    direction = tangent(y, drawn(tokens, dim, seed=seed + 100), metric)
    result = riemannian_metric(field, direction, y, metric, normalization=normalization)
    assert result == pytest.approx(-slope(y, direction, metric), rel=1e-10, abs=1e-12)


def test_the_identity_fails_on_the_sphere_when_the_form_is_not_the_identity():
    qk = positive_definite(3, 0)
    y = on_ellipsoid(drawn(4, 3, seed=50), np.eye(3))
    field = velocity(y, qk, np.eye(3), 1 / math.sqrt(3))
    direction = tangent(y, drawn(4, 3, seed=100), np.eye(3))
    expected = -slope(y, direction, qk)
    assert abs(riemannian_metric(field, direction, y, qk) - expected) > 1e-2 * abs(expected)


def test_it_is_symmetric_bilinear_and_positive_for_a_positive_definite_form():
    qk = positive_definite(3, 4)
    x, first, second, third = (drawn(5, 3, seed=seed) for seed in range(5, 9))
    product = riemannian_metric(first, second, x, qk)
    assert riemannian_metric(second, first, x, qk) == pytest.approx(product, rel=1e-12)
    left = riemannian_metric(2 * first + third, second, x, qk)
    assert left == pytest.approx(2 * product + riemannian_metric(third, second, x, qk), rel=1e-12)
    assert riemannian_metric(first, first, x, qk) > 0
    assert riemannian_metric(0 * first, first, x, qk) == 0


def test_systems_broadcast_and_fields_of_other_shapes_are_refused():
    x, fields, qk = drawn(4, 3), drawn(6, 4, 3, seed=1), positive_definite(3, 2)
    result = riemannian_metric(fields, fields, x, qk)
    np.testing.assert_allclose(result, [riemannian_metric(field, field, x, qk) for field in fields], rtol=1e-13)
    with pytest.raises(ArgumentValueError, match=r"first: expected shape \(…, 4, 3\) to fit x, got shape \(3, 3\)"):
        riemannian_metric(np.ones((3, 3)), x, x, qk)
    with pytest.raises(ArgumentValueError, match=r"second: expected shape \(…, 4, 3\) to fit x, got shape \(4, 2\)"):
        riemannian_metric(x, np.ones((4, 2)), x, qk)


def test_beyond_the_largest_number_it_is_infinite_and_never_undefined():
    x, qk = [[40.0], [40.0]], [[1.0]]
    assert riemannian_metric([[1.0], [1.0]], [[1.0], [1.0]], x, qk) == math.inf
    assert riemannian_metric([[1.0], [1.0]], [[1.0], [-1.0]], x, qk) == 0
    assert riemannian_metric([[1.0], [1.0]], [[-1.0], [0.5]], x, qk) == -math.inf
