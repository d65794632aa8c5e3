"""Norms and pairwise distances against closed forms, at every scale and arbitrarily close."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.observables import diameter, norms, pairwise_distances


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_norms_neither_overflow_nor_underflow(scale):
    assert norms([[3 * scale, 4 * scale]]) == pytest.approx([5 * scale], rel=1e-15)


def test_one_system_may_hold_norms_of_every_scale():
    x = [[3e-300, 4e-300], [3e300, 4e300], [0.0, 0.0], [3.0, 4.0]]
    assert norms(x) == pytest.approx([5e-300, 5e300, 0.0, 5.0], rel=1e-15)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e160, 1e300])
def test_distances_keep_the_scale_of_the_states(scale):
    x = [[0.0, 0.0], [3 * scale, 0.0], [3 * scale, 4 * scale]]
    expected = np.array([[0.0, 3.0, 5.0], [3.0, 0.0, 4.0], [5.0, 4.0, 0.0]]) * scale
    np.testing.assert_allclose(pairwise_distances(x), expected, rtol=1e-15, atol=0)


def test_distances_of_tiny_tokens_survive_beside_huge_ones():
    distance = pairwise_distances([[1e300, 0.0], [3e-300, 0.0], [0.0, 4e-300]])
    assert distance[1][2] == pytest.approx(5e-300, rel=1e-15)
    assert distance[0][1] == 1e300


@pytest.mark.parametrize("tokens", [2, 5, 40])
def test_coincident_tokens_are_at_exactly_zero(tokens):
    token = torch.randn(37, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 1e3
    x = token.expand(tokens, 37)
    assert (pairwise_distances(x) == 0).all()
    # Unit rows of equal tokens are equal, so their angle is exactly zero as well.
    assert (pairwise_distances(x, geometry="sphere") == 0).all()


def test_nearly_coincident_tokens_have_full_relative_precision():
    x = np.random.default_rng(2).standard_normal((2, 11))
    x[1] = np.nextafter(np.nextafter(x[0], 9), 9)
    squares = [(Fraction(a) - Fraction(b)) ** 2 for a, b in zip(*x.tolist(), strict=True)]
    exact = math.sqrt(sum(squares) * 2**200) / 2.0**100
    assert pairwise_distances(x)[0, 1] == pytest.approx(exact, rel=1e-14)


@pytest.mark.parametrize("angle", [1e-15, 1e-9, 1e-3, 1.0, 2.0, 3.0])
def test_angles_are_exact_near_zero(angle):
    x = [[2.0, 0.0], [5 * math.cos(angle), 5 * math.sin(angle)]]
    assert pairwise_distances(x, geometry="sphere")[0][1] == pytest.approx(angle, rel=1e-14)


@pytest.mark.parametrize("gap", [1e-15, 1e-9, 1e-3])
def test_angles_are_exact_near_the_antipode(gap):
    x = [[1.0, 0.0], [-math.cos(gap), math.sin(gap)]]
    computed = pairwise_distances(x, geometry="sphere")[0][1]
    # Near π one unit in the last place of the result is 4.4e-16; the gap itself is right to that.
    assert math.pi - computed == pytest.approx(gap, abs=5e-16)


def test_antipodal_tokens_are_at_exactly_pi():
    x = np.random.default_rng(3).standard_normal(8)
    assert pairwise_distances(np.stack([x, -x]), geometry="sphere")[0, 1] == math.pi


def test_angles_agree_with_the_arccos_where_that_is_accurate():
    x = np.random.default_rng(4).standard_normal((2, 6, 5))
    u = x / np.linalg.norm(x, axis=-1, keepdims=True)
    cosines = u @ u.swapaxes(-1, -2)
    off = ~np.eye(6, dtype=bool)
    result = pairwise_distances(x, geometry="sphere")
    np.testing.assert_allclose(result[:, off], np.arccos(cosines[:, off]), rtol=1e-12)


def test_angles_do_not_see_norms_of_any_scale():
    x = np.random.default_rng(5).standard_normal((4, 3))
    scaled = x * np.array([1e-300, 1e300, 1.0, 1e-5])[:, None]
    computed, plain = (pairwise_distances(s, geometry="sphere") for s in (scaled, x))
    np.testing.assert_allclose(computed, plain, rtol=1e-13, atol=1e-15)


def test_an_unknown_geometry_is_refused_by_name():
    with pytest.raises(ArgumentValueError, match="geometry: expected 'euclidean' or 'sphere', got 'torus'"):
        pairwise_distances([[1.0]], geometry="torus")


def test_the_diameter_is_the_largest_distance():
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    assert diameter(7 * corners) == pytest.approx(7 * math.sqrt(2), rel=1e-15)
    assert diameter(corners[1:] * [2.0, 3.0], geometry="sphere") == pytest.approx(math.pi / 2, rel=1e-15)
    assert diameter([[2.0, 5.0]]) == 0
    x = np.random.default_rng(6).standard_normal((4, 6, 3))
    largest = [max(np.linalg.norm(a - b) for a in system for b in system) for system in x]
    np.testing.assert_allclose(diameter(x), largest, rtol=1e-15)


@pytest.mark.parametrize("geometry", ["euclidean", "sphere"])
def test_the_diameter_tells_consensus_from_almost_consensus(geometry):
    token = np.array([0.6, 0.8])
    assert diameter(np.stack([token, token, token]), geometry=geometry) == 0
    near = token + 1e-13 * np.array([-0.8, 0.6])
    assert diameter(np.stack([token, near]), geometry=geometry) == pytest.approx(1e-13, rel=1e-3)
