"""What a LayerNorm on the attention output does to the landscape of 3.1.

The output of every column is normalised over the categories, ``LN(u) = (u − mean)/√(variance + ε)`` without gain, and
so is its target. The expectation has no closed form any more: it is a sum over all sequences, so N and M are small.

What changes: the loss no longer depends on the size of q or v (as long as the outputs are large beside √ε), nor on a
constant added to a column of v; the attractor at infinity goes. Where q = 0 or v = 0 there is still no gradient for
some v or q, but now between walls of curvature 1/ε, and such walls stand wherever an output passes through zero:
descent can halt at them. What does not change: q = D_{−1}, v = I has loss 0, and so have its positive multiples; their
negative is now the worst point of all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.circuits.landscape.landscape import (
    Gradient,
    checked_point,
    checked_positions,
    flatten,
    law_of_categories,
    unflatten,
)
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_tensor
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments

_MOST_SEQUENCES = 20_000
_ENTRIES_AT_ONCE = 2**22


class NormalizedPositions:
    """The landscape of q (M, M) and v (N, N) with LayerNorm before the comparison, by exact enumeration.

    ``L = Σ_{i=2..M} E|LN(x_{i−1}) − LN(v Σ_j q_ji x_j)|²`` with one-hot independent categories x. To compare with
    the one-hot target itself would for ε → 0 multiply L by a constant and add another one.

    Args:
        law: Probabilities of the categories 1..N, positive, summing to one.
        positions: M, at least 2.
        epsilon: ε of the LayerNorm, positive.

    Attributes:
        sequences: All N^M sequences, categories from 0, shape (N^M, M).
        chances: Their probabilities.

    Raises:
        ArgumentTypeError: Positions that are no integer.
        ArgumentValueError: An invalid law, fewer than two positions, an epsilon that is not positive, or more
            than 20 000 sequences.

    >>> landscape = NormalizedPositions([0.5, 0.3, 0.2], positions=3)
    >>> previous = torch.diag(torch.ones(2).double(), diagonal=1)
    >>> float(landscape.loss(previous, torch.eye(3).double()))
    0.0
    >>> float(landscape.loss(7.0 * previous, torch.eye(3).double())) < 1e-8
    True
    """

    @typed_arguments
    def __init__(self, law: ArrayLike, positions: int, epsilon: float = 1e-5) -> None:
        self.law = law_of_categories(law)
        self.positions = checked_positions(positions)
        self.categories = self.law.shape[0]
        self.epsilon = _positive(epsilon)
        self.name = "positions only, LayerNorm"
        self.attention_shape = (self.positions, self.positions)
        self.v_shape = (self.categories, self.categories)
        self.sequences = _all_sequences(self.categories, self.positions)
        self.chances = self.law[self.sequences].prod(-1)
        self._targets = self._normalized(torch.eye(self.categories, dtype=torch.float64))

    def loss(self, attention: ArrayLike, v: ArrayLike) -> Tensor:
        """Return the expected squared error summed over i = 2..M, shape (…,).

        Args:
            attention: Shape (…, M, M), entry [sender, receiver].
            v: Shape (…, N, N).

        Raises:
            ArgumentTypeError: No real floating-point numbers.
            ArgumentValueError: A wrong shape, or a NaN or infinity.
        """
        checked_attention, checked_v = checked_point(self, attention, v)
        lead = checked_attention.shape[:-2]
        rows_q, rows_v = checked_attention.reshape(-1, *self.attention_shape), checked_v.reshape(-1, *self.v_shape)
        at_once = max(1, _ENTRIES_AT_ONCE // (self.sequences.numel() * self.categories))
        parts = zip(rows_q.split(at_once), rows_v.split(at_once), strict=True)
        return torch.cat([self._loss(*part) for part in parts]).reshape(lead)

    def gradient(self, attention: ArrayLike, v: ArrayLike) -> Gradient:
        """Return the derivatives of `loss`, by automatic differentiation."""
        point = [part.detach().clone().requires_grad_() for part in checked_point(self, attention, v)]
        return Gradient(*torch.autograd.grad(self.loss(*point).sum(), point))

    def hessian(self, attention: ArrayLike, v: ArrayLike) -> Tensor:
        """Return the second derivatives over (q row by row, v row by row), by automatic differentiation."""
        points = flatten(*checked_point(self, attention, v)).detach()
        lead, size = points.shape[:-1], points.shape[-1]
        rows = [torch.func.jacrev(torch.func.grad(self._loss_of_flat))(point) for point in points.reshape(-1, size)]
        return torch.stack(rows).reshape(*lead, size, size)

    def _loss_of_flat(self, point: Tensor) -> Tensor:
        attention, v = unflatten(self, point)
        return self._loss(attention[None], v[None])[0]

    def _loss(self, attention: Tensor, v: Tensor) -> Tensor:
        sent = v.mT[:, self.sequences]
        outputs = torch.einsum("bsjn,bji->bsin", sent, attention[:, :, 1:])
        errors = (self._targets[self.sequences[:, :-1]] - self._normalized(outputs)).square().sum((-1, -2))
        return errors @ self.chances

    def _normalized(self, outputs: Tensor) -> Tensor:
        centred = outputs - outputs.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + self.epsilon).sqrt()


def _all_sequences(categories: int, positions: int) -> Tensor:
    count = categories**positions
    if count > _MOST_SEQUENCES:
        wanted = f"at most {_MOST_SEQUENCES} sequences, N^M, since all are enumerated"
        advice = "lower the number of positions or categories"
        raise ArgumentValueError(expected("positions", wanted, f"{categories}^{positions} = {count}", advice))
    return torch.cartesian_prod(*[torch.arange(categories)] * positions).reshape(count, positions)


def _positive(epsilon: float) -> float:
    number = float(as_tensor(epsilon, "epsilon"))
    if number <= 0.0:
        advice = "1e-5 is usual; without it the output zero has no norm to divide by"
        raise ArgumentValueError(expected("epsilon", "a positive number", number, advice))
    return number
