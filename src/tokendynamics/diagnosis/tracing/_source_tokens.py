"""Which tokens attention brings a shared direction from: attention weight × what the heads write of each source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float64
from torch import Tensor

from tokendynamics.diagnosis.tracing._directions import (
    SharedDirections,
    TextStates,
    directions_of,
    output_factors,
    watch_layers,
)
from tokendynamics.diagnosis.tracing.prompt_trace import SINK_RATIO
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.discovery.attention_call import AttentionCall
from tokendynamics.pretrained.loading import Model, as_checkpoint
from tokendynamics.provenance.progress import Progress, reporting, tracked
from tokendynamics.words import percent

KINDS = ("common", "text")
"""The direction that all texts share, and that of the token's own text."""

_ONE_SOURCE = 0.25
"""Share of what attention adds from which one position is named as its source."""

_DESCRIPTIONS = {
    "contribution": "Σ_h a_ij (OV_h x̂_j)·d / |x_i|, the mean over the tokens i that count: what attention brings of "
    "source token j to the mean component of the text's tokens along the direction after the layer",
    "added": "what the heads of the layer add to that component; the sum of contribution over tokens",
    "by_position": "share of added that comes from tokens at one position, over all texts; NaN where added is not "
    "positive",
    "token_text": "text of each token, padded with ''",
}


@typed_arguments
def source_tokens(
    ckpt: Model,
    texts: Any,
    *,
    sinks: str | Sequence[int] = "detect",
    sink_ratio: float = SINK_RATIO,
    truncate: bool = False,
    progress: bool | Progress = False,
) -> xr.Dataset:
    """Measure which source tokens attention brings the shared directions from (`mathematics` 11, Tokens).

    In layer l, head h writes Σ_j a_ij OV_h x̂_j to token i. Along the direction d that tokens share after the layer, see
    `shared_directions`, the terms of each source token j add up to what the heads add; the bias of the output
    projection stands apart.

    Args:
        ckpt: Anything `tokendynamics.load` takes, or a checkpoint already loaded.
        texts: At least two different prompts, as `tokendynamics.trace` takes them.
        sinks: Which tokens do not count as receivers; as sources all tokens count. See `tokendynamics.trace`.
        sink_ratio: Likewise.
        truncate: Likewise.
        progress: True for a progress bar, or a function; see `progress`.

    Returns:
        Dataset with dims ``prompt``, ``kind`` ("common": the direction of all texts; "text": that of the text beyond
        it), ``layer`` (1 … L), ``token``, float64: ``contribution`` (all four; NaN beyond shorter texts and where heads
        are not known), ``added`` (prompt, kind, layer), ``by_position`` (kind, layer, token), and ``token_text``
        (prompt, token). Attribute ``summary``: where most of what the tokens of a text share comes from, in words.

    Raises:
        ArgumentTypeError, ArgumentValueError: Fewer than two different texts, or some that this network does not read.
        CheckpointError: No layer's heads are known, or the attention does not show.

    >>> table = source_tokens("random:distilgpt2", ["one fish", "two red birds", "it rains again"])
    >>> float(abs(table.contribution.sum("token") - table.added).max()) < 1e-6
    True
    """
    ckpt = as_checkpoint(ckpt)
    factors = output_factors(ckpt)
    with reporting(progress) as report:
        shared = directions_of(ckpt, texts, report, sinks=sinks, sink_ratio=sink_ratio, truncate=truncate)
        rows = [
            _of_text(ckpt, text, shared.of(place), factors)
            for place, text in enumerate(tracked(shared.texts, report, "watching the attention"))
        ]
    return _as_dataset(ckpt, shared, rows)


def _of_text(
    ckpt: Checkpoint, text: TextStates, directions: Float64[Tensor, "2 layer dim"], factors: dict[int, Tensor]
) -> tuple[Float64[Tensor, "2 block token"], Float64[Tensor, "2 block"]]:
    """Return the contribution of each source token after each layer 1 … L, and what the heads add."""
    depth, tokens = text.after.shape[:2]
    contribution = torch.full((2, depth - 1, tokens), torch.nan, dtype=torch.float64)
    added = torch.full((2, depth - 1), torch.nan, dtype=torch.float64)

    def of_layer(layer: int, call: AttentionCall) -> None:
        if layer not in factors:
            return
        along = torch.einsum("hvd,kd->hvk", factors[layer], directions[:, layer])
        value, weights = call.value[0].double().cpu(), text.weights[layer]
        value = value.repeat_interleave(len(along) // len(value), dim=0)
        received = torch.zeros(len(along), tokens, dtype=torch.float64)
        for rows, attention, _ in call.by_rows():
            received += torch.einsum("hij,i->hj", attention[0].double().cpu(), weights[rows])
        contribution[:, layer - 1] = torch.einsum("hj,hjv,hvk->kj", received, value, along)
        added[:, layer - 1] = torch.einsum("ihv,i,hvk->k", call.output[0].double().cpu(), weights, along)

    watch_layers(ckpt, text, of_layer)
    return contribution, added


def _as_dataset(ckpt: Checkpoint, shared: SharedDirections, rows: Sequence[tuple[Tensor, Tensor]]) -> xr.Dataset:
    longest = max(contribution.shape[-1] for contribution, _ in rows)
    whole = np.full((len(rows), *rows[0][0].shape[:2], longest), np.nan)
    labels = np.full((len(rows), longest), "", dtype=object)
    for place, (contribution, _) in enumerate(rows):
        tokens = contribution.shape[-1]
        whole[place, ..., :tokens] = contribution.numpy()
        labels[place, :tokens] = shared.texts[place].given.labels(tokens)
    added = torch.stack([each for _, each in rows]).numpy()
    total = added.sum(axis=0)
    by_position = np.nansum(whole, axis=0) / np.where(total > 0, total, np.nan)[..., None]
    variables = {
        "contribution": (("prompt", "kind", "layer", "token"), whole),
        "added": (("prompt", "kind", "layer"), added),
        "by_position": (("kind", "layer", "token"), by_position),
        "token_text": (("prompt", "token"), labels.astype(str)),
    }
    coords = {"prompt": shared.names, "kind": list(KINDS), "layer": np.arange(1, whole.shape[2] + 1)}
    attrs = {"model": ckpt.name, "summary": _summary(by_position[1], total[1], shared.noun)}
    table = xr.Dataset(variables, coords=coords, attrs=attrs)
    for name in table.data_vars:
        table[name].attrs["description"] = _DESCRIPTIONS[str(name)]
    return table


def _summary(by_position: np.ndarray, added: np.ndarray, noun: str) -> str:
    """Say where most comes from in the layer whose attention adds most to what the tokens of a text share."""
    if not np.nanmax(added, initial=0.0) > 0:
        return f"In no layer does attention add to the direction that the tokens of a {noun} share."
    layer = int(np.nanargmax(added))
    position = int(np.nanargmax(by_position[layer]))
    largest = float(by_position[layer, position])
    where = f"In layer {layer + 1}, where attention adds most to the direction that the tokens of a {noun} share"
    if largest < _ONE_SOURCE:
        return f"{where}, no position contributes more than {percent(largest)} of it."
    if not largest <= 1:
        return f"{where}, the token at position {position} adds more than the whole; others undo it."
    named = "its first token" if position == 0 else f"the token at position {position}"
    return f"{where}, {percent(largest)} of it comes from {named}."
