"""The deepest half space against a linear program, optimality conditions and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, nnls

from tokendynamics.observables import hemisphere


def linear_program_margin(unit):
    """Return max t such that u_i·v ≥ t for all i and some |v|_∞ ≤ 1."""
    tokens, dim = unit.shape
    result = linprog(
        np.append(np.zeros(dim), -1.0),
        A_ub=np.column_stack([-unit, np.ones(tokens)]),
        b_ub=np.zeros(tokens),
        bounds=[(-1, 1)] * dim + [(None, 1)],
        method="highs",
    )
    return -result.fun


def unit_rows(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def states(kind, tokens, dim, seed):
    """Draw a set of tokens: generic, or degenerate in one of the ways that trouble an active-set method."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((tokens, dim))
    if kind == "integer":
        x = random.integers(-1, 2, (tokens, dim)).astype(float)
    elif kind == "closed half space":
        x = random.integers(-2, 3, (tokens, dim)).astype(float)
        x[:, 0] = np.abs(x[:, 0])
    elif kind == "duplicates":
        x = x[random.integers(0, tokens, 2 * tokens)]
    elif kind == "subspace":
        rank = int(random.integers(1, dim + 1))
        x = random.standard_normal((tokens, rank)) @ random.standard_normal((rank, dim))
    elif kind == "cone":
        x[:, 0] += 3
    elif kind == "bundle":
        x = x[:1] + 10.0 ** -random.integers(1, 12) * x
    elif kind == "antipodal pair":
        x = np.vstack([x, -2 * x[:1]])
    elif kind == "nearly antipodal pair":
        x = np.vstack([x[:1], -x[:1] + 10.0 ** -random.integers(1, 6) * random.standard_normal((1, dim))])
    x = x[np.abs(x).max(axis=1) > 0]
    return x if len(x) else np.ones((1, dim))


KINDS = [
    "generic",
    "integer",
    "closed half space",
    "duplicates",
    "subspace",
    "cone",
    "bundle",
    "antipodal pair",
    "nearly antipodal pair",
]
random_sets = given(
    kind=st.sampled_from(KINDS), tokens=st.integers(1, 20), dim=st.integers(1, 8), seed=st.integers(0, 2**32 - 1)
)


@pytest.mark.long
@random_sets
@settings(max_examples=400, derandomize=True)
def test_the_margin_is_positive_exactly_when_a_linear_program_separates(kind, tokens, dim, seed):
    x = states(kind, tokens, dim, seed)
    margin = float(hemisphere(x).margin)
    separation = linear_program_margin(unit_rows(x))
    assert (margin > 0) == (separation > 1e-9)
    # The two programs bound v by different norms: |v|_∞ ≤ |v|_2 ≤ √dim |v|_∞.
    if margin > 0:
        assert margin <= separation + 1e-9
        assert separation <= math.sqrt(x.shape[1]) * margin + 1e-9


@pytest.mark.long
@random_sets
@settings(max_examples=400, derandomize=True)
def test_the_direction_satisfies_the_optimality_conditions(kind, tokens, dim, seed):
    x = states(kind, tokens, dim, seed)
    direction, margin = hemisphere(x)
    if margin == 0:
        assert not direction.any()
        return
    heights = unit_rows(x) @ direction
    assert np.linalg.norm(direction) == pytest.approx(1, rel=1e-14)
    assert heights.min() == pytest.approx(float(margin), rel=1e-9, abs=1e-15)
    # The point of smallest norm is margin·direction: a convex combination of tokens at the lowest height.
    support = unit_rows(x)[heights <= heights.min() + 1e-9 * margin + 1e-13]
    weights, residual = nnls(support.T, direction)
    assert residual < 1e-6
    assert margin * weights.sum() == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("dim", [2, 3, 50, 400])
@pytest.mark.parametrize("opening", [1e-3, 1e-6, 1e-9, 1e-12])
def test_a_nearly_antipodal_pair_has_margin_the_sine_of_half_its_opening(dim, opening):
    first, second = np.linalg.qr(np.random.default_rng(dim).standard_normal((dim, 2)))[0].T
    x = np.stack([first, -math.cos(opening) * first + math.sin(opening) * second] * 3)
    assert hemisphere(x).margin == pytest.approx(math.sin(opening / 2), abs=2e-15)


@pytest.mark.parametrize(("tokens", "dim"), [(3, 3), (5, 5), (4, 9), (6, 40)])
def test_orthogonal_tokens_meet_in_their_diagonal(tokens, dim):
    direction, margin = hemisphere(np.eye(tokens, dim) * 7)
    assert margin == pytest.approx(1 / math.sqrt(tokens), rel=1e-13)
    expected = np.zeros(dim)
    expected[:tokens] = 1 / math.sqrt(tokens)
    np.testing.assert_allclose(direction, expected, atol=1e-14)


def test_one_token_is_its_own_direction():
    direction, margin = hemisphere([[0.0, -3.0]])
    assert direction == [0.0, -1.0]
    assert margin == 1.0


def test_equal_tokens_have_margin_one():
    x = np.repeat(np.random.default_rng(0).standard_normal((1, 6)), 9, axis=0)
    assert hemisphere(x).margin == pytest.approx(1, rel=1e-15)


@pytest.mark.parametrize("tokens", [3, 4, 7, 100])
def test_regular_polygons_lie_in_no_open_half_space(tokens):
    angles = 2 * math.pi * np.arange(tokens) / tokens
    for dim in (2, 5):
        x = np.zeros((tokens, dim))
        x[:, :2] = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        direction, margin = hemisphere(x)
        assert margin == 0
        assert not direction.any()


@pytest.mark.parametrize("height", [1e-12, 1e-9, 1e-7, 1e-4, 1e-1])
@pytest.mark.parametrize("dim", [3, 4, 7])
def test_a_flat_hull_at_a_small_height_keeps_its_margin(height, dim):
    # Antipodal pairs in a hyperplane, lifted: 0 lies in the hull of their shadows, so v is the normal.
    random = np.random.default_rng(dim)
    shadow = unit_rows(random.standard_normal((3 * dim, dim - 1)))
    lifted = np.column_stack([np.vstack([shadow, -shadow]), np.full(6 * dim, height)])
    rotation = np.linalg.qr(random.standard_normal((dim, dim)))[0]
    for x, normal in ((lifted, np.eye(dim)[-1]), (lifted @ rotation, rotation[-1])):
        direction, margin = hemisphere(x)
        assert margin == pytest.approx(height / math.hypot(1, height), abs=1e-14)
        np.testing.assert_allclose(direction, normal, atol=1e-14 / height)


@pytest.mark.parametrize("dim", [3, 4, 7])
def test_a_flat_hull_through_the_origin_has_no_margin(dim):
    shadow = np.random.default_rng(dim).standard_normal((3 * dim, dim - 1))
    assert hemisphere(np.column_stack([np.vstack([shadow, -shadow]), np.zeros(6 * dim)])).margin == 0


def test_tokens_on_the_boundary_of_a_closed_half_space_are_not_inside_an_open_one():
    assert hemisphere([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]).margin == 0.0


def test_norms_of_any_scale_do_not_matter():
    x = np.random.default_rng(1).standard_normal((5, 4)) + np.array([2.0, 0.0, 0.0, 0.0])
    scaled = x * np.array([1e-300, 1e300, 1.0, 5.0, 1e-3])[:, None]
    np.testing.assert_allclose(hemisphere(scaled).direction, hemisphere(x).direction, rtol=1e-12)


def test_many_tokens_in_many_dimensions_reach_optimality():
    x = np.random.default_rng(2).standard_normal((60, 300))
    x[:, 0] += 2
    direction, margin = hemisphere(x)
    heights = unit_rows(x) @ direction
    weights, residual = nnls(unit_rows(x)[heights < margin + 1e-12].T, direction)
    assert residual < 1e-10
    assert margin * weights.sum() == pytest.approx(1, rel=1e-10)


@pytest.mark.long
def test_the_chance_of_a_common_half_space_is_the_one_of_wendel():
    # 5 tokens in 3 dimensions: 2^{-4}·(1 + 4 + 6) = 11/16.
    x = np.random.default_rng(3).standard_normal((2000, 5, 3))
    share = (hemisphere(x).margin > 0).mean()
    assert share == pytest.approx(11 / 16, abs=4 * math.sqrt(11 / 16 * 5 / 16 / 2000))
