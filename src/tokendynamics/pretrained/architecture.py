"""What kind of transformer a checkpoint is; layer 1 is the first block, 0 stands for the embedding that it reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_integer, whole_numbers
from tokendynamics.pretrained.discovery._maps import Norm
from tokendynamics.pretrained.discovery.layout import BlockLayout, Layout, Positions
from tokendynamics.pretrained.length_dependence import longest_input

_WIDTHS = ("intermediate_size", "ffn_dim", "n_inner", "hidden_dim", "encoder_ffn_dim", "d_ff")
"""What configurations call the width inside the feed-forward part."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The facts about a network that the analysis depends on.

    Attributes:
        model_type: The name the checkpoint's own configuration gives, or the class of a network without one.
        layers: Number of blocks that run.
        heads: Query heads per layer; 0 where the attention could not be read.
        kv_heads: Key and value heads per layer; fewer than `heads` with grouped-query attention.
        dim: Width of the residual state.
        d_head: Width of one head's queries and keys.
        context: Largest number of tokens; None if the configuration names none.
        vocabulary: Number of token ids; None for a network that reads something else.
        parameters: Parameters of embeddings, blocks and norms, without an output head.
        positions: Rotation of queries and keys; a bias of the logits; a learned table added once, without ("learned")
            or with a norm behind it ("absolute", as in BERT); something "in the blocks"; or none.
        norm: LayerNorm or RMSNorm.
        norm_placement: Before each part ("pre"), after each residual sum ("post"), at the end of each part ("branch"),
            or before and at the end ("pre and branch").
        causal: Whether a token sees only itself and earlier tokens.
        feed_forward_dim: Width inside the feed-forward part; None if the configuration does not say.
        rotary_base: Base of the rotary frequencies, None without rotary positions.
        has_final_norm: Whether a norm follows the last block.

    >>> from tokendynamics.pretrained import load
    >>> facts = load("random:distilgpt2:0").architecture
    >>> facts.layers, facts.dim, facts.norm_placement
    (6, 768, 'pre')
    """

    model_type: str
    layers: int
    heads: int
    kv_heads: int
    dim: int
    d_head: int
    context: int | None
    vocabulary: int | None
    parameters: int
    positions: Positions
    norm: Literal["layer", "rms"]
    norm_placement: Literal["pre", "post", "branch", "pre and branch"]
    causal: bool
    feed_forward_dim: int | None
    rotary_base: float | None
    has_final_norm: bool


def architecture_of(
    config: Any, layout: Layout, dim: int, parameters: int, main_input: str | None = None
) -> Architecture:
    """Return the facts that a layout and a configuration tell.

    Args:
        config: The transformers configuration; None for a network without one.
        layout: Of the network.
        dim: Width of its state.
        parameters: How many it has.
        main_input: Name of what it reads, if known: a network of sounds may have a vocabulary for what it writes.
    """
    first = next((layer for layer in layout.layers if layer.attention is not None), layout.layers[0])
    attention = first.attention
    residual = first.residual
    placement: Literal["pre", "post", "branch", "pre and branch"] = "pre"
    if residual is not None and residual.kind == "norm after":
        placement = "post"
    elif residual is not None and residual.attention_norm is not None:
        placement = "branch" if attention is None or attention.norm is None else "pre and branch"
    reads_ids = main_input in (None, "input_ids") and isinstance(getattr(config, "vocab_size", None), int)
    width = next((size for name in _WIDTHS if isinstance(size := getattr(config, name, None), int)), None)
    rotary_base = (getattr(config, "rope_parameters", None) or {}).get("rope_theta")
    if layout.positions != "rotary" or not isinstance(rotary_base, int | float):
        rotary_base = None
    return Architecture(
        model_type=str(getattr(config, "model_type", "") or "a network of your own"),
        layers=len(layout.blocks),
        heads=0 if attention is None else attention.heads,
        kv_heads=0 if attention is None else attention.kv_heads,
        dim=dim,
        d_head=0 if attention is None else attention.d_head,
        context=longest_input(config),
        vocabulary=config.vocab_size if reads_ids else None,
        parameters=parameters,
        positions=layout.positions,
        norm=norm_of_block(layout, first).kind,
        norm_placement=placement,
        causal=layout.causal if attention is None else attention.causal,
        feed_forward_dim=4 * config.hidden_size if width is None and hasattr(config, "n_inner") else width,
        rotary_base=None if rotary_base is None else float(rotary_base),
        has_final_norm=layout.final_norm is not None,
    )


def norm_of_block(layout: Layout, layer: BlockLayout) -> Norm:
    """Return the norm of a block: the one that its attention reads, or else the one behind it."""
    attention = layer.attention
    if attention is not None and attention.norm is not None:
        return attention.norm[1]
    if layer.residual is not None and layer.residual.norm is not None:
        return layer.residual.norm
    return Norm("layer", "none", 0.0, 1) if layout.final_norm is None else layout.final_norm[1]


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
        raise ArgumentValueError(
            argument, f"a layer from 1 to {count}" if count > 1 else "layer 1, the only one", layer, advice
        )
    return layer


def as_layers(values: Iterable[Any] | None, count: int, default: Sequence[int] | None = None) -> list[int]:
    """Return the numbers of several blocks in the order given; for None `default`, or all of 1 … `count`.

    Raises:
        ArgumentValueError: None of them, or one that does not exist.
        ArgumentTypeError: Not a sequence of whole numbers.

    >>> as_layers(None, 3), as_layers((3, 1), 3)
    ([1, 2, 3], [3, 1])
    """
    if values is None:
        return list(range(1, count + 1) if default is None else default)
    chosen = [as_layer(value, count, "layers") for value in whole_numbers(values, "layers")]
    if not chosen:
        raise ArgumentValueError("layers", f"layers from 1 to {count}", "none")
    return chosen
