"""Solution 1: the printed one fails as it must, the three repairs are exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from scipy.optimize import linprog

from circuits.pair_cases import close, every_pair, golden, largest, task_of, tasks_and_sequences
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import shift
from tokendynamics.circuits.constructions import solution_1
from tokendynamics.circuits.constructions.solutions import HAND_BUILT, Form, pair_order
from tokendynamics.circuits.functionals import random_functional

REPAIRS: list[Form] = ["rows", "uniform", "indicators"]


def test_the_worked_example_agrees_with_the_reference_in_every_matrix_and_vector() -> None:
    case = golden("01")
    task, x = task_of(case), case["x"]
    model = solution_1(task)
    assert close(model.embed(x).mT, case["X"])
    assert close(model.qk[0].mT, case["ktq"])
    assert close(model.ov[0], case["v"])
    assert close(model.attend(x).mT, case["att"])
    assert close(model.stream(x).mT, case["att_plus_X"])
    assert pair_order(case["N"]).tolist() == case["pair_order"]
    assert close(model.B, case["B"])
    assert close(model.bias, case["bias_row"])
    assert close(model.C, case["C_row"])
    assert close(model.hidden(model.stream(x)).mT, case["hidden_row"])
    assert close(model(x), case["Y"])


def test_the_uniform_form_agrees_with_the_reference() -> None:
    case = golden("01")
    model = solution_1(task_of(case), form="uniform")
    assert model.bias.tolist() == [-4.0] * 16
    assert close(model.C, case["C_uniform_bias_minus4"])
    assert close(model(case["x"]), case["Y_uniform"])


def test_signed_random_values_agree_with_the_reference() -> None:
    case = golden("02")
    model = solution_1(task_of(case))
    assert close(model.C, case["C"])
    assert close(model.bias, case["bias"])
    assert close(model(case["x"]), case["Y"])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", REPAIRS)
@settings(max_examples=25)
@given(drawn=tasks_and_sequences())
def test_the_repairs_are_exact(form: Form, causal: bool, drawn: tuple[PairTask, torch.Tensor]) -> None:
    task, x = drawn
    outputs = solution_1(task, form=form, causal=causal)(x)
    assert close(outputs, task.targets(x), largest(task))
    assert outputs[..., 0].count_nonzero() == 0


@pytest.mark.parametrize("form", REPAIRS)
def test_every_pair_is_told_from_every_other(form: Form) -> None:
    task = PairTask(random_functional(12, seed=0), positions=2)
    assert close(solution_1(task, form=form)(every_pair(12))[:, 1], task.q_true.flatten())


def test_the_indicators_indicate() -> None:
    task = PairTask(random_functional(5, seed=1), positions=2)
    model = solution_1(task, form="indicators")
    hidden = model.hidden(model.stream(every_pair(5)))[:, 1]
    pairs, order = every_pair(5), pair_order(5)
    assert torch.equal(hidden, (pairs[:, None] == order).all(-1).double())
    assert model.width == 2 * 5 + 2


def test_the_printed_form_fails_as_the_worked_example_shows() -> None:
    case = golden("01")
    model = solution_1(task_of(case), form="printed")
    assert "wrong" in model.name
    assert close(model(case["x"]), case["Y_with_paper_C_and_bias_minus4"])
    assert model(case["x"]).tolist() == [0.0, 5.0, 32.0, 70.0]
    assert task_of(case).targets(case["x"]).tolist() == [0.0, 3.0, 10.0, 6.0]


def test_the_printed_row_of_three_three_answers_three_two_louder_than_its_own_row() -> None:
    model = solution_1(task_of(golden("01")), form="printed")
    before_bias = model.B @ model.stream([1, 3, 2, 2])[2]
    rows = {tuple(pair): float(value) for pair, value in zip(pair_order(4).tolist(), before_bias, strict=True)}
    assert rows[3, 2] == 5.0
    assert rows[3, 3] == 6.0


@settings(max_examples=20)
@given(drawn=tasks_and_sequences(scales=(1.0,)))
def test_the_printed_form_adds_up_the_units_it_wakes(drawn: tuple[PairTask, torch.Tensor]) -> None:
    # By hand: 2e_a + e_b wakes (a,b) by 1 and (a,a) by 2; 3e_a wakes (a,a) by 5 and (a,b) by 2 for every other b.
    task, x = drawn
    previous, current = x[:, :-1] - 1, x[:, 1:] - 1
    q, diagonal = task.q_true, task.q_true.diagonal()
    unequal = q[previous, current] + 2.0 * diagonal[previous]
    equal = 3.0 * diagonal[previous] + 2.0 * q.sum(dim=1)[previous]
    wanted = torch.where(previous == current, equal, unequal)
    assert close(solution_1(task, form="printed")(x)[:, 1:], wanted, 30.0 * largest(task))


def test_no_single_relu_indicates_an_off_diagonal_pair() -> None:
    # 2e_a + e_b = (2/3)·3e_a + (1/3)·3e_b and ReLU(w·z + bias) is convex in z, so what is 0 at (a,a) and (b,b) is
    # ≤ 0 at (a,b). As a linear program over (w, bias): the largest value at (1,2) with ≤ 0 at (1,1) and (2,2) is 0.
    at_pair, at_first, at_second = np.array([2.0, 1, 1]), np.array([3.0, 0, 1]), np.array([0.0, 3, 1])
    box = [(-1, 1)] * 3
    best = linprog(-at_pair, A_ub=np.stack([at_first, at_second]), b_ub=[0, 0], bounds=box)
    assert best.status == 0
    assert abs(best.fun) < 1e-12
    # Without the diagonal pairs there is such a unit: they are the reason.
    free = linprog(-at_pair, A_ub=np.array([[1.0, 2, 1]]), b_ub=[0], bounds=box)
    assert free.fun < -0.5
    # The convex combination is exact on what the transformer really reads.
    streams = solution_1(PairTask(np.eye(2), positions=2)).stream([[1, 2], [1, 1], [2, 2]])[:, 1, :2]
    assert torch.allclose(streams[0], 2 / 3 * streams[1] + 1 / 3 * streams[2], rtol=0, atol=1e-15)


def test_attention_shifts_by_one_to_the_right() -> None:
    # Numbers in (2.6), which is the superdiagonal.
    assert shift(4).tolist() == [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    assert shift(1).tolist() == [[0.0]]


def test_a_single_category_and_a_single_position_work() -> None:
    for form in REPAIRS:
        assert solution_1(PairTask([[-7.5]], positions=3), form=form)([1, 1, 1]).tolist() == [0.0, -7.5, -7.5]
        assert solution_1(PairTask([[-7.5]], positions=1), form=form)([1]).tolist() == [0.0]


def test_the_catalogue_builds_each_form() -> None:
    task = PairTask(random_functional(3, seed=2), positions=5)
    x = task.sample(3, seed=0)
    forms: dict[str, Form] = {"solution-1": "rows", "solution-1-uniform": "uniform"}
    for name, form in forms.items():
        assert torch.equal(HAND_BUILT[name](task, causal=True).C, solution_1(task, form=form).C)
    assert close(HAND_BUILT["solution-1-indicators"](task)(x), task.targets(x))
    assert not close(HAND_BUILT["solution-1-printed"](task)(x), task.targets(x), 100.0)
