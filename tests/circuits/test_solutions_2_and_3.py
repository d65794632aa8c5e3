"""Solutions 2 and 3: as printed for targets that are not negative, exact for any; and the linear case."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuits.pair_cases import close, every_pair, golden, largest, task_of, tasks_and_sequences
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import OneLayerTransformer
from tokendynamics.circuits.constructions import linear_case, solution_2, solution_3
from tokendynamics.circuits.constructions.solutions import HAND_BUILT, Selection
from tokendynamics.circuits.functionals import pair_numbers, random_functional
from tokendynamics.numerics.errors import ArgumentValueError

Solution = Callable[..., OneLayerTransformer]
both = pytest.mark.parametrize("solution", [solution_2, solution_3])


@pytest.mark.parametrize("causal", [False, True])
def test_solution_2_agrees_with_the_reference(causal: bool) -> None:
    case = golden("04")
    model = solution_2(task_of(case), K=case["K"], causal=causal)
    attention = model.attend(case["x"]).mT * case["K"]
    assert close(attention, case["att_causal" if causal else "att_noncausal"])
    assert close(model(case["x"]), case["Y"])
    printed = solution_2(task_of(case), form="printed", K=100.0, causal=causal)
    assert close(printed(case["x"]), case["Y_paper_K100_bias_minus1"])
    assert torch.equal(solution_2(task_of(case), form="printed").C, printed.C)


@both
def test_the_shift_is_that_of_the_reference(solution: Solution) -> None:
    case = golden("04")
    task, x = task_of(case), case["x"]
    model = solution(task, K=case["K"])
    assert abs(model.offset + case["c"]) < 1e-12
    assert abs(float(model.bias[0]) + 1 - case["c"] / case["K"]) < 1e-15
    assert close(solution(task, K=case["K"])(x), case["Y"])
    assert close(solution(task)(x), case["Y"])


@both
@pytest.mark.parametrize("causal", [False, True])
@settings(max_examples=30)
@given(drawn=tasks_and_sequences(scales=(1.0, 1e-9, 1e9, 1e-200, 1e200)))
def test_the_exact_form_is_exact_for_any_sign_and_scale(
    solution: Solution, causal: bool, drawn: tuple[PairTask, torch.Tensor]
) -> None:
    task, x = drawn
    outputs = solution(task, causal=causal)(x)
    # Relative to the largest value whatever its size: stricter than an error relative to max(1, largest).
    assert float((outputs - task.targets(x)).abs().max()) <= 1e-12 * largest(task)
    assert outputs[..., 0].count_nonzero() == 0


@both
@settings(max_examples=40)
@given(drawn=tasks_and_sequences(), slack=st.sampled_from([1.0, 1.0 + 1e-9, 3.7]))
def test_any_K_from_the_least_on_works(solution: Solution, slack: float, drawn: tuple[PairTask, torch.Tensor]) -> None:
    task, x = drawn
    least = max(float(task.q_true.max()), 0.0) + max(0.0, -float(task.q_true.min()))
    outputs = solution(task, K=slack * least)(x)
    assert close(outputs, task.targets(x), largest(task))
    assert outputs[..., 0].count_nonzero() == 0


@both
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("centre", [-5.0, 0.0, 5.0])
def test_a_K_that_lost_its_last_digits_in_print_still_works(solution: Solution, centre: float, seed: int) -> None:
    task = PairTask(random_functional(8, seed) + centre, positions=40)
    x = task.sample(8, seed)
    least = max(float(task.q_true.max()), 0.0) + max(0.0, -float(task.q_true.min()))
    for length in (3, 40):
        outputs = solution(task, K=least * (1 - 8e-15))(x[:, :length])
        assert float((outputs - task.targets(x[:, :length])).abs().max()) <= 1e-14 * least
        assert outputs[..., 0].count_nonzero() == 0


@both
def test_a_K_that_is_too_small_is_refused_with_the_least_one_that_works(solution: Solution) -> None:
    task = PairTask([[1.5, -2.25], [3.0, 4.0]], positions=4)
    with pytest.raises(ArgumentValueError, match=r"K: expected at least 6\.25, got 6\.2;"):
        solution(task, K=6.2)
    assert solution(task, K=6.25)([1, 2, 2, 1]).tolist() == [0.0, -2.25, 4.0, 3.0]
    with pytest.raises(ArgumentValueError, match=r"K: expected at least 4\.0, got 3\.9;"):
        solution(task, form="printed", K=3.9)


def test_below_the_least_K_the_output_would_be_wrong() -> None:
    # That the bound is not only sufficient: the same weights with a K just below it let a second unit speak.
    values = torch.tensor([[0.0, -2.0], [4.0, 4.0]], dtype=torch.float64)
    task = PairTask(values, positions=3)
    c, K = 2.0, 5.5
    z = solution_2(task, K=6.0).attend([2, 2, 2])[:, task.categories :] * 6.0
    outputs = K * torch.relu(torch.eye(3).double() + z / K - (1 - c / K)).sum(-1) - c
    assert float((outputs[1] - 4.0).abs()) == pytest.approx(0.5, abs=1e-12)


@both
@settings(max_examples=25)
@given(drawn=tasks_and_sequences(scales=(1.0,)))
def test_the_printed_form_turns_negative_targets_into_zero(
    solution: Solution, drawn: tuple[PairTask, torch.Tensor]
) -> None:
    task, x = drawn
    outputs = solution(task, form="printed")(x)
    assert close(outputs, task.targets(x).clamp(min=0.0), 100.0)


@both
def test_the_printed_form_is_right_for_targets_that_are_not_negative(solution: Solution) -> None:
    task = PairTask(random_functional(6, seed=0).abs(), positions=9)
    x = task.sample(20, seed=1)
    assert close(solution(task, form="printed")(x), task.targets(x), 10.0)
    large = PairTask(task.q_true * 1e4, positions=9)
    assert close(solution(large, form="printed")(x), large.targets(x), 1e4)


@both
def test_the_two_digit_numbers_of_the_paper_come_out(solution: Solution) -> None:
    # (2.15) and (2.18)–(2.20) with K = 100.
    task = PairTask(pair_numbers(4), positions=4)
    assert close(solution(task, form="printed", K=100.0)([1, 3, 2, 2]), [0.0, 13.0, 32.0, 22.0])


def test_attention_of_solution_2_shows_every_pair_and_selection_keeps_the_diagonal() -> None:
    task, x = PairTask(pair_numbers(4), positions=5), torch.tensor([1, 3, 2, 2, 4])
    model = solution_2(task, form="printed", K=100.0)
    attention = 100.0 * model.attend(x).mT
    assert close(attention[:5], torch.cat([torch.zeros(4, 5), torch.zeros(1, 5)]))
    assert close(attention[5:], (10 * x[:-1, None] + x).double())
    hidden = 100.0 * model.hidden(model.stream(x)).mT
    assert close(hidden[4:], torch.diag(torch.tensor([0.0, 13.0, 32.0, 22.0, 24.0])))


def test_attention_of_solution_3_is_the_row_of_the_previous_category() -> None:
    task = PairTask(random_functional(4, seed=3), positions=5)
    x = torch.tensor([4, 1, 1, 3, 2])
    model = solution_3(task, K=64.0)
    attention = 64.0 * model.attend(x)
    assert close(attention[1:, :4], task.q_true[x[:-1] - 1])
    assert attention[0].count_nonzero() == 0


@both
def test_every_pair_is_right_at_every_position(solution: Solution) -> None:
    task = PairTask(random_functional(5, seed=4), positions=4)
    x = torch.cartesian_prod(*[torch.arange(1, 6)] * 4)
    assert close(solution(task)(x), task.targets(x))


@both
@pytest.mark.parametrize("values", [[[0.0]], [[-3.0]], [[3.0]], [[1e-320]], [[4e307]]])
def test_constant_functionals_are_exact(solution: Solution, values: list[list[float]]) -> None:
    task = PairTask(values, positions=3)
    outputs = solution(task)([1, 1, 1])
    assert float((outputs - task.targets([1, 1, 1])).abs().max()) <= 1e-12 * max(largest(task), 1e-300)


def test_the_constants_are_as_stated() -> None:
    values = torch.tensor([3.0, -5.0], dtype=torch.float64)
    exact = Selection.of(values, "exact", K=16.0)
    assert (exact.K, exact.bias, exact.offset) == (16.0, -(1 - 5 / 16), -5.0)
    assert Selection.of(values, "exact").K == 16.0
    printed = Selection.of(values, "printed")
    assert (printed.K, printed.bias, printed.offset) == (100.0, -1.0, 0.0)


@settings(max_examples=25)
@given(
    categories=st.integers(1, 12),
    positions=st.integers(1, 40),
    base=st.sampled_from([10.0, -3.0, 0.5]),
    causal=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_linear_case_reads_two_digits_and_leaves_the_first_one_alone(
    categories: int, positions: int, base: float, causal: bool, seed: int
) -> None:
    model = linear_case(categories, positions, base, causal)
    x = model.task.sample(5, seed)
    outputs = model(x)
    assert close(outputs[:, 1:], base * x[:, :-1] + x[:, 1:], 100.0)
    assert close(outputs[:, 1:], model.task.targets(x)[:, 1:], 100.0)
    # Not 0, as the targets have it.
    assert torch.equal(outputs[:, 0], x[:, 0].double())


def test_the_catalogue_builds_solutions_2_and_3() -> None:
    task = PairTask(random_functional(3, seed=2), positions=5)
    x = task.sample(3, seed=0)
    for name in ("solution-2", "solution-3"):
        assert close(HAND_BUILT[name](task, causal=True)(x), task.targets(x))
        assert close(HAND_BUILT[f"{name}-printed"](task)(x), task.targets(x).clamp(min=0), 100.0)
    numbers = PairTask(pair_numbers(3), positions=5)
    assert close(HAND_BUILT["linear"](numbers)(x)[:, 1:], numbers.targets(x)[:, 1:])


def test_every_solution_reads_every_pair_the_same() -> None:
    task = PairTask(random_functional(4, seed=5), positions=2)
    names = ["solution-1", "solution-1-uniform", "solution-1-indicators", "solution-2", "solution-3", "mixture"]
    for name in names:
        assert close(HAND_BUILT[name](task)(every_pair(4))[:, 1], task.q_true.flatten())
