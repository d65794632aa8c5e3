"""Where the tokens of real prompts go: every observable after attention, feed-forward part and final norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float
from torch import Tensor

from tokendynamics.diagnosis.sinks import PERSISTENT_SHARE, SINK_RATIO, find_sinks, tokens_to_remove
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, expected
from tokendynamics.numerics.progress import Track, silent
from tokendynamics.observables.gram import gram_of
from tokendynamics.observables.summary import summarize_gram
from tokendynamics.pretrained import Checkpoint, SiteStates

SITES = ("attention", "feed_forward", "final_norm")
COMPONENTS = SITES
SINK_HANDLING = ("kept", "removed")


@dataclass(frozen=True)
class _Prompt:
    """What one forward pass leaves: numbers only, no states."""

    observables: dict[str, np.ndarray]
    """Each of shape (layer, site, sinks)."""
    per_layer: dict[str, np.ndarray]
    """Each of shape (layer,)."""
    component_change: np.ndarray
    token_count: np.ndarray
    tokens: list[str]
    unit_sums: np.ndarray
    """Sums of the unit rows, shape (layer, site, sinks, dim)."""


def trace(
    ckpt: Checkpoint,
    texts: str | Sequence[str] | Mapping[str, str],
    *,
    sinks: str | Sequence[int] = "detect",
    sink_ratio: float = SINK_RATIO,
    truncate: bool = False,
    track: Track = silent,
) -> xr.Dataset:
    """Run real text through the real model and measure the tokens at every site of every layer.

    Args:
        ckpt: From `tokendynamics.load`.
        texts: One prompt, several, or several by name.
        sinks: Which tokens "removed" leaves out: "detect" (norm above `sink_ratio` times the prompt's median after
            that layer; a token that is one in at least half of the layers is left out in all), or positions to leave
            out everywhere, such as ``(0,)``, or ``()`` for none.
        sink_ratio: Dimensionless, above 1.
        truncate: Whether a prompt longer than the context is cut; otherwise it is refused.
        track: Progress.

    Returns:
        Dataset with dims ``prompt``, ``layer`` (0 … L, 0 the input of the first block), ``site`` ("attention",
        "feed_forward": the residual state after that part of the block; "final_norm": after the last norm; at layer 0
        only "feed_forward" exists, "final_norm" only at layer L), ``sinks`` ("kept", "removed"), ``component``.

        (prompt, layer, site, sinks): ``consensus_first``, ``consensus_first_signed``, ``consensus_last`` (E,
        `asymptotic` (25), against the first and the last token that counts), ``mean_pair_cosine``,
        ``effective_rank``, ``effective_rank_unit_rows``, ``rank_one_distance``, ``norm_median``,
        ``norm_lower_quartile``, ``norm_upper_quartile``, ``distance_mean``. NaN means that the site does not exist,
        or that fewer than two tokens count (see ``token_count``): the measure is undefined, not zero.

        (prompt, layer): ``sink_count``, ``sink_norm`` and ``sink_position`` of the largest (NaN and −1 where none),
        ``sink_share`` (of the sum of all norms). (prompt, layer, component): ``component_change``, the signed change
        of the mean pair cosine over the tokens that are a sink nowhere; it sums to the change from layer 0 to the
        end. (prompt, token): ``token_text``, padded with "".

        Across prompts, (layer, site): ``anisotropy`` and ``anisotropy_with_sinks``, the mean cosine between tokens of
        DIFFERENT prompts, and ``cosine_beyond_anisotropy``, what the tokens of one prompt share beyond that; NaN for
        one prompt.

    Raises:
        ArgumentValueError: No prompt, an empty one, one longer than the context, an impossible position.
        ArgumentTypeError: A prompt that is no text.

    Source: `asymptotic` (25) for E and section 7 for measuring it through a model.

    >>> from tokendynamics.pretrained import load
    >>> table = trace(load("random:distilgpt2"), "a short text")
    >>> table.sizes["layer"], float(table.mean_pair_cosine.sel(site="feed_forward", sinks="kept")[0, 0].round(1))
    (7, 0.0)
    """
    prompts = _named(texts)
    rows = []
    for name, text in track(prompts.items(), "following the tokens", len(prompts)):
        encoding = ckpt.encode(text, truncate=truncate, argument=name)
        rows.append(_measure(ckpt.states(encoding.ids), encoding.tokens, sinks, sink_ratio))
    attrs = _conventions(ckpt, sinks, sink_ratio)
    return _as_dataset(rows, prompts, attrs)


def _measure(states: SiteStates, tokens: list[str], sinks: str | Sequence[int], ratio: float) -> _Prompt:
    final = () if states.final_norm is None else (states.final_norm[None].cpu(),)
    gram = gram_of(states.attention.cpu(), states.feed_forward.cpu(), *final)
    places = _places(len(states.feed_forward), with_final_norm=bool(final))
    token_norms = gram.size[places.of("feed_forward")]
    found = find_sinks(token_norms, ratio)
    removed = _removed(found, sinks)
    left = ~removed[places.layers]
    keep = torch.stack([torch.ones_like(left), left])
    return _Prompt(
        observables={name: places.grid(values.mT) for name, values in summarize_gram(gram, keep).items()},
        per_layer=_sink_numbers(found, token_norms),
        component_change=_component_change(gram.cosines, ~removed.any(dim=0), places),
        token_count=np.stack([np.full(len(removed), len(tokens)), (~removed).sum(dim=-1).numpy()], axis=-1),
        tokens=tokens,
        unit_sums=places.grid(gram.sums_of_directions(keep).transpose(0, 1)),
    )


@dataclass(frozen=True)
class _Places:
    """Layer and site of each state of a forward pass."""

    layers: list[int]
    sites: list[int]

    def of(self, site: str) -> list[int]:
        """Which states are at a site, in the order of the layers."""
        return [place for place, number in enumerate(self.sites) if SITES[number] == site]

    def grid(self, values: Tensor) -> np.ndarray:
        """Shape (state, …) as (layer, site, …), NaN where a site does not exist."""
        grid = np.full((max(self.layers) + 1, len(SITES), *values.shape[1:]), np.nan)
        grid[self.layers, self.sites] = values.numpy()
        return grid


def _places(depth: int, *, with_final_norm: bool) -> _Places:
    layers = [*range(1, depth), *range(depth), *([depth - 1] if with_final_norm else [])]
    return _Places(layers, [0] * (depth - 1) + [1] * depth + [2] * with_final_norm)


def _removed(found: Bool[Tensor, "layer token"], sinks: str | Sequence[int]) -> Bool[Tensor, "layer token"]:
    if isinstance(sinks, str):
        if sinks != "detect":
            raise ArgumentValueError(expected("sinks", "'detect' or a sequence of positions", repr(sinks)))
        return tokens_to_remove(found)
    removed = torch.zeros_like(found)
    tokens = found.shape[-1]
    wrong = [position for position in sinks if not 0 <= position < tokens]
    if wrong:
        raise ArgumentValueError(expected("sinks", f"positions from 0 to {tokens - 1}", wrong))
    if len(set(sinks)) == tokens:
        raise ArgumentValueError(expected("sinks", f"at least one of {tokens} tokens to be left", list(sinks)))
    removed[:, list(sinks)] = True
    return removed


def _sink_numbers(
    found: Bool[Tensor, "layer token"], token_norms: Float[Tensor, "layer token"]
) -> dict[str, np.ndarray]:
    largest = torch.where(found, token_norms, -torch.inf).max(dim=-1)
    any_sink = found.any(dim=-1)
    share = torch.where(found, token_norms, 0.0).sum(dim=-1) / token_norms.sum(dim=-1)
    return {
        "sink_count": found.sum(dim=-1).numpy(),
        "sink_norm": torch.where(any_sink, largest.values, torch.nan).numpy(),
        "sink_share": share.numpy(),
        "sink_position": torch.where(any_sink, largest.indices, -1).numpy(),
    }


def _component_change(
    cosines: Float[Tensor, "state token token"], counted: Bool[Tensor, " token"], places: _Places
) -> np.ndarray:
    """Change of the mean pair cosine by each part, shape (layer, component); rows of layer 0 are zero."""
    change = np.zeros((max(places.layers) + 1, len(COMPONENTS)))
    if int(counted.sum()) < 2:
        return np.full_like(change, np.nan)
    mean = _mean_pair_cosine(cosines[:, counted][:, :, counted]).numpy()
    attention, feed_forward, final = (mean[places.of(site)] for site in SITES)
    change[1:, 0] = attention - feed_forward[:-1]
    change[1:, 1] = feed_forward[1:] - attention
    change[-1, 2] = sum(final - feed_forward[-1])
    return change


def _mean_pair_cosine(cosines: Float[Tensor, "state token token"]) -> Float[Tensor, " state"]:
    count = cosines.shape[-1]
    diagonal = cosines.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return (cosines.sum(dim=(-2, -1)) - diagonal) / (count * (count - 1))


def _between_prompts(rows: list[_Prompt], handling: str) -> np.ndarray:
    """Mean cosine between tokens of different prompts, shape (layer, site); NaN for one prompt.

    From the sums S_p of unit rows: (|Σ_p S_p|² − Σ_p |S_p|²) / ((Σ_p n_p)² − Σ_p n_p²).
    """
    which = SINK_HANDLING.index(handling)
    sums = np.stack([row.unit_sums[:, :, which] for row in rows])
    counts = np.stack([row.token_count[:, which] for row in rows]).astype(float)
    products = (sums.sum(axis=0) ** 2).sum(axis=-1) - (sums**2).sum(axis=(0, -1))
    pairs = (counts.sum(axis=0) ** 2 - (counts**2).sum(axis=0))[:, None]
    return np.divide(products, pairs, out=np.full_like(products, np.nan), where=pairs > 0)


def _as_dataset(rows: list[_Prompt], prompts: Mapping[str, str], attrs: dict[str, str]) -> xr.Dataset:
    grid = ("prompt", "layer", "site", "sinks")
    variables: dict[str, Any] = {
        name: (grid, np.stack([row.observables[name] for row in rows])) for name in rows[0].observables
    }
    for name in rows[0].per_layer:
        variables[name] = (("prompt", "layer"), np.stack([row.per_layer[name] for row in rows]))
    variables["component_change"] = (
        ("prompt", "layer", "component"),
        np.stack([row.component_change for row in rows]),
    )
    variables["token_count"] = (("prompt", "layer", "sinks"), np.stack([row.token_count for row in rows]))
    longest = max(len(row.tokens) for row in rows)
    padded = [row.tokens + [""] * (longest - len(row.tokens)) for row in rows]
    variables["token_text"] = (("prompt", "token"), np.array(padded))
    variables["anisotropy"] = (("layer", "site"), _between_prompts(rows, "removed"))
    variables["anisotropy_with_sinks"] = (("layer", "site"), _between_prompts(rows, "kept"))
    coords = {
        "prompt": list(prompts),
        "text": ("prompt", list(prompts.values())),
        "layer": np.arange(len(rows[0].token_count)),
        "site": list(SITES),
        "sinks": list(SINK_HANDLING),
        "component": list(COMPONENTS),
    }
    table = xr.Dataset(variables, coords=coords, attrs=attrs)
    within = table.mean_pair_cosine.sel(sinks="removed", drop=True).mean("prompt")
    return table.assign(cosine_beyond_anisotropy=within - table.anisotropy)


def _conventions(ckpt: Checkpoint, sinks: str | Sequence[int], ratio: float) -> dict[str, str]:
    if isinstance(sinks, str):
        handling = (
            f"norm above {ratio:g} x the median after that layer; in at least {PERSISTENT_SHARE:.0%} "
            "of the layers: left out in all of them"
        )
    else:
        handling = f"positions {list(sinks)} left out at every layer"
    return {
        "model": ckpt.name,
        "tokenization": ckpt.tokenization,
        "sinks": handling,
        "consensus": "E = 1 - mean |cos| over all tokens with the reference among them (asymptotic (25), from i = 1)",
        "reference_token": "consensus_first: first token that counts; consensus_last: last token that counts",
        "effective_rank": "exp of the entropy of the squared singular values",
        "final_norm": "the state before it is feed_forward at the last layer",
        "component_change": "mean pair cosine over the tokens that are a sink at no layer",
        "precision": f"forward pass in {str(ckpt.dtype).removeprefix('torch.')}, observables in float64",
    }


def _named(texts: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    if isinstance(texts, str):
        named = {"prompt 1": texts}
    elif isinstance(texts, Mapping):
        named = dict(texts)
    else:
        named = {f"prompt {number}": text for number, text in enumerate(texts, start=1)}
    if not named:
        raise ArgumentValueError(expected("texts", "at least one prompt", "none"))
    for name, text in named.items():
        if not isinstance(text, str):
            raise ArgumentTypeError(expected(f"texts ({name})", "text", type(text).__name__))
    return named
