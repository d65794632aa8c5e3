"""Transformers built to mislead one instrument or another: where their logic really is, the verdict must say."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tokendynamics.attention import Attention
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import (
    Activation,
    LayerNorm,
    OneLayerTransformer,
    on_categories,
    on_positions,
    shift,
)
from tokendynamics.circuits.constructions import mixture, solution_1, solution_2, solution_3
from tokendynamics.circuits.constructions.solutions import Selection
from tokendynamics.circuits.evidence import Evidence, evidence
from tokendynamics.circuits.functionals import random_functional


def judged(model: OneLayerTransformer, samples: int = 400) -> Evidence:
    """The evidence, for a model that does its task exactly: only then is it known where the logic is."""
    task = model.task
    x = task.sample(100, seed=9)
    scale = 1.0 + float(task.q_true.abs().max())
    assert float((model(x) - task.targets(x))[:, 1:].abs().max()) < 1e-10 * scale
    return evidence(model, task, samples=samples, resamples=80)


def value(result: Evidence, instrument: str, name: str) -> float:
    came = result.instrument(instrument).named(name).value
    assert came is not None
    return came


def two_heads(attended: Tensor, decided: Tensor, positions: int = 8) -> OneLayerTransformer:
    """Solution 2 for one functional beside solution 3 for another: the answers add up."""
    task = PairTask(attended + decided, positions)
    second, third = Selection.of(attended, "exact"), Selection.of(decided, "exact")
    step = shift(positions).mT
    qk = torch.stack([on_categories(task, attended.mT), on_positions(task, step)])
    ov = torch.stack([on_positions(task, step * second.shrink), on_categories(task, decided.mT * third.shrink)])
    categories, places = torch.ones(task.categories).double(), torch.ones(positions).double()
    return OneLayerTransformer(
        Attention(qk, ov, weights="linear"),
        torch.eye(task.width).double(),
        torch.cat([third.bias * categories, second.bias * places]),
        torch.cat([third.K * categories, second.K * places]),
        task,
        offset=second.offset + third.offset,
    )


def functional_and_one_across(categories: int = 6) -> tuple[Tensor, Tensor]:
    """A functional, and an interaction of the same size that is orthogonal to its own."""
    q = random_functional(categories, seed=0)
    interaction = PairTask(q, 4).interaction
    across = PairTask(random_functional(categories, seed=5), 4).interaction
    across = across - interaction * (across * interaction).sum() / interaction.square().sum()
    return q, across * (interaction.norm() / across.norm())


@pytest.mark.parametrize("share", [1.5, -0.5])
def test_a_part_that_works_against_the_other_takes_part(share: float) -> None:
    q = random_functional(6, seed=0)
    measurements = judged(two_heads(share * q, (1.0 - share) * q))
    assert value(measurements, "path patching", "keys") == pytest.approx(share, abs=1e-9)
    assert value(measurements, "path patching", "values") == pytest.approx(1.0 - share, abs=1e-9)
    assert measurements.verdict == "both"


@pytest.mark.long
@pytest.mark.parametrize("in_attention", [True, False])
def test_logic_that_the_other_part_takes_off_again_is_not_passed_over(in_attention: bool) -> None:
    q, across = functional_and_one_across()
    model = two_heads(2.0 * across, q - 2.0 * across) if in_attention else two_heads(q + 2.0 * across, -2.0 * across)
    measurements = judged(model, samples=4000)
    name = "whole attention" if in_attention else "left without it"
    assert abs(value(measurements, "ablation", name)) < 0.1
    shapes = {
        entry.name: entry.value for entry in measurements.instrument("ablation").details["interaction of any shape"]
    }
    assert shapes[name] == pytest.approx(2.0, abs=0.1)
    assert measurements.verdict == "undecided"
    assert "not along that of q_true" in measurements.sentence


def with_a_guard(categories: int, positions: int, base: float) -> OneLayerTransformer:
    """Solution 3 that falls silent unless keys and values come from the same sequence.

    The guard head weighs by c(current)/h(sender) and carries h(sender): on any sequence M·c(current), which a third
    head takes off.
    """
    task = PairTask(random_functional(categories, seed=0), positions)
    built, width = solution_3(task), task.width
    h, c = base ** torch.arange(categories).double(), 1.0 + torch.arange(categories).double()
    qk, ov = torch.zeros(3, width, width).double(), torch.zeros(3, width, width).double()
    qk[0], ov[0] = built.qk[0], built.ov[0]
    qk[1, :categories, :categories], ov[1, categories, :categories] = c[:, None] / h, h
    qk[2, :categories, categories], ov[2, categories, categories] = -positions * c, 1.0
    units = built.B[:categories].clone()
    units[:, categories] = -50.0
    bias, C = built.bias[:categories], built.C[:categories]
    return OneLayerTransformer(
        Attention(qk, ov, weights="linear"),
        torch.cat([units, units]),
        torch.cat([bias, bias - 1.0]),
        torch.cat([C, -C]),
        task,
        offset=built.offset,
    )


@pytest.mark.parametrize("base", [3.0, 10.0])
def test_an_answer_that_exchanged_keys_destroy_was_not_computed_by_them(base: float) -> None:
    measurements = judged(with_a_guard(5, 8, base))
    assert value(measurements, "path patching", "keys") > 0.5
    followed = measurements.instrument("path patching").details["share that follows another pair"]["keys"]
    assert all(abs(entry.value) < 0.3 for entry in followed)
    assert value(measurements, "ablation", "whole attention") == pytest.approx(0.0, abs=1e-6)
    assert measurements.verdict == "feed-forward"


def numbers_by_the_keys(categories: int, positions: int) -> OneLayerTransformer:
    """Every receiver gets the sender's number by qk; hidden units look q(number, current) up."""
    task = PairTask(random_functional(categories, seed=0), positions)
    small, off = 1.0 / 64.0, 4.0 * categories
    numbers = small * torch.arange(1, categories + 1).double()[:, None].expand(categories, categories)
    rows, biases, C = [], [], []
    for position in range(1, positions):
        for current in range(categories):
            heights = torch.cat([torch.zeros(1).double(), task.q_true[:, current]])
            bends = heights.diff().diff(prepend=torch.zeros(1).double())
            for kink, bend in enumerate(bends):
                row = torch.zeros(task.width).double()
                row[categories + position], row[current] = 1.0 / small, off
                rows.append(row)
                biases.append(-1.0 / small - kink - off)
                C.append(float(bend))
    return OneLayerTransformer(
        Attention(on_categories(task, numbers).mT, on_positions(task, shift(positions).mT), weights="linear"),
        torch.stack(rows),
        torch.tensor(biases, dtype=torch.float64),
        torch.tensor(C, dtype=torch.float64),
        task,
    )


def test_a_category_that_comes_by_the_keys_is_not_yet_logic_in_the_attention() -> None:
    measurements = judged(numbers_by_the_keys(4, 5))
    assert value(measurements, "path patching", "keys") == pytest.approx(1.0, abs=1e-9)
    assert value(measurements, "path patching", "values") == 0.0
    assert measurements.verdict == "feed-forward"


def test_values_that_bring_the_current_category_too_carry_all_of_the_logic() -> None:
    task = PairTask(random_functional(6, seed=0), 8)
    built = solution_1(task)
    weights = on_positions(task, 2.0 * shift(8) + torch.eye(8).double())
    model = replace(built, attention=Attention(weights.mT, built.ov[0], weights="linear"), skip=0.0)
    measurements = judged(model)
    estimate = measurements.instrument("path patching").named("values")
    # The answer is that of the exchanged pair: no chance correlation is left.
    assert (estimate.low, estimate.value, estimate.high) == pytest.approx((1.0, 1.0, 1.0), abs=1e-9)
    followed = measurements.instrument("path patching").details["share that follows another pair"]["values"]
    assert [entry.value for entry in followed] == pytest.approx([0.0, 0.0, 1.0], abs=1e-9)
    assert measurements.verdict == "feed-forward"


def test_the_pair_that_a_mixture_follows_is_named() -> None:
    task = PairTask(random_functional(5, seed=3), 6, "zipf")
    followed = judged(mixture(task, 0.3)).instrument("path patching").details["share that follows another pair"]
    shares = {side: [entry.value for entry in entries] for side, entries in followed.items()}
    assert shares["keys"] == pytest.approx([0.3, 0.0, 0.0], abs=1e-9)
    assert shares["values"] == pytest.approx([0.7, 0.0, 0.0], abs=1e-9)
    assert shares["queries"] == pytest.approx([0.0, 0.3, 0.0], abs=1e-9)


def product_of_weights_and_values(categories: int, gated: bool) -> OneLayerTransformer:
    """One head for each previous category h, M = 2: weighs by q(h, current) and carries whether the sender is h."""
    task = PairTask(random_functional(categories, seed=0), 2)
    width, room, gate = task.width, -Selection.of(task.q_true, "exact").offset, 20.0
    qk, ov = (torch.zeros(categories, width, width).double() for _ in range(2))
    qk[:, :categories, categories] = task.q_true
    ov[:, categories + 1, :categories] = torch.eye(categories).double()
    units = categories if gated else 1
    B, bias = torch.zeros(units, width).double(), torch.full((units,), room - 1.0, dtype=torch.float64)
    B[:, categories + 1] = 1.0
    if gated:  # one unit for each current category, off for the others
        B[:, :categories] = gate * torch.eye(categories).double()
        bias -= gate
    C = torch.ones(units).double()
    return OneLayerTransformer(Attention(qk, ov, weights="linear"), B, bias, C, task, offset=-room)


@pytest.mark.parametrize("gated", [False, True])
def test_a_product_of_weights_and_values_is_not_put_down_to_the_hidden_units(gated: bool) -> None:
    measurements = judged(product_of_weights_and_values(5, gated))
    assert value(measurements, "path patching", "queries") == pytest.approx(1.0, abs=1e-9)
    assert value(measurements, "ablation", "whole attention") == pytest.approx(1.0, abs=0.05)
    # Some is left with linear units, which cannot have made it; nothing is left without the attention's.
    assert value(measurements, "ablation", "left with linear units") > 0.2
    assert value(measurements, "ablation", "left without it") == pytest.approx(0.0, abs=0.05)
    assert measurements.verdict == "attention"
    assert "in products of its weights and values" in measurements.sentence


def size_of(table: Tensor, positions: int = 8) -> OneLayerTransformer:
    """Attention writes a table as solution 2 does; hidden units turn it into its absolute value, 2·ReLU(A) − A."""
    task = PairTask(table.abs(), positions)
    c = float(table.abs().max())
    K = 4.0 * c
    wide = torch.zeros(positions, task.width).double()
    wide[:, task.categories :] = torch.eye(positions).double()
    ones = torch.ones(positions).double()
    attention = Attention(on_categories(task, table).mT, on_positions(task, shift(positions).mT / K), weights="linear")
    bias, C = torch.cat([-ones, -(1.0 - c / K) * ones]), torch.cat([2.0 * K * ones, -K * ones])
    return OneLayerTransformer(attention, torch.cat([wide, wide]), bias, C, task, offset=c)


@pytest.mark.parametrize(("amount", "verdict"), [(0.0, "feed-forward"), (0.6, "both"), (1.0, "both")])
def test_hidden_units_that_bend_what_the_attention_sums_take_part(amount: float, verdict: str) -> None:
    f, g, h = random_functional(6, seed=1)[0], random_functional(6, seed=2)[0], random_functional(6, seed=3)
    table = f[:, None] + g + amount * h
    measurements = judged(size_of(table))
    # By hand: what the absolute value makes of the table's additive part.
    bent = PairTask(table.abs(), 4).interaction
    left = PairTask((table - PairTask(table, 4).interaction).abs(), 4).interaction
    share = float((left * bent).sum() / bent.square().sum())
    assert value(measurements, "ablation", "left without it") == pytest.approx(share, abs=0.05)
    assert measurements.verdict == verdict


def test_hidden_units_that_bend_a_pure_interaction_are_not_passed_over() -> None:
    measurements = judged(size_of(PairTask(random_functional(6, seed=4), 4).interaction))
    assert abs(value(measurements, "ablation", "left without it")) < 0.1
    assert measurements.verdict == "undecided"
    assert "No linear readout finds the interaction" in measurements.sentence


def test_logic_that_only_the_two_parts_together_make_is_not_called_made_twice() -> None:
    measurements = judged(size_of(PairTask(random_functional(6, seed=4), 4).interaction))
    # Nothing is left by either without the other, and nothing without both: a sum of losses of 2 for what is 1.
    assert value(measurements, "ablation", "made twice") == pytest.approx(-1.0, abs=0.1)
    for sentence in (measurements.sentence, measurements.instrument("ablation").sentence):
        assert "by either part alone" not in sentence
        assert re.search(r"0\.9\d \(95 % CI 0\.9\d–0\.9\d\) needs both parts|needs both parts 0\.9\d", sentence)
    shared = judged(numbers_by_the_keys(4, 5))
    for sentence in (shared.sentence, shared.instrument("ablation").sentence):
        assert "by either part alone" in sentence
        assert "needs both parts" not in sentence


@pytest.mark.parametrize("activation", ["identity", "relu"])
def test_logic_of_the_layer_norm_counts_with_the_feed_forward_part(activation: Activation) -> None:
    categories, positions = 6, 8
    norm = LayerNorm(torch.ones(categories).double(), torch.zeros(categories).double(), 1e-5, slice(0, categories))
    weights = random_functional(categories, seed=1)[0]
    pairs = 2.0 * torch.eye(categories).double()[:, None] + torch.eye(categories).double()
    task = PairTask(torch.nn.functional.layer_norm(pairs, (categories,)) @ weights, positions)
    attention = Attention(
        on_positions(task, 2.0 * shift(positions)).mT,
        on_categories(task, torch.eye(categories).double()),
        weights="linear",
    )
    B, C = torch.eye(task.width).double(), torch.nn.functional.pad(weights, (0, positions))
    if activation == "relu":
        B, C = torch.cat([B, -B]), torch.cat([C, -C])
    model = OneLayerTransformer(attention, B, torch.zeros(len(C)).double(), C, task, norm=norm, activation=activation)
    measurements = judged(model)
    assert value(measurements, "ablation", "norm and hidden units") == pytest.approx(1.0, abs=0.02)
    assert measurements.verdict == "feed-forward"


def test_an_additive_attention_is_left_as_it_is_and_a_block_of_pairs_is_not() -> None:
    task = PairTask(random_functional(5, seed=2), 6, "zipf")
    for model in (solution_1(task), solution_3(task)):
        assert value(judged(model), "ablation", "whole attention") == pytest.approx(0.0, abs=1e-9)
    assert value(judged(solution_2(task)), "ablation", "whole attention") == pytest.approx(1.0, abs=0.05)
