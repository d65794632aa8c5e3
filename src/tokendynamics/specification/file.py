"""Reads a specification file: what is wrong in it is said in one line, with the number of the line it stands on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import as_path
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.specification._tables import OF_SYSTEMS, Specification
from tokendynamics.specification.section import SpecificationError, TomlTable, did_you_mean
from tokendynamics.specification.toml import KeyPath, key_lines, nearest_line, parse_toml, present_part, read_text

T = TypeVar("T", bound=TomlTable)

_LONGEST_VALUE = 60
_QUOTED = r"'([^']*)'"
_OF_ARGUMENT: dict[str, KeyPath] = {"times": ("time",), "x0": ("start",), "metric": ("space", "metric")}
"""Arguments of the library that other tables than the one at hand speak of."""
_NAMES_NOTHING = ("x", "x0")
"""Arguments of the library that have no name in the file: the key that they came from says what they are."""


@dataclass(frozen=True)
class Source:
    """The text of a file, and where each of its keys stands.

    Attributes:
        name: The file's name, for messages.
        text: What the file says.
        lines: The line of every key.
    """

    name: str
    text: str
    lines: dict[KeyPath, int]

    def error(self, path: KeyPath, message: str) -> SpecificationError:
        """Return an error about the key at `path`, with its line."""
        present = present_part(self.lines, path)
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in present).removeprefix(".")
        line = nearest_line(self.lines, path)
        return SpecificationError(f"{self.name} line {line}: {where}{': ' if where else ''}{message}")

    def checked(self, table: type[T], values: dict[str, Any], *, of_systems: bool = False) -> T:
        """Check the values of a table of any kind that stands at the root of the file.

        Args:
            table: The kind of table.
            values: As TOML has them, or what a sweep makes of them.
            of_systems: Whether laws may be without a seed, so that each system draws its own; see `OfSystems`.

        Raises:
            SpecificationError: A key, value or unit that is wrong; the message has the line.
        """
        try:
            return table.model_validate(values, context={OF_SYSTEMS: of_systems})
        except ValidationError as error:
            # Of several errors the first in the file; a missing key stands nowhere, so it comes after all wrong ones.
            described = [
                (details["type"] in ("missing", "no_seed"), *_described(details)) for details in error.errors()
            ]
            _, path, message = min(described, key=lambda entry: (entry[0], nearest_line(self.lines, entry[1])))
            raise self.error(path, message) from None


def parsed(text: str, name: str) -> tuple[dict[str, Any], Source]:
    """Return the values of a TOML file, and the lines of its keys.

    Raises:
        SpecificationError: Not TOML, or beyond the bounds of `parse_toml`.
    """
    return parse_toml(text, name), Source(name, text, key_lines(text))


@dataclass(frozen=True)
class SpecificationFile(Source):
    """A checked file, and where each of its keys stands.

    Attributes:
        name: The file's name, for messages.
        text: What the file says.
        lines: The line of every key.
        tables: The checked values.

    >>> from tokendynamics.specification.examples import example_text
    >>> file = parse(example_text("minimal"), "minimal.toml")
    >>> file.name, file.tables.space.kind
    ('minimal.toml', 'sphere')
    """

    tables: Specification

    @contextmanager
    def blaming(self, path: KeyPath) -> Iterator[None]:
        """Give errors of the library about arguments from `path`, or from a key below it, their line."""
        try:
            yield
        except SpecificationError:
            raise
        except (ArgumentTypeError, ArgumentValueError) as error:
            argument, _, rest = str(error).partition(": ")
            below = _OF_ARGUMENT.get(argument, (*path, argument))
            if below in self.lines:
                raise self.error(below, rest) from error
            named = bool(path) and argument == path[-1]
            raise self.error(path, rest if named or argument in _NAMES_NOTHING else str(error)) from error


def read(path: str | Path) -> SpecificationFile:
    """Read and check a file.

    Raises:
        SpecificationError: Not UTF-8, not TOML, or a key, value or unit that is wrong; the message has the line.
        OSError: The file cannot be read.

    >>> from importlib.resources import files
    >>> path = files("tokendynamics.specification.examples") / "simulation" / "minimal.toml"
    >>> read(str(path)).name
    'minimal.toml'
    """
    as_path(path, "SPEC")
    place = Path(path)
    return parse(read_text(place), place.name)


@typed_arguments
def parse(text: str, name: str) -> SpecificationFile:
    r"""Check the text of a file; see `read`.

    >>> parse('[attention]\nqk = "identity"\ncasual = true', "a.toml")
    Traceback (most recent call last):
    ...
    tokendynamics.specification.section.SpecificationError: a.toml line 3: attention.casual: unknown key; did you
    mean 'causal'? (valid: causal, frozen, mask, normalization, offset, ov,
    qk, weights)
    """
    values, source = parsed(text, name)
    return specified(values, source)


def specified(values: dict[str, Any], source: Source, *, of_systems: bool = False) -> SpecificationFile:
    """Check the values of a specification; see `Source.checked`."""
    tables = source.checked(Specification, values, of_systems=of_systems)
    return SpecificationFile(source.name, source.text, source.lines, tables)


def _described(details: ErrorDetails) -> tuple[KeyPath, str]:
    """Tell where an error of pydantic is, and the message in our words."""
    path, context, came = tuple(details["loc"]), details.get("ctx", {}), details["input"]
    match details["type"]:
        case "unknown_key":
            return (*path, context["key"]), details["msg"]
        case "missing":
            return path, _missing(str(path[-1]), path[:-1])
        case "union_tag_not_found":
            key = context["discriminator"].strip("'")
            near = get_close_matches(key, came, n=1) if isinstance(came, dict) else []
            if near:
                return (*path, near[0]), f"unknown key; did you mean {key!r}?"
            return path, _missing(key, path)
        case "union_tag_invalid":
            key, valid = context["discriminator"].strip("'"), re.findall(_QUOTED, context["expected_tags"])
            return (*path, key), f"unknown {key} {context['tag']!r}; {did_you_mean(context['tag'], valid)}"
        case "literal_error" if isinstance(came, str):
            return path, f"unknown name {came!r}; {did_you_mean(came, re.findall(_QUOTED, context['expected']))}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return path, f"expected a table, got {_short(came)}"
    message = details["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    known = details["type"] not in ("no_unit", "wrong_unit", "ragged", "bounds", "first", "no_seed")
    return path, message[0].lower() + message[1:] + (f", got {_short(came)}" if known else "")


def _missing(key: str, path: KeyPath) -> str:
    return f"missing key {key!r}" if path else f"missing table [{key}]"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
