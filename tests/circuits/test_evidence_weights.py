"""Variance shares and correlation: what the weights alone look like."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokendynamics.attention import Attention
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import OneLayerTransformer
from tokendynamics.circuits.constructions import mixture, solution_1, solution_2
from tokendynamics.circuits.evidence import evidence
from tokendynamics.circuits.evidence.instrument import Instrument
from tokendynamics.circuits.evidence.weights import correlation, variance_shares
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.numerics.arguments import generator


def shares_of(model: OneLayerTransformer, task: PairTask) -> Instrument:
    return variance_shares(model, task, resamples=30, confidence=0.9, seed=0)


def likeness_of(model: OneLayerTransformer, task: PairTask) -> Instrument:
    return correlation(model, task, resamples=99, confidence=0.9, seed=0)


def rebuilt(model: OneLayerTransformer, qk: torch.Tensor, ov: torch.Tensor) -> OneLayerTransformer:
    attention = Attention(qk, ov, weights="linear")
    return OneLayerTransformer(attention, model.B, model.bias, model.C, model.task, model.offset)


def test_shares_of_a_mixture_by_hand() -> None:
    task = PairTask(random_functional(5, seed=1), positions=7, law="zipf")
    share = 0.3
    model = mixture(task, share)
    result = shares_of(model, task)
    law, M = task.law.numpy(), 7
    # qk: α·q_true^T on categories in head 1, ones left of the diagonal on positions in head 2.
    by_category = share**2 * task.interaction_variance
    step = np.diag(np.ones(M - 1), 1)
    centred = step - step.mean(0) - step.mean(1)[:, None] + step.mean()
    by_position = (centred**2).mean()
    # ov: a multiple of the shift of positions in head 1, a multiple of (1 − α)·q_true^T on categories in head 2.
    ov = model.ov.numpy()
    # Each is read by its own unit, at that unit's weight in the answer.
    by_categories, by_positions = float(model.C[0]), float(model.C[5])
    written = [float((by_positions * ov[0].max()) ** 2 * (M - 1) / M * (1 - 1 / M))]
    table = by_categories * ov[1][:5, :5]
    written.append(float((((table - (table @ law)[:, None]) ** 2) @ law).sum()))
    strengths = np.array([by_category, by_position]) * written
    assert result.named("category–category").value == pytest.approx(strengths[0] / strengths.sum(), rel=1e-10)
    assert result.named("position–position").value == pytest.approx(strengths[1] / strengths.sum(), rel=1e-10)
    heads = result.details["heads"]
    assert [head["qk"]["category–category"] for head in heads] == pytest.approx([1.0, 0.0])
    assert heads[0]["ov"]["position→position"] == pytest.approx(1.0)
    assert heads[1]["ov"]["category→category"] == pytest.approx(1.0)
    assert result.reading == "both"


@settings(max_examples=10)
@given(st.integers(0, 1000), st.floats(0.01, 100.0), st.floats(0.01, 100.0))
def test_shares_do_not_see_scales_or_constants_that_change_nothing(seed: int, first: float, second: float) -> None:
    task = PairTask(random_functional(4, seed=2), positions=5, law="zipf")
    draw, width = generator(seed), task.width
    qk, ov = (torch.randn(2, width, width, generator=draw, dtype=torch.float64) for _ in range(2))
    built = mixture(task, 0.5)
    plain = rebuilt(built, qk, ov)
    scale = torch.tensor([first, second], dtype=torch.float64)[:, None, None]
    category, position = plain.block("category"), plain.block("position")
    shifted = qk.clone()
    # A constant of each receiver leaves the category columns and comes back in the position columns.
    per_receiver = torch.randn(2, width, 1, generator=draw, dtype=torch.float64)
    shifted[:, :, category] += 10 * per_receiver
    shifted[:, :, position] -= 10 * per_receiver
    changed = rebuilt(built, shifted * scale, ov / scale)
    x = task.sample(4, 0)
    assert torch.allclose(changed.attend(x), plain.attend(x), atol=1e-9)
    before, after = shares_of(plain, task), shares_of(changed, task)
    assert [e.value for e in after.estimates] == pytest.approx([e.value for e in before.estimates], rel=1e-8)
    assert sum(e.value for e in after.estimates if e.value is not None) == pytest.approx(1.0)


@settings(max_examples=10)
@given(st.floats(0.01, 100.0))
def test_shares_do_not_see_how_writing_and_reading_split_a_scale(scale: float) -> None:
    task = PairTask(random_functional(4, seed=2), positions=5)
    built = mixture(task, 0.5)
    scales = torch.where(torch.arange(task.width) < 4, scale, 1.0).double()
    ov, B = built.ov * scales[:, None], built.B / scales
    model = OneLayerTransformer(
        Attention(built.qk, ov, weights="linear"), B, built.bias, built.C, task, built.offset, skip=0.0
    )
    plain = rebuilt(built, built.qk, built.ov)
    assert [e.value for e in shares_of(model, task).estimates] == pytest.approx(
        [e.value for e in shares_of(plain, task).estimates], rel=1e-10
    )


def test_half_and_half_reads_both_for_two_categories_as_well() -> None:
    for seed in range(3):
        task = PairTask(random_functional(2, seed), positions=5)
        assert task.interaction_variance > 0.01 * task.variance  # below that a head of interactions counts as unused
        assert shares_of(mixture(task, 0.5), task).reading == "both"


def with_column_constants(task: PairTask, constants: torch.Tensor) -> OneLayerTransformer:
    """Solution 2 whose attention adds a constant for each current category, which hidden units take off again."""
    shifted = PairTask(task.q_true + constants, task.positions, task.law)
    built = solution_2(shifted)
    C, bias = built.C.clone(), built.bias.clone()
    C[built.block("category")] = -constants
    bias[built.block("category")] = 0.0  # the unit of the current category says 1, the others 0
    return OneLayerTransformer(built.attention, built.B, bias, C, task, built.offset)


def test_the_raw_correlation_misses_what_the_centred_one_sees() -> None:
    task = PairTask(random_functional(8, seed=3), positions=6)
    model = with_column_constants(task, 20.0 * random_functional(8, seed=4)[0])
    likeness = likeness_of(model, task)
    raw = likeness.named("raw").value
    assert raw is not None
    assert raw < 0.3
    assert likeness.named("centred").value == pytest.approx(1.0, abs=1e-9)
    assert likeness.named("interaction").value == pytest.approx(1.0, abs=1e-9)
    assert likeness.attention is True
    whole = evidence(model, task, samples=200, resamples=30)
    assert whole.loss is not None
    assert whole.loss < 1e-20
    assert whole.verdict == "attention"


def test_correlations_are_those_of_numpy() -> None:
    task = PairTask(random_functional(6, seed=5), positions=4)
    block = random_functional(6, seed=6)
    built = solution_2(task)
    qk = built.qk.clone()
    qk[0, :6, :6] = block.mT
    likeness = likeness_of(built.with_qk(qk), task)
    a, b = block.numpy(), task.q_true.numpy()
    assert likeness.named("raw").value == pytest.approx(abs(np.corrcoef(a.flatten(), b.flatten())[0, 1]))
    a, b = a - a.mean(0), b - b.mean(0)
    assert likeness.estimate == pytest.approx(abs(np.corrcoef(a.flatten(), b.flatten())[0, 1]))
    a, b = a - a.mean(1)[:, None], b - b.mean(1)[:, None]
    assert likeness.named("interaction").value == pytest.approx(abs(np.corrcoef(a.flatten(), b.flatten())[0, 1]))
    assert likeness.attention is False


def test_law_weighted_correlation_is_that_of_a_table_with_repeated_categories() -> None:
    repeats = torch.tensor([3, 1, 2])
    task = PairTask(random_functional(3, seed=7), positions=4, law=repeats.double() / 6.0)
    block = random_functional(3, seed=8)
    built = solution_2(task)
    qk = built.qk.clone()
    qk[0, :3, :3] = block.mT
    long = [table.repeat_interleave(repeats, 0).repeat_interleave(repeats, 1).numpy() for table in (block, task.q_true)]
    a, b = (table - table.mean(0) for table in long)
    likeness = likeness_of(built.with_qk(qk), task)
    assert likeness.estimate == pytest.approx(abs(np.corrcoef(a.flatten(), b.flatten())[0, 1]))


def test_a_block_without_interaction_looks_like_nothing() -> None:
    task = PairTask(random_functional(5, seed=9), positions=4)
    likeness = likeness_of(solution_1(task), task)
    assert (likeness.estimate, likeness.reading) == (None, "attention takes no part")


def test_two_categories_are_too_few_to_tell_likeness_from_chance() -> None:
    task = PairTask([[0.0, 1.0], [2.0, -1.0]], positions=3)
    likeness = likeness_of(solution_2(task), task)
    assert likeness.estimate == pytest.approx(1.0)
    assert likeness.details["chance of as much under renamed categories"] > 0.1
    assert likeness.reading == "cannot tell"


def test_the_interval_of_a_likeness_that_may_have_either_sign_reaches_down_to_zero() -> None:
    task = PairTask(random_functional(10, seed=0), positions=4)
    unlike = torch.zeros(14, 14, dtype=torch.float64)
    unlike[:10, :10] = random_functional(10, seed=5)
    centred = correlation(solution_2(task).with_qk(unlike), task, 200, 0.95, 0).named("centred")
    assert centred.value is not None
    assert centred.high is not None
    assert centred.low == 0.0
    assert 0.0 < centred.value < centred.high
