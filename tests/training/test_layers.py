"""Norms and distances through the layers are those of a plain computation, and what Fig. 7 says of regimes holds."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from tokendynamics.modules import ConstrainedAttention
from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig
from tokendynamics.modules.vision import VisionConfig, VisionModel
from tokendynamics.training._training_run import SEQUENCES, TOKENS, through_layers


def decoder(**choices: Any) -> LanguageModel:
    torch.manual_seed(1)
    sizes = {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 20}
    model = LanguageModel(LanguageModelConfig(**{"vocab_size": 30, **sizes, "dropout": 0.3, **choices}))
    with torch.no_grad():  # norms with gains and biases, as after training
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.normal_(1.0, 0.3)
                module.bias.normal_(0.0, 0.3)
    return model


def vision(**choices: Any) -> VisionModel:
    torch.manual_seed(1)
    sizes = {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 20}
    model = VisionModel(VisionConfig(**{**sizes, "image_size": 6, "patch_size": 2, "drop_path": 0.4, **choices}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1 * parameter.requires_grad)
    return model


def plain_attention(attention: ConstrainedAttention, x: Tensor) -> Tensor:
    """Head by head and token by token, with softmax written out."""
    weights, width = attention.weights(), attention.dim // attention.heads
    parts = []
    for part, name in zip(weights[:3], ("query", "key", "value"), strict=True):
        bias = getattr(attention, name).bias
        parts.append(x @ part.T + (0 if bias is None else bias))
    query, key, value = parts
    out = torch.zeros_like(x)
    for head in range(attention.heads):
        columns = slice(head * width, (head + 1) * width)
        for sequence in range(len(x)):
            for token in range(x.shape[1]):
                seen = token + 1 if attention.causal else x.shape[1]
                logits = key[sequence, :seen, columns] @ query[sequence, token, columns] / math.sqrt(width)
                share = logits.exp() / logits.exp().sum()
                out[sequence, token, columns] = share @ value[sequence, :seen, columns]
    if weights.output is None:
        return out
    bias = cast(nn.Linear, attention.projection).bias
    return out @ weights.output.T + (0 if bias is None else bias)


def normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def fed(part: Any, x: Tensor) -> Tensor:
    inner = x @ part.rise.weight.T + part.rise.bias
    return (inner * (1 + torch.erf(inner / math.sqrt(2))) / 2) @ part.fall.weight.T + part.fall.bias


def plain_layers(blocks: Any, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    full, bare = [x], [x]
    for block in blocks:
        state = full[-1]
        for part, norm in ((block.attention, block.attention_norm), (block.feed_forward, block.feed_forward_norm)):
            if part is None:
                continue
            before = normed(norm, state) if block.norms == "pre" else state
            added = plain_attention(part, before) if part is block.attention else fed(part, before)
            state = normed(norm, state + added) if block.norms == "post" else state + added
        full.append(state)
        bare.append(bare[-1] + plain_attention(block.attention, bare[-1]))
    return full, bare


def assert_measured(result: dict[str, Any], full: list[Tensor], bare: list[Tensor]) -> None:
    for name, states in (("full", full), ("bare", bare)):
        for depth, x in enumerate(states):
            tokens = x.shape[1]
            pairs = [(i, j) for i in range(tokens) for j in range(tokens) if i != j]
            distance = torch.stack([(x[:, i] - x[:, j]).square().sum(-1).sqrt() for i, j in pairs]).mean()
            assert result[name]["norm"][depth] == pytest.approx(float(x.square().sum(-1).sqrt().mean()), rel=1e-10)
            assert result[name]["distance"][depth] == pytest.approx(float(distance), rel=1e-10)
        assert len(result[name]["norm"]) == len(result[name]["distance"]) == len(states)


@pytest.mark.parametrize("output", ["identity", "free"])
@pytest.mark.parametrize("norms", ["pre", "post", "none"])
def test_a_decoder_is_measured_as_a_plain_computation_has_it(norms: str, output: str) -> None:
    model = decoder(norms=norms, output=output, regime="divergence").train()
    ids = torch.randint(30, (3, 6))
    by_layer = through_layers(model, {"input_ids": ids, "labels": ids})
    twin = copy.deepcopy(model).double()
    with torch.no_grad():
        start = twin.model.positions(twin.model.embed_tokens.weight[ids])
        assert_measured(by_layer, *plain_layers(twin.model.layers, start))
    assert model.training
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.parametrize("norms", ["pre", "post", "none"])
def test_a_vision_network_is_measured_as_a_plain_computation_has_it(norms: str) -> None:
    model = vision(norms=norms, output="free", regime="w_only")
    pixels = torch.rand(2, 3, 6, 6)
    by_layer = through_layers(model, {"pixel_values": pixels, "labels": torch.tensor([0, 1])})
    twin, start = copy.deepcopy(model).double(), []
    hook = twin.model.embedding.register_forward_hook(lambda *given: start.append(given[-1]))
    with torch.no_grad():
        twin.model(pixels.double())
        hook.remove()
        assert_measured(by_layer, *plain_layers(twin.model.layers, start[0]))


def test_a_layer_without_its_feed_forward_part_and_norms_is_bare() -> None:
    by_layer = through_layers(decoder(norms="none", intermediate_size=0), {"input_ids": torch.arange(12).reshape(2, 6)})
    assert by_layer["full"] == by_layer["bare"]


def test_of_a_large_batch_the_beginning_is_looked_at() -> None:
    ids = torch.randint(30, (SEQUENCES + 3, TOKENS + 20))
    model = decoder(max_position_embeddings=TOKENS + 20)
    assert through_layers(model, {"input_ids": ids}) == through_layers(model, {"input_ids": ids[:SEQUENCES, :TOKENS]})


def test_states_that_are_no_numbers_are_none_and_those_before_are_not() -> None:
    model, ids = decoder(norms="none", intermediate_size=0), torch.arange(6)[None]
    wanted = through_layers(model, {"input_ids": ids})["bare"]
    with torch.no_grad():
        model.model.layers[1].attention.value.weight[0, 0] = math.nan
    for kind in ("full", "bare"):
        for name, values in through_layers(model, {"input_ids": ids})[kind].items():
            assert values[:2] == wanted[name][:2]
            assert values[2:] == [None, None]


@pytest.mark.parametrize("state", ["full", "bare"])
@pytest.mark.parametrize(("of_queries", "last"), [(1.0, 2), (0.0, 3)])
def test_states_and_logits_beyond_float64_are_none(of_queries: float, last: int, state: str) -> None:
    """States of 1e200 have logits of 1e400; without logits states themselves get there, a layer later."""
    model = decoder(norms="none", intermediate_size=0, num_hidden_layers=4, tie_word_embeddings=False)
    for layer in model.model.layers:
        layer.double().attention.value.weight.data *= 1e100
        layer.attention.query.weight.data *= of_queries
    values = through_layers(model, {"input_ids": torch.arange(6)[None]})[state]["norm"]
    assert values[last] > 1e90
    assert values[last + 1 :] == [None] * (4 - last)


@pytest.mark.parametrize("kind", ["decoder", "vision"])
@pytest.mark.parametrize(("regime", "direction"), [("convergence", -1), ("divergence", 1)])
def test_at_the_start_convergence_contracts_and_divergence_expands_monotonically(
    kind: str, regime: str, direction: int
) -> None:
    """Fig. 7 with the identity for the output and a small skew; the free projection is no part of the claim."""
    sizes = {"hidden_size": 48, "num_hidden_layers": 6, "num_attention_heads": 3, "intermediate_size": 20}
    choices: dict[str, Any] = {**sizes, "regime": regime, "output": "identity", "skew": 0.02}
    torch.manual_seed(0)
    model: nn.Module
    if kind == "decoder":
        model, batch = LanguageModel(LanguageModelConfig(vocab_size=30, **choices)), torch.randint(30, (4, 24))
    else:
        model, batch = VisionModel(VisionConfig(image_size=6, patch_size=2, **choices)), torch.randn(4, 3, 6, 6)
    bare = through_layers(model, {"input_ids" if kind == "decoder" else "pixel_values": batch})["bare"]
    assert all(direction * (after - before) > 0 for before, after in pairwise(bare["norm"]))
