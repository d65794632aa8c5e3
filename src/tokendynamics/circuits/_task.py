"""The task: sequences of categories, and for each token a number that depends on it and on the one before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import (
    ArrayLike,
    as_count,
    as_tensor,
    first_index,
    generator,
    native,
    refuse_masked,
)
from tokendynamics.numerics.signatures import typed_arguments

_SUM_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False, init=False)
class PairTask:
    """Predict ``Y_i = q_true[X_{i−1}, X_i]`` from X_1 … X_M, with ``Y_1 = 0`` (`logical` section 1).

    Categories are numbered 1..N. A token is its category one-hot, then its position one-hot: N + M features.

    Args:
        q_true: (N, N) real numbers of any sign; the first index is the PREVIOUS category.
        positions: M, the longest sequence.
        law: Probabilities of independent categories; see `category_law`. Only draws and expectations use it.

    Raises:
        ArgumentTypeError: Positions that are no integer.
        ArgumentValueError: q_true is not N × N or not finite, no position, or a law that does not fit.

    >>> task = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4)
    >>> task.targets([1, 2, 2, 1]).tolist()
    [0.0, -2.0, 4.0, 3.0]
    """

    q_true: Tensor
    positions: int
    law: Tensor

    @typed_arguments
    def __init__(self, q_true: ArrayLike, positions: int, law: ArrayLike | str | None = None) -> None:
        functional = as_tensor(q_true, "q_true", ndim_at_least=2, axes="(previous, current)").double().clone()
        if functional.ndim != 2 or functional.shape[0] != functional.shape[1] or functional.shape[0] == 0:
            wanted = "an N × N matrix, one row for each previous category and one column for each current one"
            raise ArgumentValueError("q_true", wanted, f"shape {tuple(functional.shape)}")
        object.__setattr__(self, "q_true", functional)
        object.__setattr__(self, "positions", as_count(positions, "positions"))
        object.__setattr__(self, "law", category_law(law, functional.shape[0]))

    @property
    def categories(self) -> int:
        """N."""
        return self.q_true.shape[0]

    @property
    def width(self) -> int:
        """Features of a token, N + M."""
        return self.categories + self.positions

    @typed_arguments
    def sample(self, count: int, seed: int, length: int | None = None) -> Tensor:
        """Draw independent sequences of categories from the law.

        Args:
            count: Number of sequences.
            seed: Of the draw.
            length: Tokens of each, M if None.

        Returns:
            Shape (count, length), int64, values 1..N.

        Raises:
            ArgumentValueError: A length outside 1..M, or no sequence.
        """
        as_count(count, "count")
        length = self.positions if length is None else as_count(length, "length")
        self._check_length(length, "length")
        draws = torch.multinomial(self.law, count * length, replacement=True, generator=generator(seed))
        return draws.reshape(count, length) + 1

    def checked(self, x: Any) -> Tensor:
        """Return `x` as sequences of categories, int64 of shape (…, token).

        Raises:
            ArgumentTypeError: Not integers.
            ArgumentValueError: A category outside 1..N (the index of the first is printed) or more than M tokens.
        """
        sequences = _as_integers(x)
        if sequences.ndim == 0 or sequences.shape[-1] == 0:
            raise ArgumentValueError("x", "at least one token", f"shape {tuple(sequences.shape)}")
        self._check_length(sequences.shape[-1], "x")
        outside = (sequences < 1) | (sequences > self.categories)
        if bool(outside.any()):
            index = first_index(outside)
            came = f"{int(sequences[index])} at index {index}"
            advice = "categories are numbered from 1" if int(sequences[index]) == 0 else "q_true has no row for it"
            raise ArgumentValueError("x", f"categories from 1 to {self.categories}", came, advice)
        return sequences

    def targets(self, x: Any) -> Tensor:
        """Return ``Y_i = q_true[X_{i−1}, X_i]`` and ``Y_1 = 0``, shape (…, token), float64."""
        sequences = self.checked(x) - 1
        pairs = self.q_true[sequences[..., :-1], sequences[..., 1:]]
        return torch.nn.functional.pad(pairs, (1, 0))

    @typed_arguments
    def embed(self, x: Any, scratch: int = 0) -> Tensor:
        """Return tokens as rows: category one-hot, position one-hot, then `scratch` zeros.

        Args:
            x: Sequences (…, token) of categories 1..N.
            scratch: Further features for intermediate results.

        Returns:
            Shape (…, token, N + M + scratch), float64.
        """
        sequences = self.checked(x)
        length = sequences.shape[-1]
        tokens = torch.zeros(
            *sequences.shape, self.width + as_count(scratch, "scratch", at_least=0), dtype=torch.float64
        )
        tokens[..., : self.categories] = torch.nn.functional.one_hot(sequences - 1, self.categories).double()
        tokens[..., self.categories : self.categories + length] += torch.eye(length, dtype=torch.float64)
        return tokens

    @property
    def interaction(self) -> Tensor:
        """The part of q_true that no sum f(previous) + g(current) gives, (N, N): its law-weighted double centring."""
        given_current, given_previous = self.law @ self.q_true, self.q_true @ self.law
        return self.q_true - given_current - given_previous[:, None] + self.law @ given_previous

    @property
    def interaction_variance(self) -> float:
        """Variance of the interaction under the law: the least squared error of any additive prediction."""
        return float(self.law @ self.interaction.square() @ self.law)

    @property
    def variance(self) -> float:
        """Variance of Y_i, i ≥ 2, under the law: the least squared error of any constant prediction."""
        mean = self.law @ self.q_true @ self.law
        return float(self.law @ (self.q_true - mean).square() @ self.law)

    def _check_length(self, length: int, argument: str) -> None:
        if not 1 <= length <= self.positions:
            wanted = f"sequences of 1 to {self.positions} tokens, the task's positions"
            raise ArgumentValueError(argument, wanted, f"{length} tokens")


def _as_integers(x: Any) -> Tensor:
    try:
        refuse_masked(x, "x")
        if isinstance(x, Tensor) and (x.is_meta or x.is_quantized or x.layout != torch.strided):
            raise TypeError
        sequences = x if isinstance(x, Tensor) else torch.as_tensor(native(np.asarray(x)))
        if sequences.numel() == 0:
            return sequences.long()
    except Exception as error:  # whatever an object's own way to become an array raises
        if isinstance(error, ArgumentTypeError):
            raise
        wanted = "sequences of integers of equal length"
        raise ArgumentTypeError("x", wanted, f"{type(x).__name__} that is not one") from error
    if sequences.dtype == torch.bool or sequences.is_floating_point() or sequences.is_complex():
        raise ArgumentTypeError("x", "integers, categories from 1 on", f"dtype {sequences.dtype}")
    return sequences.long()


@typed_arguments
def category_law(law: ArrayLike | str | None, categories: int) -> Tensor:
    """Return probabilities of the categories 1..N of independent tokens.

    Args:
        law: None or "uniform"; "zipf" (∝ 1/rank, as word frequencies are); or N positive numbers that sum to one.
        categories: N.

    Returns:
        Shape (N,), float64, scaled to sum to one to the last digit.

    Raises:
        ArgumentValueError: A wrong number of probabilities, one that is not positive, or a sum that is not one.

    >>> category_law("zipf", 2).tolist()
    [0.6666666666666666, 0.3333333333333333]
    """
    if law is None or isinstance(law, str):
        ranks = torch.arange(1, categories + 1, dtype=torch.float64)
        weights = {None: torch.ones_like(ranks), "uniform": torch.ones_like(ranks), "zipf": 1.0 / ranks}
        if law not in weights:
            raise ArgumentValueError("law", "'uniform', 'zipf' or probabilities", repr(law))
        return weights[law] / weights[law].sum()
    probabilities = as_tensor(law, "law").double()
    if probabilities.shape != (categories,):
        wanted = f"{categories} probabilities, one for each category"
        raise ArgumentValueError("law", wanted, f"shape {tuple(probabilities.shape)}")
    if not bool((probabilities > 0).all()):
        lowest = int(probabilities.argmin())
        came = f"{float(probabilities[lowest]):g} for category {lowest + 1}"
        advice = "leave categories that never occur out of the task"
        raise ArgumentValueError("law", "positive probabilities", came, advice)
    total = float(probabilities.sum())
    if abs(total - 1.0) > _SUM_TOLERANCE:
        advice = f"divide by {total:.12g}"
        raise ArgumentValueError("law", "probabilities that sum to 1", f"a sum of {total:.12g}", advice)
    # What sums to one up to rounding is left alone, so that a law that was written down is read back unchanged.
    return probabilities if abs(total - 1.0) <= categories * torch.finfo(torch.float64).eps else probabilities / total
