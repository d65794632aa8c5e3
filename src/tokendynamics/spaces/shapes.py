"""Shapes that functions of a space refuse before PyTorch would broadcast them or run out of memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from tokendynamics.numerics.arguments import as_count
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.memory import check_fits

_BYTES = 24
"""Of each number of a sample: as drawn, projected, and once in between."""


def check_same_shape(given: Tensor, other: Tensor, argument: str, name: str) -> None:
    """Refuse states that do not stand for the same tokens.

    Raises:
        ArgumentValueError: Shapes that differ in token or dim, or system axes that do not broadcast; both are printed.
    """
    leading = zip(reversed(given.shape[:-2]), reversed(other.shape[:-2]), strict=False)
    if given.shape[-2:] != other.shape[-2:] or any(one != two and 1 not in (one, two) for one, two in leading):
        wanted = f"the shape of {name}, {tuple(other.shape)}"
        raise ArgumentValueError(expected(argument, wanted, f"shape {tuple(given.shape)}"))


def check_sample(systems: Sequence[int], tokens: int, dim: int) -> None:
    """Refuse a sample of no tokens, or of more than fit into memory.

    Raises:
        ArgumentTypeError, ArgumentValueError: A count that is no integer or below 1 (systems: below 0).
        MemoryLimitError: Too many numbers.
    """
    numbers = as_count(tokens, "tokens") * as_count(dim, "dim")
    check_fits(_BYTES * numbers * math.prod(as_count(each, "systems", at_least=0) for each in systems), "tokens")
