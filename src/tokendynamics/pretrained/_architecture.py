"""What kind of transformer a checkpoint is; layer 1 is the first block, 0 stands for the embedding that it reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from tokendynamics.numerics._arguments import as_integer, whole_numbers
from tokendynamics.numerics._errors import ArgumentValueError, expected


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The facts about a network that the analysis depends on.

    Attributes:
        family: The layout its adapter reads: ``"gpt2"``, ``"llama"`` or ``"bert"``.
        model_type: The name the checkpoint's own configuration gives.
        layers: Number of blocks.
        heads: Query heads per layer.
        kv_heads: Key and value heads per layer; fewer than `heads` with grouped-query attention.
        dim: Width of the residual state.
        d_head: Width of one head.
        context: Largest number of tokens.
        vocabulary: Number of token ids.
        parameters: Parameters of embeddings, blocks and norms, without an output head.
        positions: Learned table added once (GPT-2), rotation of queries and keys (LLaMA), or a learned table
            added before the embedding norm (BERT's "absolute" positions).
        norm: LayerNorm or RMSNorm.
        norm_placement: Before each part (``"pre"``) or after each residual sum (``"post"``).
        causal: Whether a token sees only itself and earlier tokens.
        feed_forward_dim: Width inside the feed-forward part.
        rotary_base: Base of the rotary frequencies, None without rotary positions.
        has_final_norm: Whether a norm follows the last block.
    """

    family: Literal["gpt2", "llama", "bert"]
    model_type: str
    layers: int
    heads: int
    kv_heads: int
    dim: int
    d_head: int
    context: int
    vocabulary: int
    parameters: int
    positions: Literal["learned", "rotary", "absolute"]
    norm: Literal["layer", "rms"]
    norm_placement: Literal["pre", "post"]
    causal: bool
    feed_forward_dim: int
    rotary_base: float | None
    has_final_norm: bool


def as_layer(value: Any, count: int, argument: str = "layer") -> int:
    """Return the number of one block of a network that has `count` of them.

    Raises:
        ArgumentValueError: There is no such block.
        ArgumentTypeError: No whole number.

    >>> as_layer(3, 3)
    3
    """
    layer = as_integer(value, argument)
    if not 1 <= layer <= count:
        advice = "layers count from 1; 0 is the embedding"
        raise ArgumentValueError(expected(argument, f"a layer from 1 to {count}", layer, advice))
    return layer


def as_layers(values: Iterable[Any] | None, count: int, argument: str = "layers") -> list[int]:
    """Return the numbers of several blocks in the order given, all of 1 … `count` for None.

    Raises:
        ArgumentValueError: None of them, or one that does not exist.
        ArgumentTypeError: Not a sequence of whole numbers.

    >>> as_layers(None, 3), as_layers((3, 1), 3)
    ([1, 2, 3], [3, 1])
    """
    if values is None:
        return list(range(1, count + 1))
    chosen = [as_layer(value, count, argument) for value in whole_numbers(values, argument)]
    if not chosen:
        raise ArgumentValueError(expected(argument, f"layers from 1 to {count}", "none"))
    return chosen
