"""Solutions 2 and 3 compute the same, `logical` 2.3.1."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuits.pair_cases import close, golden, task_of, tasks_and_sequences
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits.constructions import check_equivalence, solution_2, solution_3
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.numerics.errors import ArgumentValueError


@settings(max_examples=60)
@given(drawn=tasks_and_sequences(scales=(1.0, 1e-9, 1e9)), slack=st.sampled_from([None, 1.0, 7.3]))
def test_both_solutions_agree_to_the_last_digits(drawn: tuple[PairTask, torch.Tensor], slack: float | None) -> None:
    task, x = drawn
    least = max(float(task.q_true.max()), 0.0) + max(0.0, -float(task.q_true.min()))
    result = check_equivalence(task, x, None if slack is None else slack * least)
    assert result.holds
    assert result.largest_difference <= result.tolerance
    assert torch.equal(result.second_diagonal, task.targets(x))
    assert torch.equal(result.third_diagonal, task.targets(x))


def test_the_outputs_are_those_of_the_two_transformers() -> None:
    case = golden("04")
    task, x = task_of(case), case["x"]
    result = check_equivalence(task, x, K=20.0)
    assert result.tolerance == pytest.approx(2e-14, rel=1e-12)
    assert torch.equal(result.second, solution_2(task, K=20.0)(x))
    assert torch.equal(result.third, solution_3(task, K=20.0)(x))
    assert close(result.second_diagonal, case["Y"])


def test_what_attention_writes_is_not_the_same_at_all() -> None:
    task = PairTask(random_functional(4, seed=0), positions=6)
    x = task.sample(1, seed=0)
    second, third = (solution(task, K=8.0).attend(x) for solution in (solution_2, solution_3))
    assert second[..., :4].count_nonzero() == 0
    assert third[..., 4:].count_nonzero() == 0
    assert second.count_nonzero() > 0
    assert third.count_nonzero() > 0


def test_a_difference_beyond_the_tolerance_is_seen() -> None:
    task = PairTask(random_functional(4, seed=0), positions=6)
    result = check_equivalence(task, task.sample(3, seed=0), K=8.0)
    shifted = result.third.clone()
    shifted[2, 3] += 1e-13
    assert not replace(result, third=shifted).holds
    assert not replace(result, third_diagonal=shifted).holds
    assert replace(result, third=shifted).largest_difference == pytest.approx(1e-13, rel=0.01)


def test_a_K_that_is_too_small_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match=r"K: expected at least 2\.0, got 1\.0"):
        check_equivalence(PairTask([[1.0, -1.0], [0.0, 0.0]], positions=2), [1, 2], K=1.0)
