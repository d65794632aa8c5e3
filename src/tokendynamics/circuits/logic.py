"""The two introductory logics of `logical`: a feed-forward layer that says "both" and one that joins words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_tensor, like
from tokendynamics.numerics.resources import check_fits
from tokendynamics.numerics.signatures import typed_arguments


@dataclass(frozen=True, eq=False)
class BinaryLogic:
    """``C · ReLU(B x + bias)``: each row of B asks for some inputs, and with bias −1 a row of two asks for both.

    Attributes:
        B: (hidden, input).
        C: (output, hidden).
        bias: Added to every hidden unit.

    >>> BinaryLogic(torch.ones(1, 2), torch.ones(1, 1), -1.0)([1.0, 1.0])
    [1.0]
    """

    B: Tensor
    C: Tensor
    bias: float = -1.0

    def __call__(self, x: ArrayLike) -> Any:
        """Return the outputs for inputs (…, input) of zeros and ones, shape (…, output).

        Raises:
            ArgumentValueError: A wrong number of inputs, or one that is neither 0 nor 1.
        """
        inputs = as_tensor(x, "x", ndim_at_least=1)
        if inputs.shape[-1] != self.B.shape[-1]:
            raise ArgumentValueError("x", f"{self.B.shape[-1]} inputs", f"shape {tuple(inputs.shape)}")
        if not bool(((inputs == 0) | (inputs == 1)).all()):
            raise ArgumentValueError("x", "zeros and ones", f"values up to {float(inputs.abs().max()):g}")
        hidden = torch.relu(inputs @ self.B.to(inputs).mT + self.bias)
        return like(hidden @ self.C.to(inputs).mT, x)


def either_pair(x: ArrayLike) -> Any:
    """Return ``(X₁ ∧ X₂) ∨ (X₃ ∧ X₄) ∨ …`` by a feed-forward layer and a step at 1, `logical` (1.1).

    Args:
        x: Zeros and ones (…, inputs), an even number of inputs (6 in the paper).

    Returns:
        1 where some pair is complete and 0 elsewhere, shape (…), in the type of `x`.

    Raises:
        ArgumentValueError: An odd number of inputs, or one that is neither 0 nor 1.

    >>> either_pair([[1, 1, 0, 0, 0, 0], [1, 0, 1, 0, 1, 0]])
    [1.0, 0.0]
    """
    inputs = as_tensor(x, "x", ndim_at_least=1)
    if inputs.shape[-1] % 2 or inputs.shape[-1] == 0:
        raise ArgumentValueError("x", "an even number of inputs", f"shape {tuple(inputs.shape)}")
    pairs = inputs.shape[-1] // 2
    check_fits(16 * pairs * pairs * inputs.element_size(), "x", "pass fewer inputs")  # B, and what it is made from
    B = torch.eye(pairs, dtype=inputs.dtype).repeat_interleave(2, dim=1)
    complete = BinaryLogic(B, torch.ones(1, pairs, dtype=inputs.dtype))(inputs)[..., 0]
    return like((complete >= 1).to(inputs.dtype), x)


@dataclass(frozen=True, eq=False)
class WordLogic:
    """Which conclusions a set of words allows, `logical` (1.7): the sum of their one-hots through a `BinaryLogic`.

    Attributes:
        words: The vocabulary, in the order of the inputs.
        conclusions: What may follow, in the order of the outputs.
        layer: From words to conclusions.
    """

    words: tuple[str, ...]
    conclusions: tuple[str, ...]
    layer: BinaryLogic

    def encode(self, words: Sequence[str]) -> Tensor:
        """Return the sum of the words' one-hots, `logical` (1.4)–(1.6); words outside the vocabulary: 0 (1.8)."""
        return torch.tensor([float(word in words) for word in self.words], dtype=torch.float64)

    @typed_arguments
    def __call__(self, words: Sequence[str]) -> dict[str, float]:
        """1 for each conclusion that follows, 0 for the others.

        >>> WORD_LOGIC("Samuel receives a present".replace("receives", "receive").split())
        {'happy': 1.0, 'sad': 0.0}
        """
        return dict(zip(self.conclusions, self.layer(self.encode(words)).tolist(), strict=True))


WORD_LOGIC = WordLogic(
    words=("receive", "present", "pass", "exam", "punishment"),
    conclusions=("happy", "sad"),
    layer=BinaryLogic(
        B=torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [1, 0, 0, 0, 1]], dtype=torch.float64),
        C=torch.tensor([[1, 1, 0], [0, 0, 1]], dtype=torch.float64),
    ),
)
"""(receive, present) ⇒ happy, (pass, exam) ⇒ happy, (receive, punishment) ⇒ sad."""
