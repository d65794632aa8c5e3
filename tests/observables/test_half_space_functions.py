"""Coordinates and deficits along a direction: closed forms, precision near agreement, ellipsoids, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.observables import coordinate_along, direction_deficit, hemisphere, hemisphere_function

METRIC = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 3.0]])


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def unit(x, metric=None):
    metric = np.eye(x.shape[-1]) if metric is None else metric
    return x / np.sqrt(np.einsum("...i,ij,...j->...", x, metric, x))[..., None]


def test_coordinates_are_inner_products():
    x, n = drawn(2, 5, 3), drawn(3, seed=1)
    np.testing.assert_allclose(coordinate_along(x, n), [[token @ n for token in system] for system in x], rtol=1e-13)


@pytest.mark.parametrize("length", [1.0, 0.3, 4.0])
def test_deficits_follow_the_formula_for_tokens_and_directions_of_any_length(length):
    x, v = length * unit(drawn(2, 5, 3)), unit(drawn(3, seed=1))
    np.testing.assert_allclose(direction_deficit(x, v), 1 - x @ v, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(direction_deficit(x, 2 * v), 1 - 2 * x @ v, rtol=1e-13, atol=1e-15)
    y, w = length * unit(drawn(2, 5, 3), METRIC), unit(drawn(3, seed=1), METRIC)
    np.testing.assert_allclose(direction_deficit(y, w, METRIC), 1 - y @ METRIC @ w, rtol=1e-13, atol=1e-15)
    # Of length 1 in the metric, but asked without it: the formula, not half the squared distance.
    np.testing.assert_allclose(direction_deficit(y, w), 1 - y @ w, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("angle", [1e-15, 1e-12, 1e-8, 1e-3, 1.0, 3.0])
def test_deficits_on_the_sphere_are_one_minus_the_cosine_to_full_relative_precision(angle):
    token = [[math.cos(angle), math.sin(angle), 0.0]]
    assert direction_deficit(token, [1.0, 0.0, 0.0])[0] == pytest.approx(2 * math.sin(angle / 2) ** 2, rel=1e-14)


def test_deficits_in_a_metric_are_resolved_next_to_agreement():
    v = unit(drawn(3, seed=1), METRIC)
    side = drawn(3, seed=2)
    side = unit(side - (v @ METRIC @ side) * v, METRIC)
    y = unit(v + 1e-9 * side, METRIC)
    assert direction_deficit(y[None], v, METRIC)[0] == pytest.approx(5e-19, rel=1e-6)
    assert direction_deficit(v[None], v, METRIC)[0] == 0


def test_single_precision_unit_vectors_are_recognised_as_such():
    v = torch.tensor([0.36, 0.48, 0.8])
    near = torch.nn.functional.normalize(v + torch.tensor([-8e-5, 6e-5, 0.0]), dim=0)
    result = direction_deficit(near.unsqueeze(0), v)
    assert result.dtype == torch.float32
    assert float(result) == pytest.approx(5e-9, rel=1e-2)


def test_the_hemisphere_function_is_one_minus_the_margin_of_the_deepest_half_space():
    x = unit(drawn(6, 3) + np.array([2.5, 0.0, 0.0]))
    direction, margin = hemisphere(x)
    assert margin > 0
    assert hemisphere_function(x, direction) == pytest.approx(1 - margin, rel=1e-14)
    others = unit(drawn(200, 3, seed=3))
    assert (hemisphere_function(np.repeat(x[None], 200, axis=0), others) >= 1 - margin - 1e-14).all()


def test_the_hemisphere_function_is_the_largest_deficit():
    x, v = drawn(4, 6, 3), drawn(4, 3, seed=1)
    np.testing.assert_array_equal(hemisphere_function(x, v), direction_deficit(x, v).max(axis=-1))
    np.testing.assert_array_equal(hemisphere_function(x, v, METRIC), direction_deficit(x, v, METRIC).max(axis=-1))


def test_below_zero_at_a_consensus_far_out_on_an_ellipsoid():
    # y^T diag(1/4, 1) y = 1 at (2, 0), and v = (1, 0) has Euclidean length 1: 1 − 2.
    assert hemisphere_function([[2.0, 0.0], [2.0, 0.0]], [1.0, 0.0]) == -1
    assert hemisphere_function([[2.0, 0.0], [2.0, 0.0]], [2.0, 0.0], np.diag([0.25, 1.0])) == 0


def test_the_twin_is_the_function_itself_after_the_change_to_the_sphere():
    root = np.linalg.cholesky(METRIC).T
    y, v = unit(drawn(5, 3), METRIC), unit(drawn(3, seed=1), METRIC)
    assert hemisphere_function(y, v, METRIC) == pytest.approx(hemisphere_function(y @ root.T, root @ v), rel=1e-13)


def test_directions_and_metrics_may_differ_by_system():
    x, v, metrics = drawn(3, 5, 3), drawn(3, 3, seed=1), np.stack([METRIC, 2 * METRIC, np.eye(3)])
    for i in range(3):
        computed = direction_deficit(x, v, metrics)[i]
        np.testing.assert_allclose(computed, direction_deficit(x[i], v[i], metrics[i]), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(coordinate_along(x, v)[i], coordinate_along(x[i], v[i]), rtol=1e-13)


def test_what_does_not_fit_is_refused():
    x = np.eye(3)
    with pytest.raises(ArgumentValueError, match=r"direction: expected shape \(…, 3\) to fit x, got shape \(2,\)"):
        coordinate_along(x, [1.0, 0.0])
    with pytest.raises(ArgumentValueError, match=r"direction: expected leading axes that broadcast.*\(5, 3\)"):
        direction_deficit(np.ones((4, 2, 3)), np.ones((5, 3)))
    with pytest.raises(ArgumentValueError, match=r"direction: expected finite numbers, got nan"):
        hemisphere_function(x, [math.nan, 0.0, 0.0])
    with pytest.raises(ArgumentValueError, match="a symmetric positive definite matrix, got an asymmetry of 1;"):
        direction_deficit(x, x[0], np.eye(3) + np.diag([1.0, 0.0], 1))
    with pytest.raises(ArgumentValueError, match="a symmetric positive definite matrix, got lowest eigenvalue -1"):
        hemisphere_function(x, x[0], np.diag([1.0, -1.0, 2.0]))
    with pytest.raises(ArgumentValueError, match=r"1 − direction·x_i: expected finite numbers, got -inf"):
        direction_deficit([[1e200]], [1e200])
