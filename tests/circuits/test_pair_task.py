"""The task: sequences, targets, laws, tokens, and the part of a functional that no sum gives."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuits.pair_cases import close, golden, task_of, tasks_and_sequences
from tokendynamics.circuits._task import PairTask, category_law
from tokendynamics.circuits.functionals import pair_numbers, random_functional
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError


def test_targets_are_the_functional_of_the_previous_and_the_current_category() -> None:
    for name in ("01", "02", "04"):
        case = golden(name)
        assert close(task_of(case).targets(case["x"]), case["Y"])


@settings(max_examples=30)
@given(drawn=tasks_and_sequences())
def test_targets_agree_with_a_loop_over_tokens(drawn: tuple[PairTask, torch.Tensor]) -> None:
    task, x = drawn
    for sequence, targets in zip(x.tolist(), task.targets(x).tolist(), strict=True):
        pairs = itertools.pairwise(sequence)
        assert targets == [0.0, *(float(task.q_true[a - 1, b - 1]) for a, b in pairs)]


def test_tokens_are_one_hot_in_category_and_position() -> None:
    case = golden("01")
    task = task_of(case)
    assert task.width == 8
    assert close(task.embed(case["x"]).mT, case["X"])
    with_scratch = task.embed([[1, 3], [4, 4]], scratch=3)
    assert with_scratch.shape == (2, 2, 11)
    assert with_scratch[..., 8:].count_nonzero() == 0
    assert with_scratch[1, 1].nonzero().flatten().tolist() == [3, 5]
    assert (with_scratch[..., :8].sum(-1) == 2).all()


def test_sequences_come_in_any_container() -> None:
    task = PairTask(pair_numbers(3), positions=4)
    three = np.array([1, 2, 3])
    arrays = three, three.astype(np.uint8), three.astype(">i8"), np.array([3, 2, 1])[::-1]
    for x in ([1, 2, 3], (1, 2, 3), *arrays, torch.tensor([1, 2, 3])):
        checked = task.checked(x)
        assert checked.dtype == torch.int64
        assert checked.tolist() == [1, 2, 3]


def test_samples_follow_the_law_and_the_seed() -> None:
    task = PairTask(random_functional(4, seed=0), positions=10, law="zipf")
    x = task.sample(20_000, seed=0)
    assert x.shape == (20_000, 10)
    counts = torch.bincount(x.flatten(), minlength=5)[1:]
    deviation = (counts / x.numel() - task.law) / (task.law * (1 - task.law) / x.numel()).sqrt()
    assert float(deviation.abs().max()) < 4.5
    # Adjacent tokens are independent.
    pairs = torch.bincount((x[:, ::2] * 4 + x[:, 1::2] - 5).flatten(), minlength=16).double().reshape(4, 4)
    wanted = torch.outer(task.law, task.law)
    spread = (wanted * (1 - wanted) / pairs.sum()).sqrt()
    assert float(((pairs / pairs.sum() - wanted) / spread).abs().max()) < 4.5
    assert torch.equal(x, task.sample(20_000, seed=0))
    assert not torch.equal(x, task.sample(20_000, seed=1))
    assert task.sample(3, seed=0, length=2).shape == (3, 2)


def test_laws_are_as_named() -> None:
    assert close(category_law(None, 4), [0.25] * 4)
    assert torch.equal(category_law("uniform", 4), category_law(None, 4))
    assert close(category_law("zipf", 4), [12 / 25, 6 / 25, 4 / 25, 3 / 25])
    direct = category_law([0.2, 0.3, 0.5], 3)
    assert direct.tolist() == pytest.approx([0.2, 0.3, 0.5], abs=1e-15)
    assert direct.dtype == torch.float64
    assert float(category_law([1 / 3] * 3, 3).sum()) == pytest.approx(1.0, abs=1e-16)


def test_the_functionals_are_as_stated() -> None:
    assert pair_numbers(4).tolist()[2] == [31.0, 32.0, 33.0, 34.0]
    assert pair_numbers(2, base=-2.0).tolist() == [[-1.0, 0.0], [-3.0, -2.0]]
    drawn = random_functional(200, seed=3)
    assert float(drawn.mean().abs()) < 4.5 / 200
    assert abs(float(drawn.square().mean()) - 1) < 4.5 * math.sqrt(2) / 200
    assert torch.equal(drawn, random_functional(200, seed=3))
    assert not torch.equal(drawn, random_functional(200, seed=4))


@settings(max_examples=30)
@given(drawn=tasks_and_sequences(scales=(1.0,)), law=st.sampled_from([None, "zipf"]))
def test_the_interaction_is_what_the_best_sum_leaves(drawn: tuple[PairTask, torch.Tensor], law: str | None) -> None:
    # By weighted least squares on one-hots of both categories, a route without any centring.
    task = PairTask(drawn[0].q_true, positions=2, law=law)
    categories = task.categories
    rows = [(a, b) for a in range(categories) for b in range(categories)]
    design = np.zeros((len(rows), 2 * categories))
    for row, (a, b) in enumerate(rows):
        design[row, a] = design[row, categories + b] = 1.0
    weights = np.sqrt([float(task.law[a] * task.law[b]) for a, b in rows])
    values = task.q_true.numpy().flatten()
    fit, *_ = np.linalg.lstsq(design * weights[:, None], values * weights, rcond=None)
    left = (values - design @ fit).reshape(categories, categories)
    assert np.abs(task.interaction.numpy() - left).max() < 1e-11
    assert task.interaction_variance == pytest.approx(float(np.sum((left.flatten() * weights) ** 2)), abs=1e-11)


def test_a_sum_has_no_interaction_and_a_product_has_the_variances_multiplied() -> None:
    assert PairTask(pair_numbers(5), positions=2).interaction.abs().max() < 1e-12
    law = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    f, g = torch.tensor([1.0, -2.0, 4.0]).double(), torch.tensor([0.5, 3.0, -1.0]).double()

    def variance(values: torch.Tensor) -> float:
        return float(law @ values**2 - (law @ values) ** 2)

    task = PairTask(torch.outer(f, g), positions=2, law=law)
    assert task.interaction_variance == pytest.approx(variance(f) * variance(g), rel=1e-12)


def test_the_variance_is_that_of_the_targets() -> None:
    task = PairTask(random_functional(3, seed=0), positions=6, law="zipf")
    pairs = [(float(task.law[a] * task.law[b]), float(task.q_true[a, b])) for a in range(3) for b in range(3)]
    mean = sum(p * q for p, q in pairs)
    assert task.variance == pytest.approx(sum(p * (q - mean) ** 2 for p, q in pairs), rel=1e-12)
    sampled = task.targets(task.sample(50_000, seed=0))[:, 1:]
    assert float(sampled.var()) == pytest.approx(task.variance, rel=0.02)
    assert task.interaction_variance < task.variance


def test_a_task_keeps_the_functional_it_was_given():
    functional = torch.ones(2, 2, dtype=torch.float64)
    task = PairTask(functional, positions=3)
    functional += 1.0
    assert task.targets([1, 2]).tolist() == [0.0, 1.0]


def test_an_empty_sequence_is_refused_as_one():
    with pytest.raises(ArgumentValueError, match=r"x: expected at least one token, got shape \(0,\)"):
        PairTask([[1.0]], positions=3).checked([])


def test_numbers_beyond_64_bits_are_refused() -> None:
    task = PairTask([[1.0]], positions=3)
    with pytest.raises(ArgumentTypeError, match="x: expected sequences of integers of equal length"):
        task.checked([99999999999999999999999])
    with pytest.raises(ArgumentValueError, match="seed: expected an integer of 64 bits"):
        task.sample(1, seed=10**20)
