"""Sizes of figures and pictures, at their very bounds."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure

from tokendynamics.figures.style import check_inches, check_panels, check_pixels
from tokendynamics.numerics.errors import ArgumentValueError


@pytest.mark.parametrize(
    ("check", "inside", "outside", "message"),
    [
        (lambda size: check_inches(width=size), 0.1, 0.09, "width: expected 0.1 to 500 inches, got 0.09"),
        (lambda size: check_inches(height=size), 500, 501, "height: expected 0.1 to 500 inches, got 501"),
        (lambda size: check_inches(height=size), 1, float("nan"), "height: expected 0.1 to 500 inches, got nan"),
        (
            lambda count: check_panels(count, 100),
            10,
            11,
            "columns: expected at most 1000 panels, got 11 columns of 100",
        ),
        (lambda count: check_panels(count, 1), 1, 0, "columns: expected at least 1, got 0"),
        (lambda count: check_panels(1, count), 1, 0, "rows: expected at least 1, got 0"),
        (
            lambda dots: check_pixels(Figure((4, 25)), dots),
            1000,
            1001,
            "dots_per_inch: expected 10 to 1000 for 4 x 25 inches",
        ),
        (
            lambda dots: check_pixels(Figure((1, 1)), dots),
            10,
            9.9,
            "dots_per_inch: expected 10 to 10000 for 1 x 1 inches, got 9.9",
        ),
        (lambda dots: check_pixels(Figure((1, 1)), dots), 10, float("nan"), "got nan; a picture may have 1e+08 pixels"),
    ],
)
def test_sizes_are_refused_beyond_their_bounds(check: Any, inside: float, outside: float, message: str) -> None:
    check(inside)
    with pytest.raises(ArgumentValueError) as caught:
        check(outside)
    assert message in str(caught.value)
