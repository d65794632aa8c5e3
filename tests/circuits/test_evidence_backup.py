"""Logic that is made twice: one part stands in when the other is ablated, and neither may be named alone."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tokendynamics.attention import Attention
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import OneLayerTransformer, shift
from tokendynamics.circuits.constructions import mixture, solution_1, solution_2, solution_3
from tokendynamics.circuits.evidence import Evidence, evidence
from tokendynamics.circuits.evidence.instrument import Estimate
from tokendynamics.circuits.evidence.verdict import TAKES_PART, Findings, decide
from tokendynamics.circuits.functionals import random_functional

CATEGORIES, POSITIONS = 4, 4
TASK = PairTask(random_functional(CATEGORIES, seed=3), POSITIONS)


def judged(model: OneLayerTransformer, samples: int = 400) -> Evidence:
    x = model.task.sample(100, seed=9)
    assert float((model(x) - model.task.targets(x))[:, 1:].abs().max()) < 1e-9
    return evidence(model, model.task, samples=samples, resamples=60)


def share(result: Evidence, name: str) -> float:
    came = result.instrument("ablation").named(name).value
    assert came is not None
    return came


def unit(features: dict[int, float], width: int) -> Tensor:
    row = torch.zeros(width).double()
    row[list(features)] = torch.tensor(list(features.values()), dtype=torch.float64)
    return row


def with_both(task: PairTask, units: list[tuple[dict[int, float], float, float]], offset: float) -> OneLayerTransformer:
    """Two heads: one writes q(X_j, X_i) to feature j + 1 of a block behind the tokens, one the previous category.

    Args:
        task: N, M and q_true.
        units: Weights by feature, bias and C of each hidden unit.
        offset: Of the output.
    """
    N, M = task.categories, task.positions
    width = task.width + M + N
    qk, ov = torch.zeros(2, width, width).double(), torch.zeros(2, width, width).double()
    qk[0, :N, :N], ov[0, N + M : N + 2 * M, N : N + M] = task.q_true.mT, shift(M).mT
    qk[1, N : N + M, N : N + M], ov[1, N + 2 * M :, :N] = shift(M).mT, torch.eye(N).double()
    B = torch.stack([unit(features, width) for features, _, _ in units])
    bias, C = (torch.tensor([row[place] for row in units], dtype=torch.float64) for place in (1, 2))
    return OneLayerTransformer(Attention(qk, ov, weights="linear"), B, bias, C, task, offset=offset)


def places(task: PairTask, a: int, b: int, i: int) -> tuple[int, int, int, int]:
    """Features: written value, previous category a, current category b, position i."""
    N, M = task.categories, task.positions
    return N + M + i, N + 2 * M + a, b, N + i


def cells(task: PairTask) -> itertools.product[tuple[int, int, int]]:
    """Previous and current category and position, from 0, without the first token."""
    return itertools.product(range(task.categories), range(task.categories), range(1, task.positions))


def attention_first(gain: float, *, mended_from: str = "both sides", task: PairTask = TASK) -> OneLayerTransformer:
    """``Y = A + gain·(q − A)``: attention writes A = q; for each pair, units add what is missing or take off too much.

    As long as A is right all those units are silent. With `mended_from` "below" only what is missing is added.
    """
    c = float(task.q_true.abs().max())
    far = 8.0 * c
    units: list[tuple[dict[int, float], float, float]] = []
    for i in range(1, task.positions):
        value, _, _, position = places(task, 0, 0, i)
        units.append(({value: 1.0, position: far}, 2.0 * c - far, 1.0))
    for a, b, i in cells(task):
        value, *gates = places(task, a, b, i)
        gated = dict.fromkeys(gates, far)
        wanted = float(task.q_true[a, b])
        units.append((gated | {value: -1.0}, wanted - 3.0 * far, gain))
        if mended_from == "both sides":
            units.append((gated | {value: 1.0}, -wanted - 3.0 * far, -gain))
    return with_both(task, units, offset=-2.0 * c)


def feed_forward_first(gain: float, task: PairTask = TASK) -> OneLayerTransformer:
    """``Y = Q + gain·(A − A)``: units look Q = q up; A counts once by plain units and is taken off again by gated ones.

    Gated units that are made linear take nothing off any more, so A then appears in the answer.
    """
    c = float(task.q_true.abs().max())
    far = 600.0 * c
    units: list[tuple[dict[int, float], float, float]] = []
    for i in range(1, task.positions):
        value, _, _, position = places(task, 0, 0, i)
        units.append(({value: 1.0, position: far}, 2.0 * c - far, gain))
    for a, b, i in cells(task):
        value, *gates = places(task, a, b, i)
        gated = dict.fromkeys(gates, far)
        units.append((gated | {value: 1.0}, 2.0 * c - 3.0 * far, -gain))
        units.append((dict.fromkeys(gates, 1.0), -2.0, float(task.q_true[a, b])))
    return with_both(task, units, offset=0.0)


@pytest.mark.long
@pytest.mark.parametrize("build", [attention_first, feed_forward_first])
def test_logic_that_either_part_makes_alone_is_put_down_to_neither(build: Any) -> None:
    measurements = judged(build(1.0))
    assert measurements.verdict == "either"
    assert "Either part suffices" in measurements.sentence
    assert share(measurements, "whole attention") == pytest.approx(0.0, abs=0.05)
    assert share(measurements, "hidden units") == pytest.approx(0.0, abs=0.07)
    # No single ablation, and no exchange of keys, shows where it is; both ablations at once do.
    assert measurements.instrument("path patching").named("keys").value == pytest.approx(0.0, abs=1e-9)
    assert share(measurements, "both at once") == pytest.approx(1.0, abs=0.05)
    assert share(measurements, "made twice") == pytest.approx(1.0, abs=0.1)


def test_units_that_only_add_what_is_missing_are_a_backup_as_well() -> None:
    measurements = judged(attention_first(1.0, mended_from="below"))
    left = share(measurements, "left without it")
    assert 0.3 < left < 0.95
    assert share(measurements, "hidden units") == pytest.approx(0.0, abs=1e-9)
    assert measurements.instrument("path patching").attention is True
    assert measurements.verdict in ("either", "both")
    assert "the rest needs the attention" in measurements.sentence


@pytest.mark.parametrize(("gain", "verdict"), [(0.0, "attention"), (0.05, "attention"), (0.3, "both"), (0.8, "either")])
def test_hidden_units_that_stand_in_for_a_part_of_it_are_named_from_a_tenth_on(gain: float, verdict: str) -> None:
    measurements = judged(attention_first(gain))
    assert share(measurements, "left without it") == pytest.approx(gain, abs=0.03)
    assert share(measurements, "hidden units") == pytest.approx(0.0, abs=1e-9)
    assert share(measurements, "made twice") == pytest.approx(gain, abs=0.03)
    assert measurements.verdict == verdict
    assert ("the rest needs the attention" in measurements.sentence) == (gain > TAKES_PART)


@pytest.mark.parametrize(
    ("gain", "verdict"), [(0.0, "feed-forward"), (0.05, "feed-forward"), (0.3, "both"), (0.8, "either")]
)
def test_an_attention_that_stands_in_for_a_part_of_it_is_named_from_a_tenth_on(gain: float, verdict: str) -> None:
    measurements = judged(feed_forward_first(gain))
    assert share(measurements, "whole attention") == pytest.approx(0.0, abs=1e-9)
    assert share(measurements, "left with linear units") == pytest.approx(gain, abs=0.06)
    assert share(measurements, "made twice") == pytest.approx(gain, abs=0.06)
    assert measurements.verdict == verdict
    assert ("the rest needs the feed-forward part" in measurements.sentence) == (gain > TAKES_PART)


def test_what_two_parts_share_out_is_not_made_twice() -> None:
    for amount in (0.3, 0.5):
        measurements = judged(mixture(TASK, amount))
        assert measurements.verdict == "both"
        assert "each carry some" in measurements.sentence
        assert share(measurements, "made twice") == pytest.approx(0.0, abs=0.05)


def functionals() -> dict[str, Tensor]:
    """Tables whose additive part leaves the range of the table: units then clip an attention that writes sums."""
    first = torch.zeros(3, 3).double()
    first[0, 0] = 1.0
    return {"and": first, "and, turned over": -first, "equal": torch.eye(4).double(), "rare": 10.0 * first - 1.0}


@pytest.mark.few(4)
@pytest.mark.parametrize("table", functionals().values(), ids=functionals().keys())
@pytest.mark.parametrize("build", [solution_1, solution_2, solution_3])
def test_units_that_would_clip_the_sums_of_an_ablated_attention_are_no_backup(build: Any, table: Tensor) -> None:
    measurements = judged(build(PairTask(table, 5)))
    assert measurements.verdict == ("attention" if build is solution_2 else "feed-forward")
    assert share(measurements, "made twice") == pytest.approx(0.0, abs=0.02)


def gated_by_queries(attended: float, activation: Any) -> OneLayerTransformer:
    """M = 2; a head for each previous category h weighs by q(h, current) and carries whether the sender is h.

    That makes `attended` of q_true by a product of weights and values; indicators of pairs make the rest.
    """
    task = PairTask(random_functional(CATEGORIES, seed=0), 2)
    N, width, room = task.categories, task.width + task.categories, 4.0 * float(task.q_true.abs().max())
    qk, ov = (torch.zeros(N + 1, width, width).double() for _ in range(2))
    qk[:N, :N, N], ov[:N, N + 1, :N] = attended * task.q_true, torch.eye(N).double()
    qk[N, N + 1, N], ov[N, N + 2 :, :N] = 1.0, torch.eye(N).double()
    rows, biases, C = [unit({N + 1: 1.0}, width)], [room - 1.0], [1.0]
    if attended < 1.0:
        for a, b in itertools.product(range(N), range(N)):
            rows.append(unit({N + 2 + a: 1.0, b: 1.0}, width))
            biases.append(-1.0)
            C.append((1.0 - attended) * float(task.q_true[a, b]))
    return OneLayerTransformer(
        Attention(qk, ov, weights="linear"),
        torch.stack(rows),
        torch.tensor(biases, dtype=torch.float64),
        torch.tensor(C, dtype=torch.float64),
        task,
        offset=-room,
        activation=activation,
    )


@pytest.mark.parametrize("activation", ["identity", "relu"])
def test_what_a_network_without_a_bend_decides_is_decided_by_its_attention(activation: str) -> None:
    measurements = judged(gated_by_queries(1.0, activation))
    patched = measurements.instrument("path patching")
    assert patched.named("keys").value == pytest.approx(0.0, abs=1e-9)
    assert patched.named("queries").value == pytest.approx(1.0, abs=1e-9)
    assert measurements.verdict == "attention"
    assert "in products of its weights and values" in measurements.sentence


@pytest.mark.parametrize(("attended", "verdict"), [(0.05, "feed-forward"), (0.4, "both"), (0.95, "attention")])
def test_logic_gated_by_queries_counts_by_its_share(attended: float, verdict: str) -> None:
    measurements = judged(gated_by_queries(attended, "relu"))
    assert share(measurements, "left with linear units") == pytest.approx(attended, abs=0.05)
    assert measurements.verdict == verdict


def measured(**shares: float) -> Findings:
    """Findings with intervals of ± 0.005; what is not given follows from a model of two parts that add up."""
    attention = shares.get("attention", 1.0)
    after, bends = shares.get("after", 1.0 - attention), shares.get("bends", 1.0 - attention)
    values = {
        "keys": shares.get("keys", attention),
        "queries": shares.get("queries", attention),
        "without_attention": attention,
        "after_attention": after,
        "by_attention": 1.0 - bends,
        "twice": 1.0 - attention - bends,
        "shape_of_attention": abs(attention),
        "shape_after_attention": abs(after),
    }
    entries = {name: Estimate(name, value, value - 0.005, value + 0.005) for name, value in values.items()}
    lost = Estimate("hidden units", bends, bends - 0.005, bends + 0.005)
    small = Estimate("loss", 0.0, 0.0, 0.0)
    return Findings(True, small, small, without_bends=(lost,), rises=(lost,), unread=None, **entries)


@settings(max_examples=200)
@given(st.floats(-0.5, 1.5), st.floats(-0.5, 1.5), st.floats(-0.5, 1.5))
def test_no_part_is_named_alone_where_the_other_makes_some_without_it(attention: float, bends: float, keys: float):
    result = measured(attention=attention, after=1.0 - attention, bends=bends, keys=keys)
    verdict = decide(result).verdict
    if abs(1.0 - attention) > TAKES_PART + 0.01:
        assert verdict != "attention"
    if abs(1.0 - bends) > TAKES_PART + 0.01:
        assert verdict != "feed-forward"
    if verdict == "either":
        assert min(1.0 - attention, 1.0 - bends) > TAKES_PART


def test_an_interval_around_the_threshold_of_what_is_made_twice_settles_nothing() -> None:
    result = measured(attention=0.9, after=0.5, bends=0.0)
    wide = replace(result, twice=Estimate("made twice", 0.1, 0.05, 0.15))
    assert decide(wide).verdict == "undecided"
    assert "The confidence intervals are too wide to decide at the threshold 0.1." in decide(wide).sentence
    assert decide(wide, 0.01).verdict == "both"


def test_the_verdict_is_repeated_at_other_thresholds() -> None:
    measurements = judged(mixture(TASK, 0.15))
    assert list(measurements.by_threshold) == [0.01, 0.02, 0.05, 0.1, 0.2, 0.3]
    assert measurements.by_threshold[TAKES_PART] == measurements.verdict == "both"
    assert [measurements.by_threshold[at] for at in (0.01, 0.2, 0.3)] == ["both", "feed-forward", "feed-forward"]
    assert "Verdict by threshold: 1 % to 10 %: both; 20 % to 30 %: feed-forward" in str(measurements)
    written = measurements.as_json()
    assert written["threshold"] == TAKES_PART
    assert written["verdict_by_threshold"][-1] == {"threshold": 0.3, "verdict": "feed-forward"}
    clear = judged(solution_2(TASK))
    assert {verdict for at, verdict in clear.by_threshold.items() if at > 0.02} == {"attention"}
    assert "to 30 %: attention" in str(clear)
