"""Sizes that a figure may have, in inches and in pixels."""

from __future__ import annotations

from matplotlib.figure import Figure

from tokendynamics.numerics.errors import ArgumentValueError, expected

_SMALLEST, _LARGEST = 0.1, 500.0
_COARSEST, _MOST_PIXELS = 10.0, 1e8
_MOST_PANELS = 1000


def check_inches(**sizes: float) -> None:
    """Refuse a size that nothing could be drawn on.

    Raises:
        ArgumentValueError: Not 0.1 to 500 inches.
    """
    for argument, size in sizes.items():
        if not _SMALLEST <= size <= _LARGEST:
            raise ArgumentValueError(expected(argument, f"{_SMALLEST:g} to {_LARGEST:g} inches", f"{size:g}"))


def check_panels(columns: int, rows: int) -> None:
    """Refuse no panels, and more than can be drawn.

    Raises:
        ArgumentValueError: Fewer than one of either, or more than 1000 panels in all.
    """
    for argument, count in (("columns", columns), ("rows", rows)):
        if count < 1:
            raise ArgumentValueError(expected(argument, "at least 1", count))
    if columns * rows > _MOST_PANELS:
        came = f"{columns} columns of {rows}"
        raise ArgumentValueError(expected("columns", f"at most {_MOST_PANELS} panels", came))


def check_pixels(figure: Figure, dots_per_inch: float) -> None:
    """Refuse a picture without legible letters, and one that does not fit into memory.

    Raises:
        ArgumentValueError: Fewer than 10 dots per inch, or more than 10^8 pixels; the number is printed.
    """
    width, height = figure.get_size_inches()
    pixels = width * height * dots_per_inch**2
    if not (dots_per_inch >= _COARSEST and pixels <= _MOST_PIXELS):
        most = f"{_COARSEST:g} to {int((_MOST_PIXELS / (width * height)) ** 0.5)} for {width:g} x {height:g} inches"
        advice = f"a picture may have {_MOST_PIXELS:.0e} pixels"
        raise ArgumentValueError(expected("dots_per_inch", most, f"{dots_per_inch:g}", advice))
