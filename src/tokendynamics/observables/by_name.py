"""Observables of the user: functions of a state, by name, each of which gives one number."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.errors import shown

Observable: TypeAlias = Callable[[Tensor], float]
"""A number of one state, shape (token, dim)."""


def read_observables(given: Any, taken: Collection[str]) -> dict[str, Observable]:
    """Return the functions by name, each made to refuse what is no number; none for None.

    Args:
        given: Functions of a state (token, dim), by name, or None.
        taken: Names that they may not have.

    Raises:
        ArgumentTypeError: No mapping of functions; later, from a function whose value is no number.
        ArgumentValueError: A name that is taken, or none.

    >>> import torch
    >>> read_observables({"tokens": len}, taken=["rank"])["tokens"](torch.eye(3))
    3.0
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ArgumentTypeError("observables", "functions of states by name", shown(given))
    for name, function in given.items():
        if not callable(function):
            raise ArgumentTypeError(f"observables[{name!r}]", "a function of states", shown(function))
        if not isinstance(name, str) or not name or name in taken:
            raise ArgumentValueError("observables", "names that no variable has", shown(name))
    return {name: _checked(name, function) for name, function in given.items()}


def _checked(name: str, function: Observable) -> Observable:
    def number(state: Tensor) -> float:
        value = function(state)
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ArgumentTypeError(f"observables[{name!r}]", "a number for each state", shown(value)) from error

    return number
