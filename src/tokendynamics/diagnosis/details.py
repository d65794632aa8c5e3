"""The details of a verdict: shares, parts, single texts, updates, massive tokens, attention sinks."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tokendynamics.diagnosis._known_tokens import token_finding
from tokendynamics.diagnosis._noun import noun_in
from tokendynamics.diagnosis.attention_sinks import attention_finding
from tokendynamics.diagnosis.figure_names import PART_NAMES
from tokendynamics.diagnosis.layer_states import CONSENSUS, State
from tokendynamics.diagnosis.parts_there import parts_there
from tokendynamics.diagnosis.prompt_shares import CONFIDENCE
from tokendynamics.words import Finding, estimate, factor, fixed, in_layers, is_share, listing, number, plural, share

NEUTRAL = 0.005
"""Change of κ by one part of one layer up to which it counts as noise from rounding and from the few texts."""

UPDATE_JUMP = 4.0
"""Update ratio, relative to the median of the neighbouring layers, from which a layer is named,"""

LEAST_UPDATE = 0.01
"""if the update is at least this share of the residual stream. A smaller one turns no token by more than 0.6 degrees;
updates of inactive parts are rounding, whose sizes differ many times."""

NEIGHBOURS = 3
"""Layers on either side that an update is compared with; they vary by a factor of two in healthy networks."""

MASSIVE = 10.0
"""Norm relative to its text's median from which an outlying token is called massive: first tokens of running means
reach 5, planted and trained ones 50 and more."""

DOMINATED = 0.5
"""Effective rank with massive tokens, relative to that without, up to which they dominate it."""

UNAFFECTED = 0.9
"""The same ratio from which they hardly affect it."""

ALONE = 0.9
"""κ of a single text from which it is named although the texts on average do not reach consensus."""


def detailed_findings(trace: xr.Dataset, states: tuple[State, ...]) -> list[Finding]:
    """Return the details that a trace supports, in a fixed order.

    Args:
        trace: From `tokendynamics.trace`.
        states: From `layer_states`.
    """
    details = [
        token_finding(trace),
        _shares(trace),
        _parts(trace),
        _single_texts(trace),
        _updates(trace),
        _massive(trace),
        attention_finding(trace),
    ]
    return [finding for finding in details if finding is not None]


def _shares(trace: xr.Dataset) -> Finding | None:
    site = trace.sel(site="feed_forward")
    first, last = site.shares.isel(layer=0), site.shares.isel(layer=-1)
    if bool(last.isnull().any()):
        return None
    noun = noun_in(trace)
    values = {str(name): float(last.sel(share=name)) for name in trace.share.values}
    if not is_share(last):
        text = (
            "The shares of a token's direction after the last layer are not stated because an estimate lies outside 0 "
            f"to 1. This happens by chance with few {noun}s, or if tokens point both ways along one direction."
        )
        return Finding(text, "shares", values)
    interval = site.shares_interval.isel(layer=-1)
    parts = {name: share(value, interval.sel(share=name), CONFIDENCE) for name, value in values.items()}
    start = listing([share(float(value), _NO_INTERVAL, CONFIDENCE) for value in first])
    text = (
        f"After the last layer, {parts['common']} of a token's direction is common to all {noun}s, {parts['prompt']} "
        f"is shared within its {noun} and {parts['own']} is its own."
    )
    text += f" At the embedding the shares are {start}." if is_share(first) else ""
    return Finding(text, "shares", values)


_NO_INTERVAL = (np.nan, np.nan)


def _parts(trace: xr.Dataset) -> Finding | None:
    total = trace.kappa_change_sum
    existing = {name: layers for name, layers in parts_there(trace).items() if layers.any()}
    if bool(total.sel(component=list(existing)).isnull().any()):
        return None
    names = {"attention": "Attention", "feed_forward": "the feed-forward part"}
    sentences = [_by_part(trace, component, names[component], layers) for component, layers in existing.items()]
    values = {str(name): float(total.sel(component=name)) for name in trace.component.values}
    return Finding(f"{'; '.join(sentences)}.", "components", values)


def _by_part(trace: xr.Dataset, component: str, name: str, exists: np.ndarray) -> str:
    low, high = trace.kappa_change_sum_interval.sel(component=component).values
    change = float(trace.kappa_change_sum.sel(component=component))
    by_layer = trace.kappa_change.sel(component=component).values[1:][exists]
    if abs(change) <= NEUTRAL or low <= 0 <= high:
        why = "not significant" if low <= 0 <= high else "negligible"
        return f"{name} changes similarity κ by {_change(trace, component)} in total, which is {why}"
    verb, counted = ("raises", by_layer > NEUTRAL) if change > 0 else ("lowers", by_layer < -NEUTRAL)
    layers = plural(len(by_layer), "layer") if exists.all() else f"the {plural(len(by_layer), 'layer')} with one"
    return f"{name} {verb} similarity κ in {int(counted.sum())} of {layers}, by {_change(trace, component)} in total"


def _change(trace: xr.Dataset, component: str) -> str:
    change = float(trace.kappa_change_sum.sel(component=component))
    interval = trace.kappa_change_sum_interval.sel(component=component)
    return estimate(change, interval, CONFIDENCE, sign=True, at_least=-1.0, at_most=1.0)


def _single_texts(trace: xr.Dataset) -> Finding | None:
    """Name texts whose tokens converge although those of all texts together do not."""
    site = trace.sel(site="feed_forward").isel(layer=-1)
    kappa = site.kappa_of_prompt.values
    alone = [str(name) for name, value in zip(trace.prompt.values, kappa, strict=True) if value >= ALONE]
    if not alone or float(site.consensus_relative) >= CONSENSUS:
        return None
    named, noun = listing([f"“{name}”" for name in alone]), noun_in(trace)
    text = (
        f"In {len(alone)} of {plural(len(kappa), noun)} the tokens converge to one direction: {named} (κ of that "
        f"{noun} alone is at least {fixed(float(np.nanmin(kappa[kappa >= ALONE])))})."
    )
    return Finding(text, "shares", {"texts": alone})


def _updates(trace: xr.Dataset) -> Finding:
    """Name layers whose update is several times that of their neighbours."""
    ratio = trace.update_ratio.median("prompt")
    if trace.sizes["layer"] == 2:
        return Finding(
            "Updates are not compared with neighbouring layers because there is only one layer.", "updates", {}
        )
    words, values = [], {}
    for name, exists in parts_there(trace).items():
        sizes = np.where(exists, ratio.sel(component=name).values[1:], np.nan)
        for layer in jumps(sizes):
            size, median = number(sizes[layer], 2), number(_of_neighbours(sizes, layer), 2)
            words.append(f"the {PART_NAMES[name]} of layer {layer + 1} ({size}; neighbouring layers {median})")
            values[f"{name} {layer + 1}"] = float(sizes[layer])
    if not words:
        text = "No layer's update is unusually large relative to the residual stream."
        return Finding(text, "updates", {})
    return Finding(f"Unusually large updates relative to the residual stream: {listing(words)}.", "updates", values)


def jumps(sizes: np.ndarray) -> list[int]:
    """Return the places at which a size is at least `UPDATE_JUMP` times its neighbours' median, and `LEAST_UPDATE`.

    >>> jumps(np.array([1.0, 1.1, 6.0, 0.9, 1.0])), jumps(np.array([1e-8, 6e-8, 1e-8]))
    ([2], [])
    """
    return [
        place
        for place, size in enumerate(sizes)
        if size >= max(LEAST_UPDATE, UPDATE_JUMP * _of_neighbours(sizes, place))
    ]


def _of_neighbours(sizes: np.ndarray, place: int) -> float:
    others = np.concatenate([sizes[max(0, place - NEIGHBOURS) : place], sizes[place + 1 : place + 1 + NEIGHBOURS]])
    return float(np.nanmedian(others)) if np.isfinite(others).any() else np.inf


def _massive(trace: xr.Dataset) -> Finding:
    """Describe tokens of large norm by the first prompt that has one; the counts run over all prompts."""
    noun = noun_in(trace)
    affected = [place for place in range(trace.sizes["prompt"]) if trace.massive_count[place].values.any()]
    if not affected:
        text = "No token is massive: no norm stands out, so raw and unit-row measures describe the same tokens."
        return Finding(text, "norms", {"prompts_with_massive_tokens": 0})
    times = trace.massive_norm / trace.norm_median.sel(sinks="removed", site="feed_forward")
    largest = float(times.max())
    if not largest >= MASSIVE:
        text = (
            f"No token is massive: the largest norm is {factor(largest)} its {noun}'s median. That token is excluded "
            "from the other measures."
        )
        return Finding(text, "norms", {"prompts_with_massive_tokens": 0, "largest": largest})
    affected = [place for place in affected if bool((times[place] >= MASSIVE).any())]
    row = trace.isel(prompt=affected[0])
    layers = np.flatnonzero(row.massive_count.values)
    peak = int(row.massive_norm.argmax("layer"))
    position, norm = int(row.massive_position[peak]), float(row.massive_norm[peak])
    token, name = str(row.token_text[position].item()).strip(), str(row.prompt.item())
    site = row.sel(site="feed_forward")
    median = float(site.norm_median.sel(sinks="removed")[peak])
    ranks = site.effective_rank
    raw, lowest, effect = _effect_on_rank(ranks.sel(sinks="kept").values, ranks.sel(sinks="removed").values, layers)
    text = (
        f"Token {position} (“{token}” in {noun} {name}) is massive: its norm reaches {number(norm)} in layer {peak} "
        f"(median {number(median)}). {len(affected)} of {plural(trace.sizes['prompt'], noun)} "
        f"{'has' if len(affected) == 1 else 'have'} a massive token, {noun} {name} in {in_layers(layers.tolist())}. "
        f"Massive tokens are excluded from the other measures.{effect}"
    )
    values = {
        "position": position,
        "token": token,
        "prompt": name,
        "norm": norm,
        "median": median,
        "raw_effective_rank": raw,
        "raw_effective_rank_layer": lowest,
        "layers": layers.tolist(),
        "prompts_with_massive_tokens": len(affected),
    }
    return Finding(text, "norms", values)


def _effect_on_rank(kept: np.ndarray, removed: np.ndarray, layers: np.ndarray) -> tuple[float, int, str]:
    """Return the effective rank with massive tokens where they change it most, that layer, and what they do to it."""
    quotient = np.full(len(kept), np.nan)
    quotient[layers] = kept[layers] / removed[layers]
    if np.isnan(quotient).all():
        return float("nan"), int(layers[0]), ""
    lowest = int(np.nanargmin(quotient))
    does = "dominate" if quotient[lowest] <= DOMINATED else "lower"
    does = "hardly affect" if quotient[lowest] >= UNAFFECTED else does
    rank = f"{fixed(kept[lowest])} with them and {fixed(removed[lowest])} without"
    text = f" In layer {lowest} the effective rank is {rank}, so they {does} it."
    return float(kept[lowest]), lowest, text
