"""Logits, patterns and averages of attention against plain sums, short and long, dense and factored."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tokendynamics.attention import Attention, FactoredMatrix, RotaryPositions
from tokendynamics.attention.mixing import SHORT, largest_logits

RNG = np.random.default_rng(1)
OFFSETS = {"exponential": 0.7}


def plain_pattern(x, qk, causal, weights):
    result = np.zeros((len(qk), len(x), len(x)))
    for h in range(len(qk)):
        for i in range(len(x)):
            senders = range(i + 1) if causal else range(len(x))
            logits = np.array([x[i] @ qk[h] @ x[j] for j in senders])
            raised = np.exp(logits - logits.max())
            rows = {
                "softmax": raised / raised.sum(),
                "linear": logits,
                "exponential": np.exp(logits - 0.7) / len(logits),
            }
            result[h, i, : len(logits)] = rows[weights]
    return result


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("weights", ["softmax", "linear", "exponential"])
@pytest.mark.parametrize("tokens", [1, 7, SHORT + 5])
def test_patterns_and_averages_are_the_plain_sums_however_long(tokens, weights, causal):
    qk, ov, x = RNG.normal(size=(2, 3, 3)), RNG.normal(size=(2, 3, 3)), RNG.normal(size=(tokens, 3))
    attention = Attention(qk, ov, causal=causal, weights=weights, offset=OFFSETS.get(weights, 0.0))
    wanted = plain_pattern(x, qk, causal, weights)
    np.testing.assert_allclose(attention.pattern(x), wanted, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(attention.logits(x), np.einsum("id,hde,je->hij", x, qk, x), rtol=1e-12, atol=1e-13)
    mixed = np.einsum("hij,hed,jd->ie", wanted, ov, x)
    batch = torch.tensor(np.stack([x, x[::-1].copy()]))
    scale = max(1.0, np.abs(mixed).max())
    np.testing.assert_allclose(attention.mix(torch.tensor(x), 0.0), mixed, rtol=0, atol=1e-13 * scale)
    with_slope = attention.mix(torch.tensor(x, requires_grad=True), 0.0).detach()
    np.testing.assert_allclose(with_slope, mixed, rtol=0, atol=1e-13 * scale)
    np.testing.assert_allclose(attention.mix(batch, 0.0)[0], mixed, rtol=0, atol=1e-13 * scale)
    identity = np.einsum("hij,jd->id", wanted, x)
    result = attention.mix(torch.tensor(x), 0.0, identity_values=True)
    np.testing.assert_allclose(result, identity, rtol=0, atol=1e-13 * max(1.0, np.abs(identity).max()))


@pytest.mark.parametrize("tokens", [5, SHORT + 5])
def test_factors_of_low_rank_act_as_their_product(tokens):
    left, right = torch.tensor(RNG.normal(size=(2, 6, 2))), torch.tensor(RNG.normal(size=(2, 6, 2)))
    x = torch.tensor(RNG.normal(size=(tokens, 6)))
    qk, ov = FactoredMatrix(left, right), FactoredMatrix(right, left)
    rotary = RotaryPositions(RNG.normal(size=(2, 6, 4)), RNG.normal(size=(2, 6, 4)), scale=0.3)
    for causal in (True, False):
        for positions in (None, rotary):
            factored = Attention(qk, ov, causal=causal, positions=positions)
            dense = Attention(qk.dense(), ov.dense(), causal=causal, positions=positions)
            torch.testing.assert_close(factored.pattern(x), dense.pattern(x), rtol=1e-11, atol=1e-13)
            torch.testing.assert_close(factored.mix(x, 0.0), dense.mix(x, 0.0), rtol=1e-11, atol=1e-12)


def test_softmax_rows_sum_to_one_and_large_logits_do_not_overflow():
    x = 100.0 * RNG.normal(size=(6, 3))
    for causal in (True, False):
        pattern = np.asarray(Attention(np.eye(3), np.eye(3), causal=causal).pattern(x))
        np.testing.assert_allclose(pattern.sum(axis=-1), 1.0, rtol=1e-14)
        # Among logits of 1e4 the largest takes all.
        logits = np.where(np.tril(np.ones((6, 6))) if causal else np.ones((6, 6)), x @ x.T, -np.inf)
        np.testing.assert_array_equal(pattern[0].argmax(axis=-1), logits.argmax(axis=-1))


def test_without_logits_weights_are_equal_and_the_first_causal_token_sees_itself():
    x = RNG.normal(size=(4, 2))
    full = np.asarray(Attention(np.zeros((2, 2)), np.eye(2)).pattern(x))[0]
    causal = np.asarray(Attention(np.zeros((2, 2)), np.eye(2), causal=True).pattern(x))[0]
    np.testing.assert_allclose(full, 0.25)
    np.testing.assert_allclose(causal, np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None])


def test_the_receiver_is_on_the_left_of_qk_and_values_are_columns():
    qk, ov = np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[0.0, 2.0], [0.0, 0.0]])
    x = np.array([[1.0, 0.0], [0.0, 1.0]])
    attention = Attention(qk, ov)
    np.testing.assert_array_equal(attention.logits(x), [[[0.0, 1.0], [0.0, 0.0]]])
    p = math.e / (1 + math.e)
    np.testing.assert_allclose(attention.pattern(x), [[[1 - p, p], [0.5, 0.5]]])
    # ov e_2 = 2 e_1, ov e_1 = 0.
    np.testing.assert_allclose(attention.mix(torch.tensor(x), 0.0), [[2 * p, 0.0], [1.0, 0.0]])


def test_a_multiple_of_the_identity_is_used_as_such_and_gives_the_same():
    x = torch.tensor(RNG.normal(size=(5, 3)))
    multiples = torch.tensor([0.7, -1.3], dtype=torch.float64)[:, None, None] * torch.eye(3)
    nearly = multiples.clone()
    nearly[0, 0, 1] = 1e-300
    exact, general = Attention(multiples, multiples), Attention(nearly, nearly)
    assert exact.ov.at(0.0).__class__ is not general.ov.at(0.0).__class__
    torch.testing.assert_close(exact.mix(x, 0.0), general.mix(x, 0.0), rtol=1e-13, atol=1e-14)


def test_memory_of_a_long_sequence_is_not_the_square_of_its_length():
    x = torch.tensor(RNG.normal(size=(3000, 2)))
    attention = Attention(np.eye(2), np.eye(2), causal=True)
    row = attention.mix(x, 0.0)[1234]
    weights = torch.softmax(x[:1235] @ x[1234], dim=0)
    torch.testing.assert_close(row, weights @ x[:1235], rtol=1e-11, atol=1e-12)


def test_rows_whose_logits_are_large_do_not_blur_those_of_others():
    logits = torch.tensor(
        [[1e12, 1e12 - 1.0], [1e-6, 2e-6], [1.0, 1.0 - 1e-16], [-math.inf, -3.0]], dtype=torch.float64
    )
    chosen = largest_logits(logits)
    assert chosen.tolist() == [[True, False], [False, True], [True, True], [False, True]]
