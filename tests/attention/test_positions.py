"""Absolute and rotary positions against their formulas, and without any array of token² × dim² numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tokendynamics.attention import AbsolutePositions, Attention, RotaryPositions
from tokendynamics.dynamics import Flow
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.spaces import Free

SCALARS = json.loads((Path(__file__).parents[1] / "golden" / "dynamics" / "misc_scalars.json").read_text())
RNG = np.random.default_rng(6)


def rotation(rank, m, base=10000.0):
    result = np.zeros((rank, rank))
    for c in range(0, rank, 2):
        angle = m * base ** (-c / rank)
        result[c : c + 2, c : c + 2] = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    return result


def test_the_sinusoidal_table_is_the_stored_one_and_not_that_of_the_other_count():
    computed = AbsolutePositions.sinusoidal(3, 4).table
    np.testing.assert_allclose(computed, SCALARS["pe_sin_0based_L3_D4"], rtol=1e-14, atol=1e-16)
    assert np.abs(computed.numpy() - SCALARS["pe_sin_1based_literal_L3_D4"]).max() > 0.1


def test_rotations_are_the_stored_ones():
    np.testing.assert_allclose(rotation(4, 3), SCALARS["rot_m3_D4"], rtol=1e-14, atol=1e-16)
    np.testing.assert_allclose(rotation(2, -2), SCALARS["rot_mneg2_D2"], rtol=1e-14)


@pytest.mark.parametrize("base", [10000.0, 20.0])
@pytest.mark.parametrize(("dim", "rank", "heads"), [(2, 2, 1), (5, 4, 1), (4, 6, 3)])
def test_rotary_logits_are_those_of_equation_7(dim, rank, heads, base):
    qk, query, key = RNG.normal(size=(heads, dim, dim)), *RNG.normal(size=(2, heads, dim, rank))
    positions = RotaryPositions(query, key, base=base, scale=0.7)
    attention = Attention(qk, np.repeat(np.eye(dim)[None], heads, axis=0), positions=positions)
    x = RNG.normal(size=(6, dim))
    wanted = np.zeros((heads, 6, 6))
    for h in range(heads):
        for receiver in range(6):
            for sender in range(6):
                kernel = 0.7 * (qk[h] + query[h] @ rotation(rank, sender - receiver, base) @ key[h].T)
                wanted[h, receiver, sender] = x[receiver] @ kernel @ x[sender]
    np.testing.assert_allclose(attention.logits(x), wanted, rtol=0, atol=1e-13 * np.abs(wanted).max())


def test_one_pair_of_rotary_matrices_may_serve_all_heads():
    qk, ov, x = RNG.normal(size=(3, 4, 4)), RNG.normal(size=(3, 4, 4)), RNG.normal(size=(5, 4))
    query, key = RNG.normal(size=(2, 4, 2))
    shared = Attention(qk, ov, positions=RotaryPositions(query, key))
    entry = Attention(qk, ov, positions=RotaryPositions(np.stack([query] * 3), np.stack([key] * 3)))
    np.testing.assert_allclose(shared.logits(x), entry.logits(x), rtol=1e-13, atol=1e-13)


def test_rotary_positions_do_not_need_the_square_of_tokens_times_dim():
    # (2000 · 64)² numbers would be 131 GB.
    x = torch.tensor(RNG.normal(size=(2000, 64))) / 8
    query = torch.tensor(RNG.normal(size=(64, 64))) / 8
    flow = Flow(Attention(query, query, causal=True, positions=RotaryPositions(query, query)), Free())
    velocity = flow.velocity(x)
    logits = torch.stack([x[1000] @ (query + query @ torch.tensor(rotation(64, j - 1000)) @ query.mT) @ x[j]
                          for j in range(0, 1001)])  # fmt: skip
    torch.testing.assert_close(velocity[1000], query @ (logits.softmax(0) @ x[:1001]), rtol=1e-9, atol=1e-11)


def test_absolute_positions_are_the_free_flow_of_the_shifted_tokens():
    qk, ov, x, table = RNG.normal(size=(2, 3, 3)), RNG.normal(size=(2, 3, 3)), *RNG.normal(size=(2, 5, 3))
    placed = Flow(Attention(qk, ov, positions=AbsolutePositions(table)), Free())
    plain = Flow(Attention(qk, ov), Free())
    np.testing.assert_allclose(placed.velocity(x), plain.velocity(x + table), rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(placed.attention.pattern(x), plain.attention.pattern(x + table), rtol=1e-12)
    np.testing.assert_allclose(placed.velocity(x[:2]), plain.velocity((x + table)[:2]), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("base", [0.0, -2.0, math.nan])
def test_the_base_must_be_positive(base):
    with pytest.raises(ArgumentValueError, match="base: expected a positive number"):
        RotaryPositions(np.eye(2), np.eye(2), base=base)


def test_a_table_has_two_axes():
    with pytest.raises(ArgumentValueError, match=r"table: expected shape \(token, dim\), got shape \(1, 2, 3\)"):
        AbsolutePositions(np.ones((1, 2, 3)))
