"""Inertia by factorisation against eigenvalue solvers, constructed spectra and Sylvester's law itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.spectra import Inertia, inertia


def orthogonal(dim: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64)).Q


def with_spectrum(values: list[float], seed: int) -> torch.Tensor:
    """A symmetric matrix with these eigenvalues, plus an antisymmetric part that must not matter."""
    basis = orthogonal(len(values), seed)
    twist = torch.randn(
        len(values), len(values), generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64
    )
    return basis @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ basis.T + twist - twist.T


@given(
    positive=st.integers(0, 8),
    negative=st.integers(0, 8),
    zero=st.integers(0, 8),
    scale=st.floats(1e-8, 1e8),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150)
def test_constructed_signs_are_counted(positive: int, negative: int, zero: int, scale: float, seed: int) -> None:
    values = [1.0 + i for i in range(positive)] + [-1.0 - i for i in range(negative)] + [0.0] * zero
    if not values:
        return
    basis = orthogonal(len(values), seed)
    matrix = scale * basis @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ basis.T
    assert inertia(matrix) == Inertia(positive, negative, zero)


@pytest.mark.parametrize("dim", [1, 2, 3, 17, 200])
def test_agrees_with_an_eigenvalue_solver_on_random_matrices(dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    matrices = torch.randn(5, dim, dim, generator=generator, dtype=torch.float64)
    counted = inertia(matrices)
    for index, matrix in enumerate(matrices):
        eigenvalues = np.linalg.eigvalsh((matrix + matrix.T).numpy() / 2)
        assert int(counted.positive[index]) == int((eigenvalues > 0).sum())
        assert int(counted.negative[index]) == int((eigenvalues < 0).sum())
        assert int(counted.zero[index]) == 0


def test_the_antisymmetric_part_does_not_count() -> None:
    assert inertia(with_spectrum([3.0, 2.0, 1.0, -1.0, -5.0], seed=3)) == Inertia(3, 2, 0)


@given(seed=st.integers(0, 500))
@settings(max_examples=50)
def test_congruence_keeps_the_inertia(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    symmetric = with_spectrum([2.0, 1.0, 0.5, -0.3, -1.0, -4.0, -6.0], seed)
    change = torch.randn(7, 7, generator=generator, dtype=torch.float64)
    assert inertia(change @ symmetric @ change.T) == inertia(symmetric)


def test_a_tolerance_draws_the_line_between_small_and_zero() -> None:
    values = [1.0, 2e-3, 5e-4, -5e-4, -2e-3, -1.0]
    assert inertia(with_spectrum(values, 1)) == Inertia(3, 3, 0)
    assert inertia(with_spectrum(values, 1), tolerance=1e-3) == Inertia(2, 2, 2)
    assert inertia(with_spectrum(values, 1), tolerance=0.0) == Inertia(3, 3, 0)


def test_a_hollow_matrix_needs_two_by_two_pivots() -> None:
    assert inertia([[0.0, 1.0], [1.0, 0.0]]) == Inertia(1, 1, 0)
    assert inertia(torch.ones(6, 6, dtype=torch.float64) - torch.eye(6, dtype=torch.float64)) == Inertia(1, 5, 0)


def test_the_zero_matrix_is_all_zero() -> None:
    assert inertia(torch.zeros(4, 4)) == Inertia(0, 0, 4)


def test_float32_noise_of_a_rank_deficient_product_is_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(40, 5, generator=generator)
    assert inertia(factor @ factor.T) == Inertia(5, 0, 35)


@pytest.mark.parametrize("dim", [64, 256, 768])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_small_eigenvalues_of_single_precision_matrices_still_count(dim: int, dtype: torch.dtype) -> None:
    matrix = torch.randn(dim, dim, generator=torch.Generator().manual_seed(dim)).to(dtype)
    symmetric = (matrix.double() + matrix.double().T) / 2
    eigenvalues = np.linalg.eigvalsh(symmetric.numpy())
    small = 1.01 * dim * torch.finfo(torch.float32).eps * np.abs(eigenvalues).max()
    expected = Inertia(int((eigenvalues > small).sum()), int((eigenvalues < -small).sum()), 0)
    assert sum(expected) == dim, "the draw has an eigenvalue at the threshold: take another seed"
    assert inertia(matrix) == expected


def test_a_graded_positive_definite_matrix_is_positive_definite_in_float32() -> None:
    basis = orthogonal(512, 0)
    matrix = (basis @ torch.diag(torch.logspace(0, -3.5, 512, dtype=torch.float64)) @ basis.T).float()
    assert inertia(matrix) == Inertia(512, 0, 0)


def test_huge_and_tiny_entries_neither_overflow_nor_vanish() -> None:
    assert inertia(np.diag([1e308, -1e308])) == Inertia(1, 1, 0)
    assert inertia(np.diag([1e-300, -1e-300, 0.0])) == Inertia(1, 1, 1)
    assert inertia(np.diag([1e200, -1e200, 1e180])) == Inertia(1, 1, 1)
    assert inertia(np.diag([2e200, -1e200, 1e200]), tolerance=1.5e200) == Inertia(1, 0, 2)


@pytest.mark.parametrize("tolerance", [-1.0, float("nan"), float("inf")])
def test_an_impossible_tolerance_is_refused(tolerance: float) -> None:
    with pytest.raises(ArgumentValueError, match="tolerance: expected a number from 0"):
        inertia(torch.eye(2), tolerance=tolerance)


def test_impossible_matrices_are_refused_by_name() -> None:
    with pytest.raises(ArgumentValueError, match=r"matrix: expected square matrices .* got shape \(2, 3\)"):
        inertia(torch.ones(2, 3))
    with pytest.raises(ArgumentValueError, match=r"matrix: expected finite numbers, got nan at index \(0, 1\)"):
        inertia([[1.0, float("nan")], [0.0, 1.0]])
    with pytest.raises(ArgumentTypeError, match=r"dtype torch\.int64"):
        inertia(torch.ones(2, 2, dtype=torch.int64))
    with pytest.raises(ArgumentTypeError, match="complex"):
        inertia(torch.ones(2, 2, dtype=torch.complex128))
