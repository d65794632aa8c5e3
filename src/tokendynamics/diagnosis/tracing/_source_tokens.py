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
    WORDS,
    Act,
    SharedDirections,
    TextStates,
    directions_of,
    directions_table,
    heads_of,
    output_factors,
    watch_texts,
    writing_factors,
)
from tokendynamics.diagnosis.tracing.direction_words import summary_of
from tokendynamics.diagnosis.tracing.prompt_trace import SINK_RATIO
from tokendynamics.diagnosis.tracing.prompts import checkpoint_for
from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import why
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.discovery.attention_call import AttentionCall
from tokendynamics.pretrained.loading import Model
from tokendynamics.provenance.progress import Progress, reporting
from tokendynamics.results import Refused

KINDS = ("common", "text")
"""The direction that all texts share, and that of the token's own text."""

_DESCRIPTIONS = {
    "contribution": "Σ_h a_ij (OV_h x̂_j)·d / |x_i|, the mean over the tokens i that count: what attention brings of "
    "source token j to the mean component of the text's tokens along the direction after the layer",
    "added": "what the heads of the layer add to that component; the sum of contribution over tokens",
    "component": "that component: the mean product of the unit rows of the tokens that count and the direction",
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
        are not known), ``added`` and ``component`` (prompt, kind, layer), ``by_position`` (kind, layer, token), and
        ``token_text`` (prompt, token). Attribute ``summary``: where most of what the tokens of a text share comes from,
        in words.

    Raises:
        ArgumentTypeError, ArgumentValueError: Fewer than two different texts, or some that this network does not read.
        CheckpointError: No layer's heads are known, or the attention does not show.

    >>> table = source_tokens("random:gpt2-tiny", ["one fish", "two red birds", "it rains again"])
    >>> float(abs(table.contribution.sum("token") - table.added).max()) < 1e-6
    True
    """
    ckpt = checkpoint_for(ckpt, texts)
    factors = output_factors(ckpt)
    with reporting(progress) as report:
        counting: dict[str, Any] = {"sinks": sinks, "sink_ratio": sink_ratio, "truncate": truncate}
        shared = directions_of(ckpt, texts, report, **counting, calls=True)
        measured = [_of_text(text, shared.of(place), factors) for place, text in enumerate(shared.texts)]
        watch_texts(ckpt, shared.texts, [[act] for _, act in measured], report)
    return _as_dataset(ckpt, shared, [row for row, _ in measured])


def directions_and_sources(
    ckpt: Checkpoint, shared: SharedDirections, report: Progress
) -> tuple[xr.Dataset, xr.Dataset | Refused]:
    """Return what `shared_directions` and `source_tokens` measure, each text watched once.

    Args:
        ckpt: The network.
        shared: From `directions_of`.
        report: Called after each text.

    Returns:
        The directions, of which those after the last layer are read; and the source tokens, refused where no heads are
        known, or where each text would need all weights of a streamed network again.
    """
    heads, unknown = None, ""
    try:
        if ckpt.streamed:
            wanted = "a network in memory, since its texts run once more"
            raise CheckpointError(ckpt.name, wanted, "a streamed one")
        factors = output_factors(ckpt)
        try:
            writing = writing_factors(ckpt, factors)
        except CheckpointError as error:
            writing, unknown = {}, why(error, ckpt.name)
        of_texts = [(text, shared.of(place)) for place, text in enumerate(shared.texts)]
        of_sources = [_of_text(*text, factors) for text in of_texts]
        of_heads = [heads_of(*text, writing) for text in of_texts] if writing else []
        acts = [[act] for _, act in of_sources]
        for both, (_, act) in zip(acts, of_heads, strict=False):
            both.append(act)
        watch_texts(ckpt, shared.texts, acts, report)
        sources: xr.Dataset | Refused = _as_dataset(ckpt, shared, [row for row, _ in of_sources])
        heads = torch.stack([added for added, _ in of_heads]) if writing else None
    except CheckpointError as error:
        unknown = why(error, ckpt.name)
        sources = Refused(unknown)
    return directions_table(ckpt, shared, heads, unknown, WORDS, slice(-1, None)), sources


def _of_text(
    text: TextStates, directions: Float64[Tensor, "2 layer dim"], factors: dict[int, Tensor]
) -> tuple[tuple[Float64[Tensor, "2 block token"], Float64[Tensor, "2 block"]], Act]:
    """Return the contribution of each source token after each layer 1 … L and what the heads add, and what measures."""
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

    return (contribution, added), of_layer


def _as_dataset(ckpt: Checkpoint, shared: SharedDirections, rows: Sequence[tuple[Tensor, Tensor]]) -> xr.Dataset:
    longest = max(contribution.shape[-1] for contribution, _ in rows)
    whole = np.full((len(rows), *rows[0][0].shape[:2], longest), np.nan)
    labels = np.full((len(rows), longest), "", dtype=object)
    for place, (contribution, _) in enumerate(rows):
        tokens = contribution.shape[-1]
        whole[place, ..., :tokens] = contribution.numpy()
        labels[place, :tokens] = shared.texts[place].given.labels(tokens)
    added = torch.stack([added for _, added in rows]).numpy()
    total = added.sum(axis=0)
    by_position = np.nansum(whole, axis=0) / np.where(total > 0, total, np.nan)[..., None]
    component = torch.stack([torch.linalg.vecdot(shared.of(p), mean) for p, mean in enumerate(shared.means)])
    variables = {
        "contribution": (("prompt", "kind", "layer", "token"), whole),
        "added": (("prompt", "kind", "layer"), added),
        "component": (("prompt", "kind", "layer"), component[..., 1:].numpy()),
        "by_position": (("kind", "layer", "token"), by_position),
        "token_text": (("prompt", "token"), labels.astype(str)),
    }
    coords = {"prompt": shared.names, "kind": list(KINDS), "layer": np.arange(1, whole.shape[2] + 1)}
    table = xr.Dataset(variables, coords=coords, attrs={"model": ckpt.name, "prompt_noun": shared.noun})
    table.attrs["summary"] = summary_of(table)
    for name in table.data_vars:
        table[name].attrs["description"] = _DESCRIPTIONS[str(name)]
    return table
