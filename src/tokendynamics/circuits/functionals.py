"""Functions of a pair of categories that a transformer may be asked for."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tokendynamics.circuits._task import category_law
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_count, as_number, as_tensor, generator
from tokendynamics.numerics.resources import check_fits
from tokendynamics.numerics.signatures import typed_arguments

__all__ = ["equal_column_means", "pair_numbers", "positive_functional", "random_functional"]


def __dir__() -> list[str]:
    return __all__


_BYTES = 32
"""Of each pair: its number, and as much again three times for what is computed of it."""
_WIDEST = 50.0
"""Largest spread of a logarithm: with more, drawn values come near the ends of what a number can hold."""


@typed_arguments
def random_functional(categories: int, seed: int) -> Tensor:
    """Draw independent standard normal values for every pair, as in `logical` 4.1.

    Args:
        categories: N, at least 1.
        seed: Of the draw.

    Returns:
        Shape (previous, current) = (N, N), float64.

    Raises:
        ArgumentTypeError: No integer.
        ArgumentValueError: No category.

    >>> random_functional(3, seed=0).shape
    torch.Size([3, 3])
    """
    _check_size(categories)
    return torch.randn(categories, categories, generator=generator(seed), dtype=torch.float64)


@typed_arguments
def positive_functional(categories: int, seed: int, law: ArrayLike | str | None = None, spread: float = 0.25) -> Tensor:
    """Draw positive values, log-normal with columns of mean 1: what softmax attention can weigh by.

    Args:
        categories: N, at least 1.
        seed: Of the draw.
        law: Of the previous category, that the means are taken over; see `category_law`.
        spread: Standard deviation of the logarithm before the columns are scaled.

    Returns:
        Shape (previous, current) = (N, N), float64.

    Raises:
        ArgumentTypeError: No integer, or a spread that is no number.
        ArgumentValueError: No category, a spread that is negative or so large that values overflow, or no law.

    >>> import torch
    >>> torch.allclose(positive_functional(3, seed=0).mean(dim=0), torch.ones(3).double())
    True
    """
    width = as_number(spread, "spread")
    if not 0.0 <= width <= _WIDEST:
        raise ArgumentValueError("spread", f"a number from 0 to {_WIDEST:g}", spread)
    return equal_column_means((width * random_functional(categories, seed)).exp(), law)


@typed_arguments
def equal_column_means(q_true: ArrayLike, law: ArrayLike | str | None = None) -> Tensor:
    """Return columns scaled so that ``E[q(X, b)] = Σ_a p_a q_ab = 1`` for each current category b.

    Args:
        q_true: (previous, current) = (N, N), positive.
        law: p; see `category_law`.

    Returns:
        Shape (N, N), float64.

    Raises:
        ArgumentValueError: A value that is not positive, no square, or no law.

    >>> equal_column_means([[1.0, 2.0], [3.0, 2.0]]).tolist()
    [[0.5, 1.0], [1.5, 1.0]]
    """
    values = as_tensor(q_true, "q_true", ndim_at_least=2, axes="(previous, current)").double()
    if values.ndim != 2 or values.shape[0] != values.shape[1]:
        raise ArgumentValueError("q_true", "an N × N matrix", f"shape {tuple(values.shape)}")
    if not bool((values > 0).all()):
        raise ArgumentValueError("q_true", "positive numbers", f"{float(values.min()):g}")
    return values / (category_law(law, values.shape[0]) @ values)


@typed_arguments
def pair_numbers(categories: int, base: float = 10.0) -> Tensor:
    """Return ``base·a + b`` for the pair (a, b): its two digits read as one number, `logical` (2.15).

    It is additive in the two categories, so no part of a network has to decide anything (`logical` (2.13)).

    Args:
        categories: N, at least 1.
        base: 10 in the paper.

    Returns:
        Shape (previous, current) = (N, N), float64.

    Raises:
        ArgumentTypeError: No integer, or a base that is no number.
        ArgumentValueError: No category, or a base that is not finite.

    >>> pair_numbers(2).tolist()
    [[11.0, 12.0], [21.0, 22.0]]
    """
    factor = as_number(base, "base")
    if not math.isfinite(factor):
        raise ArgumentValueError("base", "a finite number", factor)
    digits = torch.arange(1, _check_size(categories) + 1, dtype=torch.float64)
    return factor * digits[:, None] + digits


def _check_size(categories: int) -> int:
    """Return the number of categories; their pairs must fit into memory."""
    check_fits(_BYTES * as_count(categories, "categories") ** 2, "categories")
    return categories
