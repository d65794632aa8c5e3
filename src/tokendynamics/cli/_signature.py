"""Commands from functions: the signature gives arguments and options with checked values, the docstring their help.

A parameter before ``*`` is an argument and one after it an option. A parameter that is a dataclass stands for options
that several commands share, or that are passed on together: its fields. The annotation gives type and choices, the
default value the default. The docstring of a function lists its options under ``Options:``, that of a dataclass its
fields under ``Attributes:``.
"""

from __future__ import annotations

import inspect
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from importlib.resources import files
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

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


GLOSSARY = 'Terms such as κ′ and regime are explained on the page "Glossary" of the documentation.'
_EPILOGS = tomllib.loads(files("tokendynamics.cli").joinpath("epilogs.toml").read_text(encoding="utf-8"))


def epilog_of(name: str, before: str = "") -> str:
    """Return what stands below the options of a command: its entry in epilogs.toml, and the line on the glossary."""
    kept = _EPILOGS.get(name, "").replace("\\b\n", "\b\n")
    return f"{before}\n\n{kept}\n{GLOSSARY}"


"""Printed at the end of every help text."""

_TYPES: Mapping[Any, Any] = {int: whole(), float: click.FLOAT, str: click.STRING, Path: click.Path(path_type=Path)}


class Option:
    """What neither name nor type of a parameter says: how it is spelt, and settings of click; within `Annotated`."""

    def __init__(self, *spellings: str, **settings: Any) -> None:
        self.spellings = spellings
        self.settings = settings


Json = Annotated[bool, Option("--json")]
Positive = Annotated[int, Option(type=whole(1))]


def command(name: str, epilog: str = "") -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a command of a function.

    Args:
        name: The name that is typed.
        epilog: Printed below the options, before the entry of the name in epilogs.toml and the line on the glossary.

    >>> @command("greet")
    ... def greet(who: str, *, times: Positive = 1, tone: Literal["mild", "loud"] | None = None) -> None:
    ...     '''Greet WHO.
    ...
    ...     Options:
    ...         times: How often.
    ...         tone: How.
    ...     '''
    >>> [(one.name, getattr(one, "help", None)) for one in greet.params], greet.help
    ([('who', None), ('times', 'How often.'), ('tone', 'How.')], 'Greet WHO.')
    """

    def made(function: Callable[..., Any]) -> click.Command:
        groups: dict[str, type] = {}
        parameters = _parameters(function, groups)

        def call(**values: Any) -> Any:
            for place, group in groups.items():
                values[place] = group(**{field: values.pop(field) for field in inspect.signature(group).parameters})
            return function(**values)

        return click.Command(
            name, callback=call, params=parameters, help=_described(function)[0], epilog=epilog_of(name, epilog)
        )

    return made


def _parameters(source: Callable[..., Any], groups: dict[str, type]) -> list[click.Parameter]:
    """Return click's parameters for those of a signature, and note the dataclasses among them in `groups`."""
    made: list[click.Parameter] = []
    helps = _described(source)[1]
    for name, parameter in inspect.signature(source, eval_str=True).parameters.items():
        if is_dataclass(parameter.annotation):
            groups[name] = parameter.annotation  # type: ignore[assignment]
            made += _parameters(parameter.annotation, groups)  # type: ignore[arg-type]
            continue
        kind, extra = _unwrapped(parameter.annotation)
        missing = parameter.default is parameter.empty
        if parameter.kind is not parameter.KEYWORD_ONLY:
            several = {"nargs": -1} if get_origin(kind) is tuple else {}
            made.append(click.Argument([name], required=missing, **several, **_settings(kind, extra)))
            continue
        default, unset = parameter.default, parameter.default in ((), None) or parameter.default is False
        given = {"required": True} if missing else {"default": default, "show_default": not unset}
        several = {"multiple": True} if get_origin(kind) is tuple else {}
        settings = given | several | _settings(kind, extra)
        made.append(click.Option([name, *_spellings(name, kind, extra, default)], help=helps.get(name), **settings))
    return made


def _spellings(name: str, kind: Any, extra: list[Option], default: Any) -> list[str]:
    given = [spelling for option in extra for spelling in option.spellings]
    dashed = name.replace("_", "-")
    return given or [f"--{dashed}/--no-{dashed}" if kind is bool and default is not False else f"--{dashed}"]


def _settings(kind: Any, extra: list[Option]) -> dict[str, Any]:
    """Return click's settings for a type."""
    if get_origin(kind) is tuple:
        kind, more = _unwrapped(get_args(kind)[0])
        extra = [*more, *extra]
    if kind is bool:
        settings: dict[str, Any] = {"is_flag": True}
    elif get_origin(kind) is Literal:
        settings = {"type": click.Choice(get_args(kind))}
    else:
        settings = {"type": _TYPES.get(kind)}
    for option in extra:
        settings |= option.settings
    return settings


def _unwrapped(annotation: Any) -> tuple[Any, list[Option]]:
    """Return a type without None, and what `Annotated` adds to it."""
    extra: list[Option] = []
    while get_origin(annotation) in (Annotated, Union, UnionType):
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            extra = [*more, *extra]
        else:
            annotation = next(part for part in get_args(annotation) if part is not NoneType)
    return annotation, extra


def _described(source: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the docstring without its list of parameters, and the text of each of them; also those inherited."""
    texts: dict[str, str] = {}
    head = ""
    for documented in reversed(inspect.getmro(source)[:-1] if inspect.isclass(source) else [source]):
        head, _, listed = re.sub(
            r"\n\n(Options|Attributes):\n", "\0", inspect.cleandoc(documented.__doc__ or "")
        ).partition("\0")
        entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", listed, re.MULTILINE)
        texts |= {name: " ".join(text.split()).replace(" [default: ", "  [default: ") for name, text in entries}
    return head, texts
