"""Values of options, checked when they are parsed: numbers, tokens, variants, folders."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import click

from tokendynamics.numerics.printable import shortened

_LARGEST = 2**63 - 1
_MOST_LAYERS = 10_000
"""No network has more layers; a mistyped number must not fill the memory."""

VARIANTS = ("full", "no-ffn", "no-norm", "attention-only")
"""Those of `tokendynamics.deeper`, which is not imported before a command runs."""


def whole(at_least: int | None = None, at_most: int | None = None) -> Any:
    """Return the type of an integer of at most 64 bits, within the bounds that the help then shows.

    >>> whole(1).convert("3", None, None)
    3
    """
    return _Whole() if at_least is None and at_most is None else _WholeInRange(at_least, at_most)


class _Whole(click.types.IntParamType):
    """An integer of at most 64 bits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if abs(number) > _LARGEST:
            self.fail(f"expected an integer of at most 64 bits, got {shortened(str(value), 50)}", param, ctx)
        return number


class _WholeInRange(click.IntRange, _Whole):
    """An integer of at most 64 bits within bounds."""


class ShareType(click.FloatRange):
    """A number strictly between 0 and 1; NaN is refused.

    >>> ShareType().convert("0.5", None, None)
    0.5
    """

    def __init__(self) -> None:
        super().__init__(0.0, 1.0, min_open=True, max_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert as `click.FloatRange` does, and refuse NaN."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("NaN is not in the range 0<x<1.", param, ctx)
        return number


class Number(click.ParamType):
    """A finite number above a bound, or up to one.

    >>> Number(above=1.0).convert("4", None, None), Number(up_to=1.0).convert("-4", None, None)
    (4.0, -4.0)
    """

    name = "float"

    def __init__(self, *, above: float = -math.inf, up_to: float = math.inf) -> None:
        self._above, self._up_to = above, up_to

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number = float(click.FLOAT.convert(value, param, ctx))
        if not self._above < number <= self._up_to or math.isinf(number):
            bound = f"above {self._above:g}" if self._up_to == math.inf else f"up to {self._up_to:g}"
            self.fail(f"{number:g} is not a number {bound}.", param, ctx)
        return number


class Sinks(click.ParamType):
    """The tokens that are left out as massive, as the argument `sinks` of `tokendynamics.trace`.

    >>> Sinks().convert("0,5", None, None), Sinks().convert("none", None, None)
    ([0, 5], [])
    """

    name = "sinks"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return "detect" or a list of positions."""
        if value == "detect":
            return value
        parts = [] if value == "none" else str(value).split(",")
        if not all(re.fullmatch(r"\s*[0-9]{1,9}\s*", part) for part in parts):
            came = shortened(repr(value), 100)
            self.fail(f"expected 'detect', 'none', or positions from 0 on such as 0,1, got {came}", param, ctx)
        return [int(part) for part in parts]


class Layers(click.ParamType):
    """Layers of a network: numbers and ranges.

    >>> Layers().convert("1-3,7", None, None)
    [1, 2, 3, 7]
    """

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        """Return the numbers in order."""
        chosen: set[int] = set()
        for part in str(value).split(","):
            match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part)
            if match is None or (match[2] and int(match[2]) < int(match[1])):
                came = shortened(repr(value), 100)
                numbers = f"numbers up to {_MOST_LAYERS} and ranges, the lower first, such as 1-10,30"
                self.fail(f"expected {numbers}, got {came}", param, ctx)
            first, last = int(match[1]), int(match[2] or match[1])
            if last > _MOST_LAYERS:
                self.fail(f"expected layers up to {_MOST_LAYERS}, got {last}", param, ctx)
            chosen.update(range(first, last + 1))
        return sorted(chosen)


class Variants(click.ParamType):
    """Variants of a network, as the argument of `tokendynamics.deeper`.

    >>> Variants().convert("full, no-ffn", None, None)
    ('full', 'no-ffn')
    """

    name = "variants"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the names."""
        parts = value if isinstance(value, tuple) else tuple(part.strip() for part in str(value).split(","))
        wrong = next((part for part in parts if part not in VARIANTS), None)
        if wrong is not None:
            came = shortened(repr(wrong), 100)
            self.fail(f"expected names among {', '.join(VARIANTS)}, separated by commas, got {came}", param, ctx)
        if len(set(parts)) < len(parts):
            self.fail(f"expected each name once, got {shortened(repr(value), 100)}", param, ctx)
        return parts


class Folder(click.Path):
    """The name of a folder; an empty name is refused, since it would silently mean the current folder."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if value == "":
            self.fail("expected the name of a folder, got an empty one; '.' is the current one", param, ctx)
        return super().convert(value, param, ctx)
