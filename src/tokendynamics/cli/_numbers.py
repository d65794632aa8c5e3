"""Numbers on the command line: what no option can mean is refused as it is read."""

from __future__ import annotations

import math
from typing import Any

import click

_LARGEST = 2**63 - 1


def whole(at_least: int = -_LARGEST, at_most: int = _LARGEST) -> Any:
    """Return an integer within its bounds, and of 64 bits in any case.

    >>> whole(1).convert("3", None, None)
    3
    """
    return click.IntRange(at_least, at_most)


class Share(click.FloatRange):
    """A number strictly between 0 and 1; NaN, which compares with nothing, is none.

    >>> Share().convert("0.5", None, None)
    0.5
    """

    def __init__(self) -> None:
        super().__init__(0.0, 1.0, min_open=True, max_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read as `click.FloatRange` does, without NaN."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("NaN is not in the range 0<x<1.", param, ctx)
        return number
