"""Sets of parts and heads that lower consensus together, against weights edited by hand."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tokendynamics as td
from diagnosis.test_heads import ids_of, kappa_of, loss_of, network_of, projection_of
from diagnosis.text_halves import finding, measuring
from tokendynamics.diagnosis.gating import _joint
from tokendynamics.diagnosis.gating._result import Halves
from tokendynamics.diagnosis.gating.trials import Costs, EffectEstimate, Trials
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.pretrained.edits.variant import Variant

WIDTH = 8


def edited(network: Any, changes: dict[str, float]) -> Any:
    """A copy of a LLaMA with gates in its weights, by hand."""
    network = copy.deepcopy(network)
    variant = Variant.of(changes)
    with torch.no_grad():
        for (layer, head), gate in variant.heads.items():
            weight, _ = projection_of("llama", network, layer)
            weight[:, head * WIDTH : (head + 1) * WIDTH] *= gate
        for (layer, part), gate in variant.gates.items():
            block = network.model.layers[layer - 1]
            (block.self_attn.o_proj if part == "attention" else block.mlp.down_proj).weight.mul_(gate)
    return network


def alike(strength: float = 1.6) -> Any:
    """A LLaMA in which head 0 of layer 1 and head 2 of layer 3 each draw the tokens of a text together.

    They add the mean of all tokens so far; everything else adds almost nothing.
    """
    network = network_of("llama")
    with torch.no_grad():
        for block in network.model.layers:
            for weight in (block.self_attn.o_proj.weight, block.mlp.down_proj.weight):
                weight.mul_(1e-2)
        for layer, head in ((0, 0), (2, 2)):
            attention = network.model.layers[layer].self_attn
            attention.q_proj.weight.zero_()
            attention.v_proj.weight.copy_(torch.eye(24))
            columns = slice(head * WIDTH, (head + 1) * WIDTH)
            attention.o_proj.weight[:, columns] = strength * torch.eye(24)[:, columns]
        network.model.embed_tokens.weight.normal_(generator=torch.Generator().manual_seed(5))
    return network


@pytest.mark.long
def test_each_set_is_measured_as_weights_edited_by_hand() -> None:
    network, prompts = alike(), ids_of(9)
    answer = td.joint_levers(network, prompts, candidates=5, most=3, budget=1e3, sink_ratio=1e6)
    others, table = measuring(prompts), answer.table
    whole, loss = kappa_of(network, others, answer.where), loss_of(network, others)
    assert answer.kappa == pytest.approx(whole, abs=1e-9)
    assert 1 <= table.sizes["step"] <= 3
    changes: dict[str, float] = {}
    before = whole
    for step in range(table.sizes["step"]):
        row = table.isel(step=step)
        changes[str(row.change.item())] = float(row.alpha)
        with_set = edited(network, changes)
        kappa = kappa_of(with_set, others, answer.where)
        assert float(row.kappa_change) == pytest.approx(kappa - whole, abs=1e-9)
        assert float(row.gain) == pytest.approx(kappa - before, abs=1e-9)
        assert float(row.loss_change) == pytest.approx(loss_of(with_set, others) - loss, abs=1e-6)
        low, high = row.gain_interval.values
        assert low < float(row.gain) < high
        before = kappa
    assert answer.changes == dict(list(changes.items())[: int(table.reported.sum())])


@pytest.mark.long
def test_the_search_takes_the_best_at_every_step() -> None:
    """All changes of heads that the search may take, tried by hand on the texts that choose."""
    network, prompts = alike(), ids_of(9)
    answer = td.joint_levers(network, prompts, candidates=40, most=2, budget=1e3, sink_ratio=1e6)
    choosing = finding(prompts)
    parts = [f"layer {layer} {part}" for layer in range(1, 5) for part in ("attention", "feed_forward")]
    places = [(part, alpha) for part in parts for alpha in (0.5, 0.0)]
    places += [(f"layer {layer} head {head}", 0.0) for layer in range(1, 5) for head in range(3)]
    singles = {
        (name, alpha): kappa_of(edited(network, {name: alpha}), choosing, answer.where) for name, alpha in places
    }
    whole = kappa_of(network, choosing, answer.where)
    chosen = list(zip(answer.table.change.values.tolist(), answer.table.alpha.values.tolist(), strict=True))
    assert chosen[0][0] in ("layer 1 head 0", "layer 3 head 2")
    assert whole - singles[chosen[0]] >= 0.95 * (whole - min(singles.values()))
    pairs = {
        place: kappa_of(edited(network, dict([chosen[0], place])), choosing, answer.where)
        for place in singles
        if place[0] != chosen[0][0]
    }
    assert {chosen[0][0], chosen[1][0]} == {"layer 1 head 0", "layer 3 head 2"}
    assert singles[chosen[0]] - pairs[chosen[1]] >= 0.95 * (singles[chosen[0]] - min(pairs.values()))


@pytest.mark.long
def test_two_heads_are_named_where_two_heads_do_it() -> None:
    answer = td.joint_levers(alike(), ids_of(25), candidates=6, most=4, budget=1e3, sink_ratio=1e6)
    alone = td.joint_levers(alike(), ids_of(25), candidates=6, most=1, budget=1e3, sink_ratio=1e6)
    assert dict(list(answer.changes.items())[:2]) == {"layer 1 head 0": 0.0, "layer 3 head 2": 0.0}
    assert len(alone.changes) == 1
    assert float(answer.table.kappa_change[len(answer.changes) - 1]) < float(alone.table.kappa_change[0])
    assert alone.sets == 0 < answer.sets
    assert f"{answer.singles} single changes and {answer.sets} larger sets" in answer.text
    assert f"{len(answer.changes)} changes together lower similarity" in answer.text
    assert answer.singles == alone.singles


@pytest.mark.long
def test_a_cost_above_the_budget_is_not_advised() -> None:
    network, prompts = alike(), ids_of(9)
    free = td.joint_levers(network, prompts, candidates=4, most=2, budget=1e3, sink_ratio=1e6)
    bound = td.joint_levers(network, prompts, candidates=4, most=2, loss=costly, budget=0.5, sink_ratio=1e6)
    assert free.table.sizes["step"] >= 1
    assert bound.changes == {}
    assert "at a cost of at most 0.5; on 5 others it is 0." in bound.text
    assert "measured" not in bound.text
    assert "the sets found were measured on 5 others." in free.text


@pytest.mark.long
@pytest.mark.parametrize("much", [False, True])
def test_near_one_point_a_change_counts_at_any_cost(much: bool) -> None:
    """Every change costs 1 at a budget of 0.5: nothing follows, unless κ′ is at least 0.55."""
    network, prompts = network_of("llama") if much else alike(), ids_of(25)
    ids = torch.tensor([prompts[0]])
    plain = network(ids).logits

    def loss(given: Any) -> float:
        return float(not torch.equal(given(ids).logits, plain))

    answer = td.joint_levers(network, prompts, candidates=8, most=2, loss=loss, budget=0.5, sink_ratio=1e6)
    before = (
        td.trace(network, finding(prompts), sink_ratio=1e6).consensus_within.sel(layer=0, site="feed_forward").item()
    )
    relative = (kappa_of(network, finding(prompts), answer.where) - before) / (1 - before)
    assert relative >= 0.55 if much else 0.06 <= relative < 0.55
    sets = f" and {answer.sets} larger sets" if answer.sets else ""
    tried = f"{answer.singles} single changes{sets} were tried on 12 texts"
    assert tried in answer.text
    if much:
        assert answer.changes
        assert bool((answer.table.gain_interval.sel(bound="high") < 0)[: len(answer.changes)].all())
        assert "the loss by +1.000, which is above the budget of 0.5." in answer.text
        assert "at a cost of at most" not in answer.text
    else:
        assert answer.changes == {}
        assert answer.text.startswith(
            "On the texts that choose, no part or head tried lowers similarity κ after layer 4 at a cost of at most "
            "0.5; on 13 others it is 0."
        )


@pytest.mark.parametrize("dear", [False, True])
def test_what_is_dear_on_the_texts_that_measure_it_denies_no_other_change(dear: bool) -> None:
    """A search takes what does most within the budget on its own texts: a smaller change may be within it on all."""
    kappa, cost = (EffectEstimate(value, value - 0.01, value + 0.01) for value in (-0.025, 0.021))
    gain = kappa if dear else EffectEstimate(-0.025, -0.06, 0.01)
    step = _joint._Step({(28, 0): 0.5}, (28, 0), kappa, gain, cost)
    made: list[Any] = [object.__new__(kind) for kind in (Trials, Costs, _joint._Search)]
    trials, costs, search = made
    trials.where = 30
    vars(costs).update(budget=0.02, unit=" nats")
    vars(search).update(little=False, much=False, costs=costs, singles=24, sets=3)
    halves = Halves(["a", "b"], ["c", "d"], "text")
    for steps, subject in (([step], "The change found does not lower"), ([step, step], "No set found lowers")):
        text = _joint._words(EffectEstimate(0.35, 0.26, 0.44), trials, steps, 0, search, halves)
        assert text.startswith(
            f"{subject} similarity κ after layer 30 significantly at a cost of at most 0.02 nats; it is 0.35 "
            "(95 % CI 0.26–0.44). The change chosen first, the attention of layer 28 (α = 0.5), changes it by −0.025"
        )
        assert ("which is above the budget" in text) == dear
        assert ("which is not significant" in text) != dear


def test_sentences_on_sets_deny_only_what_was_measured() -> None:
    """A change that adds nothing significant denies neither another change nor a larger set."""

    def estimate(value: float, half: float) -> EffectEstimate:
        return EffectEstimate(value, value - half, value + half)

    free, dear = estimate(0.0, 0.001), estimate(0.5, 0.001)
    unsure, sure = estimate(-0.1, 0.2), estimate(-0.2, 0.05)
    first = _joint._Step({(1, 2): 0.0}, (1, 2), unsure, unsure, free)
    both = _joint._Step({(1, 2): 0.0, (3, 1): 0.5}, (3, 1), sure, sure, free)
    made: list[Any] = [object.__new__(kind) for kind in (Trials, Costs, _joint._Search)]
    trials, costs, search = made
    trials.where = 4
    vars(costs).update(budget=0.02, unit=" nats", given=False)
    vars(search).update(little=False, much=False, costs=costs, singles=1, sets=0)
    halves = Halves(["a", "b"], ["c", "d"], "text")

    def words(steps: list[Any], reported: int = 0) -> str:
        return _joint._words(EffectEstimate(0.35, 0.26, 0.44), trials, steps, reported, search, halves)

    together = words([first, both])
    assert "No set found" not in together
    assert "The set head 0 of layer 1 (α = 0) and the feed-forward part of layer 3 (α = 0.5) changes" in together
    assert words([first, replace(both, cost=dear)]).startswith("No set found lowers")
    alone = replace(first, kappa=sure, gain=sure)
    for step, why in (
        (replace(both, gain=unsure), "does not lower it sig"),
        (replace(both, cost=dear), "is above the"),
    ):
        further = words([alone, step], 1)
        assert "No further change" not in further
        assert f"next change found, the feed-forward part of layer 3 (α = 0.5), {why}" in further.replace(
            "the cost is", "is"
        )
    assert "next change" not in words([alone, both], 2)
    vars(search).update(little=True, relative=estimate(0.058, 0.1))
    assert words([]) == (
        "No change is needed to avoid consensus, as κ′ is 0.058 on the texts that choose, below 0.06. Similarity κ "
        "after layer 4 is 0.35 (95 % CI 0.26–0.44) on 2 others. None was tried."
    )
    vars(search).update(little=False)
    assert "1 single change was tried on 2 texts; the change found was measured on 2 others." in words([first])
    assert words([]).startswith("On the texts that choose, no part or head tried lowers similarity κ after layer 4 at")
    vars(search).update(singles=0)
    assert words([]) == (
        "To first order, turning down a part or head does not lower similarity κ after layer 4 in any layer; it is "
        "0.35 (95 % CI 0.26–0.44)."
    )


def costly(network: Any) -> float:
    """Whether anything was changed: 1 with a change, 0 without."""
    ids = torch.tensor([ids_of()[0]])
    with torch.no_grad():
        logits = network(ids).logits
    return float(not torch.equal(logits, alike()(ids).logits))


@pytest.mark.long
def test_a_loss_of_the_users_own_is_that_of_the_changed_network() -> None:
    network, prompts = alike(), ids_of(9)
    ids = torch.tensor([prompts[0]])

    def loss(given: Any) -> torch.Tensor:
        assert not torch.is_grad_enabled()
        return given(ids).logits.square().mean()

    answer = td.joint_levers(network, prompts, candidates=3, most=2, loss=loss, budget=1e6, sink_ratio=1e6)
    changes: dict[str, float] = {}
    with torch.no_grad():
        plain = float(loss(network))
        for step in range(answer.table.sizes["step"]):
            row = answer.table.isel(step=step)
            changes[str(row.change.item())] = float(row.alpha)
            assert float(row.loss_change) == pytest.approx(float(loss(edited(network, changes))) - plain, abs=1e-9)
    assert "nats" not in answer.text
    assert bool(answer.table.loss_change_interval.isnull().all())


@pytest.mark.long
def test_an_encoder_has_no_advice_without_a_loss_and_has_one_with() -> None:
    network, prompts = network_of("bert"), ids_of(9)
    unknown = td.joint_levers(network, prompts, candidates=3, most=2, sink_ratio=1e6)
    assert unknown.changes == {}
    known = td.joint_levers(network, prompts, candidates=3, most=2, loss=lambda network: 0.0, sink_ratio=1e6)
    np.testing.assert_array_equal(known.table.kappa_change, unknown.table.kappa_change)
    if unknown.table.sizes["step"] and float(unknown.table.gain_interval[0, 1]) < 0:
        assert unknown.text.startswith("No change is advised because the loss of this network is unknown.")
        assert known.changes


def test_spread_tokens_need_no_change() -> None:
    network = network_of("llama")
    with torch.no_grad():
        for block in network.model.layers:
            block.self_attn.o_proj.weight.zero_()
            block.mlp.down_proj.weight.mul_(1e-3)
    answer = td.joint_levers(network, ids_of(9), candidates=3, sink_ratio=1e6)
    assert answer.changes == {}
    assert answer.singles == answer.sets == answer.table.sizes["step"] == 0
    assert answer.text.startswith("No change is needed to avoid consensus")


@pytest.mark.parametrize(
    ("loss", "error", "words"),
    [
        (lambda network: float("nan"), ArgumentValueError, "a finite number for the network as it is"),
        (lambda network: torch.ones(3), ArgumentTypeError, "one number"),
        (lambda network: None, ArgumentTypeError, "one number"),
        (lambda network: True, ArgumentTypeError, "one number"),
    ],
)
def test_what_is_no_loss_is_refused(loss: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        td.joint_levers(network_of("llama"), ids_of(5), loss=loss)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"most": 0}, "most"),
        ({"candidates": 0}, "candidates"),
        ({"budget": -1.0}, "budget"),
        ({"budget": float("nan")}, "budget"),
        ({"sink_ratio": 1.0}, "sink_ratio"),
    ],
)
def test_settings_out_of_range_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentValueError, match=words):
        td.joint_levers(network_of("llama"), ids_of(5), **arguments)


@pytest.mark.parametrize(
    ("prompts", "words"), [(ids_of(4), "at least 5 texts"), ([ids_of(1)[0]] * 5, "a text different from")]
)
def test_too_few_and_equal_texts_are_refused(prompts: Any, words: str) -> None:
    with pytest.raises(ArgumentValueError, match=words):
        td.joint_levers(network_of("llama"), prompts)
