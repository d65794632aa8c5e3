"""Matrices over time: values, jumps, and what is known of them for all times."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tokendynamics.attention import Attention, Constant, FactoredMatrix, Periodic, Sinusoidal
from tokendynamics.attention.schedules.conversion import as_schedule
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError

RNG = np.random.default_rng(4)


def test_gates_multiply_the_rows():
    matrix = RNG.normal(size=(2, 3, 3))
    amplitude, frequency, phase = RNG.normal(size=(3, 2, 3))
    for absolute in (False, True):
        schedule = Sinusoidal(matrix, amplitude, frequency, phase, absolute=absolute)
        assert schedule.shape == (2, 3, 3)
        for t in (0.0, 0.3, -7.0):
            wave = amplitude * (np.abs if absolute else np.asarray)(np.sin(frequency * t + phase))
            np.testing.assert_allclose(schedule.matrix_at(t), wave[:, :, None] * matrix, rtol=1e-13, atol=1e-14)


def test_gates_of_commensurable_frequencies_come_back_together():
    matrix = RNG.normal(size=(3, 3))
    schedule = Sinusoidal(matrix, 2.0, 4 * math.pi * np.array([1.0, 2.0, 3.0]), [math.pi / 2, 0.0, math.pi / 2])
    for t in (0.0, 0.13, 0.4):
        np.testing.assert_allclose(schedule.matrix_at(t + 0.5), schedule.matrix_at(t), atol=1e-12)
        rows = [2 * math.cos(4 * math.pi * t), 2 * math.sin(8 * math.pi * t), 2 * math.cos(12 * math.pi * t)]
        np.testing.assert_allclose(schedule.matrix_at(t)[0], np.diag(rows) @ matrix, atol=1e-14)


def test_numbers_rows_and_heads_broadcast_as_gates():
    matrix = RNG.normal(size=(2, 3, 3))
    one = Sinusoidal(matrix, 2.0, 0.5, 0.1).matrix_at(1.7)
    np.testing.assert_allclose(one, 2 * math.sin(0.95) * matrix, rtol=1e-14)
    rows = Sinusoidal(matrix, [1.0, 2.0, 3.0], 0.5, 0.1).matrix_at(1.7)
    np.testing.assert_allclose(rows, math.sin(0.95) * np.array([1.0, 2.0, 3.0])[:, None] * matrix, rtol=1e-14)
    shared = Sinusoidal(matrix[0], np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), 0.5, 0.1)
    assert shared.shape == (2, 3, 3)
    with pytest.raises(
        ArgumentValueError, match=r"phase: expected a number.*matrix, shape \(2, 3, 3\), got shape \(4,\)"
    ):
        Sinusoidal(matrix, 1.0, 1.0, np.ones(4))


@given(st.integers(-40, 40), st.floats(0.001, 0.999), st.sampled_from([1.0, 0.75, 0.3, 7.0, 0.1]))
def test_pieces_follow_each_other_and_come_back(number, inside, period):
    pieces = np.arange(3.0).reshape(3, 1, 1)
    schedule = Periodic(pieces, period)
    width = period / 3
    assert float(schedule.matrix_at((number + inside) * width)) == number % 3
    # A break belongs to the piece it begins, with the very number `breaks` gives.
    for time in schedule.breaks((number - 0.5) * width, (number + 2.5) * width):
        assert float(schedule.matrix_at(time)) == round(time / width) % 3


def piece_by_fractions(t: float, pieces: int, period: float) -> int:
    return math.floor(Fraction(t) * pieces / Fraction(period)) % pieces


@pytest.mark.long
def test_at_whole_times_the_piece_is_that_of_exact_fractions():
    pieces_of = {pieces: np.arange(float(pieces)).reshape(-1, 1, 1) for pieces in range(1, 14)}
    assert float(Periodic(pieces_of[12], 7.0).matrix_at(63.0)) == 0.0
    for (count, pieces), period in itertools.product(pieces_of.items(), range(1, 13)):
        schedule = Periodic(pieces, float(period))
        values = [float(schedule.matrix_at(float(t))) for t in range(240)]
        assert values == [piece_by_fractions(t, count, period) for t in range(240)], (count, period)


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(1, 13),
    st.floats(1e-3, 1e3) | st.integers(1, 40).map(float),
)
@example(63.0, 12, 7.0)
@example(-63.0, 12, 7.0)
@example(-5e-324, 3, 1.0)
@example(2.0**900, 7, 0.1)
def test_at_any_time_the_piece_is_that_of_exact_fractions(t, count, period):
    schedule = Periodic(np.arange(float(count)).reshape(-1, 1, 1), period)
    assert float(schedule.matrix_at(t)) == piece_by_fractions(t, count, period)


@given(st.integers(-300, 300), st.integers(2, 13), st.floats(1e-3, 1e3) | st.integers(1, 40).map(float))
@example(107, 12, 7.0)
def test_a_break_is_the_first_float_of_the_piece_it_begins(number, count, period):
    schedule = Periodic(np.arange(float(count)).reshape(-1, 1, 1), period)
    width = period / count
    breaks = schedule.breaks((number - 0.5) * width, (number + 1.5) * width)
    assert len(breaks) == 2
    for k, time in enumerate(breaks, number):
        assert float(schedule.matrix_at(time)) == k % count
        assert float(schedule.matrix_at(math.nextafter(time, -math.inf))) == (k - 1) % count
    between = schedule.within(*breaks)
    assert float(between.matrix_at(0.0)) == number % count


@pytest.mark.parametrize("t", [math.nan, math.inf])
def test_a_piece_needs_a_finite_time(t):
    with pytest.raises(ArgumentValueError, match="t: expected a finite number, got"):
        Periodic(np.ones((2, 2, 2)), 1.0).matrix_at(t)


def test_breaks_are_strictly_inside_and_equally_spaced():
    schedule = Periodic(np.ones((4, 2, 2)), 2.0)
    np.testing.assert_allclose(schedule.breaks(0.0, 2.0), [0.5, 1.0, 1.5], rtol=1e-14)
    np.testing.assert_allclose(schedule.breaks(-0.6, 0.6), [-0.5, 0.0, 0.5], atol=1e-14)
    assert schedule.breaks(0.1, 0.4) == []
    assert Periodic(np.ones((1, 2, 2)), 1.0).within(0.0, 1.0).constant
    attention = Attention(schedule, Periodic(np.ones((3, 2, 2)), 1.2))
    np.testing.assert_allclose(attention.breaks(0.0, 1.0), [0.4, 0.5, 0.8], rtol=1e-14)


@pytest.mark.slow
def test_almost_as_many_jumps_as_a_run_can_pass_are_listed():
    assert len(Periodic(np.ones((2, 2, 2)), 2.0).breaks(0.0, 9e5)) == 9e5 - 1


@pytest.mark.parametrize("end", [1.1e6, 1e12, 1e308])
def test_more_jumps_than_a_run_can_pass_are_refused_with_their_number(end):
    schedule = Periodic(np.ones((2, 2, 2)), 2.0)
    with pytest.raises(
        ArgumentValueError, match=r"times: expected at most 1,000,000 jumps .*\(period 2\), got .* from"
    ):
        schedule.breaks(0.0, end)
    with pytest.raises(ArgumentValueError, match="got more than float64 can count from time"):
        Periodic(np.ones((2, 2, 2)), 1e-300).breaks(0.0, end * 1e10 if end < 1e300 else end)


def test_within_an_interval_a_periodic_schedule_is_its_piece():
    pieces = RNG.normal(size=(3, 2, 4, 4))
    schedule = Periodic(pieces, 0.9)
    for k in range(-2, 5):
        result = schedule.within(k * 0.3, (k + 1) * 0.3)
        np.testing.assert_array_equal(result.matrix_at(17.0), pieces[k % 3])


def test_a_tensor_of_times_gives_each_system_its_own_moment():
    x = torch.tensor(RNG.normal(size=(3, 4, 2)))
    times = torch.tensor([0.1, 0.9, -2.0], dtype=torch.float64)
    matrix = RNG.normal(size=(2, 2, 2))
    for schedule in (
        Sinusoidal(matrix, 1.5, 2.0, 0.3),
        Periodic(np.stack([matrix, -matrix, 2 * matrix]), 1.0),
        as_schedule(lambda t: matrix * math.exp(t), "qk"),
    ):
        result = schedule.at(times).queries(x)
        for row, t in enumerate(times.tolist()):
            wanted = torch.einsum("td,hde->hte", x[row], schedule.matrix_at(t))
            torch.testing.assert_close(result[row], wanted, rtol=1e-13, atol=1e-14)


def test_factors_stay_factors():
    left, right = torch.tensor(RNG.normal(size=(3, 2, 5, 2))), torch.tensor(RNG.normal(size=(3, 2, 5, 2)))
    schedule = Periodic(FactoredMatrix(left, right), 3.0)
    assert schedule.shape == (2, 5, 5)
    assert isinstance(schedule.piece(1).matrix, FactoredMatrix)
    torch.testing.assert_close(schedule.matrix_at(1.5), left[1] @ right[1].mT)


def test_what_cannot_be_known_of_a_function_is_not_claimed():
    eye = np.eye(2)
    known = {
        "constant": (as_schedule(eye, "qk"), True, True, True),
        "sinusoidal": (Sinusoidal(eye, 1.0, 1.0, 0.0), False, True, True),
        "periodic": (Periodic(np.stack([eye, -eye]), 1.0), False, True, False),
        "function": (as_schedule(lambda t: t * eye, "qk"), False, None, None),
    }
    for schedule, constant, bounded, continuous in known.values():
        assert (schedule.constant, schedule.bounded, schedule.uniformly_continuous) == (constant, bounded, continuous)


def test_a_multiple_of_the_identity_is_seen_exactly():
    eyes = torch.eye(3).double()
    assert Constant(torch.stack([2 * eyes, -eyes])).multiple.tolist() == [2.0, -1.0]
    assert Constant((eyes + 1e-15 * torch.ones(3, 3))[None]).multiple is None
    assert Constant(torch.diag(torch.tensor([1.0, 1.0, 1.0 + 1e-15], dtype=torch.float64))[None]).multiple is None
    # A gradient is one of all entries, also of the zeros.
    assert Constant(eyes[None].clone().requires_grad_()).multiple is None


@pytest.mark.parametrize("period", [0.0, -1.0, math.inf, math.nan])
def test_a_period_must_be_positive_and_finite(period):
    with pytest.raises(ArgumentValueError, match="period: expected a positive finite time"):
        Periodic(np.ones((2, 2, 2)), period)


def test_pieces_need_a_piece_axis():
    with pytest.raises(ArgumentValueError, match=r"matrices: expected at least 3 axes .*got shape \(2, 2\)"):
        Periodic(np.ones((2, 2)), 1.0)
    with pytest.raises(
        ArgumentValueError, match=r"matrices: expected \(piece, dim, dim\).*got shape \(1, 1, 1, 2, 2\)"
    ):
        Periodic(np.ones((1, 1, 1, 2, 2)), 1.0)


def test_a_function_must_return_a_matrix_of_one_shape(unchecked):
    with pytest.raises(ArgumentValueError, match=r"qk\(1\.5\): expected \(dim, dim\) or \(head, dim, dim\)"):
        as_schedule(lambda t: np.ones((2, 1, 2, 2)), "qk").matrix_at(1.5)
    with pytest.raises(ArgumentTypeError, match=r"qk\(1\.5\): expected a tensor, an array or nested lists"):
        as_schedule(lambda t: "matrix", "qk").matrix_at(1.5)
