"""One prompt's tokens in groups of similar direction, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr

from tokendynamics.diagnosis._prompt_trace import SINK_RATIO, find_sinks, tokens_left_out
from tokendynamics.numerics._errors import ArgumentValueError, expected
from tokendynamics.numerics._signatures import typed_arguments
from tokendynamics.observables._direction_clusters import CLEAR, direction_clusters
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained._architecture import as_layers
from tokendynamics.pretrained._inputs import prepared

_LAST = 3
_FEWEST = 3


@typed_arguments
def token_clusters(
    ckpt: Checkpoint,
    text: Any,
    layers: Iterable[int] | None = None,
    *,
    most: int = 8,
    sinks: str | Sequence[int] = "detect",
    sink_ratio: float = SINK_RATIO,
    truncate: bool = False,
) -> xr.Dataset:
    """Group a prompt's tokens by their directions after each of the last layers (`positional` Fig. 8).

    Args:
        ckpt: From `tokendynamics.load`; under a variant with `ckpt.under("no-norm")` and so on.
        text: The prompt; see `tokendynamics.trace`.
        layers: Counted from 1; None for the last three.
        most: Groups at most.
        sinks: See `tokendynamics.trace`; they are in no group.
        sink_ratio: Likewise.
        truncate: Likewise.

    Returns:
        Dataset with dims ``layer`` and ``token``: ``member``, the number of a token's group, the largest first, −1 for
        a sink; ``token_silhouette``. By layer: ``count`` of groups, 1 where none is clear and 0 where states are not
        finite (a variant without norms may overflow), and ``silhouette`` of the best division. See
        `tokendynamics.observables.direction_clusters`.

    Raises:
        ArgumentValueError: A prompt that is empty, too long or of fewer than three tokens that count; no such layer.

    >>> from tokendynamics.pretrained import load
    >>> token_clusters(load("random:distilgpt2"), "a short text")["count"].dims
    ('layer',)
    """
    given = prepared(ckpt, text, truncate=truncate, argument="prompt")
    depth = ckpt.architecture.layers
    chosen = as_layers(range(max(1, depth - _LAST + 1), depth + 1) if layers is None else layers, depth)
    states = ckpt.states(given.inputs).feed_forward.cpu().double()
    left_out = tokens_left_out(find_sinks(torch.linalg.vector_norm(states, dim=-1), sink_ratio), sinks)
    shape = (len(chosen), states.shape[1])
    member, own = np.full(shape, -1), np.full(shape, np.nan)
    count, best = np.ones(shape[0], dtype=int), np.full(shape[0], np.nan)
    for row, layer in enumerate(chosen):
        kept = ~left_out[layer]
        if not bool(torch.isfinite(states[layer]).all()):
            count[row] = 0
            continue
        if int(kept.sum()) < _FEWEST:
            raise ArgumentValueError(expected("text", "at least three tokens that count", int(kept.sum())))
        found = direction_clusters(states[layer, kept], most)
        member[row, kept.numpy()], own[row, kept.numpy()] = found.member, found.silhouettes
        count[row], best[row] = found.count, found.silhouette
    variables = {
        "member": (("layer", "token"), member),
        "token_silhouette": (("layer", "token"), own),
        "count": (("layer",), count),
        "silhouette": (("layer",), best),
    }
    tokens = given.tokens or [str(place) for place in range(shape[1])]
    attrs = {"model": ckpt.name, "prompt": given.text, "clear_from": CLEAR, "linkage": "average, on 1 - cos"}
    return xr.Dataset(variables, coords={"layer": chosen, "token_text": ("token", tokens)}, attrs=attrs)
