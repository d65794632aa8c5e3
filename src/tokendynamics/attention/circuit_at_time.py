"""A head's circuits at one moment: how they act on tokens without ever being copied per system.

Each class holds the matrices B_h of all heads at a time t and knows the four products attention needs. Shapes:
tokens (*system, token, dim), results (*system, head, token, rank), where rank is dim for dense matrices. Matrices
without system axes are shared by all systems, and one matrix product then serves all systems and heads at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tokendynamics.attention._circuits import FactoredMatrix


@runtime_checkable
class CircuitAtTime(Protocol):
    """The circuits of all heads at one moment."""

    def queries(self, x: Tensor) -> Tensor:
        """Return the rows ``x_i^T left``, to be paired with `keys`: their inner products are the logits."""
        ...

    def keys(self, x: Tensor) -> Tensor:
        """Return the rows of the senders; the head axis may be 1."""
        ...

    def values(self, x: Tensor) -> Tensor:
        """Return what is averaged over senders; the head axis may be 1."""
        ...

    def output(self, mixed: Tensor) -> Tensor:
        """Return ``B_h Σ_j w_ij x_j`` from averaged `values`, shape (*system, head, token, dim)."""
        ...

    def dense(self) -> Tensor:
        """Return the matrices themselves, (*system, head, dim, dim)."""
        ...


class _OfQueries:
    """Circuits whose matrices act on queries and outputs: keys and values are the states themselves."""

    def keys(self, x: Tensor) -> Tensor:
        """See `CircuitAtTime`."""
        return x.unsqueeze(-3)

    values = keys


@dataclass(frozen=True)
class Dense(_OfQueries):
    """Matrices (*system, head, dim, dim) as they are."""

    matrix: Tensor

    def queries(self, x: Tensor) -> Tensor:
        """See `CircuitAtTime`."""
        return per_head(x.unsqueeze(-3), self.matrix)

    def output(self, mixed: Tensor) -> Tensor:
        """See `CircuitAtTime`."""
        return per_head(mixed, self.matrix.mT)

    def dense(self) -> Tensor:
        """See `CircuitAtTime`."""
        return self.matrix


@dataclass(frozen=True)
class Multiple(_OfQueries):
    """``multiple_h`` times the identity, (*system, head): no product at all."""

    multiple: Tensor
    dim: int

    def queries(self, x: Tensor) -> Tensor:
        """See `CircuitAtTime`."""
        return x.unsqueeze(-3) * self.multiple[..., None, None]

    def output(self, mixed: Tensor) -> Tensor:
        """See `CircuitAtTime`."""
        return mixed * self.multiple[..., None, None]

    def dense(self) -> Tensor:
        """See `CircuitAtTime`."""
        identity = torch.eye(self.dim, dtype=self.multiple.dtype, device=self.multiple.device)
        return self.multiple[..., None, None] * identity


@dataclass(frozen=True)
class RowScaled(_OfQueries):
    """``diag(scale) @ matrix`` with scale (*system, head, dim): time-varying gates over fixed matrices.

    The product is never formed: with a time of its own for each system it would be a matrix per system.
    """

    scale: Tensor
    matrix: Tensor

    def queries(self, x: Tensor) -> Tensor:
        """See `CircuitAtTime`."""
        return per_head(x.unsqueeze(-3) * self.scale.unsqueeze(-2), self.matrix)

    def output(self, mixed: Tensor) -> Tensor:
        """See `CircuitAtTime`."""
        return per_head(mixed, self.matrix.mT) * self.scale.unsqueeze(-2)

    def dense(self) -> Tensor:
        """See `CircuitAtTime`."""
        return self.scale.unsqueeze(-1) * self.matrix


@dataclass(frozen=True)
class Scaled:
    """Circuits times one number for each system, (*system), or for all, (): queries are multiplied by it."""

    circuit: CircuitAtTime
    scale: Tensor

    def queries(self, x: Tensor) -> Tensor:
        """See `CircuitAtTime`."""
        return self.circuit.queries(x) * self.scale[..., None, None, None]

    def keys(self, x: Tensor) -> Tensor:
        """See `CircuitAtTime`."""
        return self.circuit.keys(x)

    def values(self, x: Tensor) -> Tensor:
        """See `CircuitAtTime`."""
        return self.circuit.values(x)

    def output(self, mixed: Tensor) -> Tensor:
        """See `CircuitAtTime`."""
        return self.circuit.output(mixed) * self.scale[..., None, None, None]

    def dense(self) -> Tensor:
        """See `CircuitAtTime`."""
        return self.circuit.dense() * (self.scale[..., None, None, None] if self.scale.ndim else self.scale)


@dataclass(frozen=True)
class Factored:
    """``left @ right^T`` of low rank: products through the rank, as a network computes them."""

    factors: FactoredMatrix

    def queries(self, x: Tensor) -> Tensor:
        """See `CircuitAtTime`."""
        return per_head(x.unsqueeze(-3), self.factors.left)

    def keys(self, x: Tensor) -> Tensor:
        """See `CircuitAtTime`."""
        return per_head(x.unsqueeze(-3), self.factors.right)

    values = keys

    def output(self, mixed: Tensor) -> Tensor:
        """See `CircuitAtTime`."""
        return per_head(mixed, self.factors.left.mT)

    def dense(self) -> Tensor:
        """See `CircuitAtTime`."""
        return self.factors.dense()


def per_head(x: Tensor, matrices: Tensor) -> Tensor:
    """Return ``x_h @ B_h``: (*system, head or 1, token, n) and (*system, head, n, m) to (*system, head, token, m).

    Matrices shared by the systems are multiplied in one product per head over all tokens of all systems; a
    broadcast product would copy them for every system.
    """
    if matrices.ndim > 3:
        return x @ matrices
    systems, (heads, n, m) = x.shape[:-3], matrices.shape
    tokens = x.shape[-2]
    if x.shape[-3] == 1:
        side_by_side = matrices.movedim(0, 1).reshape(n, heads * m)
        return (x.reshape(-1, n) @ side_by_side).reshape(*systems, tokens, heads, m).movedim(-2, -3)
    products = [(x[..., h, :, :].reshape(-1, n) @ matrices[h]).reshape(*systems, tokens, m) for h in range(heads)]
    return torch.stack(products, dim=-3)
