"""Layers by number: 1 is the first block, 0 stands for the embedding that it reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokendynamics.numerics.arguments import as_integer, whole_numbers
from tokendynamics.numerics.errors import ArgumentValueError, expected


def as_layer(value: Any, count: int, argument: str = "layer") -> int:
    """Return the number of one block of a network that has `count` of them.

    Raises:
        ArgumentValueError: There is no such block.
        ArgumentTypeError: No whole number.

    >>> as_layer(3, 3)
    3
    """
    layer = as_integer(value, argument)
    if not 1 <= layer <= count:
        advice = "layers count from 1; 0 is the embedding"
        raise ArgumentValueError(expected(argument, f"a layer from 1 to {count}", layer, advice))
    return layer


def as_layers(values: Iterable[Any] | None, count: int, argument: str = "layers") -> list[int]:
    """Return the numbers of several blocks in the order given, all of 1 … `count` for None.

    Raises:
        ArgumentValueError: None of them, or one that does not exist.
        ArgumentTypeError: Not a sequence of whole numbers.

    >>> as_layers(None, 3), as_layers((3, 1), 3)
    ([1, 2, 3], [3, 1])
    """
    if values is None:
        return list(range(1, count + 1))
    chosen = [as_layer(value, count, argument) for value in whole_numbers(values, argument)]
    if not chosen:
        raise ArgumentValueError(expected(argument, f"layers from 1 to {count}", "none"))
    return chosen
