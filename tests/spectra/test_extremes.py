"""Extremes of large spectra: against spectra that are known by construction, and what must be left to the dense way."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.spectra import value_map as value_map
from tokendynamics.spectra import value_spectrum
from tokendynamics.spectra.extremes import Extremes, KrylovSpace, _more_than, extremes_of, grown_until

DIM = 400


def similar(blocks: torch.Tensor, seed: int, bend: float = 0.1) -> torch.Tensor:
    """S B S^{-1} for a well conditioned S: the spectrum of B in a matrix without structure."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(2, *blocks.shape, generator=generator, dtype=torch.float64)
    S = torch.linalg.qr(draw[0]).Q @ (torch.eye(len(blocks), dtype=torch.float64) + bend * draw[1] / len(blocks) ** 0.5)
    return S @ blocks @ torch.linalg.inv(S)


def with_eigenvalues(pairs: list[complex], reals: list[float], seed: int = 0) -> torch.Tensor:
    """These eigenvalues (each complex one with its conjugate), and reals from 0.2 to 0.6 of both signs for the rest."""
    rest = DIM - 2 * len(pairs) - len(reals)
    inner = torch.linspace(0.2, 0.6, rest, dtype=torch.float64) * torch.tensor([1.0, -1.0]).repeat(rest)[:rest]
    blocks = [torch.tensor([[pair.real, -pair.imag], [pair.imag, pair.real]], dtype=inner.dtype) for pair in pairs]
    alone = torch.diag(torch.cat([torch.tensor(reals, dtype=inner.dtype), inner]))
    return similar(torch.block_diag(*blocks, alone), seed)


def found_in(matrix: torch.Tensor) -> Extremes:
    result = extremes_of(matrix, torch.float64)
    assert result is not None
    return result


def test_outermost_eigenvalues_are_the_constructed_ones() -> None:
    result = found_in(with_eigenvalues([0.3 + 2.0j, -0.9 + 0.1j], [1.25, -0.7]))
    assert result.radius == pytest.approx(math.hypot(0.3, 2.0), rel=1e-10)
    assert result.max_real == pytest.approx(1.25, rel=1e-10)
    assert result.min_real == pytest.approx(-0.9, rel=1e-10)
    assert (result.near_zero, result.near_zero_relative) == (0, 0)


def test_signs_are_told_apart_where_every_eigenvalue_is_on_one_side() -> None:
    matrix = similar(torch.diag(-torch.linspace(0.25, 3.0, DIM, dtype=torch.float64)), seed=2)
    assert found_in(matrix).max_real == pytest.approx(-0.25, rel=1e-9)
    assert found_in(-matrix).min_real == pytest.approx(0.25, rel=1e-9)
    assert found_in(matrix).min_real == pytest.approx(-3.0, rel=1e-10)


def test_eigenvalues_near_zero_are_counted_absolutely_and_against_the_radius() -> None:
    matrix = with_eigenvalues([0.0004 + 0.0005j, 4.0j], [0.0002, -0.0009, 0.0015, 0.0035, -0.005])
    result = found_in(matrix)
    assert (result.near_zero, result.near_zero_relative) == (4, 6)
    smaller = found_in(0.1 * matrix)
    assert (smaller.near_zero, smaller.near_zero_relative) == (7, 6)
    larger = found_in(10 * matrix)
    assert (larger.near_zero, larger.near_zero_relative) == (0, 6)


def test_the_condition_number_is_the_quotient_of_the_singular_values() -> None:
    draw = torch.randn(2, DIM, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    left, right = (torch.linalg.qr(entry).Q for entry in draw)
    singular = torch.linspace(0.01, 3.0, DIM, dtype=torch.float64)
    assert found_in(left * singular @ right.mT).condition == pytest.approx(300.0, rel=1e-9)


@pytest.mark.long
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(["independent", "product", "low plus noise"]))
@settings(max_examples=12)
def test_random_matrices_have_the_extremes_of_their_whole_spectrum(seed: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randn(2, DIM, DIM, generator=generator, dtype=torch.float64) / DIM**0.5
    matrix = {
        "independent": first,
        "product": first @ second,
        "low plus noise": first[:, :8] @ second[:8] + 0.02 * second,
    }[kind]
    computed, whole = extremes_of(matrix, torch.float64), value_spectrum(matrix)
    if computed is None:  # a condition number beyond what its residual can vouch for, or an eigenvalue on a threshold
        assert whole.condition > 1e4 or whole.near_zero_relative or whole.near_zero
        return
    for name in ("max_real", "min_real", "radius"):
        assert getattr(computed, name) == pytest.approx(getattr(whole, name), abs=1e-10 * whole.radius)
    # Both routes know the smallest singular value to a rounding of the largest.
    assert computed.condition == pytest.approx(whole.condition, rel=1e-10 + 1e-13 * whole.condition)
    assert (computed.near_zero, computed.near_zero_relative) == (whole.near_zero, whole.near_zero_relative)


def _jordan() -> torch.Tensor:
    return torch.eye(DIM, dtype=torch.float64) + torch.diag(torch.ones(DIM - 1, dtype=torch.float64), 1)


def _orthogonal() -> torch.Tensor:
    draw = torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return torch.linalg.qr(draw).Q


def _nearly_singular() -> torch.Tensor:
    values = torch.linspace(1.0, 2.0, DIM, dtype=torch.float64)
    values[0] = 1e-13
    return similar(torch.diag(values), seed=4)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "matrix",
    [
        torch.eye(DIM, dtype=torch.float64),
        torch.zeros(DIM, DIM, dtype=torch.float64),
        _jordan(),
        _orthogonal(),
        _nearly_singular(),
        with_eigenvalues([], [1e-3]),
        1e120 * torch.eye(DIM, dtype=torch.float64),
    ],
    ids=["identity", "zero", "jordan", "orthogonal", "singular to rounding", "on a threshold", "huge"],
)
def test_what_needs_the_whole_spectrum_is_left_to_it(matrix: torch.Tensor) -> None:
    assert extremes_of(matrix, torch.float64) is None


def test_a_multiple_eigenvalue_away_from_zero_changes_nothing() -> None:
    values = torch.linspace(0.5, 1.0, DIM, dtype=torch.float64)
    values[-5:] = 2.0
    result = found_in(similar(torch.diag(values), seed=6))
    assert (result.radius, result.max_real) == pytest.approx((2.0, 2.0), rel=1e-10)
    assert (result.near_zero, result.near_zero_relative) == (0, 0)


def test_full_rank_depends_on_the_precision_that_came_in() -> None:
    values = torch.linspace(0.2, 1.0, DIM, dtype=torch.float64)
    values[0] = 2e-3  # dim · eps of float32 is 5e-5, a fortieth of it
    matrix = similar(torch.diag(values), seed=7)
    assert extremes_of(matrix, torch.float32) is None
    assert extremes_of(matrix, torch.float64) is not None


@pytest.mark.parametrize("next_one", [1.0, 0.1, 2e-3, 1.2e-3])
def test_one_eigenvalue_several_times_near_zero_is_counted_as_often_or_left(next_one: float) -> None:
    values = torch.linspace(next_one, 1.0, DIM, dtype=torch.float64)
    values[:5] = 9e-4  # a Krylov space holds one vector of it; the others come from rounding, if they come
    result = extremes_of(similar(torch.diag(values), seed=5), torch.float64)
    assert result is None or result.near_zero == 5


def test_an_eigenvalue_that_was_not_found_is_noticed() -> None:
    values = torch.linspace(0.5, 1.0, DIM, dtype=torch.float64)
    values[:2] = torch.tensor([2e-4, 5e-4])
    inverse = torch.linalg.inv(similar(torch.diag(values), seed=9))
    space = KrylovSpace(inverse.mv, DIM, 40)
    ritz = grown_until(space, lambda ritz: bool((ritz.residuals[ritz.values.abs() > 1000] < 1e-6).all()))
    assert ritz is not None
    both = (ritz.values.abs() > 1000).nonzero()[:, 0]
    assert len(both) == 2
    assert not _more_than(space, ritz, both, 1000)
    assert _more_than(space, ritz, both[:1], 1000)
    assert _more_than(space, ritz, both[1:], 1000)
    assert not _more_than(space, ritz, ritz.values.abs().argmax()[None], 3000)


@pytest.mark.parametrize("unit", [2.0**-30, 2.0**30])
def test_the_search_for_what_is_left_does_not_depend_on_the_unit(unit: float) -> None:
    values = torch.linspace(0.5, 1.0, DIM, dtype=torch.float64)  # so close that what is left is found slowly
    values[0] = 3.0
    inverse = similar(torch.diag(values), seed=9)

    def products(factor: float) -> tuple[bool, bool, int]:
        """Powers of two change no rounding: the same products are needed, and the same is found."""
        count = 0

        def apply(x: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += 1
            return factor * (inverse @ x)

        space = KrylovSpace(apply, DIM, 40)
        ritz = grown_until(space, lambda ritz: space.steps == 40)
        assert ritz is not None
        largest = ritz.values.abs().argmax()[None]
        return _more_than(space, ritz, largest, 0.9 * factor), _more_than(space, ritz, largest, 1.1 * factor), count

    assert products(1.0)[:2] == (True, False)
    assert products(unit) == products(1.0)


@pytest.mark.long
def test_the_summary_is_the_same_by_both_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = with_eigenvalues([0.3 + 2.0j], [1.25, 0.0005])
    dense = value_spectrum(matrix)
    monkeypatch.setattr(value_map, "_DENSE_BELOW", DIM)
    quick, whole = value_spectrum(matrix), value_spectrum(matrix, wanted="whole")
    assert (dense.route, quick.route, whole.route) == ("whole spectrum", "Krylov spaces", "whole spectrum")
    assert (quick.rank, quick.near_zero, quick.near_zero_relative) == (DIM, 1, 1)
    for name in ("condition", "max_real", "min_real", "radius"):
        assert getattr(quick, name) == pytest.approx(getattr(dense, name), rel=1e-9)
    assert value_spectrum(_orthogonal()).route == "whole spectrum"
    assert dense.eigenvalues is None
    assert quick.eigenvalues is None
    assert whole.eigenvalues is not None
    assert whole.eigenvalues.abs().diff().amax() <= 0
    assert whole.eigenvalues[:3].real.sum() == pytest.approx(0.3 + 0.3 + 1.25, rel=1e-9)


def test_an_unknown_wish_is_refused(unchecked: None) -> None:
    with pytest.raises(ArgumentValueError, match="wanted"):
        value_spectrum(torch.eye(2), wanted="all")  # pyright: ignore[reportArgumentType]


def test_a_space_that_cannot_grow_says_so() -> None:
    space = KrylovSpace(lambda x: 2 * x, 10, 5)
    assert not space.grow(3)
    assert grown_until(KrylovSpace(lambda x: 2 * x, 10, 5), lambda ritz: True) is None


def test_the_small_matrix_is_the_large_one_in_the_basis() -> None:
    matrix = similar(torch.diag(torch.linspace(-1.0, 2.0, 30, dtype=torch.float64)), seed=8, bend=0.5)
    space = KrylovSpace(matrix.mv, 30, 12)
    assert space.grow(12)
    basis = space.basis[:12]
    torch.testing.assert_close(basis @ basis.mT, torch.eye(12, dtype=torch.float64), atol=1e-13, rtol=0)
    ritz = space.ritz()
    vectors = space.vectors(ritz, torch.arange(12))
    residuals = matrix.to(vectors.dtype) @ vectors - vectors * ritz.values
    torch.testing.assert_close(torch.linalg.vector_norm(residuals, dim=0), ritz.residuals, atol=1e-12, rtol=1e-9)


def test_error_estimates_bound_what_is_seen() -> None:
    matrix = with_eigenvalues([], [1.5, 1.4, 1.3])
    space = KrylovSpace(matrix.mv, DIM, 60)
    for steps in (20, 30, 40):
        assert space.grow(steps)
        ritz = space.ritz()
        top = ritz.values.real.argmax()[None]
        assert abs(float(ritz.values[top].real) - 1.5) <= 3 * float(ritz.errors(top)) + 1e-13
