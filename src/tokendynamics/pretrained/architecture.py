"""What kind of transformer a checkpoint is, in numbers and words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
