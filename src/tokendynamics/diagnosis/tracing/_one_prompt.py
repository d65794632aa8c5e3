"""One prompt's tokens by direction, layer by layer: drawn in two principal dimensions, and in groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from tokendynamics.diagnosis.tracing.prompt_trace import SINK_RATIO, find_sinks, tokens_left_out
from tokendynamics.diagnosis.tracing.prompts import checkpoint_for
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables import direction_clusters
from tokendynamics.observables.direction_clustering import CLEAR
from tokendynamics.pretrained.architecture import as_layers
from tokendynamics.pretrained.inputs import prepared
from tokendynamics.pretrained.loading import Model
from tokendynamics.pretrained.not_finite import check_states

_LAST = 3

_FEWEST = 3


@typed_arguments
def token_paths(
    ckpt: Model,
    text: Any,
    *,
    sinks: str | Sequence[int] = "detect",
    sink_ratio: float = SINK_RATIO,
    truncate: bool = False,
) -> xr.Dataset:
    """Return the directions of a prompt's tokens, layer by layer, in the two dimensions in which they vary most.

    The unit rows of all layers together are centred and projected on their first two principal axes: one plane for
    the whole depth, so that what moves in the picture moves in the model. Sinks take no part and have no position.

    Args:
        ckpt: Anything `tokendynamics.load` takes, or a checkpoint already loaded.
        text: The prompt; see `tokendynamics.trace`.
        sinks: "detect" for the sinks of each layer, or positions to treat as such everywhere.
        sink_ratio: See `tokendynamics.trace`.
        truncate: Whether a prompt longer than the context is cut.

    Returns:
        Dataset with dims ``layer`` (0 … L, states after the block), ``token``, ``axis``: ``position`` (layer, token,
        axis), dimensionless, NaN where the token is a sink; ``norm`` and ``is_sink`` (layer, token); coordinate
        ``token_text``; attribute ``explained``, the share of the variance that the plane shows.

    Raises:
        ArgumentTypeError: An argument of another kind.
        ArgumentValueError: An empty prompt, or one longer than the context.

    >>> from tokendynamics.pretrained import load
    >>> token_paths(load("random:gpt2-tiny"), "abc").position.dims
    ('layer', 'token', 'axis')
    """
    ckpt = checkpoint_for(ckpt, text)
    given = prepared(ckpt, text, truncate=truncate, argument="prompt")
    (passed,) = ckpt.states_in_packs([given.inputs])
    check_states(ckpt, passed)
    states = passed.of(0).feed_forward.cpu().double()
    token_norms = torch.linalg.vector_norm(states, dim=-1)
    massive = find_sinks(token_norms, sink_ratio)
    is_sink = massive if isinstance(sinks, str) and sinks == "detect" else tokens_left_out(massive, sinks)
    position, explained = _principal_plane(torch.nn.functional.normalize(states, dim=-1), is_sink)
    variables = {
        "position": (("layer", "token", "axis"), position.numpy()),
        "norm": (("layer", "token"), token_norms.numpy()),
        "is_sink": (("layer", "token"), is_sink.numpy()),
    }
    coords = {"layer": np.arange(len(states)), "token_text": ("token", given.labels(states.shape[1]))}
    attrs = {
        "prompt": given.text,
        "explained": explained,
        "convention": "unit rows of all layers, centred together, on their first two principal axes; "
        "massive tokens left out",
    }
    return xr.Dataset(variables, coords=coords, attrs=attrs)


def _principal_plane(
    units: Float[Tensor, "layer token dim"], sinks: Bool[Tensor, "layer token"]
) -> tuple[Float[Tensor, "layer token 2"], float]:
    """Return coordinates in the plane of the two largest principal axes, and the share of the variance it holds."""
    counted = units[~sinks]
    centre = counted.mean(dim=0)
    spread, axes = torch.linalg.eigh((counted - centre).mT @ (counted - centre))
    plane = axes[:, -2:].flip(-1)
    # An axis has no sign of its own: its largest coordinate is made positive, so that the same input draws the same.
    largest = plane.gather(0, plane.abs().argmax(dim=0, keepdim=True))
    position = (units - centre) @ (plane * largest.sign())
    position[sinks] = torch.nan
    return position, float(spread[-2:].sum() / spread.sum().clamp_min(torch.finfo(spread.dtype).tiny))


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
    >>> token_clusters(load("random:gpt2-tiny"), "a short text")["count"].dims
    ('layer',)
    """
    ckpt = checkpoint_for(ckpt, text)
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
    member, silhouettes = np.full(shape, -1), np.full(shape, np.nan)
    count, best = np.zeros(shape[0], dtype=int), np.full(shape[0], np.nan)
    for row, (layer, some) in enumerate(zip(states, kept, strict=True)):
        if not bool(torch.isfinite(layer).all()):
            continue
        if int(some.sum()) < _FEWEST:
            raise ArgumentValueError("text", "at least three tokens that count", int(some.sum()))
        clusters = direction_clusters(layer[some], most)
        member[row, some.numpy()], silhouettes[row, some.numpy()] = clusters.member, clusters.silhouettes
        count[row], best[row] = clusters.count, clusters.silhouette
    return {
        "member": (("layer", "token"), member),
        "token_silhouette": (("layer", "token"), silhouettes),
        "count": (("layer",), count),
        "silhouette": (("layer",), best),
    }
