"""Commands from functions: the signature gives arguments and options, the docstring their help.

A parameter before ``*`` is an argument and one after it an option. A parameter that is a dataclass stands for options
that several commands share, or that are passed on together: its fields. The annotation gives type and choices, the
default value the default. The docstring of a function lists its options under ``Options:``, that of a dataclass its
fields under ``Attributes:``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click

from tokendynamics.cli._values import whole

GLOSSARY = 'Terms such as κ′ and regime are explained on the page "Glossary" of the documentation.'
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
        epilog: Printed below the options, before the line on the glossary.

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
            name, callback=call, params=parameters, help=_described(function)[0], epilog=f"{epilog}\n{GLOSSARY}"
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
        made.append(click.Option([name, *_spellings(name, kind, extra, default)], help=helps[name], **settings))
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
