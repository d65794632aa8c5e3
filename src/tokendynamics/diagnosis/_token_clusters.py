"""One prompt's tokens in groups of similar direction, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float64
from torch import Tensor

from tokendynamics.diagnosis.prompt_trace import SINK_RATIO, find_sinks, tokens_left_out
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables import direction_clusters
from tokendynamics.observables.direction_clustering import CLEAR
from tokendynamics.pretrained.architecture import as_layers
from tokendynamics.pretrained.inputs import prepared
from tokendynamics.pretrained.loading import Model, as_checkpoint

_LAST = 3
_FEWEST = 3


@typed_arguments
def token_clusters(
    ckpt: Model,
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
        ckpt: Anything `tokendynamics.load` takes, or a checkpoint already loaded; under a variant
            with `ckpt.under("no-norm")` and so on.
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
    ckpt = as_checkpoint(ckpt)
    given = prepared(ckpt, text, truncate=truncate, argument="prompt")
    depth = ckpt.architecture.layers
    chosen = as_layers(range(max(1, depth - _LAST + 1), depth + 1) if layers is None else layers, depth)
    states = ckpt.states(given.inputs).feed_forward.cpu().double()
    left_out = tokens_left_out(find_sinks(torch.linalg.vector_norm(states, dim=-1), sink_ratio), sinks)
    variables = _grouped(states[chosen], ~left_out[chosen], most)
    tokens = given.labels(states.shape[1])
    attrs = {"model": ckpt.name, "prompt": given.text, "clear_from": CLEAR, "linkage": "average, on 1 - cos"}
    return xr.Dataset(variables, coords={"layer": chosen, "token_text": ("token", tokens)}, attrs=attrs)


def _grouped(
    states: Float64[Tensor, "layer token dim"], kept: Bool[Tensor, "layer token"], most: int
) -> dict[str, Any]:
    shape = states.shape[:2]
    member, own = np.full(shape, -1), np.full(shape, np.nan)
    count, best = np.zeros(shape[0], dtype=int), np.full(shape[0], np.nan)
    for row, (layer, some) in enumerate(zip(states, kept, strict=True)):
        if not bool(torch.isfinite(layer).all()):
            continue
        if int(some.sum()) < _FEWEST:
            raise ArgumentValueError(expected("text", "at least three tokens that count", int(some.sum())))
        found = direction_clusters(layer[some], most)
        member[row, some.numpy()], own[row, some.numpy()] = found.member, found.silhouettes
        count[row], best[row] = found.count, found.silhouette
    return {
        "member": (("layer", "token"), member),
        "token_silhouette": (("layer", "token"), own),
        "count": (("layer",), count),
        "silhouette": (("layer",), best),
    }
