"""QK and OV circuits kept as the factors a network stores, dense only on request.

Tokens are rows. A head's logits are ``s_ij = x_i^T · qk · x_j`` (i receives, j sends) and its output is
``Σ_j w_ij · ov · x_j``, ov acting on column vectors (in row form ``x @ ov.T``).

From each paper's letters to (qk, ov), kept as factors.

| here | `asymptotic` | `logical` | `positional` |
|---|---|---|---|
| qk | P = Q^T K | q^T k (printed as k^T q: key first) | W = Q K^T |
| ov | U = W_η V_η | v | V^T |

The weights' factor 1/√dim of `asymptotic` multiplies the weights and not the logits, so it is no part of a circuit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_finite, as_square, as_tensor, check_open
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments


@dataclass(frozen=True)
class FactoredMatrix:
    """The dim × dim matrix ``left @ right^T`` of rank at most `rank`, kept as its two factors.

    Attributes:
        left: Shape (…, dim, rank).
        right: Shape (…, dim, rank).

    >>> import torch
    >>> matrix = FactoredMatrix(torch.ones(3, 1), torch.tensor([[1.0], [2.0], [0.0]]))
    >>> matrix.rank, matrix.dense().tolist()[0]
    (1, [1.0, 2.0, 0.0])
    """

    left: Float[Tensor, "*batch dim rank"]
    right: Float[Tensor, "*batch dim rank"]

    def __post_init__(self) -> None:
        for name in ("left", "right"):
            factor = getattr(self, name)
            check_open(factor, name)
            if not isinstance(factor, Tensor) or factor.ndim < 2:
                raise ArgumentTypeError(name, "a torch tensor (…, dim, rank)", shown(factor))
        if self.left.shape != self.right.shape:
            wanted = f"the shape of left, {tuple(self.left.shape)}"
            raise ArgumentValueError("right", wanted, f"shape {tuple(self.right.shape)}")

    @property
    def dim(self) -> int:
        """Size of the square matrix."""
        return self.left.shape[-2]

    @property
    def rank(self) -> int:
        """Upper bound of the rank: the number of columns of the factors, or dim if that is less."""
        return min(self.left.shape[-1], self.dim)

    @property
    def mT(self) -> FactoredMatrix:
        """The transpose: the factors change places."""
        return FactoredMatrix(self.right, self.left)

    def dense(self) -> Float[Tensor, "*batch dim dim"]:
        """Return the product itself, dim² numbers a matrix."""
        return self.left @ self.right.mT

    def apply(self, x: Float[Tensor, "*batch token dim"]) -> Float[Tensor, "*batch token dim"]:
        """Apply the matrix to each token as a column vector: row i of the result is ``matrix @ x_i``."""
        return (x @ self.right) @ self.left.mT

    def summed(self) -> FactoredMatrix:
        """Return the sum over the last batch axis (the heads), as one matrix with the factors side by side.

        Shape (head, dim, rank) becomes (dim, head · rank).
        """
        left, right = (factor.movedim(-3, -2).flatten(-2) for factor in (self.left, self.right))
        return FactoredMatrix(left, right)


@typed_arguments
def qk_circuit(W_Q: ArrayLike, W_K: ArrayLike, *, scale: float = 1.0) -> FactoredMatrix:
    """Return ``qk = scale · W_Q W_K^T`` of row-vector projections ``q = x W_Q``, ``k = x W_K``.

    Args:
        W_Q: Shape (…, dim, d_head), real floating.
        W_K: Shape (…, dim, d_head); with grouped queries, repeated for each head that shares it.
        scale: Multiplies the logits; 1/√d_head in most networks. 1 leaves the circuit unscaled.

    Raises:
        ArgumentValueError: The shapes differ, or a number is not finite.
        ArgumentTypeError: Not real floating numbers.

    >>> qk_circuit([[1.0], [0.0]], [[0.0], [3.0]], scale=0.5).dense().tolist()
    [[0.0, 1.5], [0.0, 0.0]]
    """
    query, key, scale = _factor(W_Q, "W_Q"), _factor(W_K, "W_K"), as_finite(scale, "scale")
    _check_same_shape("W_K", key, "W_Q", query)
    return FactoredMatrix(query if scale == 1.0 else scale * query, key)


def ov_circuit(W_V: ArrayLike, W_O: ArrayLike) -> FactoredMatrix:
    """Return ``ov = (W_V W_O)^T`` of row-vector projections ``v = x W_V``, ``out = v W_O``.

    Args:
        W_V: Shape (…, dim, d_head), real floating.
        W_O: Shape (…, d_head, dim).

    Raises:
        ArgumentValueError: The shapes do not fit each other, or a number is not finite.
        ArgumentTypeError: Not real floating numbers.

    >>> ov_circuit([[1.0], [0.0]], [[0.0, 3.0]]).dense().tolist()
    [[0.0, 0.0], [3.0, 0.0]]
    """
    value, output = _factor(W_V, "W_V"), _factor(W_O, "W_O").mT
    _check_same_shape("W_O transposed", output, "W_V", value)
    return FactoredMatrix(output, value)


def _factor(matrix: ArrayLike, argument: str) -> Tensor:
    return as_tensor(matrix, argument, ndim_at_least=2, axes="(…, dim, d_head)")


def _check_same_shape(argument: str, given: Tensor, other: str, reference: Tensor) -> None:
    if given.shape != reference.shape:
        wanted = f"the shape of {other}, {tuple(reference.shape)}"
        raise ArgumentValueError(argument, wanted, f"shape {tuple(given.shape)}")


def from_asymptotic(Q: ArrayLike, K: ArrayLike, V: ArrayLike, W: ArrayLike) -> tuple[FactoredMatrix, FactoredMatrix]:
    """Return (qk, ov) of one head of `asymptotic` (4)–(7), whose tokens are columns: ``P = Q^T K``, ``U = W V``.

    Args:
        Q: Shape (…, d_k, dim).
        K: Shape (…, d_k, dim).
        V: Shape (…, d_v, dim).
        W: The output map W_η of the head, shape (…, dim, d_v).

    Raises:
        ArgumentValueError: Shapes do not fit each other, or a number is not finite.

    >>> qk, ov = from_asymptotic([[1.0, 0.0]], [[0.0, 2.0]], [[1.0, 1.0]], [[3.0], [0.0]])
    >>> qk.dense().tolist(), ov.dense().tolist()
    ([[0.0, 2.0], [0.0, 0.0]], [[3.0, 3.0], [0.0, 0.0]])
    """
    query, key, value, output = (
        as_tensor(matrix, name, ndim_at_least=2).mT for matrix, name in ((Q, "Q"), (K, "K"), (V, "V"), (W, "W"))
    )
    return qk_circuit(query, key), ov_circuit(value, output)


def from_logical(q: ArrayLike, k: ArrayLike, v: ArrayLike) -> tuple[FactoredMatrix, FactoredMatrix]:
    """Return (qk, ov) of `logical` section 2 (columns): logits ``X_j^T k^T q X_i`` of receiver i, sender j.

    Args:
        q: Shape (…, d_k, dim).
        k: Shape (…, d_k, dim).
        v: Shape (…, dim, dim), applied to columns.

    Raises:
        ArgumentValueError: Shapes do not fit each other, or a number is not finite.

    >>> qk, ov = from_logical([[1.0, 0.0]], [[0.0, 2.0]], [[0.0, 1.0], [0.0, 0.0]])
    >>> qk.dense().tolist(), ov.dense().tolist()
    ([[0.0, 2.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]])
    """
    query, key = (as_tensor(matrix, name, ndim_at_least=2).mT for matrix, name in ((q, "q"), (k, "k")))
    value = as_square(v, "v")
    return qk_circuit(query, key), FactoredMatrix(value, torch.eye(value.shape[-1], dtype=value.dtype).expand_as(value))


@typed_arguments
def from_positional(
    Q: ArrayLike, K: ArrayLike, V: ArrayLike, *, scale: float = 1.0
) -> tuple[FactoredMatrix, FactoredMatrix]:
    """Return (qk, ov) of `positional` (1)–(2), whose tokens are rows: ``W = Q K^T``, ``ov = V^T``.

    Args:
        Q: Shape (…, dim, d_k).
        K: Shape (…, dim, d_k).
        V: Shape (…, dim, dim), applied to rows.
        scale: 1/√d_k for the W of the paper's (1) and (7); 1 (default) for its appendices and printed eigenvalues.

    Raises:
        ArgumentValueError: Shapes do not fit each other, or a number is not finite.

    >>> qk, ov = from_positional([[1.0], [0.0]], [[0.0], [2.0]], [[0.0, 1.0], [0.0, 0.0]])
    >>> qk.dense().tolist(), ov.dense().tolist()
    ([[0.0, 2.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]])
    """
    value = as_square(V, "V")
    identity = torch.eye(value.shape[-1], dtype=value.dtype).expand_as(value)
    return qk_circuit(Q, K, scale=scale), FactoredMatrix(value.mT, identity)
