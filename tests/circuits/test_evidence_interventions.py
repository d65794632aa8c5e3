"""Path patching, ablation and linear units against closed forms."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import LayerNorm, OneLayerTransformer
from tokendynamics.circuits.constructions import mixture, solution_1, solution_2, solution_3
from tokendynamics.circuits.evidence import evidence
from tokendynamics.circuits.evidence._interventions import LinearUnits, ablation, patching, without_interaction
from tokendynamics.circuits.evidence._trial import EvidenceTrial, in_chunks, without_sums
from tokendynamics.circuits.functionals import pair_numbers, random_functional


def trial_of(model: OneLayerTransformer, task: PairTask, samples: int = 200) -> EvidenceTrial:
    return EvidenceTrial.drawn(model, task, samples, seed=3, resamples=30, confidence=0.9)


def drawn_task(categories: int, seed: int, law: str = "zipf", positions: int = 6) -> PairTask:
    return PairTask(random_functional(categories, seed), positions, law)


@settings(max_examples=8)
@given(st.integers(2, 7), st.integers(0, 1000), st.floats(0.0, 1.0))
def test_each_side_of_attention_reads_the_share_it_carries(categories: int, seed: int, share: float) -> None:
    task = drawn_task(categories, seed)
    result = patching(trial_of(mixture(task, share), task), 0.1)
    rises = {entry.name: entry.value for entry in result.details["rise of the loss"]}
    for side, carried in {"keys": share, "values": 1.0 - share, "queries": share}.items():
        estimate = result.named(side)
        assert estimate.value == pytest.approx(carried, abs=1e-9)
        assert (estimate.low, estimate.high) == pytest.approx((carried, carried), abs=1e-9)
        # The square root turns rounding of 1e-16 into 1e-8.
        assert rises[side] == pytest.approx(carried, abs=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_a_side_that_carries_nothing_reads_exactly_zero(causal: bool) -> None:
    task = drawn_task(5, seed=1)
    by_values = patching(trial_of(solution_3(task, causal=causal), task), 0.1)
    by_keys = patching(trial_of(solution_2(task, causal=causal), task), 0.1)
    assert [by_values.named(side).value for side in ("keys", "queries")] == [0.0, 0.0]
    assert by_keys.named("values").value == 0.0


def expected_loss(model: OneLayerTransformer, task: PairTask) -> float:
    """Mean squared error over i ≥ 2 by a sum over all sequences."""
    everything = torch.tensor(list(itertools.product(range(1, task.categories + 1), repeat=task.positions)))
    chance = task.law[everything - 1].prod(dim=1)
    errors = (model(everything) - task.targets(everything))[:, 1:].square().mean(dim=1)
    return float(chance @ errors)


@settings(max_examples=10)
@given(st.integers(2, 4), st.integers(0, 1000), st.sampled_from(["uniform", "zipf"]), st.floats(0.1, 1.0))
def test_without_its_interaction_the_category_block_costs_the_variance_of_the_interaction(
    categories: int, seed: int, law: str, share: float
) -> None:
    task = drawn_task(categories, seed, law, positions=3)
    additive = task.q_true - task.interaction
    # Below −c, with c = max(0, −min q_true), ReLU would clip the additive part; K only has to leave room above.
    assume(float(additive.min()) >= min(0.0, float(task.q_true.min())))
    K = 2.0 * float(task.q_true.abs().max()) + 2.0 * float(additive.abs().max())
    changed = without_interaction(solution_2(task, K=K), task, ("category", "category"))
    assert expected_loss(changed, task) == pytest.approx(task.interaction_variance, rel=1e-10)
    # In a mixture a share α of the interaction goes, so α² of its variance, if nothing clips there either.
    mixed = without_interaction(mixture(task, share), task, ("category", "category"))
    if float(additive.max()) <= max(0.0, float(task.q_true.max())):
        assert expected_loss(mixed, task) == pytest.approx(share**2 * task.interaction_variance, rel=1e-10)


def test_ablation_reads_the_share_of_each_part() -> None:
    q_true = random_functional(6, seed=8)
    task = PairTask(PairTask(q_true, 7).interaction, 7)  # its additive part is zero, so nothing clips
    for share in (0.25, 0.5, 0.8):
        result = ablation(trial_of(mixture(task, share), task, samples=1000), 0.1)
        rises = {entry.name: entry.value for entry in result.details["rise of the loss"]}
        assert result.named("category–category").value == pytest.approx(share, abs=1e-9)
        assert rises["category–category"] == pytest.approx(share, abs=1e-6)
        assert result.named("hidden units").value == pytest.approx(1.0 - share, abs=0.01)
        heads = [entry.value for entry in result.details["category–category by head"]]
        assert heads == pytest.approx([share, 0.0], abs=1e-9)


def test_losing_the_way_between_positions_is_not_logic() -> None:
    task = drawn_task(5, seed=2)
    result = ablation(trial_of(solution_1(task), task, samples=2000), 0.1)
    routed = result.named("position–position").value
    assert routed is not None
    assert routed > 0.9
    assert result.attention is False
    assert result.feed_forward is True


def test_an_ablated_block_is_the_best_sum_under_the_law() -> None:
    task = drawn_task(4, seed=5)
    model = mixture(task, 0.6)
    block = ("category", "category")
    changed = without_interaction(model, task, block)
    category = model.block("category")
    rows, columns = (index.flatten() for index in torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"))
    design = torch.cat([torch.eye(4)[rows], torch.eye(4)[columns]], dim=1).double().numpy()
    root = np.sqrt(np.outer(task.law, task.law).flatten())
    wanted = model.qk[0, category, category].flatten().numpy()
    fitted = design @ np.linalg.lstsq(design * root[:, None], wanted * root, rcond=None)[0]
    assert np.allclose(changed.qk[0, category, category].flatten(), fitted, atol=1e-12)
    position = model.block("position")
    assert torch.equal(changed.qk[:, position, position], model.qk[:, position, position])


@pytest.mark.parametrize("causal", [False, True])
def test_units_that_only_select_are_linear_already(causal: bool) -> None:
    task = drawn_task(6, seed=3)
    trial = trial_of(solution_2(task, causal=causal), task)
    assert torch.allclose(LinearUnits.fitted(trial).outputs(trial), trial.targets, atol=1e-11)


def test_linear_units_are_straight_lines_through_what_each_unit_did() -> None:
    task = drawn_task(4, seed=9, positions=4)
    built = solution_3(task)
    normalized = replace(built, norm=LayerNorm(torch.ones(task.width).double(), torch.zeros(task.width).double()))
    for model in (built, normalized):
        trial = trial_of(model, task)
        stream, direct = model.stream(trial.fitting), model.stream(trial.x)
        inputs, outputs = linear_inputs(model, stream), model.hidden(stream)
        expected = torch.zeros_like(trial.outputs)
        for token, unit in itertools.product(range(1, 4), range(task.width)):
            if float(inputs[:, token, unit].std()) < 1e-9:
                line = np.array([0.0, float(outputs[:, token, unit].mean())])
            else:
                line = np.polyfit(inputs[:, token, unit], outputs[:, token, unit], 1)
            expected[:, token - 1] += model.C[unit] * (line[0] * linear_inputs(model, direct)[:, token, unit] + line[1])
        assert torch.allclose(LinearUnits.fitted(trial).outputs(trial), expected + model.offset, atol=1e-8)


def linear_inputs(model: OneLayerTransformer, stream: Tensor) -> Tensor:
    read = stream if model.norm is None else model.norm(stream)
    return read @ model.B.mT + model.bias


def test_with_a_linear_norm_too_no_interaction_survives_after_an_attention_that_only_copies() -> None:
    task = drawn_task(5, seed=4)
    built, width = solution_1(task), task.width
    draws = random_functional(width, seed=5)
    norm = LayerNorm(draws[0].abs() + 0.5, draws[1])
    model = replace(built, B=random_functional(width, seed=6), bias=draws[2], C=draws[3], norm=norm)
    trial = trial_of(model, task)

    def interaction_left(outputs: Tensor) -> float:
        columns = range(outputs.shape[1])
        parts = [without_sums(outputs[:, i], trial.x[:, i], trial.x[:, i + 1]) for i in columns]
        return float(torch.stack(parts).abs().max())

    assert interaction_left(LinearUnits.fitted(trial, norm=True).outputs(trial)) < 1e-11
    # The norm divides by a number that depends on both categories.
    assert interaction_left(LinearUnits.fitted(trial).outputs(trial)) > 0.1


def test_a_task_without_interaction_has_no_shares() -> None:
    task = PairTask(pair_numbers(4), 5)
    trial = trial_of(solution_2(task), task)
    assert {entry.value for entry in patching(trial, 0.1).estimates + ablation(trial, 0.1).estimates} == {None}


@pytest.mark.parametrize("sequences", [39, 40])
def test_what_sums_cannot_give_is_the_residual_of_one_hots_at_each_token(sequences: int) -> None:
    # Two kinds of four categories: from five sequences for each of the eight values on, each token has its own sums.
    task = drawn_task(4, seed=1)
    x, other = task.sample(sequences, 1), task.sample(sequences, 2)
    values = random_functional(240, seed=3).flatten()[: sequences * 6].reshape(sequences, 6) + 10.0 * torch.arange(6)

    def residual(columns: slice) -> np.ndarray:
        kinds = [torch.eye(4)[kind[:, columns].flatten() - 1] for kind in (x, other)]
        design, wanted = torch.cat(kinds, dim=1).double().numpy(), values[:, columns].flatten().numpy()
        fitted = design @ np.linalg.lstsq(design, wanted, rcond=None)[0]
        return (wanted - fitted).reshape(sequences, -1)

    together = [slice(0, 6)] if sequences < 40 else [slice(i, i + 1) for i in range(6)]
    wanted = np.concatenate([residual(columns) for columns in together], axis=1)
    assert np.allclose(without_sums(values, x, other), wanted, atol=1e-10)


def offset_task(offset: float, kind: str, law: str) -> PairTask:
    """An interaction beside sums, or beside a constant, `offset` times its size."""
    q, f, g = (random_functional(5, seed) for seed in (1, 2, 3))
    interaction = PairTask(q, 5, law).interaction
    size = float(interaction.square().mean().sqrt())
    sums = f[0][:, None] + g[0] if kind == "sums" else torch.ones(5, 5).double()
    return PairTask(interaction + offset * size * sums / sums.square().mean().sqrt(), 5, law)


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.every_value_once
@pytest.mark.parametrize("offset", [1.0, 10.0, 100.0, 1000.0])
@pytest.mark.parametrize("kind", ["sums", "constant"])
def test_large_sums_beside_the_interaction_do_not_hide_where_it_is_made(offset: float, kind: str) -> None:
    task = offset_task(offset, kind, "zipf" if offset > 50 else "uniform")
    built = {form: solution_1(task, form) for form in ("rows", "uniform", "indicators")}
    for model in (*built.values(), solution_3(task)):
        result = evidence(model, task, samples=300, resamples=40)
        assert result.verdict == "feed-forward", result.sentence
        assert result.instrument("ablation").named("left with linear units").value == pytest.approx(0.0, abs=1e-6)
    assert evidence(solution_2(task), task, samples=300, resamples=40).verdict == "attention"
    assert evidence(mixture(task, 0.5), task, samples=300, resamples=40).verdict == "both"


@pytest.mark.long
def test_chunks_do_not_change_the_answers() -> None:
    task = drawn_task(4, seed=1, positions=12)
    model = solution_1(task)
    x = task.sample(20_000, 0)
    assert torch.allclose(in_chunks(model, model, x[:50]), in_chunks(model, model, x)[:50], atol=1e-12)
    assert torch.allclose(in_chunks(model, model, x), model(x), atol=1e-12)
