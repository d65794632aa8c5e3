"""From each paper's letters to (qk, ov), kept as factors.

| here | `asymptotic` | `logical` | `positional` |
|---|---|---|---|
| qk | P = Q^T K | q^T k (printed as k^T q: key first) | W = Q K^T |
| ov | U = W_η V_η | v | V^T |

The weights' factor 1/√dim of `asymptotic` multiplies the weights and not the logits, so it is no part of a circuit.
"""

from __future__ import annotations

import torch

from tokendynamics.attention.circuits import FactoredMatrix, ov_circuit, qk_circuit
from tokendynamics.numerics.arguments import ArrayLike, as_square, as_tensor


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
