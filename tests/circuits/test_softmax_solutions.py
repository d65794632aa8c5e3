"""Solutions 1 and 3 with softmax attention: golden values, closed forms, and the rate at which they become exact."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuits.pair_cases import close, golden, largest, task_of, tasks_and_sequences
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import OneLayerTransformer
from tokendynamics.circuits.constructions import softmax_solution_1, softmax_solution_3, solution_1
from tokendynamics.circuits.constructions.solutions import HAND_BUILT
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.numerics.errors import ArgumentValueError

Solution = Callable[..., OneLayerTransformer]
both = pytest.mark.parametrize("solution", [softmax_solution_1, softmax_solution_3])


def sender_weights(length: int, sharpness: float, causal: bool) -> torch.Tensor:
    """(receiver, sender): e^β for the previous token and 1 for the others, scaled to sum to one; no softmax called."""
    weights = torch.ones(length, length, dtype=torch.float64)
    receivers = torch.arange(1, length)
    weights[receivers, receivers - 1] = math.exp(sharpness)
    weights = weights.tril() if causal else weights
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("causal", [False, True])
def test_softmax_solution_1_agrees_with_the_reference(causal: bool) -> None:
    case = golden("02")
    model = softmax_solution_1(task_of(case), sharpness=12.0, causal=causal)
    assert close(model(case["x"]), case["Y_softmax_beta12_causal" if causal else "Y_softmax_beta12"])
    assert torch.equal(model.ov[0, :5, :5], 2 * torch.eye(5).double())


@settings(max_examples=40)
@given(drawn=tasks_and_sequences(scales=(1.0, 1e9)), sharpness=st.floats(0.0, 60.0), causal=st.booleans())
def test_softmax_solution_3_is_a_mean_over_the_senders(
    drawn: tuple[PairTask, torch.Tensor], sharpness: float, causal: bool
) -> None:
    task, x = drawn
    weights = sender_weights(x.shape[-1], sharpness, causal)
    from_sender = task.q_true[x[:, None, :] - 1, x[:, :, None] - 1]
    wanted = (weights * from_sender).sum(-1)
    assert close(softmax_solution_3(task, sharpness, causal=causal)(x), wanted, largest(task))


@settings(max_examples=40)
@given(drawn=tasks_and_sequences(scales=(1.0, 1e9)), sharpness=st.floats(0.0, 60.0), causal=st.booleans())
def test_softmax_solution_1_reads_the_mean_category(
    drawn: tuple[PairTask, torch.Tensor], sharpness: float, causal: bool
) -> None:
    # The stream is the current one-hot plus twice the weighted categories; the readout is that of solution 1.
    task, x = drawn
    one_hot = task.embed(x)
    stream = one_hot.clone()
    weights = sender_weights(x.shape[-1], sharpness, causal)
    stream[..., : task.categories] += 2 * weights @ one_hot[..., : task.categories]
    wanted = solution_1(task).read(stream)
    scale = largest(task) * task.categories**2
    assert close(softmax_solution_1(task, sharpness, causal)(x), wanted, scale)


@both
@pytest.mark.parametrize("causal", [False, True])
def test_the_error_decays_like_the_senders_times_exp_of_minus_the_sharpness(solution: Solution, causal: bool) -> None:
    task = PairTask(random_functional(5, seed=0), positions=24)
    x = task.sample(200, seed=1)

    def error(sharpness: float, length: int) -> float:
        short = x[:, :length]
        outputs = solution(task, sharpness, causal=causal)(short)
        return float((outputs - task.targets(short))[:, length - 1].abs().mean())

    rate = math.log(error(12.0, 24) / error(16.0, 24)) / 4.0
    assert rate == pytest.approx(1.0, abs=1e-3)


@both
@pytest.mark.parametrize("causal", [False, True])
def test_the_error_grows_with_the_senders_that_take_weight_from_the_previous_one(
    solution: Solution, causal: bool
) -> None:
    # All other senders alike, so that only their number changes: (n − 1)/(e^β + n − 1) leaks to them.
    task = PairTask(random_functional(3, seed=1), positions=40)
    errors = []
    for length in (3, 10, 40):
        x = torch.full((length,), 2)
        x[-2] = 1
        error = float(solution(task, 14.0, causal=causal)(x)[-1] - task.q_true[0, 1])
        errors.append(error * (math.exp(14.0) + length - 1) / (length - 1))
    assert abs(errors[0]) > 0.1
    assert errors == pytest.approx(errors[:1] * 3, rel=1e-6)


def test_the_error_of_softmax_solution_3_is_exactly_the_leaked_weight_where_all_others_agree() -> None:
    # Previous category 1, all other senders category 2: the error is (q_21 − q_11)·(n − 1)/(e^β + n − 1).
    task = PairTask([[4.0, -1.0], [-2.0, 3.0]], positions=40)
    for length in (5, 10, 40):
        x = torch.full((length,), 2)
        x[-2] = 1
        error = float(softmax_solution_3(task, 15.0)(x)[-1] - task.q_true[0, 1])
        leaked = (length - 1) / (math.exp(15.0) + length - 1)
        assert error == pytest.approx(float(task.q_true[1, 1] - task.q_true[0, 1]) * leaked, rel=1e-6)


@both
@settings(max_examples=20)
@given(drawn=tasks_and_sequences(), causal=st.booleans())
def test_sharp_attention_is_exact_from_the_second_token_on(
    solution: Solution, drawn: tuple[PairTask, torch.Tensor], causal: bool
) -> None:
    task, x = drawn
    assert close(solution(task, 60.0, causal=causal)(x)[:, 1:], task.targets(x)[:, 1:], largest(task))


def test_the_first_token_has_no_previous_one_and_gets_a_mean() -> None:
    task = PairTask(random_functional(3, seed=2), positions=4)
    x = torch.tensor([2, 3, 1, 1])
    mean = task.q_true[x - 1, 1].mean()
    assert float(softmax_solution_3(task)(x)[0]) == pytest.approx(float(mean), abs=1e-12)
    assert float(softmax_solution_3(task, causal=True)(x)[0]) == pytest.approx(float(task.q_true[1, 1]), abs=1e-12)
    assert float(mean.abs()) > 0.1


@both
@pytest.mark.parametrize("sharpness", [math.inf, -math.inf, math.nan, 709.8, 1e308, -1.0])
def test_a_sharpness_that_overflows_is_refused(solution: Solution, sharpness: float) -> None:
    with pytest.raises(ArgumentValueError, match=r"sharpness: expected a number from 0 to 709\.78\d+, beyond which"):
        solution(PairTask([[1.0]], positions=2), sharpness)


@both
def test_the_sharpest_attention_that_is_let_through_is_finite(solution: Solution) -> None:
    task = PairTask(random_functional(4, seed=3), positions=6)
    x = task.sample(10, seed=0)
    assert close(solution(task, 709.0)(x)[:, 1:], task.targets(x)[:, 1:])


def test_a_K_that_is_too_small_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match=r"K: expected at least 2\.0, got 1\.9"):
        softmax_solution_3(PairTask([[1.0, -1.0], [0.0, 0.0]], positions=2), 10.0, K=1.9)


def test_the_catalogue_builds_them() -> None:
    task = PairTask(random_functional(3, seed=2), positions=5)
    x = task.sample(3, seed=0)
    for name in ("softmax-1", "softmax-3"):
        assert close(HAND_BUILT[name](task, sharpness=50.0)(x)[:, 1:], task.targets(x)[:, 1:])
