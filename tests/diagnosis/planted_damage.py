"""Damage planted in one part of one layer of a network, and where it is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pretrained.families import network_of

FAMILIES = ("llama", "gpt2", "bert")
LAYERS = 3


def blocks_of(network: Any) -> Any:
    return {"llama": lambda n: n.layers, "gpt2": lambda n: n.h, "bert": lambda n: n.encoder.layer}[family_of(network)](
        network
    )


def family_of(network: Any) -> str:
    return network.config.model_type


def scaled(module: nn.Module, factor: float) -> None:
    for parameter in module.parameters():
        parameter.data.mul_(factor)


def parts_of(block: Any, family: str) -> dict[str, Any]:
    """Output projections and norms of both parts, and the values' projection."""
    if family == "llama":
        attention, feed_forward = block.self_attn, block.mlp
        return {
            "output": attention.o_proj, "down": feed_forward.down_proj, "attention norm": block.input_layernorm,
            "feed-forward norm": block.post_attention_layernorm, "value": attention.v_proj,
        }  # fmt: skip
    if family == "gpt2":
        return {
            "output": block.attn.c_proj, "down": block.mlp.c_proj, "attention norm": block.ln_1,
            "feed-forward norm": block.ln_2, "value": None,
        }  # fmt: skip
    return {
        "output": block.attention.output.dense, "down": block.output.dense,
        "attention norm": block.attention.output.LayerNorm, "feed-forward norm": block.output.LayerNorm,
        "value": block.attention.self.value,
    }  # fmt: skip


def output_times_six(block: Any, family: str) -> None:
    scaled(parts_of(block, family)["output"], 6.0)


def down_times_three(block: Any, family: str) -> None:
    scaled(parts_of(block, family)["down"], 3.0)


def attention_gain_times_ten(block: Any, family: str) -> None:
    parts_of(block, family)["attention norm"].weight.data.mul_(10.0)


def feed_forward_gain_times_ten(block: Any, family: str) -> None:
    parts_of(block, family)["feed-forward norm"].weight.data.mul_(10.0)


def head_silenced(block: Any, family: str) -> None:
    weight: Tensor = parts_of(block, family)["output"].weight.data  # Conv1D keeps its transpose
    (weight if family == "gpt2" else weight.mT)[12:24] = 0.0


def three_times_identity(block: Any, family: str) -> None:
    """OV, summed over the heads, becomes 3 × identity: values and outputs are unit matrices."""
    output = parts_of(block, family)["output"].weight.data
    dim = len(output)
    output.copy_(3.0 * torch.eye(dim))
    if family == "gpt2":
        block.attn.c_attn.weight.data[:, 2 * dim :] = torch.eye(dim)
    else:
        value = parts_of(block, family)["value"].weight.data
        value.copy_(torch.eye(dim)[: len(value)])


DAMAGES: dict[str, tuple[Callable[[Any, str], None], str]] = {
    "o_proj × 6": (output_times_six, "attention"),
    "OV = 3 × identity": (three_times_identity, "attention"),
    "attention norm × 10": (attention_gain_times_ten, "attention"),
    "head silenced": (head_silenced, "attention"),
    "down_proj × 3": (down_times_three, "feed-forward part"),
    "feed-forward norm × 10": (feed_forward_gain_times_ten, "feed-forward part"),
}
"""What is done to a block, and the part it is in."""


def first_part_of(name: str) -> str:
    """What `Comparison.first_part` is for a damage."""
    return "norm" if "norm" in name else DAMAGES[name][1].replace("feed-forward part", "feed_forward")


def network(family: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return network_of(family)[0].eval()


def damaged(original: Any, name: str, layers: tuple[int, ...]) -> Any:
    """A copy with the damage in some layers, counted from 1."""
    changed = copy.deepcopy(original)
    for layer in layers:
        DAMAGES[name][0](blocks_of(changed)[layer - 1], family_of(changed))
    return changed
