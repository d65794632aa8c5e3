"""Solution 2 with softmax: a closed form, an error that falls like one over the root of the length, and refusals."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuits.pair_cases import close
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import OneLayerTransformer
from tokendynamics.circuits.constructions import compare, softmax_solution_2, solution_2
from tokendynamics.circuits.constructions.solutions import HAND_BUILT
from tokendynamics.circuits.evidence import evidence
from tokendynamics.circuits.functionals import equal_column_means, positive_functional, random_functional
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.words import number

tasks = st.builds(
    lambda categories, positions, seed, law, spread: PairTask(
        positive_functional(categories, seed, law, spread), positions, law
    ),
    st.integers(1, 8),
    st.integers(1, 12),
    st.integers(0, 1000),
    st.sampled_from(["uniform", "zipf"]),
    st.floats(0.0, 3.0),
)


@settings(max_examples=40)
@given(task=tasks, causal=st.booleans())
def test_the_answer_is_the_functional_over_the_sum_of_its_column_over_the_text(task: PairTask, causal: bool) -> None:
    x = task.sample(3, seed=1)
    outputs = softmax_solution_2(task, causal)(x)
    for row, text in enumerate(x.tolist()):
        wanted = [0.0]
        for i in range(1, len(text)):
            senders = text[: i + 1] if causal else text
            column = [float(task.q_true[sender - 1, text[i] - 1]) for sender in senders]
            wanted.append(column[i - 1] / sum(column) * len(senders))
        assert close(outputs[row], wanted, max(wanted))


def relative_error(model: OneLayerTransformer, texts: int, seed: int) -> float:
    x = model.task.sample(texts, seed)
    errors = (model(x) - model.task.targets(x))[:, 1:]
    return math.sqrt(float(errors.square().mean()) / model.task.variance)


@pytest.mark.few(1)
@pytest.mark.parametrize(("positions", "published"), [(10, 0.32), (50, 0.14), (200, 0.07)])
def test_the_error_over_the_spread_of_the_functional_at_three_lengths(positions: int, published: float) -> None:
    # Eight functionals of 4 categories, 4000 tokens of each at least.
    texts = 400 if positions == 10 else 80
    errors = [
        relative_error(softmax_solution_2(PairTask(positive_functional(4, seed), positions)), texts, seed)
        for seed in range(8)
    ]
    assert sum(errors) / len(errors) == pytest.approx(published, abs=0.005)


@pytest.mark.slow
def test_the_error_falls_like_one_over_the_root_of_the_length_and_grows_with_the_spread() -> None:
    def error(positions: int, spread: float) -> float:
        task = PairTask(positive_functional(5, 1, spread=spread), positions)
        return relative_error(softmax_solution_2(task), 100, 2)

    assert error(50, 0.25) / error(200, 0.25) == pytest.approx(2.0, rel=0.05)
    # To first order √(E q²)/(m √M), which is 1/√M only where q varies little.
    assert error(200, 0.01) == pytest.approx(1 / math.sqrt(200), rel=0.1)
    assert error(200, 1.5) > 1.5 * error(200, 0.01)


def test_a_shorter_text_is_answered_too_high_by_the_ratio_of_lengths_unless_masked() -> None:
    task = PairTask(positive_functional(3, seed=1, spread=0.0), 12)
    x = task.sample(4, seed=0, length=3)
    assert close(softmax_solution_2(task)(x)[:, 1:], 4.0 * task.targets(x)[:, 1:], 4.0)
    assert close(softmax_solution_2(task, causal=True)(x)[:, 1:], task.targets(x)[:, 1:])


def test_unequal_column_means_would_cost_more_than_all_of_it() -> None:
    task = PairTask(positive_functional(4, seed=0), 200)
    uneven = PairTask(task.q_true * torch.tensor([0.5, 1.0, 2.0, 4.0]).double(), 200)
    with pytest.raises(ArgumentValueError, match=r"q_true: expected columns of one mean .*, got means from 0\.5 to 4"):
        softmax_solution_2(uneven)
    # The same weights are blind to the scale of a column: that is why it is refused.
    x = task.sample(100, 0)
    off = (softmax_solution_2(task)(x) - uneven.targets(x))[:, 1:].square().mean().sqrt()
    assert float(off) / uneven.variance**0.5 > 0.9
    assert softmax_solution_2(PairTask(equal_column_means(uneven.q_true), 200)).C.max() == pytest.approx(200.0)


def test_columns_have_one_mean_under_the_law_that_was_given_and_no_other() -> None:
    q = positive_functional(5, seed=2, law="zipf")
    assert bool((q > 0).all())
    assert (PairTask(q, 2, "zipf").law @ q).tolist() == pytest.approx([1.0] * 5, abs=1e-12)
    softmax_solution_2(PairTask(q, 4, "zipf"))
    with pytest.raises(ArgumentValueError, match="columns of one mean under the law"):
        softmax_solution_2(PairTask(q, 4, "uniform"))


@pytest.mark.parametrize(
    ("q_true", "came"), [([[1.0, 1.0], [1.0, 0.0]], r"0 for the pair \(2, 2\)"), ([[1.0, -2.0], [1.0, 3.0]], "-2 for")]
)
def test_what_has_no_logarithm_is_refused(q_true: list[list[float]], came: str) -> None:
    with pytest.raises(ArgumentValueError, match=f"q_true: expected positive numbers, .*, got {came}"):
        softmax_solution_2(PairTask(q_true, 4))
    with pytest.raises(ArgumentValueError, match="q_true: expected positive numbers"):
        equal_column_means(q_true)


@pytest.mark.parametrize("spread", [-0.1, math.nan, math.inf, 51.0])
def test_a_spread_that_overflows_is_refused(spread: float) -> None:
    with pytest.raises(ArgumentValueError, match="spread: expected"):
        positive_functional(3, 0, spread=spread)


@pytest.mark.long
def test_its_logic_is_found_in_the_attention_and_its_error_is_told() -> None:
    task = PairTask(positive_functional(4, seed=0), 30)
    model = HAND_BUILT["softmax-2"](task)
    assert evidence(model, task, samples=400, resamples=40).verdict == "attention"
    text = compare(model, [])
    assert text.exact is False
    assert 0.1 < text.relative_error < 0.3
    assert (
        f"the root mean square error is {number(text.relative_error)} times the standard deviation" in text.sentences[1]
    )
    assert "Outputs on texts of fewer than M tokens are too large" in text.sentences[-1]
    assert "fewer than M" not in compare(softmax_solution_2(task, causal=True), []).sentences[-1]
    assert compare(solution_2(task), []).relative_error < 1e-12
    assert not any("never exact" in sentence for sentence in compare(solution_2(task), []).sentences)
    assert compare(solution_2(PairTask(1e200 * random_functional(3, 0), 4)), []).relative_error == math.inf
