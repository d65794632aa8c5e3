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
from tokendynamics.observables.summary import summarize
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
    unit_sums: dict[str, Tensor]
    """Sum of the unit rows, shape (layer, site, dim), by sink handling."""


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
    stacked, places = _stack(states)
    token_norms = torch.linalg.vector_norm(states.feed_forward.double(), dim=-1)
    found = find_sinks(token_norms, ratio)
    removed = _removed(found, sinks)
    keep = ~removed[torch.tensor([layer for layer, _ in places])]
    shape = (len(states.feed_forward), len(SITES))
    whole, kept = summarize(stacked), summarize(stacked, keep)
    observables = {name: _on_grid(torch.stack([whole[name], kept[name]], dim=-1), places, shape) for name in whole}
    units = torch.nn.functional.normalize(stacked.double(), dim=-1)
    ever = removed.any(dim=0)
    sums = {
        "kept": units.sum(dim=-2),
        "removed": (units * keep[..., None]).sum(dim=-2),
    }
    return _Prompt(
        observables=observables,
        per_layer=_sink_numbers(found, token_norms),
        component_change=_component_change(units[:, ~ever], places, len(states.feed_forward)),
        token_count=np.stack([np.full(shape[0], len(ever)), (~removed).sum(dim=-1).numpy()], axis=-1),
        tokens=tokens,
        unit_sums={name: torch.as_tensor(_on_grid(total, places, shape)) for name, total in sums.items()},
    )


def _stack(states: SiteStates) -> tuple[Float[Tensor, "state token dim"], list[tuple[int, int]]]:
    """All states of one pass in the order of the computation, with the (layer, site) of each."""
    parts, places = [states.feed_forward[:1]], [(0, 1)]
    for layer in range(1, len(states.feed_forward)):
        parts += [states.attention[layer - 1 : layer], states.feed_forward[layer : layer + 1]]
        places += [(layer, 0), (layer, 1)]
    if states.final_norm is not None:
        parts.append(states.final_norm[None])
        places.append((len(states.feed_forward) - 1, 2))
    return torch.cat(parts), places


def _on_grid(values: Tensor, places: list[tuple[int, int]], shape: tuple[int, int]) -> np.ndarray:
    grid = np.full((*shape, *values.shape[1:]), np.nan)
    layers, sites = zip(*places, strict=True)
    grid[list(layers), list(sites)] = values.double().numpy()
    return grid


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
    units: Float[Tensor, "state token dim"], places: list[tuple[int, int]], layers: int
) -> np.ndarray:
    """Change of the mean pair cosine by each part, shape (layer, component); rows of layer 0 are zero."""
    count = units.shape[1]
    change = np.zeros((layers, len(COMPONENTS)))
    if count < 2:
        return np.full_like(change, np.nan)
    cosine = (units.sum(dim=1).square().sum(dim=-1) - count) / (count * (count - 1))
    for (layer, site), step in zip(places[1:], cosine.diff().tolist(), strict=True):
        change[layer, site] = step
    return change


def _between_prompts(rows: list[_Prompt], handling: str) -> np.ndarray:
    """Mean cosine between tokens of different prompts, shape (layer, site); NaN for one prompt.

    From the sums S_p of unit rows: (|Σ_p S_p|² − Σ_p |S_p|²) / ((Σ_p n_p)² − Σ_p n_p²).
    """
    sums = torch.stack([row.unit_sums[handling] for row in rows])
    counts = torch.as_tensor(np.stack([row.token_count[:, SINK_HANDLING.index(handling)] for row in rows])).double()
    products = sums.sum(dim=0).square().sum(dim=-1) - sums.square().sum(dim=-1).sum(dim=0)
    pairs = counts.sum(dim=0).square() - counts.square().sum(dim=0)
    return torch.where(pairs[:, None] > 0, products / pairs[:, None], torch.nan).numpy()


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
