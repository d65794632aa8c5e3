"""The small reductions against the dense dim × dim problem they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.spectra import Inertia, balance, low_rank_eigenvalues, product_eigenvalues, value_spectrum
from tokendynamics.spectra.signs import count_signs
from tokendynamics.spectra.value_map import value_spectrum_of_factors


def factors(dim: int, rank: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, dim, rank)
    left, right = torch.randn(shape, generator=generator, dtype=torch.float64)
    return left, right


@given(dim=st.integers(1, 24), rank=st.integers(1, 12), seed=st.integers(0, 1000))
@settings(max_examples=100)
def test_reduced_spectrum_is_the_dense_one(dim: int, rank: int, seed: int) -> None:
    left, right = factors(dim, rank, seed)
    dense = left @ right.T
    expected = np.linalg.eigvalsh((dense + dense.T).numpy() / 2)
    reduced = low_rank_eigenvalues(left, right).numpy()
    assert len(reduced) == min(2 * rank, dim)
    padded = np.sort(np.concatenate([reduced, np.zeros(dim - len(reduced))]))
    np.testing.assert_allclose(padded, expected, atol=1e-12 * max(1.0, np.abs(expected).max()))


def test_generic_factors_have_as_many_signs_of_each_kind_as_columns() -> None:
    left, right = factors(40, 6, seed=0)
    assert count_signs(low_rank_eigenvalues(left, right), 40) == Inertia(6, 6, 28)


def test_a_gram_matrix_has_no_negative_sign() -> None:
    left, _ = factors(40, 6, seed=1)
    assert count_signs(low_rank_eigenvalues(left, left), 40) == Inertia(6, 0, 34)
    assert count_signs(low_rank_eigenvalues(left, -left), 40) == Inertia(0, 6, 34)


def test_batches_of_heads_are_loops_over_heads() -> None:
    left, right = (torch.stack(pair) for pair in zip(*(factors(30, 4, seed) for seed in range(3)), strict=True))
    together = low_rank_eigenvalues(left, right)
    for head in range(3):
        np.testing.assert_allclose(together[head], low_rank_eigenvalues(left[head], right[head]), atol=1e-12)
    assert count_signs(low_rank_eigenvalues(left, right), 30).positive.tolist() == [4, 4, 4]


@given(dim=st.integers(2, 16), rank=st.integers(1, 16), seed=st.integers(0, 1000))
@settings(max_examples=60)
def test_product_eigenvalues_are_roots_of_the_dense_one(dim: int, rank: int, seed: int) -> None:
    left, right = factors(dim, rank, seed)
    dense = (left @ right.T).to(torch.complex128)
    small = product_eigenvalues(left, right)
    # Power sums tr(M^k) determine a spectrum and do not depend on the order of the eigenvalues.
    for power in (1, 2, 3):
        trace = torch.linalg.matrix_power(dense, power).diagonal().sum()
        assert abs((small**power).sum() - trace) <= 1e-10 * (1 + abs(small).max() ** power * dim)


def test_balance_of_known_spectra() -> None:
    assert balance(torch.tensor([1.0, 2.0, 3.0])).item() == 1.0
    assert balance(torch.tensor([-1.0, -2.0])).item() == -1.0
    assert balance(torch.tensor([2.0, -1.0, 0.0])).item() == pytest.approx(1 / 3, abs=1e-14)
    assert balance(torch.tensor([1j, -1j])).item() == 0.0
    assert balance(torch.zeros(3)).item() == 0.0


def test_value_spectrum_of_factors_is_the_dense_one_with_its_zeros() -> None:
    left, right = factors(12, 5, seed=4)
    reduced, dense = value_spectrum_of_factors(left, right), value_spectrum(left @ right.T)
    assert (reduced.rank, dense.rank) == (5, 5)
    assert reduced.condition == dense.condition == float("inf")
    assert reduced.max_real == pytest.approx(dense.max_real, abs=1e-10)
    assert reduced.min_real == pytest.approx(dense.min_real, abs=1e-10)
    assert reduced.radius == pytest.approx(dense.radius, rel=1e-10)
    assert reduced.near_zero == 7
    assert not reduced.invertible


@pytest.mark.parametrize(
    ("left", "right", "options", "named"),
    [
        (torch.zeros(3), torch.zeros(3), {}, "left: expected"),
        (torch.ones(2, 3, 1), torch.ones(2, 3, 1), {}, r"left: expected shape \(dim, rank\)"),
        (torch.ones(3, 1), torch.ones(4, 1), {}, "right: expected the shape of left"),
        (torch.full((3, 1), float("nan")), torch.ones(3, 1), {}, "left: expected"),
        (torch.ones(3, 0), torch.ones(3, 0), {}, "left: expected at least one row and one column"),
        (torch.ones(3, 1), torch.ones(3, 1), {"wanted": "all"}, "wanted: expected 'extremes' or 'whole'"),
    ],
)
def test_factors_of_other_shapes_are_refused_by_name(
    left: torch.Tensor, right: torch.Tensor, options: Any, named: str
) -> None:
    with pytest.raises(ArgumentValueError, match=named):
        value_spectrum_of_factors(left, right, **options)


def test_near_zero_counts_depend_on_scale_only_when_absolute() -> None:
    matrix = torch.diag(torch.tensor([1.0, 0.5, 1e-4], dtype=torch.float64))
    whole, tiny = value_spectrum(matrix), value_spectrum(1e-4 * matrix)
    assert (whole.near_zero, whole.near_zero_relative) == (1, 1)
    assert (tiny.near_zero, tiny.near_zero_relative) == (3, 1)
    assert whole.condition == pytest.approx(1e4, rel=1e-12)
    assert whole.condition == pytest.approx(tiny.condition, rel=1e-12)


def test_the_radius_is_the_largest_modulus_and_not_the_largest_real_part() -> None:
    result = value_spectrum([[0.0, -2.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, -3.0]])
    assert (result.radius, result.max_real, result.min_real) == pytest.approx((3.0, 0.0, -3.0), abs=1e-14)


def test_factors_of_different_shapes_are_refused_with_both_shapes() -> None:
    with pytest.raises(ArgumentValueError, match=r"right: expected the shape of left, \(3, 2\), got shape \(3, 1\)"):
        low_rank_eigenvalues(torch.ones(3, 2), torch.ones(3, 1))


def test_a_product_that_overflows_is_refused_by_name() -> None:
    huge = 1e200 * torch.eye(3, dtype=torch.float64)
    for spectrum in (low_rank_eigenvalues, product_eigenvalues):
        with pytest.raises(ArgumentValueError, match="left: expected factors whose product does not overflow"):
            spectrum(huge, huge)
