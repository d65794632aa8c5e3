"""What cannot be built or read is refused in one line that says what to do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from circuits.pair_cases import FOLDER
from tokendynamics.circuits._task import PairTask, category_law
from tokendynamics.circuits.constructions import (
    linear_case,
    mixture,
    softmax_solution_1,
    solution_1,
    solution_2,
    solution_3,
)
from tokendynamics.circuits.constructions.solutions import HAND_BUILT, Selection, linear_solution
from tokendynamics.circuits.functionals import pair_numbers, positive_functional, random_functional
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError

TASK = PairTask(pair_numbers(4), positions=6)
POSITIVE = PairTask(positive_functional(4, seed=0), positions=6)


@pytest.mark.parametrize("name", HAND_BUILT)
@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([1, 5, 2], r"x: expected categories from 1 to 4, got 5 at index \(1,\); q_true has no row for it"),
        ([0, 1, 2], r"x: expected categories from 1 to 4, got 0 at index \(0,\); categories are numbered from 1"),
        ([[1, 2], [3, -1]], r"x: expected categories from 1 to 4, got -1 at index \(1, 1\)"),
        ([1] * 7, r"x: expected sequences of 1 to 6 tokens, the task's positions, got 7 tokens"),
        ([], "x: expected"),
    ],
)
def test_every_transformer_refuses_sequences_that_are_not_of_its_task(name: str, x: Any, message: str) -> None:
    model = HAND_BUILT[name](POSITIVE if name == "softmax-2" else TASK)
    with pytest.raises((ArgumentValueError, ArgumentTypeError), match=message):
        model(x)


@pytest.mark.parametrize("x", [[1.0, 2.0], [True, False], "12", [[1, 2], [3]], torch.ones(3)])
def test_sequences_that_are_no_integers_are_refused(x: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="x: expected"):
        TASK.checked(x)


@pytest.mark.parametrize(
    ("q_true", "message"),
    [
        (np.ones((2, 3)), r"q_true: expected an N × N matrix, .*, got shape \(2, 3\)"),
        (np.ones((2, 2, 2)), r"q_true: expected an N × N matrix, .*, got shape \(2, 2, 2\)"),
        (np.ones(4), r"q_true: expected at least 2 axes \(previous, current\), got shape \(4,\)"),
        (np.ones((0, 0)), r"q_true: expected an N × N matrix, .*, got shape \(0, 0\)"),
        ([[1.0, math.nan], [0.0, 1.0]], r"q_true: expected finite numbers, got nan at index \(0, 1\)"),
        ([[1.0, 2.0], [-math.inf, 1.0]], r"q_true: expected finite numbers, got -inf at index \(1, 0\)"),
    ],
)
def test_a_functional_that_is_not_square_or_not_finite_is_refused(q_true: Any, message: str) -> None:
    with pytest.raises(ArgumentValueError, match=message):
        PairTask(q_true, positions=3)


def test_integers_meant_as_a_matrix_of_reals_must_say_so() -> None:
    with pytest.raises(ArgumentTypeError, match="q_true: expected real floating-point numbers"):
        PairTask(torch.ones(2, 2, dtype=torch.int64), positions=3)
    assert PairTask([[1, 2], [3, 4]], positions=3).q_true.dtype == torch.float64


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("positions", [0, -1, 2.0, True, "3"])
def test_positions_must_be_a_positive_integer(positions: Any) -> None:
    refusal = ArgumentValueError if type(positions) is int else ArgumentTypeError
    with pytest.raises(refusal, match=r"positions: expected (an integer|at least 1), got "):
        PairTask([[1.0]], positions)


@pytest.mark.parametrize(
    ("law", "message"),
    [
        ([0.5, 0.5], r"law: expected 3 probabilities, one for each category, got shape \(2,\)"),
        ([0.5, 0.5, 0.0], "law: expected positive probabilities, got 0 for category 3"),
        ([0.5, 0.5, 0.5], "law: expected probabilities that sum to 1, got a sum of 1.5; divide by 1.5"),
        ([0.5, math.nan, 0.5], "law: expected finite numbers"),
        ("gauss", "law: expected 'uniform', 'zipf' or probabilities, got 'gauss'"),
        ("", "law: expected 'uniform', 'zipf' or probabilities, got ''"),
    ],
)
def test_laws_that_are_none_are_refused(law: Any, message: str) -> None:
    with pytest.raises(ArgumentValueError, match=message):
        category_law(law, 3)


def test_samples_need_a_count_and_a_length_that_fit() -> None:
    with pytest.raises(ArgumentValueError, match="count: expected at least 1, got 0"):
        TASK.sample(0, seed=0)
    for length, message in {0: "at least 1, got 0", 7: "sequences of 1 to 6 tokens"}.items():
        with pytest.raises(ArgumentValueError, match=f"length: expected {message}"):
            TASK.sample(2, seed=0, length=length)
    for build in (pair_numbers, lambda count: random_functional(count, seed=0)):
        with pytest.raises(ArgumentValueError, match="categories: expected at least 1, got 0"):
            build(0)


@pytest.mark.parametrize("solution", [solution_2, solution_3])
def test_K_must_be_large_enough_for_the_values(solution: Any) -> None:
    with pytest.raises(ArgumentValueError, match=r"K: expected at least 44\.0, got 43\.99; it must exceed"):
        solution(TASK, K=43.99)
    signed = PairTask([[0.1, -0.7], [0.2, 0.3]], positions=2)
    with pytest.raises(ArgumentValueError, match=r"K: expected at least 1\.0, got 0\.5"):
        solution(signed, K=0.5)
    # The number that is printed does work, to its last digit.
    for seed in range(20):
        values = random_functional(3, seed)
        with pytest.raises(ArgumentValueError, match="K: expected at least") as refusal:
            Selection.of(values, "exact", K=1e-3)
        least = float(str(refusal.value).split("at least ")[1].split(",")[0])
        task = PairTask(values, positions=4)
        x = task.sample(5, seed=0)
        assert float((solution(task, K=least)(x) - task.targets(x)).abs().max()) < 1e-12


@pytest.mark.parametrize("K", [0.0, -1.0, math.inf, math.nan, 1e-320])
def test_K_must_be_a_positive_finite_number(K: float) -> None:
    with pytest.raises(ArgumentValueError, match="K: expected a positive finite number"):
        solution_2(PairTask([[0.0]], positions=2), K=K)


def test_values_whose_range_overflows_are_refused() -> None:
    task = PairTask([[1.7e308, -1.7e308], [0.0, 0.0]], positions=2)
    for solution in (solution_2, solution_3):
        with pytest.raises(ArgumentValueError, match="q_true: expected a range of values below"):
            solution(task)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("solution", [solution_1, solution_2, solution_3])
def test_an_unknown_form_is_refused(solution: Any) -> None:
    with pytest.raises(ArgumentValueError, match=r"form: expected .*'printed'.*, got 'fixed'"):
        solution(TASK, form="fixed")


def test_the_linear_transformer_refuses_a_functional_that_it_cannot_compute() -> None:
    with pytest.raises(ArgumentValueError, match=r"q_true: expected pair_numbers\(3, base=10\), .*; take a solution"):
        linear_solution(PairTask(random_functional(3, seed=0), positions=2))
    with pytest.raises(ArgumentValueError, match="got values that differ by up to 28"):
        linear_solution(TASK, base=3.0)
    with pytest.raises(ArgumentValueError, match="finite"):
        linear_case(2, 2, base=math.inf)


def test_the_golden_cases_that_are_read_here_are_present() -> None:
    assert {path.name[:2] for path in FOLDER.glob("*.json")} >= {"01", "02", "04", "06"}


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_number_is_named() -> None:
    for argument, build in {
        "K": lambda: solution_2(TASK, K="a"),
        "sharpness": lambda: softmax_solution_1(TASK, "a"),
        "attention_share": lambda: mixture(TASK, "x"),
        "count": lambda: TASK.sample(2.5, 0),
        "length": lambda: TASK.sample(2, 0, length=2.5),
        "categories": lambda: random_functional(2.5, 0),
        "base": lambda: pair_numbers(3, "b"),
    }.items():
        with pytest.raises(ArgumentTypeError, match=f"^{argument}: expected "):
            build()
    with pytest.raises(ArgumentValueError, match="base: expected a finite number, got inf"):
        pair_numbers(3, float("inf"))
