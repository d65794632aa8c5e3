"""Eight numbers side by side: every operation against NumPy's, on ordinary, infinite and missing numbers."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
from numba import njit

from tokendynamics.dynamics.engines.compiled.lanes import (
    WIDTH,
    absolute,
    added,
    any_of,
    at_least,
    behind,
    broadcast,
    chosen,
    dot,
    exp,
    floats,
    fma,
    holds,
    load,
    load_row,
    matrix_times,
    room,
    rough_log,
    scaled,
    select,
    sqrt,
    store,
    store_row,
    transpose_times,
    zeros,
)

Array = np.ndarray

compiled = njit(error_model="numpy")

EPS = float(np.finfo(float).eps)
ODD = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, -2.5e-308, 1.7e308, -1e-16, 3.0])


def pairs() -> tuple[Array, Array]:
    """All pairs of odd numbers, and ordinary ones of many sizes."""
    rng = np.random.default_rng(0)
    sizes = rng.normal(size=(2, 1024)) * 10.0 ** rng.integers(-150, 150, size=(2, 1024))
    odd = np.array([[one, other] for one in ODD for other in ODD]).T
    x, y = np.concatenate([odd, sizes, rng.normal(size=(2, 400))], axis=1)
    assert len(x) % WIDTH == 0
    return x, y


@compiled
def _operations(memory, x, y, out_values):
    place = floats(memory)
    for first in range(0, len(x), WIDTH):
        for lane in range(WIDTH):
            place[lane], place[WIDTH + lane] = x[first + lane], y[first + lane]
        a, b = load(place, 0), load(place, 1)
        less, more = a < b, a >= 1.0
        store(place, 2, a + b)
        store(place, 3, a - b)
        store(place, 4, a * b)
        store(place, 5, a / b)
        store(place, 6, -a)
        store(place, 7, absolute(a))
        store(place, 8, sqrt(a))
        store(place, 9, at_least(a, b))
        store(place, 10, 2.0 - a)
        store(place, 11, a * 3)
        store(place, 12, select(less, a, b))
        store(place, 13, select(a <= b, 1.0, 0.0))
        store(place, 14, select(a > b, 1.0, 0.0))
        store(place, 15, select(more, 1.0, 0.0))
        store(place, 16, select(less & more, 1.0, 0.0))
        store(place, 17, select(less | more, 1.0, 0.0))
        store(place, 18, select(~less, 1.0, 0.0))
        store(place, 19, 1.0 if any_of(less & more) else 0.0)
        store(place, 20, broadcast(x[first]))
        store(place, 21, fma(a, b, 0.5))
        store(place, 22, 7.0)
        for lane in range(WIDTH):
            place[23 * WIDTH + lane] = 1.0 if holds(less, lane) else 0.0
        for row in range(out_values.shape[0]):
            for lane in range(WIDTH):
                out_values[row, first + lane] = place[(row + 2) * WIDTH + lane]


def test_operators_are_those_of_numpy_in_every_lane():
    x, y = pairs()
    result = np.empty((22, len(x)))
    array, place = room(24)
    _operations(place, x, y, result)
    del array
    with np.errstate(all="ignore"):
        less, more, crossed = x < y, x >= 1, ((x < y) & (x >= 1)).reshape(-1, WIDTH).any(axis=1)
        wanted = [
            x + y, x - y, x * y, x / y, -x, abs(x), np.sqrt(x), np.where(x < y, y, x), 2 - x, 3 * x,
            np.where(less, x, y), x <= y, x > y, more, less & more, less | more, ~less, np.repeat(crossed, WIDTH),
            np.repeat(x[::WIDTH], WIDTH), None, np.full(len(x), 7.0), less,
        ]  # fmt: skip
        for row, numbers in enumerate(wanted):
            if numbers is not None:
                np.testing.assert_array_equal(result[row], numbers, err_msg=f"operation {row}")
                zero = result[row] == 0
                np.testing.assert_array_equal(np.signbit(result[row][zero]), np.signbit(np.asarray(numbers)[zero]))
        # Rounded once or twice, as the processor has it.
        np.testing.assert_allclose(result[19], x * y + 0.5, rtol=4 * EPS, atol=EPS)


def test_a_bound_does_not_hide_what_is_no_number():
    result = np.empty((22, WIDTH))
    array, place = room(24)
    _operations(place, np.full(WIDTH, np.nan), np.zeros(WIDTH), result)
    del array
    assert np.isnan(result[7]).all()
    # Nothing is less than it, nor more, nor equal.
    np.testing.assert_array_equal(result[[11, 12, 13, 14, 15, 17, 21]], 0.0)
    np.testing.assert_array_equal(result[16], 1.0)


@compiled
def _elementary(memory, x, exponentials, logarithms):
    place = floats(memory)
    for first in range(0, len(x), WIDTH):
        for lane in range(WIDTH):
            place[lane] = x[first + lane]
        number = load(place, 0)
        store(place, 0, exp(number))
        store(place, 1, rough_log(number))
        for lane in range(WIDTH):
            exponentials[first + lane], logarithms[first + lane] = place[lane], place[WIDTH + lane]


def elementary(x: Array) -> tuple[Array, Array]:
    """Exponentials and rough logarithms of numbers, as many as fill lanes."""
    full = np.concatenate([x, np.ones(-len(x) % WIDTH)])
    exponentials, logarithms = np.empty_like(full), np.empty_like(full)
    array, place = room(2)
    _elementary(place, full, exponentials, logarithms)
    del array
    return exponentials[: len(x)], logarithms[: len(x)]


def exponents() -> Array:
    """Where e^x is a normal number: everywhere, near zero, and on both sides of where the reduction rounds."""
    rng = np.random.default_rng(1)
    halves = (np.arange(-1021, 1022) + 0.5) * math.log(2)
    edges = np.concatenate([halves * (1 + step * EPS) for step in range(-4, 5)])
    small = rng.normal(size=20_000) * 10.0 ** rng.uniform(-320, 0, size=20_000)
    x = np.concatenate([rng.uniform(-708, 709, size=200_000), rng.uniform(-1, 1, size=50_000), edges, small, ODD[:4]])
    return x[(x >= -708) & (x <= 709)]


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="no longer format to compare with")
def test_exponentials_are_within_a_unit_in_the_last_place():
    x = exponents()
    computed, exact = elementary(x)[0], np.exp(x.astype(np.longdouble))
    units = np.abs(computed.astype(np.longdouble) - exact) / np.spacing(exact.astype(np.float64))
    assert units.max() <= 1, (x[units.argmax()], units.max())


def test_exponentials_are_within_a_unit_in_the_last_place_in_forty_digits():
    x = np.random.default_rng(2).choice(exponents(), size=400)
    x = np.concatenate([x, [-708.0, 709.0, 0.5 * math.log(2), -0.5 * math.log(2)]])
    digits = Context(prec=40)
    for number, computed in zip(x, elementary(x)[0], strict=True):
        exact = digits.exp(Decimal(float(number)))
        unit = Decimal(float(np.spacing(float(exact))))
        assert abs(Decimal(float(computed)) - exact) <= unit, number


def test_exponentials_stop_at_their_bound_and_keep_what_is_no_number():
    x = np.array([0.0, -0.0, -708.0, -708.5, -1e300, -np.inf, np.nan, -np.nan])
    computed = elementary(x)[0]
    np.testing.assert_array_equal(computed[:2], 1.0)
    np.testing.assert_array_equal(computed[3:6], computed[2])
    assert computed[2] == pytest.approx(math.exp(-708), rel=EPS)
    assert np.isnan(computed[6:]).all()


def test_rough_logarithms_are_right_to_a_ten_thousandth_over_six_hundred_decades():
    rng = np.random.default_rng(3)
    x = 10.0 ** rng.uniform(-300, 300, size=100_000)
    powers = 2.0 ** np.arange(-1000, 1000)
    x = np.concatenate([x, powers, np.nextafter(powers, 0), np.linspace(0.5, 2, 10_000)])
    np.testing.assert_allclose(elementary(x)[1], np.log(x), rtol=0, atol=1e-4)


@compiled
def _rows(memory, features, first, second, matrices, out_values):
    dim, place = len(features), floats(memory)
    other, square, out = behind(place, dim), behind(place, 2 * dim), behind(place, dim * (dim + 2))
    for lane in range(WIDTH):
        for a in range(dim):
            place[WIDTH * a + lane], other[WIDTH * a + lane] = first[a, lane], second[a, lane]
            for b in range(dim):
                square[WIDTH * (a * dim + b) + lane] = matrices[a, b, lane]
    x, y = load_row(features, place, 0), load_row(features, place, dim)
    factor = load(place, 1)
    _copy(out_values, 0, out, added(factor, x, y))
    _copy(out_values, 1, out, added(2.5, x, y))
    _copy(out_values, 2, out, scaled(factor, x))
    _copy(out_values, 3, out, scaled(-0.5, x))
    _copy(out_values, 4, out, chosen(load(place, 0) < 0.0, x, y))
    _copy(out_values, 5, out, matrix_times(square, 0, x))
    _copy(out_values, 6, out, transpose_times(square, 0, x))
    _copy(out_values, 7, out, zeros(features))
    _copy(out_values, 8, out, (dot(x, y),))


@compiled
def _copy(out_values, number, place, row):
    store_row(place, 0, row)
    for a in range(len(row)):
        for lane in range(WIDTH):
            out_values[number, a, lane] = place[WIDTH * a + lane]


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("dim", [2, 5])
def test_rows_are_the_vectors_of_linear_algebra_in_every_lane(dim: int):
    rng = np.random.default_rng(dim)
    x, y, matrices = rng.normal(size=(dim, WIDTH)), rng.normal(size=(dim, WIDTH)), rng.normal(size=(dim, dim, WIDTH))
    # What one lane holds does not reach the others.
    x[:, 3], y[0, 5] = np.nan, np.inf
    computed, (array, place) = np.empty((9, dim, WIDTH)), room(dim * (dim + 3) + 2)
    _rows(place, (0,) * dim, x, y, matrices, computed)
    del array
    with np.errstate(invalid="ignore"):
        wanted = [
            x[1] * x + y, 2.5 * x + y, x[1] * x, -0.5 * x, np.where(x[0] < 0, x, y),
            np.einsum("abl,bl->al", matrices, x), np.einsum("bal,bl->al", matrices, x), np.zeros((dim, WIDTH)),
        ]  # fmt: skip
        for row, numbers in enumerate(wanted):
            np.testing.assert_allclose(computed[row], numbers, rtol=0, atol=8 * dim * EPS, err_msg=f"operation {row}")
        np.testing.assert_allclose(computed[8, 0], (x * y).sum(axis=0), rtol=0, atol=8 * dim * EPS)


@pytest.mark.long
@pytest.mark.parametrize("dim", [5])
def test_products_are_rounded_as_sums_of_products_may_be(dim: int):
    """No more than a rounding for each product and sum, also where nearly everything cancels."""
    rng = np.random.default_rng(7)
    x, y = rng.normal(size=(dim, WIDTH)), rng.normal(size=(dim, WIDTH))
    x[-1] = -(x[:-1] * y[:-1]).sum(axis=0) / y[-1]
    computed, (array, place) = np.empty((9, dim, WIDTH)), room(dim * (dim + 3) + 2)
    _rows(place, (0,) * dim, x, y, rng.normal(size=(dim, dim, WIDTH)), computed)
    del array
    for lane in range(WIDTH):
        exact = sum(Fraction(one) * Fraction(other) for one, other in zip(x[:, lane], y[:, lane], strict=True))
        size = float(np.abs(x[:, lane] * y[:, lane]).sum())
        assert abs(Fraction(computed[8, 0, lane]) - exact) <= dim * EPS * size


@pytest.mark.parametrize("count", [0, 1, 5, 1000])
def test_memory_for_lanes_is_aligned_empty_and_large_enough(count: int):
    for _ in range(20):
        array, place = room(count)
        assert not array.any()
        assert place % (8 * WIDTH) == 0
        assert array.ctypes.data <= place <= array.ctypes.data + array.nbytes - 8 * WIDTH * count
