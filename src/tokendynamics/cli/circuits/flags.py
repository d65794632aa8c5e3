"""Names the option in a message that the library words for its own argument."""

from __future__ import annotations

from collections.abc import Mapping

import click

from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, MemoryLimitError

Refusal = ArgumentTypeError | ArgumentValueError | MemoryLimitError
_NOT_NAMED_ALIKE = {"task": "--positions"}
"""A task is refused as such only if it is too short."""


def renamed(error: Refusal, names: Mapping[str, str]) -> Refusal:
    """Return the error with the argument before its colon renamed; itself where `names` does not have it.

    >>> from tokendynamics.numerics.errors import ArgumentValueError
    >>> str(renamed(ArgumentValueError("law: expected more"), {"law": "--law"}))
    '--law: expected more'
    """
    argument, colon, rest = str(error).partition(":")
    return type(error)(names[argument] + colon + rest) if argument in names else error


def flags_of(command: click.Command) -> dict[str, str]:
    """Return what the user typed for each argument of the library: an option's names with its longest spelling.

    >>> import click
    >>> flags_of(click.Command("one", params=[click.Option(["--x", "sequences"]), click.Argument(["model"])]))["x"]
    '--x'
    """
    flags = dict(_NOT_NAMED_ALIKE)
    for parameter in command.params:
        name = parameter.name or ""
        shown = max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name
        spelt = {option.lstrip("-").replace("-", "_") for option in parameter.opts}
        flags |= dict.fromkeys(spelt | {name}, shown)
    return flags
