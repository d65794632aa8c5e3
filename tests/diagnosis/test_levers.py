"""Levers against differences, against parts removed by hand, and on networks whose collapse is known."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tokendynamics as td
from diagnosis.built_networks import BUILT, prompts_of
from diagnosis.built_transformer import Frame, blank
from diagnosis.text_halves import measuring
from pretrained.families import network_of
from tokendynamics.diagnosis import Levers
from tokendynamics.diagnosis.gating import _levers
from tokendynamics.diagnosis.gating import sensitivities as sensitivity_module
from tokendynamics.diagnosis.gating._levers import MUCH, SHARE, split_in_halves
from tokendynamics.diagnosis.gating._result import (
    CHEAP,
    LITTLE,
    Halves,
    LeverWords,
    advice_finding,
    contributing_layers,
    in_view_of,
    qualified,
)
from tokendynamics.diagnosis.gating.sensitivities import Sensitivities, reading_layer, sensitivities
from tokendynamics.diagnosis.gating.trials import Costs, EffectEstimate, Trial, Trials, jackknife_t
from tokendynamics.diagnosis.result import levers_in_words
from tokendynamics.diagnosis.verdict import Verdict, Worst
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.observables import shares
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained.other_libraries import silenced
from tokendynamics.provenance.progress import silent
from tokendynamics.results import Refused
from tokendynamics.words import Finding

ALL_LAYERS = "all layers do it and no single part helps"

ALONE: Any = {"heads": False, "directions": False, "baseline": None}
"""Options of a diagnosis that is looked at for its levers alone."""


def _ids(count: int, lengths: tuple[int, ...] = (9, 12, 7, 9, 10), seed: int = 1) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(3, 60, (lengths[place % len(lengths)],), generator=generator).tolist() for place in range(count)
    ]


def _network(family: str, *, head: bool = True, dtype: torch.dtype = torch.float64) -> Any:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    sizes = {"vocab_size": 61, "bos_token_id": 1, "eos_token_id": 2}
    if family == "gpt2":
        sizes |= {"n_embd": 24, "n_layer": 5, "n_head": 2, "n_positions": 64}
    else:
        sizes |= {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 5, "num_attention_heads": 2}
    kind = AutoModelForCausalLM if head and family != "bert" else AutoModel
    with silenced(), torch.random.fork_rng():
        torch.manual_seed(3)
        network = kind.from_config(AutoConfig.for_model(family, **sizes)).to(dtype).eval()
        for parameter in network.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return network


@cache
def _costs(budget: float = CHEAP) -> Costs:
    """Of the cross-entropy of any network."""
    return Costs(load(_network("gpt2")), None, budget)


def _first_order(ckpt: Checkpoint, prompts: list[list[int]], where: int | None = None) -> tuple[Sensitivities, Any]:
    packs = ckpt.packs([torch.tensor(prompt) for prompt in prompts])
    with ckpt.gated() as gated:
        return sensitivities(gated, packs, 4.0, silent, where), packs


@pytest.mark.long
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_derivatives_are_those_of_differences(family: str) -> None:
    ckpt = load(_network(family))
    computed, packs = _first_order(ckpt, _ids(6))
    assert computed.kappa.shape == (5, 2)
    with ckpt.gated() as gated:
        trials = Trials(gated, packs, computed.where, 4.0)
        for place in np.argsort(-np.abs(computed.kappa), axis=None)[:10]:
            layer, part = divmod(int(place), 2)
            above, below = trials.of_each([(layer + 1, part, alpha) for alpha in (1.01, 0.99)], silent, "")
            slope = (above.kappa_change.value - below.kappa_change.value) / 0.02
            assert computed.kappa[layer, part] == pytest.approx(slope, rel=0.05, abs=1e-6)
            slope = (above.loss_change.value - below.loss_change.value) / 0.02
            if family == "bert":
                assert np.isnan(computed.loss[layer, part])
            else:
                assert computed.loss[layer, part] == pytest.approx(slope, rel=0.05, abs=1e-5)


@pytest.mark.long
def test_derivatives_are_the_same_when_no_graph_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt = load(_network("gpt2"))
    kept, _ = _first_order(ckpt, _ids(6))
    monkeypatch.setattr(sensitivity_module, "_GRAPHS_SHARE", 0.0)
    again, _ = _first_order(ckpt, _ids(6))
    np.testing.assert_allclose(again.kappa, kept.kappa, rtol=1e-12)
    np.testing.assert_allclose(again.loss, kept.loss, rtol=1e-12)


def test_a_gate_behind_the_layer_that_is_read_does_nothing() -> None:
    computed, _ = _first_order(load(_network("llama")), _ids(6), where=3)
    assert bool((computed.kappa[3:] == 0).all())
    assert bool((computed.kappa[:3] != 0).all())


def test_kappa_and_loss_are_those_of_the_network() -> None:
    network = _network("llama")
    prompts = _ids(6)
    computed, _ = _first_order(ckpt := load(network), prompts)
    states = [ckpt.states(torch.tensor(prompt)).feed_forward for prompt in prompts]
    for depth in range(6):
        kappa = shares([state[depth] for state in states]).kappa
        assert computed.consensus[depth] == pytest.approx(float(kappa), rel=1e-9)
    with ckpt.gated() as gated:
        trials = Trials(gated, ckpt.packs([torch.tensor(prompt) for prompt in prompts]), 5, 1e6)
        losses = trials.plain.losses
    with torch.no_grad():
        reference = [float(network(torch.tensor([prompt]), labels=torch.tensor([prompt])).loss) for prompt in prompts]
    assert sorted(losses.tolist()) == pytest.approx(sorted(reference), rel=1e-6)


BRANCHES: dict[str, Callable[[Any, int], tuple[nn.Module, nn.Module]]] = {
    "gpt2": lambda net, layer: (net.h[layer].attn.c_proj, net.h[layer].mlp.c_proj),
    "bert": lambda net, layer: (
        net.encoder.layer[layer].attention.output.dense,
        net.encoder.layer[layer].output.dense,
    ),
    "gpt_neox": lambda net, layer: (net.layers[layer].attention.dense, net.layers[layer].mlp.dense_4h_to_h),
}
"""Last maps of attention and feed-forward part: pre-norm, post-norm and parallel blocks."""


@pytest.mark.few(5)
@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("family", BRANCHES)
def test_a_gate_is_the_branch_scaled_by_hand(family: str, alpha: float, part: int) -> None:
    network, _ = network_of(family)
    ckpt = load(network)
    ids = torch.tensor([_ids(1)[0]])
    (pack,) = ckpt.packs([ids])
    with ckpt.gated() as gated, torch.no_grad():
        gates = torch.ones(3, 2)
        gates[1, part] = alpha
        states = gated.run(pack, gates).states
    branch = BRANCHES[family](network, 1)[part]
    with torch.no_grad():
        for parameter in branch.parameters():
            parameter *= alpha
    torch.testing.assert_close(torch.cat(states), ckpt.states(ids).feed_forward, rtol=1e-4, atol=1e-5)


def test_a_norm_at_the_end_of_a_branch_stands_before_its_gate() -> None:
    network, _ = network_of("gemma2")
    ckpt = load(network)
    ids = torch.tensor([_ids(1)[0]])
    (pack,) = ckpt.packs([ids])
    with ckpt.gated() as gated, torch.no_grad():
        gates = torch.ones(3, 2)
        gates[1, 0] = 0.0
        states = gated.run(pack, gates).states
    network.layers[1].post_attention_layernorm.weight.data.fill_(-1.0)  # its gain is 1 + weight
    torch.testing.assert_close(torch.cat(states), ckpt.states(ids).feed_forward, rtol=1e-4, atol=1e-4)


class _Mean(nn.Module):
    """Uniform attention of all to all, without a norm: adds the mean of the tokens times a strength."""

    def __init__(self, strength: float, dim: int) -> None:
        super().__init__()
        self.value = nn.Linear(dim, dim, bias=False)
        self.value.weight.data = strength * torch.eye(dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.value(x.mean(dim=1, keepdim=True).expand_as(x))


class _Block(nn.Module):
    def __init__(self, strength: float, dim: int) -> None:
        super().__init__()
        self.attention = _Mean(strength, dim)
        self.feed_forward = nn.Linear(dim, dim)
        self.feed_forward.weight.data *= 0.02
        self.feed_forward.bias.data *= 0.02

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.feed_forward(x)


class Averaging(nn.Module):
    """Layers that add means of given strengths: κ of 16 independent tokens is known."""

    def __init__(self, strengths: list[float], dim: int = 32) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.table = nn.Embedding(500, dim)
            self.blocks = nn.ModuleList([_Block(strength, dim) for strength in strengths])

    def forward(self, idx: Tensor) -> Tensor:
        x = self.table(idx)
        for block in self.blocks:
            x = block(x)
        return x


def _averaging(strengths: list[float]) -> Checkpoint:
    return load(Averaging(strengths), inputs=lambda count: {"idx": torch.randint(0, 500, (count, 7))})


def _prompts(count: int = 12) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(9)
    return [{"idx": torch.randint(0, 500, (1, 16), generator=generator)} for _ in range(count)]


@pytest.mark.long
def test_a_collapse_that_one_layer_makes_is_traced_to_it() -> None:
    lever_table = td.levers(_averaging([0.02, 0.02, 0.02, 2.5, 0.02]), _prompts())
    assert lever_table.answer == "one part does it, at an unknown cost"
    assert "A single part causes most of the similarity:" not in lever_table.text
    assert "at an unknown cost: the attention of layer 4." in lever_table.text
    assert lever_table.where == 5
    assert 0.2 < lever_table.kappa < 0.6
    assert lever_table.text == str(lever_table)
    assert "the attention of layer 4. Scaled to α = 0, it lowers similarity κ after layer 5 from" in lever_table.text
    assert "Whether that helps is not measured because" in lever_table.text
    first = lever_table.table.isel(candidate=1)
    assert (int(first.candidate_layer), str(first.candidate_part.values), float(first.alpha)) == (4, "attention", 0.0)
    assert bool(first.verified)
    assert lever_table.kappa + float(first.kappa_change) < 0.06
    assert float(first.kappa_interval.sel(bound="high")) < 0
    assert int(lever_table.table.consensus_sensitivity.sel(component="attention").values.argmax()) == 3


@pytest.mark.long
def test_a_part_that_writes_far_beyond_the_states_is_tried_though_it_has_no_derivative() -> None:
    """A little less of one large direction is the same direction: to first order its gate does nothing."""
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, vocab_size=200
    )
    network, source = LlamaModel(config).eval(), torch.Generator().manual_seed(1)
    block: Any = network.layers[1]
    block.self_attn.o_proj.weight.data = (
        30 * torch.randn(32, 1, generator=source) @ torch.randn(1, 32, generator=source)
    )
    prompts = torch.randint(0, 200, (16, 20), generator=source).tolist()
    levers = td.levers(network, prompts, candidates=3)
    sensitivity = levers.table.consensus_sensitivity.sel(component="attention")
    assert float(sensitivity.sel(layer=2)) < 0.5 * float(sensitivity.max())
    assert levers.answer.startswith("one part does it")
    assert "the attention of layer 2" in levers.text


def test_parts_to_try_are_those_of_derivatives_and_of_the_layer_that_rises() -> None:
    kappa = np.array([[0.3, 0.2], [0.0, np.nan], [0.1, -0.5]])
    first = Sensitivities(kappa, np.full((3, 2), np.nan), np.array([0.1, 0.2, 0.7, 0.6]), 3)
    assert first.rising_layer == 2
    assert [first.parts_to_try(2, count) for count in (1, 2, 3, 9)] == [
        [(1, 0)],
        [(1, 0), (2, 0)],
        [(1, 0), (1, 1), (2, 0)],
        [(1, 0), (1, 1), (3, 0), (2, 0)],
    ]
    third = replace(first, consensus=np.array([0.1, 0.2, 0.2, 0.7]))
    # Layer 3 rises and is the third by its derivative; of equal room it goes before the second.
    assert [third.parts_to_try(2, count) for count in (1, 2, 3)] == [
        [(1, 0)],
        [(1, 0), (3, 0)],
        [(1, 0), (3, 0), (3, 1)],
    ]
    assert replace(first, where=1).rising_layer == 1
    falling = replace(first, consensus=np.array([0.7, 0.2, 0.1, 0.1]))
    assert (falling.rising_layer, falling.parts_to_try(2, 2)) == (None, [(1, 0), (1, 1)])


@pytest.mark.long
def test_a_collapse_that_all_layers_make_has_no_single_lever() -> None:
    lever_table = td.levers(_averaging([0.7] * 6), _prompts())
    assert lever_table.answer == ALL_LAYERS
    assert lever_table.kappa > 0.9
    assert "No single part was found whose removal halves the similarity" in lever_table.text
    assert "a single part causes" not in lever_table.text.lower()
    assert float(-lever_table.table.kappa_change.min()) < SHARE * lever_table.kappa


@pytest.mark.long
def test_a_collapse_that_some_layers_make_is_not_said_of_all() -> None:
    lever_table = td.levers(_averaging([1e-3, 1.5, 1e-3, 1e-3, 1.5, 1e-3, 1.5, 1e-3]), _prompts())
    assert lever_table.answer == "some layers do it and no single part helps"
    assert (
        "No single part was found whose removal halves the similarity, and it rises in 3 of layers 1–8 (layers 2, 5, "
        "7)." in lever_table.text
    )
    assert "all layers" not in lever_table.text


@pytest.mark.parametrize(
    ("consensus", "where", "layers"),
    [
        ([0.0, 0.3, 0.6, 0.8, 0.9], 4, (1, 2, 3, 4)),
        ([0.0, 0.3, 0.6, 0.8, 0.9], 2, (1, 2)),
        ([0.1, 0.1, 0.9, 0.9001, 0.89], 4, (2,)),
        ([0.0, 0.9, 0.99, 0.999, 1.0], 4, (1, 2, 3, 4)),
        ([0.3, 0.2, 0.1], 2, ()),
    ],
)
def test_layers_that_do_it_are_counted(consensus: list[float], where: int, layers: tuple[int, ...]) -> None:
    assert contributing_layers(np.array(consensus), where) == layers


def test_an_answer_is_qualified_by_what_is_not_known() -> None:
    free, costly = _trial(-0.3, float("nan")), _trial(-0.3, 0.0)
    assert qualified("one part does it", free, (1, 2), 2) == "one part does it, at an unknown cost"
    assert qualified("one part does it", costly, (1, 2), 2) == "one part does it"
    assert qualified(ALL_LAYERS, costly, (1, 2), 2) == ALL_LAYERS
    assert qualified(ALL_LAYERS, costly, (2,), 2) == "some layers do it and no single part helps"
    assert qualified("nothing needs doing", None, (2,), 2) == "nothing needs doing"


def test_more_than_all_of_kappa_is_no_share_of_it() -> None:
    whole = _sentences(0.4, 0.4, _trial(-0.45, 0.01))
    assert "from 0.40 to −0.05. κ changes by −0.450 (" in whole
    assert "%" not in whole.split(" the loss")[0].replace("95 % CI", "")


@pytest.mark.long
@pytest.mark.parametrize(("name", "needed"), [("line, width 16", True), ("nothing, width 16, short prompts", False)])
def test_nothing_is_said_to_need_nothing_beside_a_collapse_that_kappa_does_not_see(name: str, needed: bool) -> None:
    built = next(entry for entry in BUILT if entry.name == name)
    diagnosis = td.diagnose(built.checkpoint(), built.prompts(), **ALONE)
    assert (diagnosis.verdict.state == "rank collapse") == needed
    assert isinstance(diagnosis.levers, Levers)
    assert (diagnosis.levers.answer == "not tried for this state") == needed
    words = levers_in_words(diagnosis)
    assert ("No change is needed" in words) != needed
    beginning = "No lever was tried for the rank collapse after layer 10 because κ does not measure a collapse onto a "
    assert words.startswith(beginning) == needed


def test_a_collapse_on_the_way_counts_too() -> None:
    lever_table = td.levers(_averaging([0.01] * 5), _prompts())
    states: tuple[Any, ...] = ("spread", "consensus", "consensus", "spread", "spread")
    undone = Verdict("spread", Worst("consensus", 2, (2, 3)), states, (), ())
    beginning = (
        "No lever was tried for the consensus after layers 2–3 because κ was read after layer 5. Similarity κ aft"
    )
    assert in_view_of(lever_table, undone).text.startswith(beginning)
    stored = replace(
        lever_table,
        text=lever_table.text.replace(
            "No change is needed to avoid consensus. ", "Nothing needs doing about consensus: "
        ),
    )
    assert "Nothing needs doing" not in in_view_of(stored, undone).text  # as earlier versions wrote it
    healthy = Verdict("spread", Worst("spread", 2, (2,)), ("spread",) * 5, (), ())
    assert in_view_of(lever_table, healthy) is lever_table


def test_nothing_needs_doing_where_tokens_stay_apart() -> None:
    lever_table = td.levers(_averaging([0.01] * 5), _prompts())
    assert lever_table.answer == "nothing needs doing"
    assert abs(lever_table.kappa) < LITTLE
    assert "share little" in lever_table.text


def test_the_convention_says_after_which_layer_kappa_is_read_and_why() -> None:
    halves = Halves(["a", "b"], ["c", "d", "e"], "image")

    def words(where: int) -> dict[str, str]:
        first = Sensitivities(np.zeros((3, 2)), np.zeros((3, 2)), np.array([0.0, 0.9, 0.5, 0.97]), where)
        return {entry.name: entry.choice for entry in _levers._conventions(first, halves, _costs())}

    assert words(3)["where κ is read"] == "after layer 3, the last"
    earlier = (
        "after layer 1, where κ′ is largest on the images that propose candidates, because κ at the end is outside "
    )
    assert words(1)["where κ is read"] == f"{earlier}0.05 … 0.95 on them"
    assert words(3)["images"].endswith("proposes candidates (2), the others measure them (3)")


def test_neither_kinds_that_alternate_nor_blocks_of_a_kind_fill_a_half() -> None:
    for count in range(5, 49):
        finding, measuring = map(set, split_in_halves(count))
        assert finding | measuring == set(range(count))
        assert (len(finding), len(measuring)) == (count // 2, count - count // 2)
        alternating = [set(range(kind, count, cycle)) for cycle in (2, 3, 4) for kind in range(cycle)]
        blocks = [set(range(count // 2)), set(range(count // 2, count))]
        for kind in (*alternating, *blocks):
            if len(kind) >= 3 and (count, min(kind), len(kind)) != (11, 2, 3):
                assert finding & kind, (count, kind)
                assert measuring & kind, (count, kind)
        for kind in (*alternating[:2], *blocks):
            assert abs(len(finding & kind) - len(measuring & kind)) <= 3, (count, kind)


@pytest.mark.long
def test_the_effect_that_is_reported_is_measured_on_texts_that_did_not_choose_it() -> None:
    ckpt, prompts = _averaging([0.02, 2.5]), _prompts(7)
    lever_table = td.levers(ckpt, prompts, candidates=1)
    assert lever_table.table.found_on.values.tolist() == ["prompt 1", "prompt 4", "prompt 6"]
    assert lever_table.table.measured_on.values.tolist() == ["prompt 2", "prompt 3", "prompt 5", "prompt 7"]

    def kappa(network: Checkpoint) -> float:
        return float(shares([network.states(prompt).feed_forward[-1] for prompt in measuring(prompts)]).kappa)

    assert lever_table.kappa == pytest.approx(kappa(ckpt), rel=1e-5)
    changes = [kappa(_averaging([0.02, strength])) - kappa(ckpt) for strength in (1.25, 0.0)]
    assert lever_table.table.kappa_change.values == pytest.approx(changes, rel=1e-4)


@pytest.mark.long
def test_what_the_answer_names_is_measured_at_every_depth_by_what_if() -> None:
    ckpt, prompts = _averaging([0.02, 2.5]), _prompts(7)
    lever_table = td.levers(ckpt, prompts, candidates=1, sinks=())
    assert lever_table.best is not None
    assert lever_table.effect is not None
    assert lever_table.changes == {"layer 2 attention": float(lever_table.table.alpha[lever_table.best])}
    changed = ckpt.under(lever_table.changes)
    measured = {f"prompt {number}": prompts[number - 1] for number in (2, 3, 5, 7)}
    both = [td.trace(entry, measured, sinks=()).sel(site="feed_forward") for entry in (ckpt, changed)]
    selected = lever_table.effect.sel(site="feed_forward")
    for name in ("consensus_within", "centred_cos2"):
        np.testing.assert_allclose(selected[name], [entry[name] for entry in both], atol=1e-12)
    gap = float(both[1].consensus_within[-1] - both[0].consensus_within[-1])
    assert float(lever_table.table.kappa_change[lever_table.best]) == pytest.approx(gap, rel=1e-6)
    assert float(selected.consensus_within_difference[-1]) == pytest.approx(gap, rel=1e-9)


def test_levers_are_read_as_their_dataset() -> None:
    lever_table = td.levers(load(_network("gpt2")), _ids(5), candidates=1)
    row = lever_table.sel(layer=2, component="attention")
    assert float(row.loss_sensitivity) == float(lever_table["loss_sensitivity"][1, 0])
    assert float(row.loss_sensitivity) == float(lever_table.table.loss_sensitivity[1, 0])
    assert lever_table.sizes["layer"] == len(lever_table.layer)
    assert copy.deepcopy(lever_table).text == pickle.loads(pickle.dumps(lever_table)).text == lever_table.text  # noqa: S301  # our own
    with pytest.raises(AttributeError, match="no_such"):
        _ = lever_table.no_such


def test_what_the_answer_does_not_name_is_not_measured_again() -> None:
    lever_table = td.levers(_averaging([0.01] * 5), _prompts())
    assert "share little" in lever_table.text
    assert (lever_table.best, lever_table.effect, lever_table.changes) == (None, None, {})


@pytest.mark.long
def test_a_network_with_a_head_has_a_cost() -> None:
    network = _network("gpt2")
    lever_table = td.levers(load(network), _ids(8), candidates=2)
    assert bool(np.isfinite(lever_table.table.loss_sensitivity).all())
    assert bool(np.isfinite(lever_table.table.loss_interval).all())
    assert re.search(r"the loss by [+−0-9.]+ \(95 % CI .*\) nats\. ", lever_table.text)
    assert {convention.name for convention in lever_table.conventions} >= {"gate", "texts", "intervals", "verdict"}


def _trial(change: float, cost: float, *, resolved: bool = True) -> Trial:
    ends = (change - 0.01, change + 0.01) if resolved else (-1.0, 1.0)
    return Trial(1, 0, 0.5, EffectEstimate(change, *ends), EffectEstimate(cost, cost - 0.1, cost + 0.1))


def _says(kappa: float, relative: float, *tried: Trial) -> str:
    return _levers._answer(EffectEstimate(kappa, 0, 1), EffectEstimate(relative, 0, 1), tried, _costs())[0]


def test_each_answer_has_its_opposite() -> None:
    half = -SHARE * 0.4
    assert _says(0.4, 0.4, _trial(half, 0.0)) == "one part does it"
    assert _says(0.4, 0.4, _trial(half + 0.001, 0.0)) == "nothing needs doing"
    assert _says(0.4, 0.4, _trial(half, 0.0, resolved=False)) == "nothing needs doing"
    assert _says(0.4, 0.4, _trial(half, CHEAP)) == "one part does it"
    assert _says(0.4, 0.4, _trial(half, CHEAP + 0.001)) == "nothing needs doing"
    assert _says(0.4, 0.4, _trial(half, float("nan"))) == "one part does it"
    assert _says(0.4, LITTLE - 0.001, _trial(half, 0.0)) == "nothing needs doing"
    assert _says(0.4, LITTLE, _trial(half, 0.0)) == "one part does it"
    assert _says(0.8, MUCH, _trial(-0.4, 1.0)) == "one part does it"
    assert _says(0.8, MUCH, _trial(-0.3, 0.0)) == ALL_LAYERS
    assert _says(0.8, MUCH - 0.001, _trial(-0.3, 0.0)) == "nothing needs doing"
    assert _says(0.8, MUCH) == ALL_LAYERS


def test_of_a_similarity_that_is_negative_at_the_embedding_a_part_must_remove_half_of_the_rise() -> None:
    # κ −0.24 where it was −0.38 at the embedding, and 0.02 where it was −0.31
    for kappa, relative in ((-0.24, 0.1), (0.02, 0.25)):
        rise = relative * (1 - kappa) / (1 - relative)
        assert _says(kappa, relative, _trial(-0.49 * rise, 0.0)) == "nothing needs doing"
        assert _says(kappa, relative, _trial(-0.51 * rise, 0.0)) == "one part does it"
    assert _says(1.0, 1.0, _trial(-0.6, 0.0)) == "one part does it"


def _answered(
    kappa: float,
    relative: float,
    *tried: Trial,
    where: int = 6,
    normed: bool = True,
    layers: tuple[int, ...] | None = None,
    costs: Costs | None = None,
    half: float = 0.1,
) -> tuple[str, str]:
    """Return the answer in sentences, and as advice; intervals reach `half` to both sides."""
    costs = _costs() if costs is None else costs
    estimates = (
        EffectEstimate(kappa, kappa - half, kappa + half),
        EffectEstimate(relative, relative - half, relative + half),
    )
    answer, best = _levers._answer(*estimates, tried, costs)
    halves = Halves(["e", "f"], ["a", "b", "c", "d"], "text")
    making = tuple(range(1, where + 1)) if layers is None else layers
    answer = qualified(answer, best, making, where)
    words = LeverWords(where, *estimates, tried, halves, normed, making, costs)
    return words.of(answer, best), words.advice(answer, best)


def _sentences(kappa: float, relative: float, *tried: Trial, **facts: Any) -> str:
    return _answered(kappa, relative, *tried, **facts)[0]


def _advice(kappa: float, relative: float, *tried: Trial, **facts: Any) -> str:
    return _answered(kappa, relative, *tried, **facts)[1]


def test_a_loss_that_was_passed_has_no_unit_and_no_interval() -> None:
    costs = _costs(0.5)
    costs.unit, costs.of_loss = "", " in the loss that was passed"
    cheap, dear = (replace(_trial(-0.1, 0.0), loss_change=EffectEstimate(cost, np.nan, np.nan)) for cost in (0.1, 0.7))
    best = _sentences(0.4, 0.4, cheap, dear, costs=costs)
    assert "at an estimated cost of at most 0.5 is the attention of layer 1 at α = 0.5. " in best
    assert "and the loss by +0.100." in best
    assert "lowers similarity by 25 % at +0.100 in the loss that was passed." in _advice(0.4, 0.4, cheap, costs=costs)
    words = "Turning down the one part tried costs more than 0.5 in the loss that was passed."
    assert words in _sentences(0.4, 0.4, dear, costs=costs)
    assert not any("nats" in words for words in (best, _sentences(0.4, 0.4, dear, costs=costs)))


@pytest.mark.long
def test_a_loss_that_is_passed_decides_which_part_helps() -> None:
    network, prompts = _network("llama"), _ids(8)
    ids = torch.tensor([prompts[0]])

    def loss(given: Any) -> torch.Tensor:
        return given(ids).logits.square().mean()

    plain = levers_of(network, prompts)
    result = levers_of(network, prompts, loss=loss, budget=1e6)
    np.testing.assert_allclose(result.kappa_change, plain.kappa_change, atol=1e-12)
    assert bool(result.loss_sensitivity.isnull().all())
    assert bool(result.loss_interval.isnull().all())
    assert (plain.table.attrs["loss_unit"], result.table.attrs["loss_unit"]) == ("nats", "")
    for place in range(result.table.sizes["candidate"]):
        row = result.table.isel(candidate=place)
        block = (changed := copy.deepcopy(network)).model.layers[int(row.candidate_layer) - 1]
        part = block.self_attn.o_proj if row.candidate_part.item() == "attention" else block.mlp.down_proj
        with torch.no_grad():
            part.weight.mul_(float(row.alpha))
            assert float(row.loss_change) == pytest.approx(float(loss(changed)) - float(loss(network)), abs=1e-9)


def levers_of(network: Any, prompts: list[list[int]], **chosen: Any) -> Levers:
    return td.levers(network, prompts, candidates=2, sink_ratio=1e6, **chosen)


@pytest.mark.parametrize(
    ("chosen", "error", "words"),
    [
        ({"loss": lambda network: float("nan")}, ArgumentValueError, "a finite number for the network as it is"),
        ({"loss": lambda network: torch.ones(3)}, ArgumentTypeError, "one number"),
        ({"budget": -1.0}, ArgumentValueError, "budget"),
        ({"budget": float("inf")}, ArgumentValueError, "budget"),
    ],
)
def test_what_is_no_loss_and_no_budget_is_refused(chosen: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        levers_of(_network("llama"), _ids(5), **chosen)


def test_each_sentence_says_what_was_measured() -> None:
    texts = "Measured on 4 texts (a, b, c and d); candidates were chosen on 2 others."
    one = _sentences(0.4, 0.4, _trial(-0.3, 0.01))
    assert one == (
        "A single part causes most of the similarity: the attention of layer 1. Scaled to α = 0.5, it lowers "
        "similarity κ after layer 6 from 0.40 to 0.10, by 75 %. κ changes by −0.300 (95 % CI −0.310 to −0.290), the "
        f"loss by +0.010 (95 % CI −0.090 to 0.110) nats. {texts}"
    )
    every = _sentences(0.9, 0.9, _trial(-0.1, 0.5), _trial(0.1, 0.0))
    assert every.startswith(
        "No single part was found whose removal halves the similarity, and it rises in all of layers 1–6. "
        "Similarity κ after layer 6 is 0.90 (95 % CI 0.80–1.00). The "
    )
    assert "The one part tried is the attention of layer 1 at α = 0.5. It changes κ by −0.100" in every
    assert "and the loss by +0.500" in every
    assert "or of their initial weights, or the position of the norms. Measured" in every
    bare = _sentences(0.9, 0.9, _trial(-0.1, 0.5), where=1, normed=False)
    assert bare.startswith(
        "No single part was found whose removal halves the similarity. Similarity κ after layer 1 is 0.90"
    )
    assert "or of their initial weights. Measured" in bare
    healthy = _sentences(0.3, 0.3, _trial(-0.2, 0.5), _trial(-0.05, 0.01))
    assert "tried at an estimated cost of at most 0.02 nats is the attention of layer 1" in healthy
    assert " at α = 0.5. It changes κ by −0.050" in healthy
    assert "Training can" not in healthy
    assert "costs more than 0.02 nats" in _sentences(0.3, 0.3, _trial(-0.2, 0.5))
    unsure = _sentences(0.3, 0.3, _trial(-0.2, 0.05), _trial(-0.2, 0.03))  # an interval of the cost that holds 0
    assert "costs more than" not in unsure
    assert "None of the 1 parts" not in unsure
    assert "Turning down the one part tried may cost more than 0.02 nats of loss." in unsure
    assert "The smallest estimated cost is +0.030 (95 % CI −0.070 to 0.130), for the attention of layer 1" in unsure
    assert "To first order, turning down a part does not lower it in any layer." in _sentences(0.3, 0.3)
    little = _sentences(0.01, 0.01, _trial(-0.2, 0.5), half=0.04)
    assert "κ′ is 0.01 (95 % CI −0.03 to 0.05), so tokens of one text share little beyond that." in little
    # An interval that holds more than a little does not allow to say so, whatever the sign of the estimate.
    for value in (0.01, -0.3):
        unknown = _sentences(value, value, _trial(-0.2, 0.5), half=0.4)
        assert "share little" not in unknown
        assert "but the interval also allows values above 0.06." in unknown
        assert unknown.startswith("No change is needed to avoid consensus. ")
    for value in (0.01, 0.3):  # consensus begins at 0.72
        assert _sentences(value, value, half=0.8).startswith("No change is shown to be needed to avoid consensus. ")
    assert "at an unknown cost" in _sentences(0.3, 0.3, _trial(-0.01, float("nan")))
    assert "nan" not in _sentences(0.3, 0.3, _trial(float("nan"), 0.0), _trial(-0.05, 0.01))


def test_the_advice_says_the_same_without_symbols() -> None:
    one = "A single part causes most of the similarity: the attention of layer 1. "
    lowered = "similarity after layer 6 falls by 75 %"
    assert _advice(0.4, 0.4, _trial(-0.3, 0.01)) == (
        f"{one}With it scaled by 0.5, {lowered}, and the loss changes by +0.010 (95 % CI −0.090 to 0.110) nats."
    )
    assert _advice(0.4, 0.4, replace(_trial(-0.3, 0.01), alpha=0.0)).startswith(f"{one}Without it, {lowered}, and")
    assert _advice(0.4, 0.4, _trial(-0.3, float("nan"))) == (
        f"{one}With it scaled by 0.5, {lowered}. The cost is unknown because no head that predicts the next token "
        "was found, so no change is recommended."
    )
    every = _advice(0.9, 0.9, _trial(-0.1, 0.5))
    still = "{} the one part tried, the attention of layer 1, {} leaves similarity at 0.80."
    contribute = "No single part was found whose removal halves the similarity, and it rises in all of layers 1–6."
    assert every.startswith(
        f"{contribute} {still.format('Scaling', 'by 0.5')} Training can change what all layers share"
    )
    removed = _advice(0.9, 0.9, replace(_trial(-0.1, 0.5), alpha=0.0), replace(_trial(-0.05, 0.5), layer=2))
    most = "Removing the most effective of 2 parts tried, the attention of layer 1, leaves similarity at 0.80."
    assert removed.startswith(f"{contribute} {most} Training")
    assert _advice(0.9, 0.9).startswith(f"{contribute} Training")
    some = _advice(0.9, 0.9, _trial(-0.1, 0.5), layers=(2, 5))
    assert some == (
        "No single part was found whose removal halves the similarity, and it rises in 2 of layers 1–6 (layers 2, 5). "
        f"{still.format('Scaling', 'by 0.5')} Combinations of parts were not tried."
    )
    needless = "No change is needed to avoid consensus."
    change = "Of the one part tried, the most effective affordable change, the attention of layer 1 scaled by 0.5,"
    assert _advice(0.3, 0.3) == needless
    assert (
        _advice(0.3, 0.3, _trial(-0.05, 0.01))
        == f"{needless} {change} lowers similarity by 17 % at +0.010 nats of loss."
    )
    assert _advice(0.3, 0.01, _trial(-0.05, 0.01)) == needless  # of little similarity no share is said
    assert "falls by 0.45, and" in _advice(0.4, 0.4, _trial(-0.45, 0.01))  # more than all of it is no share
    unclear = _trial(-0.05, 0.01, resolved=False)
    assert _advice(0.3, 0.3, unclear) == f"{needless} {change} does not lower similarity significantly."
    dear = _advice(0.3, 0.3, _trial(-0.2, 0.5))  # what is not affordable is no advice
    assert dear == f"{needless} Turning down the one part tried costs more than 0.02 nats of loss."
    unsure = _advice(0.3, 0.3, _trial(-0.2, 0.05))
    assert unsure == f"{needless} Turning down the one part tried may cost more than 0.02 nats of loss."
    two = _advice(0.3, 0.3, _trial(-0.2, 0.5), replace(_trial(-0.2, 0.5), layer=2))
    assert two == f"{needless} Turning down any of the 2 parts tried costs more than 0.02 nats of loss."
    assert _advice(0.3, 0.3, _trial(-0.05, float("nan"))) == (
        f"{needless} Of the one part tried, the most effective change, the attention of layer 1 scaled by 0.5, lowers "
        "similarity by 17 % at an unknown cost."
    )
    wide = replace(_trial(-0.1, 0.01, resolved=False), layer=2)  # a larger effect denies no smaller significant one
    both = _answered(0.3, 0.3, wide, _trial(-0.05, 0.01))
    assert "most effective of 2 parts tried with a significant effect at an estimated cost of at most" in both[0]
    assert both[1].endswith(
        "Of 2 parts tried, the most effective affordable change with a significant effect, the attention of layer 1 "
        "scaled by 0.5, lowers similarity by 17 % at +0.010 nats of loss."
    )


def test_the_advice_of_a_diagnosis_does_not_contradict_its_state() -> None:
    lever_table = td.levers(_averaging([0.01] * 5), _prompts())
    states: tuple[Any, ...] = ("spread",) * 4
    sick = Verdict("rank collapse", Worst("rank collapse", 5, (5,)), (*states, "rank collapse"), (), ())
    advice = advice_finding(in_view_of(lever_table, sick), sick).text
    assert advice.startswith("No lever was tried for the rank collapse after layer 5. Similarity does not measure a ")
    assert "No change is needed" not in advice
    causing = replace(
        lever_table,
        answer=ALL_LAYERS,
        advice="No single part was found whose removal halves the similarity, and it rises in all of layers 1–6.",
    )
    advice = advice_finding(in_view_of(causing, sick), sick).text
    assert advice.startswith(
        "No single part was found whose removal halves the similarity, and it rises in all of layers 1–6. "
        "Similarity does not measure a "
    )
    assert advice.endswith(", so nothing was tried for it.")
    healthy = Verdict("spread", Worst("spread", 2, (2,)), ("spread",) * 5, (), ())
    assert advice_finding(in_view_of(lever_table, healthy), healthy).text == lever_table.advice
    assert advice_finding(Refused("it is streamed"), healthy).text == "Nothing was tried: it is streamed."


def test_texts_whose_tokens_all_point_one_way_have_no_kappa() -> None:
    ckpt = _averaging([0.1, 0.1])
    ckpt.model.get_submodule("table").get_parameter("weight").data[:] = 1.0
    with pytest.raises(ArgumentValueError, match="texts: expected tokens that point in more than one"):
        td.levers(ckpt, _prompts(5))


@pytest.mark.parametrize(("end", "where"), [(0.04, 2), (0.05, 3), (0.95, 3), (0.96, 3), (float("nan"), 2)])
def test_kappa_is_read_at_the_end_unless_it_is_flat_there(end: float, where: int) -> None:
    assert reading_layer(torch.tensor([0.0, 0.1, 0.7, end], dtype=torch.float64)) == where


def test_the_jackknife_is_that_of_a_loop() -> None:
    values = torch.tensor([0.3, 0.9, 0.4, 0.7], dtype=torch.float64)
    result = jackknife_t(lambda prompts: float(values[prompts].var()), 4)
    left = [float(values[[other for other in range(4) if other != place]].var()) for place in range(4)]
    pseudo = [4 * float(values.var()) - 3 * entry for entry in left]
    half = 3.182446 * np.std(pseudo, ddof=1) / 2
    assert (result.low, result.high) == pytest.approx((result.value - half, result.value + half), rel=1e-6)


def test_the_jackknife_of_a_biased_number_stands_around_its_own_estimate() -> None:
    """As every other interval of a diagnosis does: a variance over n and not n − 1 comes out too small."""
    values = torch.tensor([0.3, 0.9, 0.4, 0.7], dtype=torch.float64)
    result = jackknife_t(lambda prompts: float(values[prompts].var(correction=0)), 4)
    assert result.value == pytest.approx(0.75 * float(values.var()), rel=1e-14)
    assert (result.low + result.high) / 2 == pytest.approx(
        float(values.var()), rel=1e-13
    )  # what the jackknife corrects


def _marks(network: Any) -> list[Any]:
    hooks = [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in network.modules()]
    flags = [(parameter.requires_grad, parameter.grad is None) for parameter in network.parameters()]
    return [hooks, flags, [module.training for module in network.modules()], network.config.use_cache]


@pytest.mark.long
def test_the_network_is_as_it_was_also_after_an_error() -> None:
    network = _network("gpt2", dtype=torch.float32).train()
    next(network.parameters()).requires_grad_(False)
    ckpt = load(network)
    before, weights = _marks(network), [parameter.clone() for parameter in network.parameters()]
    td.levers(ckpt, _ids(5), candidates=1)
    assert _marks(network) == before

    def fail(*_: Any) -> None:
        raise RuntimeError("a cable is loose")

    handle = network.transformer.h[3].register_forward_hook(fail)
    with pytest.raises(CheckpointError, match="runs with gates, got a cable is loose"):
        td.levers(ckpt, _ids(5), candidates=1)
    handle.remove()
    assert _marks(network) == before
    assert all(torch.equal(one, other) for one, other in zip(weights, network.parameters(), strict=True))


def test_gates_leave_other_passes_alone_and_work_without_gradients_around() -> None:
    ckpt = load(_network("gpt2"))
    ids = torch.tensor(_ids(1)[0])
    alone = ckpt.states(ids).feed_forward
    with ckpt.gated():
        torch.testing.assert_close(ckpt.states(ids).feed_forward, alone, rtol=0, atol=0)
    with torch.no_grad():
        quiet, _ = _first_order(ckpt, _ids(5))
    np.testing.assert_array_equal(quiet.kappa, _first_order(ckpt, _ids(5))[0].kappa)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (_ids(4), "at least 5 texts (half of them propose candidates, the others verify them), got 4"),
        ("one text", "at least 5 texts"),
        ([*_ids(5), _ids(1)[0]], "prompt 6: expected a text different from prompt 1, got the same one"),
        (
            [*_ids(4), [7]],
            "texts: expected at least 5 texts of two tokens or more (half of them propose candidates, the others "
            "verify them), got 4 besides 1 text of one token",
        ),
        ([*_ids(5), []], "prompt 6"),
    ],
)
def test_wrong_texts_are_refused(texts: Any, words: str) -> None:
    with pytest.raises((ArgumentTypeError, ArgumentValueError)) as refusal:
        td.levers(load(_network("gpt2")), texts)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.long
def test_prompts_of_one_token_are_left_out_and_named() -> None:
    ckpt, texts = load(_network("gpt2")), _ids(6)
    usual, beside = td.levers(ckpt, texts), td.levers(ckpt, [*texts[:2], [7], *texts[2:]])
    np.testing.assert_array_equal(beside.table.consensus_sensitivity, usual.table.consensus_sensitivity)
    np.testing.assert_array_equal(beside.table.kappa_change, usual.table.kappa_change)
    assert beside.text.endswith("candidates were chosen on 3 others. Left out because it has one token: prompt 3.")
    assert "Left out" not in usual.text
    (convention,) = (entry for entry in beside.conventions if entry.name == "texts")
    assert convention.choice.endswith("the others measure them (3); 1 of one token left out")
    two = td.levers(ckpt, [*texts, [7], [8]]).text
    assert two.endswith("Left out because they have one token each: prompt 7 and prompt 8.")
    assert td.head_effects(ckpt, [*texts, [7]]).attrs["left_out"] == "Left out because it has one token: prompt 7."
    with_one = td.diagnose(ckpt, [*texts, [7]], baseline=None, remedies=False, joint=False)
    assert isinstance(with_one.levers, Levers)
    assert "Left out because it has one token: prompt 7." in with_one.levers.text
    assert not isinstance(with_one.heads, Refused)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", [{"candidates": 0}, {"candidates": 1.5}, {"sink_ratio": 1.0}, {"packed": "yes"}])
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((ArgumentTypeError, ArgumentValueError), match=next(iter(wrong))):
        td.levers(load(_network("gpt2")), _ids(5), **wrong)


def test_a_layer_whose_parts_are_not_found_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twisted(_Block):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x + self.attention(x)) * 2

    network = Averaging([0.1, 0.1])
    network.blocks[1] = Twisted(0.1, 32)
    ckpt = load(network, inputs=lambda count: {"idx": torch.randint(0, 500, (count, 7))})
    with pytest.raises(CheckpointError, match="Averaging: layer 2: expected a block whose attention and feed-forward"):
        td.levers(ckpt, _prompts(5))


@pytest.mark.long
def test_a_diagnosis_has_the_levers_or_says_why_not() -> None:
    network, prompts = _network("llama", head=False), _ids(5)
    diagnosis = td.diagnose(network, prompts, sinks=[0], **ALONE)
    assert str(diagnosis.levers) == str(td.levers(load(network), prompts, sinks=[0]))
    assert diagnosis.levers_refused == ""
    few = td.diagnose(network, prompts[:2], **ALONE)
    unasked = td.diagnose(network, prompts, levers=False, **ALONE)
    assert isinstance(few.levers, Refused)
    assert few.levers_refused.startswith("this needs at least 5 texts")
    assert isinstance(unasked.levers, Refused)
    assert unasked.levers_refused == "it was not requested"


@pytest.mark.long
def test_tokens_left_out_do_not_count() -> None:
    """κ without the first token, recomputed from the states."""
    ckpt, prompts = load(_network("llama")), _ids(7)
    lever_table = td.levers(ckpt, prompts, candidates=1, sinks=[0])
    kept = [ckpt.states(torch.tensor(prompt)).feed_forward[lever_table.where, 1:] for prompt in measuring(prompts)]
    assert lever_table.kappa == pytest.approx(float(shares(kept).kappa), rel=1e-9)
    with pytest.raises(ArgumentValueError, match="sinks: expected positions from 0 to"):
        td.levers(ckpt, prompts, sinks=[99])


@pytest.mark.long
def test_what_has_no_derivative_is_refused_in_one_line() -> None:
    network = _network("llama", head=False)
    network.layers[2].mlp.register_forward_hook(lambda module, given, output: output.detach())
    network.layers[2].register_forward_hook(lambda module, given, output: output.detach())
    network.layers[3].register_forward_hook(lambda module, given, output: output.detach().requires_grad_())
    network.layers[4].register_forward_hook(lambda module, given, output: output.detach())
    diagnosis = td.diagnose(network, _ids(5), **ALONE)
    assert isinstance(diagnosis.levers, Refused)
    assert "this needs a network that has derivatives, not" in diagnosis.levers_refused


@pytest.mark.long
def test_a_streamed_network_is_refused(tmp_path: Any) -> None:
    _network("gpt2", dtype=torch.float32).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="expected a network in memory as a whole"):
        td.levers(load(tmp_path, stream=True), _ids(5))
    diagnosis = td.diagnose(load(tmp_path, stream=True), _ids(5), heads=False, directions=False, baseline=None)
    tried = (
        "the network is streamed from disk, and all of it must be in memory; load it where it fits, or with device_map"
    )
    assert (diagnosis.levers_refused, diagnosis.heads_refused) == (tried, "it was not requested")
    assert any(sentence.text == f"Nothing was tried: {tried}." for sentence in diagnosis.verdict.sentences)


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "bert"])
def test_the_head_of_stored_weights_is_that_of_the_live_network(family: str, tmp_path: Any) -> None:
    """Tied for GPT-2, a tensor of its own for GPT-NeoX; BERT has none that predicts the next token."""
    network = _network(family, dtype=torch.float32)
    network.save_pretrained(tmp_path)
    stored, live = (td.levers(ckpt, _ids(6), candidates=1) for ckpt in (load(tmp_path), load(network)))
    assert bool(stored.table.loss_sensitivity.isnull().all()) == (family == "bert")
    np.testing.assert_allclose(stored.table.loss_sensitivity, live.table.loss_sensitivity, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(stored.table.loss_change, live.table.loss_change, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(stored.table.kappa_change, live.table.kappa_change, rtol=1e-3, atol=1e-5)


@pytest.mark.long
def test_a_base_model_without_its_head_has_no_cost(tmp_path: Any) -> None:
    _network("gpt_neox", head=False, dtype=torch.float32).save_pretrained(tmp_path)
    lever_table = td.levers(load(tmp_path), _ids(5), candidates=1)
    assert bool(lever_table.table.loss_change.isnull().all())
    assert bool(np.isfinite(lever_table.table.consensus_sensitivity).all())


@pytest.mark.long
def test_half_precision_works(tmp_path: Any) -> None:
    network = _network("llama", dtype=torch.float32)
    network.save_pretrained(tmp_path)
    single, half = (_first_order(load(tmp_path, dtype=dtype), _ids(5))[0] for dtype in ("float32", "bfloat16"))
    scale = float(np.abs(single.kappa).max())
    np.testing.assert_allclose(half.kappa, single.kappa, atol=0.1 * scale)


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("family", ["albert", "t5", "vit", "mamba", "mixtral"])
def test_other_networks_have_levers_too(family: str) -> None:
    network, half = network_of(family)
    if family == "vit":
        generator = torch.Generator().manual_seed(2)
        prompts: Any = [{"pixel_values": torch.randn(1, 3, 12, 12, generator=generator)} for _ in range(5)]
    else:
        prompts = _ids(5)
    lever_table = td.levers(load(network, half=half), prompts, candidates=1)
    there = lever_table.table.consensus_sensitivity.sel(
        component="attention" if family == "mamba" else ["attention", "feed_forward"]
    )
    assert bool(np.isfinite(there).all())
    assert lever_table["loss_sensitivity"].equals(lever_table.loss_sensitivity)
    assert lever_table.consensus_sensitivity.dims == ("layer", "component")


TEXTS = (
    "The harbour froze in the second week of January, and the ferries lay still until somebody remembered the tug.",
    "To prune an old apple tree, take out dead wood first, then branches that cross, and stop before a third is gone.",
    "She had learned the sonata by ear at nine, long before anyone told her that it was supposed to be difficult.",
    "Sound travels faster in water than in air because water is much harder to compress, although it is heavier.",
    "The committee met four times, agreed on nothing, and published a report that everybody was able to sign.",
    "Knead the dough until it stops sticking to the bowl, cover it with a cloth and leave it near the stove.",
    "A court in the capital ruled on Thursday that the mine may reopen if the river is tested twice a month.",
    "My grandfather kept bees behind the garage, and every August he gave a jar to each house on the street.",
    "Two satellites passed within a hundred metres of each other, and neither operator noticed until the next day.",
    "Chess players speak of tempo when a move gains time, and of zugzwang when having to move at all is the trouble.",
)


@pytest.mark.slow
@pytest.mark.pretrained
def test_on_smollm2_nothing_cheap_helps() -> None:
    lever_table = td.levers(td.load("smollm2"), TEXTS)
    assert lever_table.answer == "nothing needs doing"
    cheap = lever_table.table.loss_change <= CHEAP
    assert float((-lever_table.table.kappa_change).where(cheap, 0.0).max()) < 0.2 * lever_table.kappa


@pytest.mark.parametrize(
    ("state", "named"),
    [
        ("rank collapse", "rank collapse"),
        ("anisotropic", "common direction"),
        ("one point", "collapse to one point"),
        ("consensus", "consensus"),
    ],
)
def test_a_collapse_after_the_final_norm_needs_something_too(state: Any, named: str) -> None:
    levers = td.levers(_averaging([0.01] * 5), _prompts())
    assert levers.advice == "No change is needed to avoid consensus."
    normed = Verdict("spread", Worst("spread", 2, (2,)), ("spread",) * 5, (), (), state)
    changed = in_view_of(levers, normed)
    beginning = f"No lever was tried for the {named} after the final norm"
    assert changed.text.startswith(f"{beginning} because κ ")
    assert advice_finding(changed, normed).text.startswith(f"{beginning}.")
    assert "No change is needed" not in changed.text + changed.advice
    layers: tuple[Any, ...] = (*("spread",) * 4, state)
    last = Verdict(state, Worst(state, 5, (5,)), layers, (), ())
    assert in_view_of(levers, last).advice.startswith(f"No lever was tried for the {named} after layer 5.")
    for final in ("spread", "drawing together", None):
        assert in_view_of(levers, replace(normed, final_norm=final)) is levers


def test_what_similarity_does_not_measure_is_said_wherever_it_happens() -> None:
    levers = td.levers(_averaging([0.01] * 5), _prompts())
    causing = replace(
        levers,
        answer=ALL_LAYERS,
        advice="No single part was found whose removal halves the similarity, and it rises in all of layers 1–6.",
    )
    worst, end = Worst("drawing together", 2, (2,)), tuple[Any, ...](("drawing together",) * 5)
    ending = "Similarity does not measure a collapse onto a line in both directions, so nothing was tried for it."
    normed = Verdict("drawing together", worst, end, (), (), "rank collapse")
    assert advice_finding(causing, normed).text.endswith(ending)
    undone = Verdict("drawing together", Worst("rank collapse", 2, (2,)), end, (), (), "spread")
    assert advice_finding(causing, undone).text.endswith(ending)
    assert advice_finding(causing, replace(normed, final_norm="spread")).text == causing.advice


def test_digits_follow_the_interval() -> None:
    def fall(change: float) -> str:
        return _advice(0.4, 0.4, _trial(change, 0.01))

    assert "falls by more than 99 %, and" in fall(-0.39942)
    assert "falls by 100 %, and" in fall(-0.4)
    assert "falls by 98 %, and" in fall(-0.39)
    wide = EffectEstimate(37.2203, 33.2141, 41.2268)
    assert wide.as_change == "+37.2 (95 % CI 33.2–41.2)"
    assert EffectEstimate(1537.22, 1400.3, 1600.9).as_change == "+1,537 (95 % CI 1,400–1,601)"
    assert EffectEstimate(0.25, 0.2, 0.3).as_change == "+0.250 (95 % CI 0.200–0.300)"
    small = EffectEstimate(2.5e-5, np.nan, np.nan)  # of a loss in a unit of its own
    assert small.as_change == "+2.5 × 10⁻⁵"
    assert EffectEstimate(0.0, np.nan, np.nan).as_change == "0.000"


def test_nothing_is_advised_where_the_state_is_undetermined() -> None:
    """Tokens that agree before the first layer: κ′ is undefined, and κ is 1."""
    diagnosis = td.diagnose(_network("llama"), [[10 + place] * 3 for place in range(6)], baseline=None, heads=False)
    assert diagnosis.verdict.state == "undetermined"
    advice = "Nothing is recommended because whether the tokens collapse is undetermined."
    assert dict(diagnosis.verdict.lines)["What to do"] == advice
    assert isinstance(diagnosis.levers, Levers)
    assert (levers_in_words(diagnosis), diagnosis.levers.changes) == (advice, {})
    nothing = replace(
        diagnosis.levers, answer="nothing needs doing", text="No change is needed to avoid consensus. κ is 1."
    )
    assert in_view_of(nothing, diagnosis.verdict).text == f"{advice} κ is 1."


@pytest.mark.long
def test_a_loss_that_changes_by_itself_is_refused() -> None:
    network, prompts = _network("gpt2"), _ids(6)
    draw = torch.Generator().manual_seed(0)

    def noisy(given: Any) -> float:
        return float(torch.rand((), generator=draw))

    for ask in (td.levers, td.head_effects, td.joint_levers, td.remedies, td.diagnose):
        with pytest.raises(ArgumentValueError, match="loss: expected the same number for the same network, got 0"):
            ask(network, prompts, loss=noisy)
    drift = iter(1.0 + 1e-8 * torch.arange(40))  # as of sums in another order
    td.levers(network, prompts, loss=lambda _: float(next(drift)), candidates=1)


def test_a_common_direction_counts_beside_another_state() -> None:
    levers = td.levers(_averaging([0.01] * 5), _prompts())
    for common, named in ((0.99, True), (0.5, False)):
        what = Finding("", "shares", {"common": common})
        states: tuple[Any, ...] = ("drawing together",) * 5
        verdict = Verdict("drawing together", Worst("drawing together", 5, (5,)), states, (what,), ())
        advice = in_view_of(levers, verdict).advice
        assert advice.startswith("No lever was tried for the common direction after layer 5.") == named
        causing = replace(
            levers,
            answer=ALL_LAYERS,
            advice="No single part was found whose removal halves the similarity, and it rises in all of layers 1–6.",
        )
        assert ("does not measure the common direction" in advice_finding(causing, verdict).text) == named


@pytest.mark.long
def test_levers_measured_on_other_texts_than_the_verdict_say_so() -> None:
    """Words of even ids live in half of the features, and one attention collapses these alone: half of the texts.

    Where these are the texts that measure, the sentence says that they are unlike the others. Where the two kinds
    alternate, or one comes before the other, both halves have texts of both.
    """
    canvas = blank(Frame("bert", depth=4, seed=1))
    half = canvas.frame.dim // 2
    canvas.words[0::2, half:] = canvas.words[1::2, :half] = 0.0
    block = canvas.blocks[2]
    block.value.weight.copy_(torch.eye(2 * half))
    block.out.weight[:half, :half] = 60.0 * torch.eye(half)
    alternating = prompts_of("languages", 1)
    blocks = [*alternating[::2], *alternating[1::2]]
    apart: list[Any] = [None] * 12
    for half, kind in zip(split_in_halves(12), (alternating[1::2], alternating[::2]), strict=True):
        for place, text in zip(half, kind, strict=True):
            apart[place] = text
    diagnoses = [
        td.diagnose(canvas.network, texts, baseline=None, directions=False, heads=False)
        for texts in (apart, alternating, blocks)
    ]
    advice = [dict(diagnosis.verdict.lines)["What to do"] for diagnosis in diagnoses]
    assert all(
        words.startswith("A single part causes most of the similarity: the attention of layer 3") for words in advice
    )
    unlike = " This was measured on 6 of 12 texts, within which tokens are more alike than within the others."
    assert advice[0].endswith(unlike)
    assert "measured on" not in advice[1] + advice[2]
    trials, verdict = diagnoses[1].levers, diagnoses[1].verdict
    assert isinstance(trials, Levers)
    whole = verdict.sentences[0].values["consensus_within"]
    for beyond, sentence in ((0.11, unlike), (0.09, ""), (-0.09, ""), (-0.11, unlike.replace("more", "less"))):
        finding = advice_finding(replace(trials, kappa=whole + beyond), verdict)
        assert finding is not None
        assert re.findall(r" This was measured on .*?others\.", finding.text) == ([sentence] if sentence else [])
