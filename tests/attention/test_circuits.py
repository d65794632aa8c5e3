"""Circuits and the three papers' letters against attention computed the way each paper writes it."""

from __future__ import annotations

import pytest
import torch

from tokendynamics.attention import (
    FactoredMatrix,
    from_asymptotic,
    from_logical,
    from_positional,
    ov_circuit,
    qk_circuit,
    rotate,
)
from tokendynamics.numerics.errors import ArgumentValueError


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_logits_and_outputs_are_those_of_the_projections() -> None:
    x, W_Q, W_K, W_V, W_O = draw(5, 8), draw(8, 3, seed=1), draw(8, 3, seed=2), draw(8, 3, seed=3), draw(3, 8, seed=4)
    qk, ov = qk_circuit(W_Q, W_K, scale=3**-0.5), ov_circuit(W_V, W_O)
    logits = (x @ W_Q) @ (x @ W_K).T / 3**0.5
    torch.testing.assert_close(x @ qk.dense() @ x.T, logits, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(x @ ov.dense().T, x @ W_V @ W_O, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ov.apply(x), x @ W_V @ W_O, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ov.mT.dense(), ov.dense().T)


def test_heads_sum_to_one_factored_matrix() -> None:
    heads = FactoredMatrix(draw(4, 6, 2), draw(4, 6, 2, seed=1))
    summed = heads.summed()
    assert (summed.dim, summed.rank) == (6, 6)
    torch.testing.assert_close(summed.dense(), heads.dense().sum(dim=0), rtol=1e-12, atol=1e-12)


def test_asymptotic_letters() -> None:
    """Tokens are columns there: logit of receiver i and sender j is ⟨Q y_i, K y_j⟩, value W V y_j."""
    y, Q, K, V, W = draw(5, 4), draw(2, 4, seed=1), draw(2, 4, seed=2), draw(3, 4, seed=3), draw(4, 3, seed=4)
    qk, ov = from_asymptotic(Q, K, V, W)
    for i in range(5):
        for j in range(5):
            assert y[i] @ qk.dense() @ y[j] == pytest.approx(float((Q @ y[i]) @ (K @ y[j])), abs=1e-12)
    torch.testing.assert_close(ov.apply(y)[2], W @ V @ y[2], rtol=1e-12, atol=1e-12)


def test_logical_letters_put_the_key_first_in_print() -> None:
    """w[j][i] = X_j^T k^T q X_i with columns X; i receives, so qk = q^T k."""
    x, q, k, v = draw(5, 4), draw(3, 4, seed=1), draw(3, 4, seed=2), draw(4, 4, seed=3)
    qk, ov = from_logical(q, k, v)
    printed = x @ k.T @ q @ x.T
    torch.testing.assert_close(x @ qk.dense() @ x.T, printed.T, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ov.dense(), v)


def test_positional_letters_and_the_contraction_form() -> None:
    x, Q, K, V = draw(5, 4), draw(4, 3, seed=1), draw(4, 3, seed=2), draw(4, 4, seed=3)
    qk, ov = from_positional(Q, K, V, scale=3**-0.5)
    torch.testing.assert_close(qk.dense(), Q @ K.T / 3**0.5, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ov.apply(x), x @ V, rtol=1e-12, atol=1e-12)


def test_turning_the_query_gives_the_circuit_at_a_distance() -> None:
    query, key, frequencies = draw(6), draw(6, seed=1), torch.tensor([1.0, 0.1, 0.01], dtype=torch.float64)
    for receiver, sender in ((7, 3), (3, 7), (5, 5)):
        both = rotate(query, frequencies, receiver) @ rotate(key, frequencies, sender)
        torch.testing.assert_close(both, rotate(query, frequencies, receiver - sender) @ key)
    assert torch.linalg.vector_norm(rotate(query, frequencies, 1e4)) == pytest.approx(float(query.norm()), rel=1e-13)


def test_shapes_that_do_not_fit_are_printed() -> None:
    with pytest.raises(ArgumentValueError, match=r"W_K: expected the shape of W_Q, \(4, 2\), got shape \(4, 3\)"):
        qk_circuit(draw(4, 2), draw(4, 3))
    with pytest.raises(ArgumentValueError, match=r"W_O transposed: expected the shape of W_V"):
        ov_circuit(draw(4, 2), draw(4, 2))
