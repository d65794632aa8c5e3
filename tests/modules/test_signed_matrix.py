"""Matrices with chosen signs: what they are made of, and taking a given matrix apart."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokendynamics.modules import PlacedSpectrum, SignedMatrix
from tokendynamics.modules.matrices import FreeMatrix, inverse_softplus, unit_lower_factors
from tokendynamics.numerics import ArgumentValueError


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def learnt(matrix: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in matrix.parameters() if parameter.requires_grad]


def test_it_is_l_d_lt_plus_skew():
    matrix = SignedMatrix(3, "half", dtype=torch.float64)
    assert matrix.signs.tolist() == [[1.0, -1.0, 1.0]]
    lower, skew, raw = drawn(3, 3), drawn(3, 3, seed=1), torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)
    with torch.no_grad():
        matrix.lower.copy_(lower)
        matrix.skew.copy_(skew)
        matrix.diagonal.copy_(raw)
    unit = np.tril(lower.numpy(), -1) + np.eye(3)
    pivots = np.array([1, -1, 1]) * np.log1p(np.exp(raw.numpy()))
    below = np.tril(skew.numpy(), -1)
    np.testing.assert_allclose(matrix().detach().numpy(), unit @ np.diag(pivots) @ unit.T + below - below.T, rtol=1e-13)


@given(seed=st.integers(0, 10**6), dim=st.integers(1, 7), sign=st.sampled_from(["positive", "negative", "half"]))
def test_signs_do_not_depend_on_the_parameters(seed, dim, sign):
    matrix = SignedMatrix(dim, sign, dtype=torch.float64)
    with torch.no_grad():
        for number, parameter in enumerate(learnt(matrix)):
            parameter.copy_(drawn(*parameter.shape, seed=seed + number))
    eigenvalues = torch.linalg.eigvalsh(matrix() + matrix().mT)
    count = {"positive": dim, "negative": 0, "half": dim - dim // 2}[sign]
    assert int((eigenvalues > 0).sum()) == count
    assert int((eigenvalues < 0).sum()) == dim - count


@pytest.mark.parametrize("sign", ["positive", "negative", "half"])
@pytest.mark.parametrize("blocks", [1, 3])
def test_a_matrix_is_taken_and_given_back(sign, blocks):
    source, target = (SignedMatrix(6, sign, blocks=blocks, dtype=torch.float64) for _ in range(2))
    with torch.no_grad():
        for number, parameter in enumerate(learnt(source)):
            parameter.copy_(drawn(*parameter.shape, seed=number))
    wanted = source().detach()
    assert (wanted[:2, 2:] == 0).all() == (blocks == 3)
    target.take(wanted)
    torch.testing.assert_close(target().detach(), wanted, rtol=0, atol=1e-12)


def test_signs_in_another_order_are_taken_and_saved():
    source, target, third = (SignedMatrix(2, "half", dtype=torch.float64) for _ in range(3))
    swapped = torch.tensor([[-2.0, 0.5], [0.1, 3.0]], dtype=torch.float64)
    target.take(swapped)
    torch.testing.assert_close(target().detach(), swapped, rtol=0, atol=1e-14)
    assert target.signs.tolist() == [[-1.0, 1.0]]
    assert source.signs.tolist() == [[1.0, -1.0]]
    third.load_state_dict(target.state_dict())
    torch.testing.assert_close(third().detach(), swapped, rtol=0, atol=1e-14)


@pytest.mark.parametrize("matrix", [SignedMatrix(2), FreeMatrix(2)])
def test_starts_that_are_none_are_refused(matrix):
    for size in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ArgumentValueError, match="size: expected a positive finite number"):
            matrix.start(size=size)
    for name in ("noise", "skew"):
        for spread in (-1.0, math.inf, math.nan):
            with pytest.raises(ArgumentValueError, match=f"{name}: expected a standard deviation from 0"):
                matrix.start(**{"size": 1.0, name: spread})


@pytest.mark.parametrize("kind", [SignedMatrix, FreeMatrix, partial(PlacedSpectrum, sign="negative")])
def test_places_and_formats_without_real_numbers_are_refused(kind, unchecked):
    assert all(parameter.is_meta for parameter in kind(2, device="meta").parameters())
    with pytest.raises(ArgumentValueError, match=r"dtype: expected None or one of torch.float32, .*, got torch.int64"):
        kind(2, dtype=torch.int64)
    with pytest.raises(ArgumentValueError, match="device: expected a device of this machine"):
        kind(2, device="nowhere")
    with pytest.raises(ArgumentValueError, match="dim: expected an integer from 1, got 0"):
        kind(0)


def test_what_cannot_be_taken_is_refused(unchecked):
    with pytest.raises(ArgumentValueError, match=r"expected shape \(2, 2\), got \(3, 3\)"):
        FreeMatrix(2).take(torch.eye(3))
    with pytest.raises(ArgumentValueError, match=r"expected shape \(2, 2\), got \(1, 2, 2\)"):
        SignedMatrix(2).take(torch.eye(2)[None])
    with pytest.raises(ArgumentValueError, match=r"matrix: expected 2 positive and 0 negative eigenvalues.*1 positive"):
        SignedMatrix(2).take(torch.tensor([[1.0, 0.0], [0.0, -1.0]]))
    with pytest.raises(ArgumentValueError, match=r"leading minors .*not zero, got minor 1"):
        SignedMatrix(2, "half").take(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    with pytest.raises(ArgumentValueError, match="a symmetric matrix"):
        SignedMatrix(2, symmetric=True).take(torch.tensor([[1.0, 0.1], [-0.1, 1.0]]))
    with pytest.raises(ArgumentValueError, match=r"expected 2 diagonal blocks, got entries of 0\.5 outside"):
        SignedMatrix(2, blocks=2).take(torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
    with pytest.raises(ArgumentValueError, match=r"expected shape \(2, 2\), got \(3, 3\)"):
        SignedMatrix(2).take(torch.eye(3))
    with pytest.raises(ArgumentValueError, match="sign: expected one of positive, negative, half, got 'zero'"):
        SignedMatrix(2, "zero")
    with pytest.raises(ArgumentValueError, match="blocks: expected a divisor of dim = 4, got 3"):
        SignedMatrix(4, blocks=3)
    with pytest.raises(ArgumentValueError, match="dim: expected an integer from 1, got 0"):
        SignedMatrix(0)
    with pytest.raises(ArgumentValueError, match="sign: expected 'positive' or 'negative', got 'half'"):
        PlacedSpectrum(2, "half")


def test_symmetric_parts_are_told_from_rounding():
    matrix = SignedMatrix(2, symmetric=True, dtype=torch.float64)
    matrix.take(torch.tensor([[1.0, 0.5], [0.5 + 1e-8, 1.0]], dtype=torch.float64))
    assert matrix.symmetric
    assert not SignedMatrix(2).symmetric


@pytest.mark.parametrize("value", [1e-6, 0.15, 1.0, 40.0, 800.0])
def test_softplus_is_undone(value):
    raw = inverse_softplus(value)
    assert max(raw, 0.0) + math.log1p(math.exp(-abs(raw))) == pytest.approx(value, rel=1e-9)


def test_factors_are_those_of_cholesky_where_there_is_one():
    matrix = drawn(5, 5) @ drawn(5, 5).mT
    lower, pivots = unit_lower_factors(matrix)
    torch.testing.assert_close(lower * pivots.sqrt(), torch.linalg.cholesky(matrix), rtol=1e-10, atol=1e-10)


def test_starts_have_the_sizes_that_were_asked_for():
    matrix = SignedMatrix(200, "negative", dtype=torch.float64)
    matrix.start(size=0.15, noise=0.01, skew=0.3, generator=torch.Generator().manual_seed(0))
    pivots = matrix.signs * torch.nn.functional.softplus(matrix.diagonal)
    torch.testing.assert_close(pivots, torch.full_like(pivots, -0.15))
    below = torch.tril_indices(200, 200, -1)
    built = matrix().detach()
    skew = ((built - built.T) / 2)[below[0], below[1]]
    assert float(skew.std()) == pytest.approx(0.3, rel=0.02)
    assert float(matrix.lower.detach()[0][below[0], below[1]].std()) == pytest.approx(0.01, rel=0.02)
    matrix.start(size=1.0, noise=0.1)
    assert float(matrix.skew.detach()[0][below[0], below[1]].std()) == pytest.approx(0.1, rel=0.05)
    twin, free = SignedMatrix(20, dtype=torch.float64), FreeMatrix(20, dtype=torch.float64)
    for entry in (twin, free):
        entry.start(size=0.5, noise=0.1, skew=0.2, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(free().detach(), twin().detach())


@pytest.mark.parametrize(("half", "side"), [("positive", 1.0), ("negative", -1.0)])
def test_a_placed_spectrum_is_a_metric_times_a_definite_matrix(half, side):
    matrix = PlacedSpectrum(4, half, dtype=torch.float64)
    matrix.start()
    torch.testing.assert_close(matrix().detach(), side * torch.eye(4, dtype=torch.float64))
    with torch.no_grad():
        for number, parameter in enumerate(learnt(matrix)):
            parameter.copy_(2 * drawn(*parameter.shape, seed=number))
    built = matrix().detach().numpy()
    assert (side * np.linalg.eigvals(built).real > 0).all()
    # It is not the sign of V_sym that is chosen: P need not commute with anything.
    assert np.linalg.eigvalsh(built + built.T).prod() != 0
    metric = matrix.metric().detach().numpy()
    np.testing.assert_allclose(metric, metric.T)
