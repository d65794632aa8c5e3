"""A layout in words, for a person who asks what was found."""

from __future__ import annotations

from collections.abc import Iterable

from tokendynamics.pretrained.discovery._columns import Part
from tokendynamics.pretrained.discovery._maps import Norm, Probed
from tokendynamics.pretrained.discovery.layout import (
    NO_ATTENTION,
    AttentionLayout,
    BlockLayout,
    Layout,
    Residual,
    as_ranges,
)
from tokendynamics.words import listing

_NORMS = {"rms": "RMS norm", "layer": "LayerNorm"}
_POSITIONS = {
    "rotary": "rotations of queries and keys",
    "relative bias": "a bias of the logits by position",
    "learned": "a table added to the embeddings",
    "absolute": "a table added to the embeddings, with a norm behind it",
    "in the blocks": "something inside the blocks",
    "none": "none but what the mask says",
}
_PACKING = {
    "any lengths": "prompts of any lengths: no token sees a later one",
    "any lengths with a mask": "prompts of any lengths, with a mask",
    "equal shapes": "inputs of the same shape",
    "none": "none: each runs alone",
    None: "tried whenever several run, since a network in memory may change",
}
_MIXING = {
    "none": "no token acts on another",
    "earlier tokens": "earlier tokens act on a token in another way, such as a convolution or a recurrence",
    "all tokens": "tokens act on each other in another way",
}
_SAME = 1e-6
"""Relative difference up to which a factor of the logits is 1 or 1/√d_head."""

_LONGEST = 40


def whole_in_words(layout: Layout) -> list[tuple[str, str]]:
    """Return what is said of the network as a whole: names of facts, and the facts."""
    again = "" if len(set(layout.blocks)) == len(layout.blocks) else f", {len(set(layout.blocks))} of them different"
    alone = [("cross-attention", "left out: the decoder runs without its encoder")] if layout.decoder_alone else []
    end = "none" if layout.final_norm is None else f"{layout.final_norm[0]}, {norm_in_words(layout.final_norm[1])}"
    return [
        ("blocks", f"{len(layout.blocks)}{again}: {layout.blocks[0]} to {layout.blocks[-1]}"),
        ("positions", _POSITIONS[layout.positions]),
        ("final norm", end),
        *alone,
        ("may share a pass", _PACKING[layout.packing]),
        ("found on", layout.found_on),
    ]


def kinds_in_words(layout: Layout, *, verified: bool = False) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return, for each kind of layer, which layers have it (counted from 1) and its facts.

    Args:
        layout: Of the network.
        verified: Whether factors of the logits are those of its own weights, and not of the random ones.
    """
    kinds = list(dict.fromkeys(layout.layers))
    described = []
    for kind in kinds:
        layers = [number for number, layer in enumerate(layout.layers, 1) if layer == kind]
        words = f"layers {layers[0]}–{layers[-1]}" if layers[1:] else f"layer {layers[0]}"
        if layers != list(range(layers[0], layers[-1] + 1)):
            words = "layers " + ", ".join(map(str, layers))
        described.append((words, block_in_words(kind, verified=verified)))
    return described


def block_in_words(block: BlockLayout, *, verified: bool = False) -> list[tuple[str, str]]:
    """Return the facts of one kind of layer; `verified` as in `kinds_in_words`."""
    facts = [] if block.attention is None else _attention(block.attention, verified)
    if not block.attends:
        facts.append(("attention", f"none; {_MIXING[block.mixing]}"))
    facts += [] if block.residual is None else _residual(block.residual)
    if block.problem and block.problem != NO_ATTENTION:
        facts.append(("not found", block.problem))
    return facts


def norm_in_words(norm: Norm) -> str:
    """Return what a norm is.

    >>> norm_in_words(Norm("rms", "1 + weight", 1e-6, 8))
    'RMS norm with the gain 1 + weight, epsilon 1e-06'
    """
    gain = "no gain" if norm.gain == "none" else f"the gain {norm.gain.replace('weight', norm.parameter)}"
    return f"{_NORMS[norm.kind]} with {gain}, epsilon {norm.eps:g}"


def _read_in_words(attention: AttentionLayout) -> str:
    if attention.norm is not None:
        return f"{attention.norm[0]}, {norm_in_words(attention.norm[1])}"
    return "a function of the state that is not recognized as a norm of it" if attention.changed else "the state"


def form_in_words(attention: AttentionLayout) -> str:
    """Return what the logits and values are of the attention's input: a bilinear and a linear form, or not quite."""
    gated = (
        "" if attention.gate is None else f"; a gate ({attention.gate}) multiplies the heads' outputs and is left out"
    )
    if attention.output_norm is not None:
        gated += (
            f"; a norm ({attention.output_norm[0]}) follows the heads: the output factor is that on normalized heads"
        )
    besides = ", softly capped" if attention.soft_cap is not None else ""
    besides += ", plus a bias by position" if attention.relative_bias else ""
    besides += ", plus terms of tokens and positions" if attention.token_bias else ""
    besides += ", beside those of keys that come from no token" if attention.further_senders else ""
    gated += "; it reads neither the state nor a recognized norm of it" if attention.changed else ""
    if attention.after_output:
        gated += f"; {attention.after_output} acts on what {attention.output[0]} gives and is left out"
    if attention.scaled_for is not None:
        gated += f"; their factor depends on the number of tokens and is taken for {attention.scaled_for} of them"
    if not attention.normed:
        return f"logits are a bilinear form of what the attention reads{besides}{gated}"
    are, their = ("are", "their") if attention.normed[1:] else ("is", "its")
    words = f"{listing(attention.normed)} {are} normalized after {their} projection"
    words += ": the forms are those on normalized tokens, gains included"
    return words + besides + gated


def _attention(attention: AttentionLayout, verified: bool) -> list[tuple[str, str]]:
    mask = "a token sees itself and earlier ones" if attention.causal else "every token sees every token"
    if attention.other_mask:
        mask = (
            "no later tokens are seen, and other pairs are hidden too" if attention.causal else "some pairs are hidden"
        )
    if attention.mask_by_ids:
        mask += "; which are hidden depends on token ids"
    usual = any(abs(attention.scale / scale - 1) < _SAME for scale in (1.0, attention.d_head**-0.5))
    heads = f"{attention.heads} of width {attention.d_head}"
    if attention.kv_heads != attention.heads:
        heads += f", {attention.kv_heads} of keys and values"
    if attention.d_value != attention.d_head:
        heads += f", values of width {attention.d_value}"
    facts = [
        ("attention", attention.module or "the block itself"),
        ("reads", _read_in_words(attention)),
        ("heads", heads),
        ("query", _parts(attention.query)),
        ("key", _parts(attention.key)),
        ("value", _parts(attention.value)),
        ("output", "no projection" if attention.output[1] == "heads" else attention.output[0]),
        ("form", form_in_words(attention)),
        (
            "scale",
            f"{attention.scale:.6g}{'' if verified or usual else ' with random weights, where it may be learned'}",
        ),
        ("mask", mask if attention.window is None else f"{mask}, in a window of {attention.window}"),
    ]
    if attention.rotation is not None:
        first, second, frequencies = attention.rotation.first, attention.rotation.second, attention.rotation.frequencies
        how = "neighbours" if second[0] == first[0] + 1 else f"features {len(first)} apart"
        source = "by place in the image, not by distance"
        if frequencies is not None:
            source = f"frequencies {'fitted' if attention.rotation.table is None else f'of {attention.rotation.table}'}"
        facts.append(("rotation", f"{2 * len(first)} of {attention.d_head} features, pairs of {how}; {source}"))
    for name, value in (("soft cap", attention.soft_cap), ("sinks", attention.sinks)):
        if value is not None:
            facts.append((name, str(value)))
    if attention.further_senders:
        facts.append(("further senders", f"{attention.further_senders}, from no token; no part of the factors"))
    if attention.gate is not None:
        facts.append(("gate", f"sigmoid of {attention.gate} times the heads' outputs; no part of the factors"))
    if attention.output_norm is not None:
        name, norm = attention.output_norm
        facts.append(("norm of the heads", f"{name}, {norm_in_words(norm)}; its gain is part of the output factor"))
    if attention.head_factor is not None:
        facts.append(("factor of the heads", f"{attention.head_factor.parameter}; part of the output factor"))
    if attention.relative_bias:
        facts.append(("bias", "by position, added to the logits; no part of the factors"))
    if attention.token_bias:
        facts.append(("further terms", "of tokens and positions, added to the logits; no part of the factors"))
    return [*facts, ("recomputed", f"to {attention.error:.1g} of the largest entry")]


def _parts(parts: Iterable[Part]) -> str:
    def words(part: Part) -> str:
        rows = as_ranges(part.rows)
        rows = rows if len(rows) <= _LONGEST else f"{len(part.rows)} rows in {rows.count(',') + 1} runs"
        text = f"{part.module} [{rows}]"
        if isinstance(part.does, Norm):
            whose = f"a function{part.module and f' in {part.module}'}" if part.does.by_function else part.module
            text = f"{whose} ({norm_in_words(part.does)})"
        if isinstance(part.does, Probed):
            text += f" (a {part.does.kind}, read by what it does)"
        if set(part.factor) != {1.0}:
            text += f" × {part.factor[0]:.6g}" if len(set(part.factor)) == 1 else " × several factors"
        return text if part.reads is None else f"{text} of {_parts(part.reads)}"

    return " and ".join(map(words, parts))


def _residual(residual: Residual) -> list[tuple[str, str]]:
    def part(name: str, factor: float | None) -> str:
        if factor is None:
            return f"a factor of each feature, or a learned one · {name}"
        return name if factor == 1.0 else f"{factor:.6g} · {name}"

    if residual.by_token:
        return [("sum", _sum_by_token(residual))]
    skips = (residual.attention_skip, residual.feed_forward_skip)
    state, later = (
        "a learned factor · " if skip is None else "" if skip == 1.0 else f"{skip:.6g} · " for skip in skips
    )
    factors = [*residual.further, (residual.feed_forward or "", residual.feed_forward_factor)]
    ahead = [part(name, factor) for name, factor in factors if name in residual.ahead]
    behind = [part(name, factor) for name, factor in factors if name and name not in residual.ahead]
    attention = [] if residual.attention is None else [part(residual.attention, residual.attention_factor)]
    first = " + ".join([f"{state}state", *ahead, *attention])
    if residual.kind == "norm after" and residual.attention_norm is not None:
        first = f"{residual.attention_norm}({first})"
    whole = " + ".join([f"{later}({first})" if later else first, *behind])
    if residual.kind == "norm after" and residual.feed_forward_norm is not None:
        whole = f"{residual.feed_forward_norm}({whole})"
    if residual.kind == "norm after" or not attention or not ahead + behind:
        return [("sum", whole)]
    return [("sum", f"{whole}, {'both read the same state' if residual.parallel else 'one after the other'}")]


def _sum_by_token(residual: Residual) -> str:
    first = f"{'state' if residual.attention_skip == 1.0 else 'what is kept of the state'} + {residual.attention}"
    if residual.kind == "norm after":
        first = f"{residual.attention_norm}({first})"
    parts = residual.feed_forward_modules
    factors = [residual.attention_factor, *(factor for _, factor in residual.further)]
    factors += [] if residual.feed_forward is None else [residual.feed_forward_factor]
    order = ", both read the same state" if residual.parallel else ", one after the other" if parts else ""
    return f"{' + '.join((first, *parts))}{'' if set(factors) == {1.0} else ', with factors by token'}{order}"
