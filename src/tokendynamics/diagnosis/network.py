"""The network that was measured: its description, which parts and norms it has, and what qualifies every number."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_integer, as_text
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.discovery.layout import CROSSES, AttentionLayout
from tokendynamics.words import in_layers, listing, plural

PART_NAMES = {"attention": "attention", "feed_forward": "feed-forward part"}
"""Names of the two parts of a layer in sentences, by their label in the data."""

_MOST_NAMED = 4
"""Modules that a note names at most."""

_DECODER_ALONE = (
    "the decoder ran without its encoder and without cross-attention, so these are not the states of the whole network"
)


def part_of_layer(part: str, layer: int) -> str:
    """Return a part of a layer as sentences name it.

    Args:
        part: Its label in the data.
        layer: Counted from 1.

    >>> part_of_layer("feed_forward", 3)
    'the feed-forward part of layer 3'
    """
    return f"the {PART_NAMES[part]} of layer {layer}"


def parts_there(trace: xr.Dataset) -> dict[str, np.ndarray]:
    """Return for each part which of the layers 1 … L have it; a layer with unidentified parts counts as having both.

    Args:
        trace: From `tokendynamics.trace`; without a recorded layout, all layers count as having both.

    Returns:
        Boolean arrays by the part's label in the data.
    """
    existing = {name: np.ones(trace.sizes["layer"] - 1, dtype=bool) for name in PART_NAMES}
    if record := _record(trace):
        residuals = [record["kinds"][kind]["residual"] for kind in record["layers"]]
        existing["feed_forward"] = np.array([part is None or part["feed_forward"] is not None for part in residuals])
    return existing


def norms_there(trace: xr.Dataset) -> bool:
    """Return whether a network has any norm of its residual stream; true without a recorded layout.

    Args:
        trace: From `tokendynamics.trace`.
    """
    record = _record(trace)
    return not record or record["final_norm"] is not None or any(kind["norms"] for kind in record["kinds"])


WHAT_VARIES = "a dropout that stays on, other chance, or a memory of earlier inputs"
"""Why two passes of a network over the same input may differ."""


def passes_differ(trace: xr.Dataset) -> bool:
    """Return whether two passes of a network over the same input gave different states; false without a layout.

    Args:
        trace: From `tokendynamics.trace`.
    """
    return bool(_record(trace).get("varies", False))


def crossing_layers(trace: xr.Dataset) -> list[int]:
    """Return the layers whose feed-forward part includes a cross-attention; empty without a recorded layout.

    Args:
        trace: From `tokendynamics.trace`.
    """
    record = _record(trace)
    kinds = [record["kinds"][kind] for kind in record.get("layers", ())]
    return [number for number, kind in enumerate(kinds, 1) if CROSSES in kind["problem"] and kind["residual"]]


def joins_there(trace: xr.Dataset) -> list[int]:
    """Return the layers before which the network changes the states outside of its blocks; empty without a layout.

    Args:
        trace: From `tokendynamics.trace`.
    """
    record = _record(trace)
    return [number for number, kind in enumerate(record.get("layers", ()), 1) if record["kinds"][kind].get("joins")]


def hidden_attention(trace: xr.Dataset) -> str:
    """Return why the weights between tokens do not show, by the first layer where they do not; empty where they do.

    Args:
        trace: From `tokendynamics.trace`.
    """
    record = _record(trace)
    for number, place in enumerate(record.get("layers", ()), 1):
        kind = record["kinds"][place]
        if kind.get("attends") and not kind.get("shows", True):
            return f"layer {number}: {kind['problem']}"
    return ""


def changed_between(layers: list[int]) -> str:
    """Say before which layers the states change outside of the blocks, and what that change counts as."""
    return (
        f"before {in_layers(layers)} the network changes the states outside of its blocks (a skip connection, a norm, "
        "a factor), which is counted with the first part of the layer"
    )


def _record(trace: xr.Dataset) -> dict[str, Any]:
    return json.loads(trace.attrs.get("layout", "{}"))


def notes_of(ckpt: Checkpoint) -> dict[str, str]:
    """Return the attributes ``notes``, on layers and parts, and ``files``, how they were read; without empty ones.

    Args:
        ckpt: The measured network.
    """
    notes = []
    missing = [number for number, layer in enumerate(ckpt.layout.layers, 1) if not layer.attends]
    if missing:
        have = "have" if missing[1:] else "has"
        notes.append(f"{in_layers(missing)} {have} no attention, so measures of attention are undefined there")
    crossing = [number for number, layer in enumerate(ckpt.layout.layers, 1) if CROSSES in layer.problem]
    if crossing:
        have = "have" if crossing[1:] else "has"
        note = f"{in_layers(crossing)} {have} a cross-attention, which reads another sequence and is not audited"
        known = all(ckpt.layout.layers[number - 1].residual is not None for number in crossing)
        notes.append(f"{note}; its change of the states counts with the feed-forward part" if known else note)
    joining = [number for number, layer in enumerate(ckpt.layout.layers, 1) if layer.joins]
    if joining:
        notes.append(changed_between(joining))
    ahead = [number for number, layer in enumerate(ckpt.layout.layers, 1) if layer.residual and layer.residual.ahead]
    if ahead:
        notes.append(
            f"in {in_layers(ahead)} the feed-forward part, or some of it, acts before the attention, so what each of "
            "them changes by itself is not measured"
        )
    if fused := ckpt.fused_otherwise:
        notes.append(
            f"in {in_layers(list(fused))} PyTorch's fused path, which evaluation without gradients takes, gives other "
            "states: it leaves out methods, modules and adapters that the network has of its own, which count here, as "
            "in training"
        )
    if ckpt.layout.decoder_alone:
        notes.append(_DECODER_ALONE)
    if outside := ckpt.layout.outside:
        blocks = f"{ckpt.layout.blocks[0]} to {ckpt.layout.blocks[-1]}"
        notes.append(
            f"the layers are {blocks}, and {plural(len(outside), 'attention')} outside of them "
            f"({listing(list(outside), most=_MOST_NAMED)}) {'are' if outside[1:] else 'is'} not measured"
        )
    if ckpt.layout.streams > 1:
        notes.append(
            f"each block hands on {ckpt.layout.streams} streams of states: these are the states that the network "
            "calls its hidden states, which its attention does not write to"
        )
    if ckpt.layout.varies:
        notes.append(f"two passes over the same input give different numbers: {WHAT_VARIES}")
    clauses_by_name = {"notes": notes, "files": ckpt.notes}
    return {name: "; ".join(clauses) for name, clauses in clauses_by_name.items() if clauses}


def besides_the_form(attention: AttentionLayout) -> list[str]:
    """Return what an attention has besides a softmax of a bilinear form of its input, apart from rotations.

    Causal and full masks, and windows, are left out.

    Args:
        attention: How it was read.
    """
    by_ids = " and depends on token ids" if attention.mask_by_ids else ""
    their = "their" if attention.normed[1:] else "its"
    besides = {
        f"{listing(attention.normed)} normalized after {their} projection": bool(attention.normed),
        f"a mask that is neither full nor causal{by_ids}": attention.other_mask,
        "a factor of the logits that depends on the number of tokens": attention.scaled_for is not None,
        "a soft cap": attention.soft_cap is not None,
        "sinks": attention.sinks is not None,
        "keys and values that come from no token": attention.further_senders > 0,
        "a bias by position": attention.relative_bias,
        "further terms of tokens and positions": attention.token_bias,
        "an input that is neither the state nor a recognized norm of it": attention.changed,
        **{f"{acting} of the heads' outputs": True for acting in attention.after_heads},
        f"{attention.after_output} of what its output projection gives": bool(attention.after_output),
    }
    return [what for what, there in besides.items() if there]


_SIZES = {"widths": "dim", "depths": "layers", "heads": "heads"}


def sizes_differ(first: Checkpoint, other: Checkpoint, *sizes: str) -> str:
    """Say which of some sizes of two networks differs; empty where none does.

    Args:
        first: The network that the sentence names first.
        other: The one that it names second.
        sizes: Of "widths", "depths" and "heads".
    """
    for size in sizes:
        one, two = (getattr(ckpt.architecture, _SIZES[size]) for ckpt in (first, other))
        if one != two:
            return f"their {size} differ ({one} and {two})"
    return ""


def checked_model(values: Any) -> dict[str, Any]:
    """Return the stored facts about a network, checked as far as anyone asks for them."""
    as_text(values["name"], "name")
    for name, least in (("layers", 1), ("dim", 1), ("heads", 0), ("parameters", 1)):
        if as_integer(values[name], name) < least:
            raise ArgumentValueError(name, f"at least {least}", values[name])
    return dict(values)


def describe(ckpt: Checkpoint) -> dict[str, Any]:
    """Return name, source and architecture of a checkpoint as plain values."""
    return {
        "name": ckpt.name,
        "source": ckpt.source.name if ckpt.source else None,
        "random_seed": ckpt.random_seed,
        **asdict(ckpt.architecture),
    }
