"""Checks the function with which a user makes the arguments of a forward pass of a network of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.pretrained.other_libraries import refusing

_EXAMPLE = 'such as lambda count: {"ids": torch.randint(0, 100, (count, 7))}'


def checked_inputs(inputs: Any) -> Callable[[int], Mapping[str, Any]]:
    """Return the function, with what it returns checked at each call.

    Args:
        inputs: From the user.

    Raises:
        ArgumentTypeError: No function; or, when it is called, one that fails or returns no arguments by name.
        ArgumentValueError: When it is called: no tensor has as many inputs as were asked for along its first axis.
    """
    if not callable(inputs):
        wanted = "a function that makes the arguments for a given number of inputs"
        raise ArgumentTypeError(expected("inputs", wanted, shown(inputs), _EXAMPLE))

    def refusal(words: str) -> ArgumentTypeError:
        return ArgumentTypeError(expected("inputs", "a function of the number of inputs", words, _EXAMPLE))

    def made(count: int) -> Mapping[str, Any]:
        with refusing(refusal):
            given = inputs(count)
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            wanted, came = "a function that returns arguments by name", f"one that returns a {type(given).__name__}"
            raise ArgumentTypeError(expected("inputs", wanted, came, _EXAMPLE))
        shapes = {name: tuple(value.shape) for name, value in given.items() if isinstance(value, Tensor)}
        if not any(shape[:1] == (count,) for shape in shapes.values()):
            wanted = f"a tensor whose first axis is that of the {count} inputs asked for"
            raise ArgumentValueError(expected("inputs", wanted, shapes or "no tensor", _EXAMPLE))
        return given

    return made
