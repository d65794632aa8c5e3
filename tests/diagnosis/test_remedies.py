"""Remedies tried on a network as it is, against weights edited by hand, hooks, and states read by hooks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import tokendynamics as td
from diagnosis.test_heads import ids_of, kappa_of, loss_of, network_of
from diagnosis.text_halves import finding, measuring
from tokendynamics.diagnosis.gating._remedies import AFTER_TRAINING, advised_in_view_of
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.pretrained import apply_remedy

PROMPTS = ids_of(9)


def spread() -> Any:
    """A LLaMA that leaves its tokens nearly as they are."""
    network = network_of("llama")
    with torch.no_grad():
        for block in network.model.layers:
            block.self_attn.o_proj.weight.mul_(1e-2)
            block.mlp.down_proj.weight.mul_(1e-2)
    return network


def halved() -> Any:
    """A LLaMA whose tokens draw together; those of `network_of` end near one point for each text."""
    network = network_of("llama")
    with torch.no_grad():
        for block in network.model.layers:
            block.self_attn.o_proj.weight.mul_(0.5)
    return network


@pytest.fixture(scope="module")
def table() -> xr.Dataset:
    return td.remedies(network_of("llama"), PROMPTS, sink_ratio=1e6)


def of(table: xr.Dataset, name: str, strength: float) -> xr.Dataset:
    (place,) = np.flatnonzero((table.name.values == name) & (table.strength.values == strength))
    return table.isel(trial=int(place))


def unit_means(network: Any, prompts: list[list[int]], depth: int) -> torch.Tensor:
    """The mean unit row of each prompt after a block, from 1, or of the embedding, 0."""
    module = network.model.embed_tokens if depth == 0 else network.model.layers[depth - 1]
    kept: list[torch.Tensor] = []
    hook = module.register_forward_hook(
        lambda module, inputs, output: kept.append(output if isinstance(output, torch.Tensor) else output[0])
    )
    with torch.no_grad():
        for ids in prompts:
            network(torch.tensor([ids]))
    hook.remove()
    return torch.stack([(state[0] / state[0].norm(dim=1, keepdim=True)).mean(dim=0) for state in kept])


def assert_effect(row: xr.Dataset, network: Any, changed: Any, where: int) -> None:
    others = measuring(PROMPTS)
    whole, after = kappa_of(network, others, where), kappa_of(changed, others, where)
    assert row.status.item() == "measured"
    assert float(row.consensus_change) == pytest.approx(after - whole, abs=1e-9)
    gaps = np.array([loss_of(changed, [prompt]) - loss_of(network, [prompt]) for prompt in others])
    assert float(row.loss_change) == pytest.approx(gaps.mean(), abs=1e-6)
    half = 2.7764451051977987 * gaps.std(ddof=1) / np.sqrt(5)  # Student's t, 4 degrees of freedom, 95 %
    np.testing.assert_allclose(row.loss_change_interval, [gaps.mean() - half, gaps.mean() + half], atol=1e-6)
    low, high = row.consensus_change_interval.values
    assert low < float(row.consensus_change) < high


@pytest.mark.long
@pytest.mark.parametrize("factor", [0.9, 0.7])
@pytest.mark.parametrize("name", ["attention updates", "feed-forward updates", "all updates"])
def test_scaled_updates_are_scaled_output_weights(table: xr.Dataset, name: str, factor: float) -> None:
    network, changed = network_of("llama"), network_of("llama")
    with torch.no_grad():
        for block in changed.model.layers:
            if not name.startswith("feed"):
                block.self_attn.o_proj.weight.mul_(factor)
            if not name.startswith("attention"):
                block.mlp.down_proj.weight.mul_(factor)
    assert_effect(of(table, name, factor), network, changed, table.attrs["where"])


@pytest.mark.long
@pytest.mark.parametrize("factor", [0.5, 0.8, 1.25, 2.0])
def test_scaled_logits_are_scaled_query_weights(table: xr.Dataset, factor: float) -> None:
    network, changed = network_of("llama"), network_of("llama")
    with torch.no_grad():
        for block in changed.model.layers:
            block.self_attn.q_proj.weight.mul_(factor)
    assert_effect(of(table, "attention logits", factor), network, changed, table.attrs["where"])


@pytest.mark.long
@pytest.mark.parametrize("size", [-0.007, -0.03, -0.13])
def test_lambda_is_that_of_the_remedy(table: xr.Dataset, size: float) -> None:
    network = network_of("llama")
    changed = apply_remedy(copy.deepcopy(network), "lambda-identity", start=size)
    assert_effect(of(table, "λA", size), network, changed, table.attrs["where"])


def test_a_removed_direction_is_that_of_the_other_texts_where_they_are_most_alike(table: xr.Dataset) -> None:
    network, choosing = network_of("llama"), finding(PROMPTS)
    name = str(table.name[-1].item())
    layer = int(name.removeprefix("common direction of layer "))
    kappas = [kappa_of(network, choosing, depth) for depth in range(1, 5)]
    assert layer == 1 + int(np.argmax(kappas))  # κ′ grows with κ
    mean = unit_means(network, choosing, layer).mean(dim=0)
    direction = mean / mean.norm()
    changed = network_of("llama")
    changed.model.layers[layer - 1].register_forward_hook(
        lambda module, inputs, output: output - (output @ direction)[..., None] * direction
    )
    assert_effect(of(table, name, 0.0), network, changed, table.attrs["where"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (0.02, "4 remedies lower similarity κ after layer 4 significantly at an estimated cost of at most 0.02 nats."),
        (
            5e-3,
            "1 remedy lowers similarity κ after layer 4 significantly at an estimated cost of at most 0.005 nats.",
        ),
    ],
)
def test_what_is_recommended_lowers_significantly_within_the_budget(budget: float, words: str) -> None:
    tried = td.remedies(halved(), PROMPTS, sink_ratio=1e6, budget=budget)
    assert 0.06 <= tried.attrs["relative_kappa"] < 0.55
    lowering = tried.consensus_change_interval.sel(bound="high").values < 0
    np.testing.assert_array_equal(tried.recommended, lowering & (tried.loss_change.values <= budget))
    best = int(np.argmin(np.where(tried.recommended, tried.consensus_change, 1.0)))
    assert tried.attrs["summary"].startswith(words)
    label = f"{tried.name.values[best]} × {tried.strength.values[best]:g}"
    which = "It is" if tried.recommended.sum() == 1 else "The most effective of them is"
    assert f"{which} {label}" in tried.attrs["summary"]


@pytest.mark.long
def test_no_remedy_is_recommended_where_every_one_costs_more() -> None:
    tried = td.remedies(halved(), PROMPTS, sink_ratio=1e6, loss=Rising(halved()), budget=0.5)
    assert bool((tried.consensus_change_interval.sel(bound="high") < 0).any())
    assert not tried.recommended.any()
    words = "No remedy tried lowers similarity κ after layer 4 significantly at an estimated cost of at most 0.5."
    assert tried.attrs["summary"].startswith(words)
    assert bool((tried.loss_change == 1).all())
    assert bool(tried.loss_change_interval.isnull().all())


class Rising:
    """1 for a network that gives other logits than one, 0 for that one."""

    def __init__(self, network: Any) -> None:
        self.ids = torch.tensor([PROMPTS[0]])
        self.logits = network(self.ids).logits

    def __call__(self, network: Any) -> float:
        assert not torch.is_grad_enabled()
        return float(not torch.equal(network(self.ids).logits, self.logits))


@pytest.mark.long
def test_a_loss_that_is_passed_is_that_of_the_changed_network() -> None:
    network, ids = network_of("llama"), torch.tensor([PROMPTS[0]])

    def loss(given: Any) -> torch.Tensor:
        return given(ids).logits.square().mean()

    row = of(td.remedies(network, PROMPTS, sink_ratio=1e6, loss=loss), "attention logits", 2.0)
    changed = copy.deepcopy(network)
    with torch.no_grad():
        for block in changed.model.layers:
            block.self_attn.q_proj.weight.mul_(2.0)
        assert float(row.loss_change) == pytest.approx(float(loss(changed)) - float(loss(network)), abs=1e-9)


@pytest.mark.long
def test_spread_tokens_need_no_remedy() -> None:
    tried = td.remedies(spread(), PROMPTS, sink_ratio=1e6)
    assert tried.attrs["relative_kappa"] < 0.06
    assert bool((tried.status == "measured").all())
    assert not tried.recommended.any()
    assert tried.attrs["summary"].startswith(
        "No remedy is recommended because tokens of one text share little beyond the embedding: κ′ is 0.0"
    )


@pytest.mark.long
def test_near_one_point_a_remedy_is_recommended_at_any_cost() -> None:
    network = network_of("llama")
    tried = td.remedies(network, PROMPTS, sink_ratio=1e6, loss=Rising(network), budget=0.0)
    assert tried.attrs["relative_kappa"] >= 0.55
    np.testing.assert_array_equal(tried.recommended, tried.consensus_change_interval.sel(bound="high") < 0)
    assert tried.recommended.any()
    assert "cost of at most" not in tried.attrs["summary"]


def test_at_an_unknown_cost_no_remedy_is_recommended() -> None:
    network = network_of("bert")
    with torch.no_grad():
        for layer in network.encoder.layer:
            layer.attention.output.dense.weight.mul_(3)
    tried = td.remedies(network, PROMPTS, sink_ratio=1e6)
    assert tried.attrs["relative_kappa"] >= 0.06
    assert bool((tried.consensus_change_interval.sel(bound="high") < 0).any())
    assert not tried.recommended.any()
    assert tried.attrs["summary"].startswith("No remedy is recommended because the cost is unknown: the loss was not ")
    known = td.remedies(network, PROMPTS, sink_ratio=1e6, loss=lambda network: 0.0)
    assert known.recommended.any()
    assert "at an estimated cost of at most 0.02." in known.attrs["summary"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "settings", "name", "words"),
    [
        ("gpt2", {}, "λA", "rotary positions, to which the remedy is added, not positions of the kind 'learned'"),
        ("bert", {}, "λA", "this needs an attention that sees no later token, not one that does (layer 1)"),
        ("gptj", {"n_embd": 24, "n_head": 3, "n_layer": 4, "rotary_dim": 4}, "λA", "attention interface"),
    ],
)
def test_a_remedy_that_a_network_cannot_have_has_a_reason(
    family: str, settings: dict[str, Any], name: str, words: str
) -> None:
    tried = td.remedies(network_of(family, **settings), PROMPTS, sink_ratio=1e6)
    chosen = tried.isel(trial=np.flatnonzero(tried.name == name))
    assert all(words in reason for reason in chosen.status.values)
    assert bool(chosen.consensus_change.isnull().all())
    assert not chosen.recommended.any()
    assert bool((tried.status == "measured").any())
    assert f" {int((tried.status == 'measured').sum())} remedies were measured on 5 texts." in tried.attrs["summary"]


def test_after_training_is_what_the_page_on_the_remedy_says(table: xr.Dataset) -> None:
    np.testing.assert_array_equal(table.after_training.values != "", table.name.values == "λA")
    page = Path("docs/remedy.md").read_text(encoding="utf-8")
    assert "κ′ +0.004 (90 % CI 0.003–0.005), loss −0.016 (95 % CI −0.023 to −0.009) nats" in AFTER_TRAINING
    assert "(κ′ +0.004,\n90 % interval 0.003 to 0.005)" in page
    assert "| λ and A | 17,310 | the 29 held-out pages | 3.124 | −0.016 ± 0.007 |" in page


def test_no_remedy_is_recommended_in_a_state_that_speaks_against_it(table: xr.Dataset) -> None:
    verdict = td.diagnose(network_of("llama"), PROMPTS, baseline=None, levers=False, heads=False).verdict
    assert table.recommended.any()
    assert advised_in_view_of(table, as_state(verdict, "drawing together")) is table
    for state, words in (
        (
            "spread",
            "No remedy is recommended because the tokens are spread after layer 4. 14 remedies were measured on ",
        ),
        ("anisotropic", "No remedy is recommended because κ does not measure the common direction."),
        ("rank collapse", "because κ does not measure a collapse onto a line in both directions."),
    ):
        changed = advised_in_view_of(table, as_state(verdict, state))
        assert not changed.recommended.any()
        assert words in changed.attrs["summary"]
        xr.testing.assert_identical(changed.consensus_change, table.consensus_change)


def as_state(verdict: Any, state: Any) -> Any:
    from dataclasses import replace

    return replace(verdict, state=state, layers=(*verdict.layers[:-1], state))


def test_the_network_is_as_before() -> None:
    network, ids = network_of("llama"), torch.tensor([PROMPTS[0]])
    before, names = network(ids).logits, list(network.state_dict())
    td.remedies(network, PROMPTS)
    assert torch.equal(network(ids).logits, before)
    assert list(network.state_dict()) == names
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in network.modules())


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"budget": -1.0}, ArgumentValueError, "budget"),
        ({"sink_ratio": 1.0}, ArgumentValueError, "sink_ratio"),
        ({"loss": lambda network: float("nan")}, ArgumentValueError, "a finite number for the network as it is"),
        ({"loss": lambda network: torch.ones(3)}, ArgumentTypeError, "one number"),
        ({"texts": PROMPTS[:1]}, ArgumentValueError, "at least 5 texts"),
        ({"texts": [PROMPTS[0]] * 6}, ArgumentValueError, "a text different from"),
    ],
)
def test_wrong_input_is_named(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    given: dict[str, Any] = {"texts": PROMPTS} | arguments
    with pytest.raises(error, match=words):
        td.remedies(network_of("llama"), **given)


def test_a_loss_that_a_remedy_makes_infinite_is_named() -> None:
    def loss(network: Any) -> float:
        return float("inf") if Rising(network_of("llama"))(network) else 0.0

    with pytest.raises(ArgumentValueError, match=r"a finite number for attention × 0\.9, got inf"):
        td.remedies(network_of("llama"), PROMPTS, loss=loss)


def test_a_streamed_network_is_refused(tmp_path: Path) -> None:
    network_of("llama").float().save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="in memory as a whole"):
        td.remedies(td.load(tmp_path, stream=True), PROMPTS)
