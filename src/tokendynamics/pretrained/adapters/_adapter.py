"""What an adapter has to say about one layout of transformer checkpoint: mostly data, plus small functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Sites:
    """Where, inside the base model, the residual state can be read during a forward pass.

    Attributes:
        blocks: Name of the list of blocks.
        attention: Name, inside a block, of the module at which the state after the attention part shows.
        attention_side: Whether it is that module's first input or its output.
        final_norm: Name of the norm after the last block, or None.
    """

    blocks: str
    attention: str
    attention_side: Literal["input", "output"]
    final_norm: str | None


@dataclass(frozen=True)
class InitialLaw:
    """How an untrained tensor is drawn: N(0, std²), or a constant where `std` is 0; one row may be zero."""

    std: float = 0.0
    constant: float = 0.0
    zero_row: int | None = None


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One layout of checkpoint.

    Attributes:
        family: Name of the layout.
        model_types: The `model_type` values of configurations that have it.
        prefixes: What may stand before the base model's tensor names in a file.
        renamed: Endings of tensor names, (ours, in older files).
        options: Further arguments of the base model's class.
        sites: Where the states are read.
        describe: configuration → the fields of `Architecture`, except `parameters`.
        tensors: configuration → {role: name of the tensor, with ``{layer}``} for one attention layer.
        split: (tensors by role, fields of `Architecture`) → the tensor fields of `AttentionWeights`.
        scale: (configuration, layer) → factor of the logits.
        norm_eps: configuration → the epsilon of the block's norms.
        rotary: configuration → (frequencies, scaling), or None without rotary positions.
        law: (configuration, tensor name, number of axes) → how transformers initialises that tensor.
    """

    family: Literal["gpt2", "llama", "bert"]
    model_types: tuple[str, ...]
    prefixes: tuple[str, ...]
    sites: Sites
    describe: Callable[[Any], dict[str, Any]]
    tensors: Callable[[Any], dict[str, str]]
    split: Callable[[Mapping[str, Tensor], Mapping[str, Any]], dict[str, Tensor]]
    scale: Callable[[Any, int], float]
    norm_eps: Callable[[Any], float]
    law: Callable[[Any, str, int], InitialLaw]
    rotary: Callable[[Any], tuple[Tensor, float]] | None = None
    renamed: tuple[tuple[str, str], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def input_heads(weight: Float[Tensor, "head_d dim"], heads: int) -> Float[Tensor, "{heads} dim d_head"]:
    """Split a linear layer's weight (out, in), whose outputs are the heads side by side.

    >>> import torch
    >>> input_heads(torch.zeros(6, 4), heads=2).shape
    torch.Size([2, 4, 3])
    """
    return weight.unflatten(0, (heads, -1)).transpose(1, 2)


def output_heads(weight: Float[Tensor, "dim head_d"], heads: int) -> Float[Tensor, "{heads} d_head dim"]:
    """Split a linear layer's weight (out, in), whose inputs are the heads side by side.

    >>> import torch
    >>> output_heads(torch.zeros(4, 6), heads=2).shape
    torch.Size([2, 3, 4])
    """
    return weight.T.unflatten(0, (heads, -1))
