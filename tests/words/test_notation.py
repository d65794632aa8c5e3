"""One notation of numbers, intervals and lists: what is written can be read back, and never says more than is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokendynamics.words import (
    UNDEFINED,
    column,
    count,
    estimate,
    factor,
    fixed,
    in_layers,
    interval,
    is_share,
    listing,
    number,
    percent,
    places_for,
    plural,
    ranges,
    sentence,
    share,
    signed,
)

SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
reals = st.floats(-1e12, 1e12).filter(lambda value: value == 0 or abs(value) > 1e-12)


def read(text: str) -> float:
    mantissa, _, exponent = text.replace("−", "-").replace(",", "").partition(" × 10")
    return float(mantissa) * 10.0 ** int(exponent.translate(SUPERSCRIPTS) or 0)


@given(reals, st.integers(1, 6))
def test_a_number_is_read_back_to_its_digits(value: float, digits: int) -> None:
    # One unit in the last of `digits` digits: half for rounding, half for numbers whose rounding gains a digit.
    assert read(number(value, digits)) == pytest.approx(value, rel=10.0 ** (1 - digits))
    assert "-" not in number(value, digits)
    assert signed(value, digits).startswith("+") == (value > 0)


def test_the_smallest_and_the_largest_numbers_are_written() -> None:
    assert [number(value) for value in (5e-324, -2.3e-308, 1.797e308)] == [
        "4.94 × 10⁻³²⁴",
        "−2.3 × 10⁻³⁰⁸",
        "1.8 × 10³⁰⁸",
    ]
    assert column([5e-324, 1e-310], 2) == ["4.9 × 10⁻³²⁴", "1.0 × 10⁻³¹⁰"]


@given(st.lists(reals | st.floats(-10, 10), min_size=1, max_size=6), st.integers(2, 5))
def test_the_numbers_of_a_column_have_one_number_of_places(values: list[float], digits: int) -> None:
    texts = column(values, digits)
    plain = [(v, t) for v, t in zip(values, texts, strict=True) if 1e-4 <= abs(v) < 9e6]
    places = len(max(plain, key=lambda pair: abs(pair[0]))[1].partition(".")[2]) if plain else 0
    for value, text in zip(values, texts, strict=True):
        if value == 0:
            assert text == "0"
        elif (value, text) in plain and abs(value) >= 10.0**-places:
            assert "×" not in text
            assert len(text.partition(".")[2]) == places
            assert abs(read(text) - value) <= 0.5000001 * 10.0**-places
        elif not 5e-4 <= abs(value) < 9e6 or abs(value) < 10.0 ** -(places + 1):
            assert read(text) == pytest.approx(value, rel=10.0 ** (1 - digits))


def test_a_column_shows_four_digits_of_its_largest_number_and_cuts_common_zeros() -> None:
    assert column([0.123456, 0.01]) == ["0.1235", "0.0100"]
    assert column([1234.5678, -0.5]) == ["1,235", "−0.5"]  # half a unit would read as 0 or as 1
    assert column([9.99996, 1.0]) == ["10", "1"]
    assert column([1e-5, 2.5e-6]) == ["1.0 × 10⁻⁵", "2.5 × 10⁻⁶"]
    assert column([float("nan"), float("inf"), None, 2.0]) == ["undefined", "∞", "undefined", "2"]
    assert column([]) == []


def test_powers_of_ten_begin_beyond_seven_digits_and_below_a_ten_thousandth() -> None:
    assert number(1e-4) == "0.0001"
    assert number(9.99e-5) == "9.99 × 10⁻⁵"
    assert number(9_999_999, 8) == "9,999,999"
    assert number(1e7) == "1 × 10⁷"


@given(st.floats(-100, 100), st.integers(0, 4))
def test_fixed_places_round_and_zero_has_no_sign(value: float, places: int) -> None:
    text = fixed(value, places, sign=True)
    assert read(text.removeprefix("+")) == pytest.approx(value, abs=0.5 * 10.0**-places + 1e-12)
    if read(text.removeprefix("+")) == 0:
        assert text[0] == "0"


@pytest.mark.parametrize("write", [number, signed, fixed, percent, factor])
def test_what_is_not_known_is_undefined(write) -> None:
    assert write(None) == write(math.nan) == UNDEFINED


@given(st.floats(0, 1))
def test_a_share_reads_as_all_or_nothing_only_where_it_is(value: float) -> None:
    text = percent(value)
    assert (text == "100 %") == (1 - value < 1e-9)
    assert (text == "0 %") == (value == 0)


def test_percentages_of_more_than_all_keep_their_digits() -> None:
    assert [percent(value) for value in (0.054, 0.995, 1.0, 1.23, 12.34)] == ["5.4 %", "99.5 %",
                                                                              "100 %", "123 %", "1,230 %"]  # fmt: skip


@given(st.floats(-5, 5), st.floats(0, 5))
def test_an_interval_is_cut_at_the_possible_values(low: float, width: float) -> None:
    text = interval((low, low + width), 0.9, at_least=0.0, at_most=1.0)
    if low > 1 or low + width < 0:
        assert text == ""
        return
    first, last = text.removeprefix("90 % CI ").replace("–", " to ").split(" to ")
    assert 0 <= read(first) <= read(last) <= 1


def test_an_estimate_names_its_confidence_and_stands_alone_without_an_interval() -> None:
    assert estimate(0.25, (0.2, 0.3), 0.95) == "0.25 (95 % CI 0.20–0.30)"
    assert estimate(-0.3, (-0.31, -0.29), 0.9, places=3, sign=True) == "−0.300 (90 % CI −0.310 to −0.290)"
    assert estimate(0.25, (np.nan, 0.3), 0.9) == "0.25"
    assert share(1.2, (0.9, 1.4), 0.9) == "1.00 (90 % CI 0.90–1.00)"
    assert (is_share([0.0, 1.004]), is_share([0.0, 1.006]), is_share([-0.006, 0.5])) == (True, False, False)


@pytest.mark.parametrize(("width", "places"), [(3.0, 1), (0.3, 2), (0.0099, 4), (250.0, 0)])
def test_the_places_show_two_digits_of_the_width(width: float, places: int) -> None:
    assert places_for((1.0, 1.0 + width)) == places


def test_the_places_without_a_width_are_those_of_the_value_or_two() -> None:
    assert places_for((0.0123, 0.0123)) == 4
    assert places_for((1e-20, 1e-20)) == 12
    assert [places_for(ends) for ends in ((0.0, 0.0), (0.0, np.inf), (np.nan, 1.0), (0.0, np.nan))] == [2, 2, 2, 2]


def test_a_signed_number_has_three_digits() -> None:
    assert signed(0.123456) == "+0.123"
    assert signed(-0.123456) == "−0.123"


def test_counts_lists_and_ranges() -> None:
    assert [plural(many, "matrix", "matrices") for many in (0, 1, 1000)] == ["0 matrices", "1 matrix", "1,000 matrices"]
    assert count(-1234567) == "−1,234,567"
    assert listing(["a", "b", "c"], most=2) == "a, b and c"  # "1 more" is no shorter than the item
    assert listing(["a", "b", "c", "d"], most=2) == "a, b and 2 more"
    assert ranges([1, 2, 4, 6, 7, 8]) == "1–2, 4, 6–8"
    assert (in_layers([2]), in_layers([2, 3])) == ("layer 2", "layers 2–3")
    assert (sentence("it holds."), sentence("κ falls"), sentence("qk_sum is 1")) == (
        "It holds.", "κ falls.", "qk_sum is 1.",
    )  # fmt: skip
