"""The consensus measure and the mean cosine over pairs: closed forms and precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.observables import agreement_with_first, consensus, first_token_function, mean_pair_cosine


def simplex(dim):
    """Vertices of the regular simplex: dim + 1 unit vectors in dim dimensions with cosine −1/dim."""
    corners = np.eye(dim + 1) - 1 / (dim + 1)
    basis = np.linalg.svd(corners)[2][:dim]
    vertices = corners @ basis.T
    return vertices / np.linalg.norm(vertices, axis=1, keepdims=True)


def random_states(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 26])
@pytest.mark.parametrize("signed", [False, True])
def test_identical_tokens_have_consensus_measure_exactly_zero(tokens, signed):
    x = np.repeat(random_states(1, 19), tokens, axis=0)
    assert consensus(x, signed=signed) == 0
    assert consensus(x, reference=-1, signed=signed) == 0


@pytest.mark.parametrize("tokens", [1, 2, 5, 32])
def test_orthogonal_tokens_have_one_minus_one_over_their_number(tokens):
    assert consensus(3.0 * np.eye(tokens)) == pytest.approx(1 - 1 / tokens, rel=1e-15, abs=0)


def test_consensus_follows_the_printed_formula_in_every_reference():
    x = random_states(6, 4)
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    for reference in range(-6, 6):
        cosines = u @ u[reference]
        assert consensus(x, reference) == pytest.approx(1 - np.abs(cosines).mean(), rel=1e-13)
        assert consensus(x, reference, signed=True) == pytest.approx(1 - cosines.mean(), rel=1e-13)


@pytest.mark.parametrize("dim", [1, 2, 3, 9])
def test_a_simplex_has_its_closed_forms(dim):
    x = simplex(dim)
    assert mean_pair_cosine(x) == pytest.approx(-1 / dim, rel=1e-13)
    assert consensus(x) == pytest.approx(1 - (1 + dim * (1 / dim)) / (dim + 1), abs=1e-14)
    assert consensus(x, signed=True) == pytest.approx(1, rel=1e-13)


@pytest.mark.parametrize("angle", [1e-14, 1e-10, 1e-6, 1e-2])
def test_a_tiny_disagreement_keeps_its_size(angle):
    x = [[1.0, 0.0], [math.cos(angle), math.sin(angle)]]
    assert consensus(x) == pytest.approx(math.sin(angle / 2) ** 2, rel=1e-12)
    opposite = [[1.0, 0.0], [-math.cos(angle), math.sin(angle)]]
    assert consensus(opposite) == pytest.approx(math.sin(angle / 2) ** 2, rel=1e-12)
    assert consensus(opposite, signed=True) == pytest.approx(1 - math.sin(angle / 2) ** 2, rel=1e-14)


def test_tokens_1e_10_radians_apart_in_many_dimensions_are_resolved():
    u, v = np.linalg.qr(random_states(50, 2))[0].T
    x = np.stack([u, math.cos(1e-10) * u + math.sin(1e-10) * v])
    assert consensus(x) == pytest.approx(2.5e-21, rel=1e-4)


def test_antipodal_tokens_agree_only_without_signs():
    x = random_states(1, 7)
    pair = np.vstack([x, -x])
    assert consensus(pair) == 0
    assert consensus(pair, signed=True) == 1
    assert mean_pair_cosine(pair) == pytest.approx(-1, rel=1e-15)


@pytest.mark.parametrize("tokens", [2, 3, 17])
def test_identical_tokens_have_mean_pair_cosine_exactly_one(tokens):
    assert mean_pair_cosine(np.repeat(random_states(1, 5), tokens, axis=0)) == 1


def test_mean_pair_cosine_is_the_mean_over_ordered_pairs():
    x = random_states(3, 8, 5)
    u = x / np.linalg.norm(x, axis=-1, keepdims=True)
    pairs = [[u[s, i] @ u[s, j] for i in range(8) for j in range(8) if i != j] for s in range(3)]
    np.testing.assert_allclose(mean_pair_cosine(x), np.mean(pairs, axis=1), rtol=1e-12)


def test_orthogonal_tokens_have_mean_pair_cosine_zero():
    assert mean_pair_cosine(2 * np.eye(6)) == pytest.approx(0, abs=1e-15)


def test_agreement_does_not_see_norms_of_any_scale():
    x = random_states(4, 3)
    scaled = x * np.array([1e-300, 1e300, 2.0, 1e-9])[:, None]
    for measure in (consensus, mean_pair_cosine):
        assert measure(scaled) == pytest.approx(measure(x), rel=1e-13)


def test_half_precision_is_measured_in_wider_arithmetic():
    x = torch.tensor([[1.0, 0.0], [0.0, 300.0]], dtype=torch.float16)
    result = consensus(x)
    assert result.dtype == torch.float32
    assert result == 0.5


def test_one_token_has_no_pairs():
    with pytest.raises(ArgumentValueError, match=r"x: expected at least two tokens .* got shape \(1, 3\)"):
        mean_pair_cosine([[1.0, 2.0, 3.0]])


@pytest.mark.parametrize("reference", [3, -4])
def test_a_reference_beyond_the_tokens_is_refused(reference):
    with pytest.raises(ArgumentValueError, match=f"reference: expected a token index from -3 to 2, got {reference}"):
        consensus(np.eye(3), reference)


def test_agreement_with_the_first_is_the_inner_product_with_it():
    x = random_states(3, 5, 4)
    result = agreement_with_first(x)
    np.testing.assert_allclose(result, [[token @ system[0] for token in system] for system in x], rtol=1e-13)
    np.testing.assert_allclose(result[:, 0], np.square(np.linalg.norm(x[:, 0], axis=-1)), rtol=1e-13)
    with pytest.raises(ArgumentValueError, match=r"x_1·x_i: expected finite numbers, got inf at index \(0,\)"):
        agreement_with_first([[1e200]])


def test_the_first_token_function_is_the_cubic_it_is_printed_as():
    a = np.linspace(-2.5, 2.5, 41)
    np.testing.assert_allclose(first_token_function(a), 2 / 3 - a + a**3 / 3, rtol=1e-12, atol=1e-15)
    # Its derivative a² − 1 is negative inside (−1, 1): more agreement is always lower.
    assert (np.diff(first_token_function(np.linspace(-1, 1, 101))) < 0).all()


@pytest.mark.parametrize("gap", [2.0**-52, 2.0**-40, 2.0**-20])
def test_the_first_token_function_keeps_its_digits_next_to_agreement(gap):
    exact = gap**2 * (1 - gap / 3)
    assert first_token_function(1 - gap) == pytest.approx(exact, rel=1e-15)
    assert first_token_function(1 + gap) == pytest.approx(gap**2 * (1 + gap / 3), rel=1e-15)


def test_the_first_token_function_answers_in_the_type_and_shape_that_came():
    assert first_token_function(1.0) == 0.0
    single = first_token_function(torch.tensor([[0.5, 0.1]]))
    assert single.dtype == torch.float32
    assert single.shape == (1, 2)
    assert isinstance(first_token_function(np.array([0.5])), np.ndarray)
    with pytest.raises(ArgumentValueError, match=r"agreement: expected finite numbers, got nan at index \(1,\)"):
        first_token_function([0.0, math.nan])
