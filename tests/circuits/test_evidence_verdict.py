"""The verdict on transformers whose logic was put in a known place."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tokendynamics.attention import Attention
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import OneLayerTransformer, shift
from tokendynamics.circuits.constructions import (
    linear_case,
    mixture,
    softmax_solution_1,
    softmax_solution_3,
    solution_1,
    solution_2,
    solution_3,
)
from tokendynamics.circuits.evidence import Evidence, evidence
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.numerics.arguments import generator
from tokendynamics.numerics.errors import ArgumentValueError

IN_FEED_FORWARD = {
    "solution 1, rows": lambda task, causal: solution_1(task, "rows", causal),
    "solution 1, uniform": lambda task, causal: solution_1(task, "uniform", causal),
    "solution 1, indicators": lambda task, causal: solution_1(task, "indicators", causal),
    "solution 3": lambda task, causal: solution_3(task, causal=causal),
    "softmax solution 1": lambda task, causal: softmax_solution_1(task, 40.0, causal=causal),
    "softmax solution 3": lambda task, causal: softmax_solution_3(task, 40.0, causal=causal),
}

tasks = st.builds(
    lambda categories, positions, seed, law: PairTask(random_functional(categories, seed), positions, law),
    st.integers(3, 8),
    st.integers(3, 10),
    st.integers(0, 10_000),
    st.sampled_from(["uniform", "zipf"]),
)


def quick(model: OneLayerTransformer, task: PairTask, seed: int = 0) -> Evidence:
    return evidence(model, task, samples=300, resamples=50, seed=seed)


def everything_agrees(result: Evidence) -> bool:
    return all(result.agrees(instrument) is not False for instrument in result.instruments)


@pytest.mark.long
@settings(max_examples=6)
@given(tasks, st.booleans())
def test_logic_in_the_weights_of_attention_is_found_there(task: PairTask, causal: bool) -> None:
    measurements = quick(solution_2(task, causal=causal), task)
    assert measurements.verdict == "attention"
    assert everything_agrees(measurements)
    assert measurements.loss is not None
    assert measurements.loss < 1e-20


@pytest.mark.few(3)
@pytest.mark.parametrize("build", IN_FEED_FORWARD.values(), ids=IN_FEED_FORWARD.keys())
@settings(max_examples=3)
@given(task=tasks, causal=st.booleans())
def test_logic_in_the_hidden_units_is_found_there(build: object, task: PairTask, causal: bool) -> None:
    measurements = quick(build(task, causal), task)  # type: ignore[operator]
    assert measurements.verdict == "feed-forward"
    assert everything_agrees(measurements)


@pytest.mark.long
@settings(max_examples=6)
@given(tasks, st.floats(0.25, 0.75), st.booleans())
def test_a_mixture_is_found_to_be_one(task: PairTask, share: float, causal: bool) -> None:
    measurements = quick(mixture(task, share, causal), task)
    assert measurements.verdict == "both"
    assert everything_agrees(measurements)


@pytest.mark.parametrize(("share", "verdict"), [(0.05, "feed-forward"), (0.95, "attention")])
def test_a_part_that_carries_a_twentieth_does_not_take_part(share: float, verdict: str) -> None:
    task = PairTask(random_functional(5, seed=1), positions=6)
    assert quick(mixture(task, share), task).verdict == verdict


def test_a_task_that_is_a_sum_has_no_logic_to_attribute() -> None:
    model = linear_case(categories=6, positions=7)
    measurements = quick(model, model.task)
    assert measurements.verdict == "undecided"
    assert "no logic to attribute" in measurements.sentence
    assert [measurements.agrees(instrument) for instrument in measurements.instruments] == [None] * 5
    assert measurements.instrument("path patching").estimate is None


def test_a_model_that_does_not_do_the_task_gets_no_verdict() -> None:
    task = PairTask(random_functional(5, seed=2), positions=6)
    draw = generator(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    untrained = OneLayerTransformer(
        Attention(normal(11, 11), normal(11, 11)), normal(9, 11), normal(9), normal(9), task
    )
    for model in (untrained, solution_1(task, "printed"), solution_2(task, "printed")):
        measurements = quick(model, task)
        assert measurements.verdict == "undecided"
        assert "does not do the task" in measurements.sentence


def test_answers_that_are_not_finite_are_said_to_be_so() -> None:
    task = PairTask(random_functional(4, seed=2), positions=5)
    built = solution_2(task)
    huge = replace(built, B=1e10 * built.B, bias=1e10 * built.bias, C=torch.full_like(built.C, 1e308))
    measurements = quick(huge, task)
    assert (measurements.verdict, measurements.loss) == ("undecided", None)
    assert "not finite" in measurements.sentence
    json.dumps(measurements.as_json(), allow_nan=False)


def test_a_functional_too_large_to_square_is_refused_without_a_crash() -> None:
    task = PairTask(1e200 * random_functional(3, seed=2), positions=4)
    measurements = quick(solution_1(task), task)
    assert measurements.verdict == "undecided"
    json.dumps(measurements.as_json(), allow_nan=False)


def additive_by_values(task: PairTask, addend: Tensor) -> OneLayerTransformer:
    """Solution 2 for `task`, plus a head that carries addend(previous) by the values into a readout without logic."""
    built, width = solution_2(task), task.width
    category, position = built.block("category"), built.block("position")
    qk, ov = (torch.zeros(2, width + 1, width + 1, dtype=torch.float64) for _ in range(2))
    qk[0, :width, :width], ov[0, :width, :width] = built.qk[0], built.ov[0]
    qk[1, position, position] = shift(task.positions).mT
    ov[1, width, category] = addend
    head_room = float(addend.abs().max())
    return OneLayerTransformer(
        Attention(qk, ov, weights="linear"),
        torch.eye(width + 1, dtype=torch.float64),
        torch.cat([built.bias, torch.tensor([head_room]).double()]),  # always on: the unit is linear
        torch.cat([built.C, torch.ones(1).double()]),
        PairTask(task.q_true + addend[:, None], task.positions, task.law),
        offset=built.offset - head_room,
    )


def test_a_large_sum_on_another_path_does_not_hide_where_the_logic_is() -> None:
    task = PairTask(random_functional(6, seed=4), positions=7)
    model = additive_by_values(task, 30.0 * random_functional(6, seed=5)[0])
    measurements = quick(model, model.task)
    patched = measurements.instrument("path patching")
    rises = {entry.name: entry.value for entry in patched.details["rise of the loss"]}
    # The loss alone would point at the values.
    assert rises["values"] > 0.9
    assert rises["keys"] < 0.2
    assert patched.named("keys").value == pytest.approx(1.0, abs=1e-9)
    assert patched.named("values").value == pytest.approx(0.0, abs=1e-9)
    assert measurements.verdict == "attention"


def with_an_unread_answer(task: PairTask) -> OneLayerTransformer:
    """Solution 3 with a second head that writes q(previous, current) to features that no hidden unit reads."""
    built, width, positions = solution_3(task), task.width, task.positions
    category = built.block("category")
    qk, ov = (torch.zeros(2, width + positions, width + positions, dtype=torch.float64) for _ in range(2))
    qk[0, :width, :width], ov[0, :width, :width] = built.qk[0], built.ov[0]
    qk[1, category, category] = task.q_true.mT
    ov[1, width:, built.block("position")] = shift(positions).mT
    B = torch.nn.functional.pad(built.B, (0, positions))
    return OneLayerTransformer(Attention(qk, ov, weights="linear"), B, built.bias, built.C, task, built.offset)


def test_decodable_is_not_used() -> None:
    task = PairTask(random_functional(5, seed=6), positions=6)
    measurements = quick(with_an_unread_answer(task), task)
    probed, alike = measurements.instrument("probing"), measurements.instrument("correlation")
    assert probed.estimate == pytest.approx(1.0, abs=1e-6)
    assert alike.estimate == pytest.approx(1.0)
    assert measurements.instrument("path patching").named("keys").value == 0.0
    assert measurements.verdict == "feed-forward"
    assert measurements.agrees(probed) is False
    assert measurements.agrees(alike) is False
    assert "DISAGREES" in str(measurements)


@pytest.mark.long
def test_the_same_seed_gives_the_same_evidence() -> None:
    task = PairTask(random_functional(4, seed=7), positions=5, law="zipf")
    model = softmax_solution_3(task, 4.0)
    assert quick(model, task).as_json() == quick(model, task).as_json()
    assert quick(model, task).loss != quick(model, task, seed=1).loss


def test_evidence_is_written_and_printed_in_plain_types() -> None:
    task = PairTask(random_functional(4, seed=7), positions=5)
    measurements = quick(mixture(task, 0.4), task)
    written = json.loads(json.dumps(measurements.as_json(), allow_nan=False))
    assert written["verdict"] == "both"
    assert [entry["name"] for entry in written["instruments"]] == [
        "variance shares",
        "correlation",
        "path patching",
        "ablation",
        "probing",
    ]
    assert [entry["decides"] for entry in written["instruments"]] == [False, False, True, True, False]
    assert written["instruments"][2]["estimate"] == pytest.approx(0.4)
    lines = str(measurements).splitlines()
    assert lines[0] == "mixture, 40% in attention: both"
    assert len(lines) == 5 + 2 * 5


def test_the_smallest_tasks_are_judged_too() -> None:
    task = PairTask([[0.0, 1.0], [2.0, -1.0]], positions=2)
    assert quick(solution_2(task), task).verdict == "attention"
    assert quick(solution_1(task), task).verdict == "feed-forward"
    single = PairTask([[3.0]], positions=3)
    assert quick(solution_2(single), single).verdict == "undecided"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 10}, "samples: expected at least 50, got 10"),
        ({"resamples": 1}, "resamples: expected at least 20, got 1"),
        ({"confidence": 95.0}, "confidence: expected a share between 0 and 1"),
    ],
)
def test_wrong_settings_are_named(options: dict, message: str) -> None:
    task = PairTask(random_functional(3, seed=0), positions=4)
    with pytest.raises(ArgumentValueError, match=message):
        evidence(solution_2(task), task, **options)


def test_a_task_that_does_not_fit_the_model_is_refused() -> None:
    task = PairTask(random_functional(3, seed=0), positions=4)
    with pytest.raises(ArgumentValueError, match="the model's 3 categories and 4 positions, got 3 and 5"):
        evidence(solution_2(task), PairTask(task.q_true, positions=5))
    single = PairTask(task.q_true, positions=1)
    with pytest.raises(ArgumentValueError, match="task: expected at least 2 positions"):
        evidence(solution_2(single), single)
    with pytest.raises(ArgumentValueError, match="name: expected one of 'variance shares'"):
        quick(solution_2(task), task).instrument("guess")
