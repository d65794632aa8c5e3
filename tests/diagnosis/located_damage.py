"""Damage of one place of a network, beneath changes of all its weights: what `compare` has to locate."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diagnosis.test_heads import WIDTH, network_of

FAMILIES = ("gpt2", "llama", "bert")
LAYERS, HEADS = 4, 12
"""Of 96 features: beneath noise of 1 %, the best test locates a factor of 1.01 of a vector of 38 in 95 %."""
PROMPTS = {
    "one": [5, 9, 33, 21, 7, 50], "two": [12, 3, 44, 18, 40],
    "three": [20, 31, 8, 6, 11, 2, 55], "four": [9, 9, 41, 30],
}  # fmt: skip

Background = Callable[[nn.Module, torch.Generator], None]


@dataclass(frozen=True)
class Planted:
    """A damaged copy, and where the damage is: the layer from 1, `Comparison.first_part`, and the head where one is.

    That of a norm after the last block is the last layer.
    """

    whole: Any
    other: Any
    layer: int
    part: str
    head: int | None = None


def healthy(family: str, seed: int) -> Any:
    """A network in single precision, of twelve heads, with nothing at a default."""
    groups = HEADS // 2 if family == "llama" else None
    network, draw = network_of(family, heads=HEADS, groups=groups).float(), torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=draw)
    return network


def blocks_of(network: Any) -> Any:
    family = network.config.model_type
    if family == "gpt2":
        return network.transformer.h
    return network.encoder.layer if family == "bert" else network.model.layers


def modules_of(block: Any, family: str) -> dict[str, Any]:
    """Output projections and norms of both parts."""
    names = {
        "gpt2": ("attn.c_proj", "mlp.c_proj", "ln_1", "ln_2"),
        "llama": ("self_attn.o_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"),
        "bert": ("attention.output.dense", "output.dense", "attention.output.LayerNorm", "output.LayerNorm"),
    }[family]
    keys = ("attention", "feed_forward", "attention norm", "feed_forward norm")
    return {key: block.get_submodule(name) for key, name in zip(keys, names, strict=True)}


def nothing(network: nn.Module, draw: torch.Generator) -> None:
    del network, draw


def noise(size: float, *, embeddings: bool = True) -> Background:
    """Noise on each tensor, relative to its root mean square."""

    def add(network: nn.Module, draw: torch.Generator) -> None:
        for name, tensor in network.named_parameters():
            if embeddings or not any(word in name for word in ("emb", "wte", "wpe")):
                scale = size * float(tensor.data.square().mean().sqrt())
                tensor.data += scale * torch.randn(tensor.shape, generator=draw)

    return add


def rounded(bits: int, group: int = 16) -> Background:
    """Every matrix in integers of so many bits, one scale for each group of a row."""

    def round_all(network: nn.Module, draw: torch.Generator) -> None:
        del draw
        for tensor in network.parameters():
            if tensor.ndim == 2:
                tensor.data.copy_(in_integers(tensor.data, bits, group))

    return round_all


def in_integers(tensor: Tensor, bits: int, group: int = 16) -> Tensor:
    width = tensor.shape[-1]
    parts = tensor.unflatten(-1, (-1, group if width % group == 0 else width))
    step = parts.abs().amax(dim=-1, keepdim=True) / (2 ** (bits - 1) - 1)
    return ((parts / step).round() * step).flatten(-2)


def merged_adapter(network: nn.Module, draw: torch.Generator) -> None:
    """A change of rank two of every matrix of attention, as a merged LoRA leaves it."""
    for block in blocks_of(network):
        for name, tensor in block.named_parameters():
            if tensor.ndim == 2 and "att" in name:
                low = torch.randn(len(tensor), 2, generator=draw) @ torch.randn(2, tensor.shape[1], generator=draw)
                tensor.data += 0.05 * tensor.data.norm() / low.norm() * low


def noise_of_elements(network: nn.Module, draw: torch.Generator) -> None:
    """Noise in proportion to each element."""
    for tensor in network.parameters():
        tensor.data *= 1 + 0.01 * torch.randn(tensor.shape, generator=draw)


def noise_of_one_size(network: nn.Module, draw: torch.Generator) -> None:
    """Noise of one size on all elements, in layers of different norms."""
    for tensor in network.parameters():
        tensor.data += 1e-3 * torch.randn(tensor.shape, generator=draw)


def noise_of_many_sizes(network: nn.Module, draw: torch.Generator) -> None:
    """Noise whose size varies by a third from tensor to tensor."""
    for tensor in network.parameters():
        size = 0.01 * float((0.3 * torch.randn((), generator=draw)).exp() * tensor.data.square().mean().sqrt())
        tensor.data += size * torch.randn(tensor.shape, generator=draw)


def noise_with_depth(network: nn.Module, draw: torch.Generator) -> None:
    """Noise that grows by a tenth from layer to layer."""
    for depth, block in enumerate(blocks_of(network)):
        for tensor in block.parameters():
            size = 0.01 * 1.1**depth * float(tensor.data.square().mean().sqrt())
            tensor.data += size * torch.randn(tensor.shape, generator=draw)


def noise_of_few_elements(network: nn.Module, draw: torch.Generator) -> None:
    """Noise with heavy tails: normal numbers over the mean square of three others."""
    for tensor in network.parameters():
        size = 0.005 * float(tensor.data.square().mean().sqrt())
        others = torch.randn(3, *tensor.shape, generator=draw).square().mean(0).sqrt()
        tensor.data += size * torch.randn(tensor.shape, generator=draw) / others


def one_scale_a_matrix(network: nn.Module, draw: torch.Generator) -> None:
    """Integers of 8 bits with one scale for each matrix, whose largest element is chance."""
    del draw
    for tensor in network.parameters():
        if tensor.ndim == 2:
            step = tensor.data.abs().max() / 127
            tensor.data.copy_((tensor.data / step).round() * step)


def half_precision(network: nn.Module, draw: torch.Generator) -> None:
    del draw
    for tensor in network.parameters():
        tensor.data.copy_(tensor.data.bfloat16().float())


UNLIKE_NOISE: dict[str, Background] = {
    "of elements": noise_of_elements, "of one size": noise_of_one_size, "of many sizes": noise_of_many_sizes,
    "with depth": noise_with_depth, "of few elements": noise_of_few_elements,
    "one scale a matrix": one_scale_a_matrix, "half precision": half_precision,
}  # fmt: skip
"""Changes of all weights that are no noise in proportion to each tensor; nothing is located beneath them."""

BACKGROUNDS: dict[str, Background] = {
    "nothing": nothing, "noise of 0.2 %": noise(0.002), "noise of 1 %": noise(0.01),
    "frozen embeddings": noise(0.01, embeddings=False), "int8": rounded(8), "int4": rounded(4),
    "LoRA": merged_adapter,
}  # fmt: skip


def head_rows(network: Any, layer: int, head: int) -> Tensor:
    """What the output projection of a layer reads of a head; a view."""
    family = network.config.model_type
    weight = modules_of(blocks_of(network)[layer - 1], family)["attention"].weight.data
    return weight.narrow(0 if family == "gpt2" else 1, head * WIDTH, WIDTH)


def scale_head(factor: float) -> Callable[[Any, int, int], tuple[str, int | None]]:
    def damage(network: Any, layer: int, seed: int) -> tuple[str, int | None]:
        head = seed % HEADS
        head_rows(network, layer, head).mul_(factor)
        return "attention", head

    return damage


def scale_part(factor: float) -> Callable[[Any, int, int], tuple[str, int | None]]:
    def damage(network: Any, layer: int, seed: int) -> tuple[str, int | None]:
        part = ("attention", "feed_forward")[seed % 2]
        modules_of(blocks_of(network)[layer - 1], network.config.model_type)[part].weight.data.mul_(factor)
        return part, None

    return damage


def scale_norm(factor: float) -> Callable[[Any, int, int], tuple[str, int | None]]:
    def damage(network: Any, layer: int, seed: int) -> tuple[str, int | None]:
        part = ("attention norm", "feed_forward norm")[seed % 2]
        modules_of(blocks_of(network)[layer - 1], network.config.model_type)[part].weight.data.mul_(factor)
        return "norm", None

    return damage


def scale_final_norm(factor: float) -> Callable[[Any, int, int], tuple[str, int | None]]:
    """Of the norm after the last block; of BERT, which has none, of the norm that ends it."""

    def damage(network: Any, layer: int, seed: int) -> tuple[str, int | None]:
        del layer, seed
        last = {
            "gpt2": "transformer.ln_f",
            "llama": "model.norm",
            "bert": f"encoder.layer.{LAYERS - 1}.output.LayerNorm",
        }
        network.get_submodule(last[network.config.model_type]).weight.data.mul_(factor)
        return "norm", None

    return damage


def scale_bias(factor: float) -> Callable[[Any, int, int], tuple[str, int | None]]:
    """One bias of a projection; not of the keys alone, which softmax ignores. LLaMA has none: its norms instead."""

    def damage(network: Any, layer: int, seed: int) -> tuple[str, int | None]:
        block, family = blocks_of(network)[layer - 1], network.config.model_type
        if family == "llama":
            return scale_norm(factor)(network, layer, seed)
        names = {
            "gpt2": ("attn.c_attn", "mlp.c_fc", "attn.c_proj", "mlp.c_proj"),
            "bert": ("attention.self.value", "intermediate.dense", "attention.output.dense", "output.dense"),
        }[family]
        block.get_submodule(names[seed % 4]).bias.data.mul_(factor)
        return ("attention", "feed_forward")[seed % 2], None

    return damage


def silence_head(network: Any, layer: int, seed: int) -> tuple[str, int | None]:
    head_rows(network, layer, seed % HEADS).zero_()
    return "attention", seed % HEADS


def round_part(network: Any, layer: int, seed: int) -> tuple[str, int | None]:
    part = ("attention", "feed_forward")[seed % 2]
    weight = modules_of(blocks_of(network)[layer - 1], network.config.model_type)[part].weight.data
    weight.copy_(in_integers(weight, 4))
    return part, None


def round_layer(network: Any, layer: int, seed: int) -> tuple[str, int | None]:
    """All matrices of a layer in integers of 8 bits: two fifths of noise of 1 %."""
    del seed
    for tensor in blocks_of(network)[layer - 1].parameters():
        if tensor.ndim == 2:
            tensor.data.copy_(in_integers(tensor.data, 8))
    return "attention", None


def change_entry(network: Any, layer: int, seed: int) -> tuple[str, int | None]:
    """One entry of a gain."""
    part = ("attention norm", "feed_forward norm")[seed % 2]
    gain = modules_of(blocks_of(network)[layer - 1], network.config.model_type)[part].weight.data
    gain[7 * seed % len(gain)] *= 1.2
    return "norm", None


def swap_layers(network: Any, layer: int, seed: int) -> tuple[str, int | None]:
    """Layer and the next one, or of the last the one before it."""
    del seed
    blocks = blocks_of(network)
    one, two = blocks[layer - 1], blocks[layer]
    states = copy.deepcopy(one.state_dict()), copy.deepcopy(two.state_dict())
    one.load_state_dict(states[1])
    two.load_state_dict(states[0])
    return "attention", None


DAMAGES: dict[str, Callable[[Any, int, int], tuple[str, int | None]]] = {
    **{f"head × {factor}": scale_head(factor) for factor in (1.01, 1.1, 3.0)},
    **{f"part × {factor}": scale_part(factor) for factor in (1.01, 1.1, 3.0)},
    **{f"norm × {factor}": scale_norm(factor) for factor in (1.01, 1.1, 3.0)},
    **{f"bias × {factor}": scale_bias(factor) for factor in (1.01, 1.1, 3.0)},
    **{f"final norm × {factor}": scale_final_norm(factor) for factor in (1.01, 1.1, 3.0)},
    "head silenced": silence_head,
    "part in int4": round_part,
    "layer in int8": round_layer,
    "entry of a norm × 1.2": change_entry,
    "layers swapped": swap_layers,
}


def planted(family: str, damage: str, background: str, seed: int) -> Planted:
    """Return a network and its damaged copy; the layer is drawn by the seed."""
    whole = healthy(family, seed)
    other, draw = copy.deepcopy(whole), torch.Generator().manual_seed(1000 + seed)
    layer = 1 + int(torch.randint(LAYERS - (damage == "layers swapped"), (), generator=draw))
    BACKGROUNDS[background](other, draw)
    part, head = DAMAGES[damage](other, layer, seed)
    return Planted(whole, other, LAYERS if damage.startswith("final norm") else layer, part, head)


def without_layer(network: Any, layer: int) -> Any:
    """A copy without one layer, from 1."""
    shorter = copy.deepcopy(network)
    blocks = blocks_of(shorter)
    del blocks[layer - 1]
    shorter.config.num_hidden_layers = len(blocks)
    return shorter
