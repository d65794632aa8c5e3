"""Options that several commands share: numbers that are checked when they are parsed, and the folder of results."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tokendynamics.numerics.printable import shortened

_LARGEST = 2**63 - 1

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


class Above(click.ParamType):
    """A finite number above a bound.

    >>> Above(1.0).convert("4", None, None)
    4.0
    """

    name = "float"

    def __init__(self, bound: float) -> None:
        self._bound = bound

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number = float(click.FLOAT.convert(value, param, ctx))
        if not self._bound < number < math.inf:
            self.fail(f"{number:g} is not a number above {self._bound:g}.", param, ctx)
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


def check_writable(out: Path | None) -> None:
    """Refuse a folder that cannot be written, before minutes are spent on its content.

    Args:
        out: The folder; None for a folder in the current one.

    Raises:
        click.BadParameter: Nothing can be written there.
    """
    target = (out or Path()).absolute()
    existing = next(path for path in (target, *target.parents) if path.exists())
    try:
        # Permissions are not reliable: some file systems refuse what their mode allows.
        with tempfile.TemporaryDirectory(dir=existing, prefix=".probe-"):
            return
    except OSError:
        message = f"{existing} is not a folder that can be written to"
        raise click.BadParameter(message, param_hint="--out") from None


def overwrite_option(**settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option --overwrite; `settings` are click's."""
    help = "Also replace files that no earlier run of this command wrote."
    return click.option("--overwrite", is_flag=True, help=help, **settings)


def result_options(folder: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds --out, --format, --overwrite and --json to a command.

    Args:
        folder: The name of the results without --out, for the help.
    """
    options = (
        click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on standard output."),
        overwrite_option(),
        click.option(
            "--format",
            "data_format",
            type=click.Choice(["zarr", "netcdf"]),
            default="zarr",
            show_default=True,
            help="Format of the data files.",
        ),
        click.option("--out", type=Folder(), help=f"Folder of the results.  [default: {folder}]"),
    )

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in options:
            command = option(command)
        return command

    return add


def sink_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options --sinks and --sink-ratio to a command."""
    for option in (
        click.option(
            "--sink-ratio",
            type=Above(1.0),
            default=4.0,
            show_default=True,
            help="A token is massive if its norm is this many times the median of its prompt.",
        ),
        click.option(
            "--sinks",
            type=Sinks(),
            metavar="detect|none|POSITIONS",
            default="detect",
            show_default=True,
            help="Which tokens are left out as massive: those detected by norm, none, or positions such as 0,1.",
        ),
    ):
        command = option(command)
    return command


def half_option() -> Callable[[Any], Any]:
    """Return the option that names one half of a network with two."""
    return click.option(
        "--half",
        type=click.Choice(["encoder", "decoder", "text", "vision"]),
        help="Which half of a network with two, such as an encoder-decoder.",
    )
