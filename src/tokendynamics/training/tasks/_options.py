"""Options of tasks: known names, numbers of the kind that their defaults have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_count, as_number, as_text
from tokendynamics.numerics.errors import expected


def checked_options(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with the defaults of those that are not given.

    Counts are counts from 1, other numbers numbers and texts texts, as their defaults are; what is None by default the
    task checks itself.

    Raises:
        ArgumentValueError: An option that there is not.
        ArgumentTypeError: A value of another kind.

    >>> checked_options({"context": 32}, {"context": 128, "held_out": 0.05})
    {'context': 32, 'held_out': 0.05}
    """
    for name in options:
        if name not in defaults:
            raise ArgumentValueError(expected("options", "entries among " + ", ".join(defaults), repr(name)))
    return {name: _checked(options.get(name, default), default, name) for name, default in defaults.items()}


def _checked(value: Any, default: Any, name: str) -> Any:
    if default is None:
        return value
    if isinstance(default, int):
        return as_count(value, name)
    return as_number(value, name) if isinstance(default, float) else as_text(value, name)
