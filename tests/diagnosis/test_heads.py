"""What each attention head adds to consensus and loss, against weights edited by hand and states read by hooks."""

from __future__ import annotations

import copy
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch

import tokendynamics as td
from diagnosis.text_halves import measuring
from tokendynamics.diagnosis.gating.sensitivities import Sensitivities, sensitivities
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.pretrained import load
from tokendynamics.pretrained.edits.gates import HeadGates
from tokendynamics.pretrained.other_libraries import silenced
from tokendynamics.provenance.progress import silent

HEADS, WIDTH = 3, 8


def network_of(family: str, *, heads: int = HEADS, groups: int | None = None, **settings: Any) -> Any:
    """A network of 4 layers in float64 with a language head where there is one, far enough from its initialisation."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    dim = heads * WIDTH
    sizes: dict[str, Any] = {"vocab_size": 61, "bos_token_id": 1, "eos_token_id": 2} | settings
    if family == "gpt2":
        sizes |= {"n_embd": dim, "n_layer": 4, "n_head": heads, "n_positions": 64}
    else:
        sizes |= {"hidden_size": dim, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": heads}
        sizes |= {} if groups is None else {"num_key_value_heads": groups}
    kind = AutoModel if family in ("bert", "albert", "deberta") else AutoModelForCausalLM
    with silenced(), torch.random.fork_rng():
        torch.manual_seed(3)
        network = kind.from_config(AutoConfig.for_model(family, **sizes)).double().eval()
        for parameter in network.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return network


def ids_of(count: int = 7) -> list[list[int]]:
    """Prompts of different lengths."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, 60, (7 + place % 4,), generator=generator).tolist() for place in range(count)]


def projection_of(family: str, network: Any, layer: int) -> tuple[torch.Tensor, int]:
    """The weight of an output projection of a layer, from 1, and the axis that reads the heads."""
    if family == "gpt2":
        return network.transformer.h[layer - 1].attn.c_proj.weight, 0
    if family == "bert":
        return network.encoder.layer[layer - 1].attention.output.dense.weight, 1
    return network.model.layers[layer - 1].self_attn.o_proj.weight, 1


def without_head(family: str, network: Any, layer: int, head: int) -> Any:
    """A copy whose output projection reads nothing of a head."""
    edited = copy.deepcopy(network)
    weight, axis = projection_of(family, edited, layer)
    with torch.no_grad():
        weight.narrow(axis, head * WIDTH, WIDTH).zero_()
    return edited


def kappa_of(network: Any, prompts: list[list[int]], depth: int) -> float:
    """κ of what a block gives, from 1, by its definition: pairs of different tokens and of prompts."""
    blocks = next(
        module for module in network.modules() if isinstance(module, torch.nn.ModuleList) and len(module) == 4
    )
    given: list[Any] = []
    hook = blocks[depth - 1].register_forward_hook(lambda module, inputs, output: given.append(output))
    with torch.no_grad():
        for ids in prompts:
            network(torch.tensor([ids]))
    hook.remove()
    states = [(output if isinstance(output, torch.Tensor) else output[0])[0].numpy() for output in given]
    rows = [state / np.linalg.norm(state, axis=1, keepdims=True) for state in states]
    means = [row.mean(axis=0) for row in rows]
    common = np.mean([first @ second for first, second in permutations(means, 2)])
    pairs = [(row @ row.T)[~np.eye(len(row), dtype=bool)].mean() for row in rows]
    return float((np.mean(pairs) - common) / (1 - common))


def loss_of(network: Any, prompts: list[list[int]]) -> float:
    """The mean over prompts of the network's own loss."""
    with torch.no_grad():
        return float(
            np.mean([float(network(ids, labels=ids).loss) for ids in map(torch.tensor, [[p] for p in prompts])])
        )


def first_order(network: Any, prompts: list[list[int]]) -> tuple[Sensitivities, Sensitivities]:
    """Derivatives by the gates on heads, and by those on parts, at one layer."""
    ckpt = load(network)
    packs = ckpt.packs([torch.tensor(prompt) for prompt in prompts])
    with ckpt.gated() as gated:
        of_heads = sensitivities(HeadGates(gated), packs, 1e6, silent, 3)
        return of_heads, sensitivities(gated, packs, 1e6, silent, 3)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(("family", "groups"), [("gpt2", None), ("llama", None), ("llama", 1), ("bert", None)])
def test_the_effect_is_that_of_an_edited_output_projection(family: str, groups: int | None) -> None:
    network, prompts = network_of(family, groups=groups), ids_of()
    effects = td.head_effects(network, prompts, candidates=3, sink_ratio=1e6)
    others = measuring(prompts)
    depth = int(effects.attrs["where"])
    whole = kappa_of(network, others, depth)
    assert effects.attrs["kappa"] == pytest.approx(whole, abs=1e-9)
    measured = np.argwhere(effects["consensus_effect"].notnull().values)
    assert len(measured) == 3
    for place, head in measured:
        edited = without_head(family, network, int(place) + 1, int(head))
        of_head = effects.isel(layer=int(place), head=int(head))
        assert float(of_head["consensus_effect"]) == pytest.approx(whole - kappa_of(edited, others, depth), abs=1e-9)
        low, high = of_head["consensus_effect_interval"].values
        assert low < float(of_head["consensus_effect"]) < high
        if family == "bert":
            assert bool(of_head["loss_effect"].isnull())
        else:
            lost = loss_of(network, others) - loss_of(edited, others)
            assert float(of_head["loss_effect"]) == pytest.approx(lost, abs=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_sensitivities_are_derivatives_by_the_columns_of_a_head(family: str) -> None:
    network, prompts = network_of(family), ids_of()
    of_heads, _ = first_order(network, prompts)
    for layer, head in ((1, 0), (2, 2), (3, 1)):
        kappas = []
        for scale in (1.001, 0.999):  # LLaMA's norms compute in float32
            edited = copy.deepcopy(network)
            weight, axis = projection_of(family, edited, layer)
            with torch.no_grad():
                weight.narrow(axis, head * WIDTH, WIDTH).mul_(scale)
            kappas.append(kappa_of(edited, prompts, 3))
        assert of_heads.kappa[layer - 1, head] == pytest.approx((kappas[0] - kappas[1]) / 2e-3, rel=2e-3, abs=1e-7)
    assert bool((of_heads.kappa[3] == 0).all())


@pytest.mark.long
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_heads_add_up_to_their_attention_but_for_the_bias(family: str) -> None:
    network, prompts = network_of(family), ids_of()
    of_heads, of_parts = first_order(network, prompts)
    if family == "gpt2":
        assert np.abs(of_heads.kappa.sum(axis=1) - of_parts.kappa[:, 0])[:3].min() > 1e-6
        for block in network.transformer.h:
            block.attn.c_proj.bias.data.zero_()
        of_heads, of_parts = first_order(network, prompts)
    np.testing.assert_allclose(of_heads.kappa.sum(axis=1), of_parts.kappa[:, 0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(of_heads.loss.sum(axis=1), of_parts.loss[:, 0], rtol=1e-9, atol=1e-12)


def test_the_one_head_that_acts_is_named() -> None:
    network, prompts = network_of("llama"), ids_of()
    for layer in range(1, 5):
        for head in range(HEADS):
            if (layer, head) != (2, 1):
                weight, axis = projection_of("llama", network, layer)
                weight.data.narrow(axis, head * WIDTH, WIDTH).zero_()
    effects = td.head_effects(network, prompts, candidates=1, sink_ratio=1e6)
    assert np.argwhere(effects["consensus_effect"].notnull().values).tolist() == [[1, 1]]
    assert int((effects["consensus_sensitivity"] != 0).sum()) == 1


def test_a_block_that_runs_again_has_gates_of_its_own() -> None:
    network, prompts = network_of("albert", embedding_size=16), ids_of()
    of_heads, of_parts = first_order(network, prompts)
    assert of_heads.kappa.shape == (4, HEADS)
    assert len(set(of_heads.kappa[:3, 0].tolist())) == 3
    network.encoder.albert_layer_groups[0].albert_layers[0].attention.dense.bias.data.zero_()
    of_heads, of_parts = first_order(network, prompts)
    np.testing.assert_allclose(of_heads.kappa.sum(axis=1), of_parts.kappa[:, 0], rtol=1e-9, atol=1e-12)


@pytest.mark.long
def test_one_head_has_the_effect_of_its_attention() -> None:
    network, prompts = network_of("llama", heads=1), ids_of()
    effects = td.head_effects(network, prompts, candidates=2, sink_ratio=1e6)
    assert effects.sizes == {"layer": 4, "head": 1, "bound": 2}
    levers = td.levers(network, prompts, candidates=4, sink_ratio=1e6).table
    alone = {
        int(layer): float(change)
        for layer, part, alpha, change in zip(
            levers.candidate_layer, levers.candidate_part, levers.alpha, levers.kappa_change, strict=True
        )
        if part == "attention" and alpha == 0
    }
    both = [layer for layer in alone if bool(effects["consensus_effect"].sel(layer=layer).notnull())]
    assert both
    for layer in both:
        assert float(effects["consensus_effect"].sel(layer=layer, head=0)) == pytest.approx(-alone[layer], abs=1e-9)


def test_a_loss_that_is_passed_is_that_of_the_network_without_the_head() -> None:
    network, prompts = network_of("llama"), ids_of()
    ids = torch.tensor([prompts[0]])

    def loss(given: Any) -> torch.Tensor:
        return given(ids).logits.square().mean()

    plain = td.head_effects(network, prompts, candidates=2, sink_ratio=1e6)
    effects = td.head_effects(network, prompts, candidates=2, sink_ratio=1e6, loss=loss)
    np.testing.assert_allclose(effects.consensus_effect, plain.consensus_effect, atol=1e-12)
    assert bool(effects.loss_sensitivity.isnull().all())
    assert bool(effects.loss_effect_interval.isnull().all())
    for place, head in np.argwhere(effects.loss_effect.notnull().values):
        with torch.no_grad():
            gap = float(loss(network)) - float(loss(without_head("llama", network, int(place) + 1, int(head))))
        assert float(effects.loss_effect[place, head]) == pytest.approx(gap, abs=1e-9)
    with pytest.raises(ArgumentTypeError, match="one number"):
        td.head_effects(network, prompts, loss=lambda network: torch.ones(2))


def test_the_network_is_as_before() -> None:
    network, ids = network_of("gpt2"), torch.tensor([ids_of()[0]])
    before = network(ids).logits
    td.head_effects(network, ids_of(), candidates=1)
    assert torch.equal(network(ids).logits, before)
    assert not any(module._forward_pre_hooks for module in network.modules())


@pytest.mark.long
def test_wrong_input_is_named() -> None:
    network = network_of("llama")
    with pytest.raises(ArgumentValueError, match="texts: expected at least 5 texts"):
        td.head_effects(network, ids_of(4))
    with pytest.raises(ArgumentValueError, match="a text different from"):
        td.head_effects(network, [ids_of()[0]] * 6)
    with pytest.raises(ArgumentValueError, match="candidates"):
        td.head_effects(network, ids_of(), candidates=0)
    with pytest.raises(ArgumentValueError, match="sink_ratio"):
        td.head_effects(network, ids_of(), sink_ratio=0.5)
    with pytest.raises(ArgumentTypeError, match="candidates"):
        td.head_effects(network, ids_of(), candidates=1.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(CheckpointError, match=r"an attention whose heads are known, got a vector is added to its quer"):
        td.head_effects(network_of("deberta"), ids_of())
