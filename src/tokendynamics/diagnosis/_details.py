"""What a verdict says after its first sentences: shares, parts, single texts, updates, massive tokens, sinks."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tokendynamics.diagnosis._attention_sinks import attention_finding
from tokendynamics.diagnosis._figure_names import PART_NAMES
from tokendynamics.diagnosis._known_tokens import token_finding
from tokendynamics.diagnosis._layer_states import CONSENSUS, State
from tokendynamics.diagnosis._noun import noun_in
from tokendynamics.diagnosis._parts_there import parts_there
from tokendynamics.diagnosis._prompt_shares import CONFIDENCE
from tokendynamics.words import Finding, estimate, fixed, in_layers, is_share, plural, share

NEUTRAL = 0.005
"""Change of κ by a part of a layer up to which it is noise of rounding and of the few texts, and no movement."""

UPDATE_JUMP = 4.0
"""A layer whose update, beside the residual stream, is so many times the median of its neighbours' is named,"""

LEAST_UPDATE = 0.01
"""if it is at least this part of the residual stream: a smaller one turns no token by more than 0.6 degrees, and the
updates of parts that do nothing differ by many times in their rounding."""

NEIGHBOURS = 3
"""Layers on either side that an update is held against; they vary by a factor of two in healthy networks."""

MASSIVE = 10.0
"""Times its text's median from which a token that stands out is called massive: the first tokens of running means reach
5, planted and trained ones 50 and more."""

DOMINATED = 0.5
"""Effective rank with massive tokens, over that without, up to which it describes them and little else."""

UNAFFECTED = 0.9
"""The same quotient from which they hardly change it."""

ALONE = 0.9
"""κ of a single text from which it is named where the texts as a whole do not meet."""


def detailed_findings(trace: xr.Dataset, states: tuple[State, ...]) -> list[Finding]:
    """Return the details that a trace supports, in a fixed order.

    Args:
        trace: From `tokendynamics.trace`.
        states: From `layer_states`.
    """
    found = [
        token_finding(trace),
        _shares(trace),
        _parts(trace),
        _single_texts(trace),
        _updates(trace),
        _massive(trace),
        attention_finding(trace),
    ]
    return [each for each in found if each is not None]


def _shares(trace: xr.Dataset) -> Finding | None:
    site = trace.sel(site="feed_forward")
    first, last = site.shares.isel(layer=0), site.shares.isel(layer=-1)
    if bool(last.isnull().any()):
        return None
    noun = noun_in(trace)
    values = {str(name): float(last.sel(share=name)) for name in trace.share.values}
    if not is_share(last):
        text = (
            "How a token's direction after the last layer divides into shares is not stated: an estimate lies outside "
            f"0 to 1, by chance in so few {noun}s or because tokens point both ways of one direction."
        )
        return Finding(text, "shares", values)
    interval = site.shares_interval.isel(layer=-1)
    parts = {name: share(value, interval.sel(share=name), CONFIDENCE) for name, value in values.items()}
    start = f"; at the embedding these are {', '.join(share(float(each), _NO_INTERVAL, CONFIDENCE) for each in first)}"
    text = (
        f"Of a token's direction after the last layer {parts['common']} is common to all {noun}s, {parts['prompt']} "
        f"particular to its own {noun} and {parts['own']} its own{start if is_share(first) else ''}."
    )
    return Finding(text, "shares", values)


_NO_INTERVAL = (np.nan, np.nan)


def _parts(trace: xr.Dataset) -> Finding | None:
    total = trace.kappa_change_sum
    there = {name: layers for name, layers in parts_there(trace).items() if layers.any()}
    if bool(total.sel(component=list(there)).isnull().any()):
        return None
    names = {"attention": "Attention", "feed_forward": "the feed-forward part"}
    sentences = [_by_part(trace, component, names[component], layers) for component, layers in there.items()]
    values = {str(name): float(total.sel(component=name)) for name in trace.component.values}
    return Finding(f"{', '.join(sentences)}.", "components", values)


def _by_part(trace: xr.Dataset, component: str, name: str, there: np.ndarray) -> str:
    low, high = trace.kappa_change_sum_interval.sel(component=component).values
    change = float(trace.kappa_change_sum.sel(component=component))
    each = trace.kappa_change.sel(component=component).values[1:][there]
    if abs(change) <= NEUTRAL or low <= 0 <= high:
        return f"{name} moves κ by {_change(trace, component)} in all, which is not told apart from nothing"
    verb, count = ("raises", each > NEUTRAL) if change > 0 else ("lowers", each < -NEUTRAL)
    layers = plural(len(each), "layer") if there.all() else f"the {plural(len(each), 'layer')} with one"
    return f"{name} {verb} κ in {int(count.sum())} of {layers}, by {_change(trace, component)} in all"


def _change(trace: xr.Dataset, component: str) -> str:
    change = float(trace.kappa_change_sum.sel(component=component))
    interval = trace.kappa_change_sum_interval.sel(component=component)
    return estimate(change, interval, CONFIDENCE, sign=True, at_least=-1.0, at_most=1.0)


def _single_texts(trace: xr.Dataset) -> Finding | None:
    """Name texts whose tokens meet where those of all texts together do not."""
    site = trace.sel(site="feed_forward").isel(layer=-1)
    kappa = site.kappa_of_prompt.values
    alone = [str(name) for name, value in zip(trace.prompt.values, kappa, strict=True) if value >= ALONE]
    if not alone or float(site.consensus_relative) >= CONSENSUS:
        return None
    named, noun = ", ".join(f"“{name}”" for name in alone), noun_in(trace)
    text = (
        f"In {plural(len(alone), noun)} of {len(kappa)} the tokens do meet: {named} (κ of that {noun} alone "
        f"{fixed(float(np.nanmin(kappa[kappa >= ALONE])))} or more)."
    )
    return Finding(text, "shares", {"texts": alone})


def _updates(trace: xr.Dataset) -> Finding:
    """Name layers whose update is several times that of their neighbours."""
    ratio = trace.update_ratio.median("prompt")
    if trace.sizes["layer"] == 2:
        return Finding("There is one layer: its updates have no neighbours to be held against.", "updates", {})
    words, values = [], {}
    for name, there in parts_there(trace).items():
        sizes = np.where(there, ratio.sel(component=name).values[1:], np.nan)
        for layer in jumps(sizes):
            own, beside = f"{sizes[layer]:.2g}", f"{_of_neighbours(sizes, layer):.2g}"
            words.append(f"the {PART_NAMES[name]} of layer {layer + 1} ({own} against {beside} beside it)")
            values[f"{name} {layer + 1}"] = float(sizes[layer])
    if not words:
        text = "No layer's update is unusually large relative to the residual stream."
        return Finding(text, "updates", {})
    named = ", ".join(words)
    return Finding(f"Unusually large updates relative to the residual stream: {named}.", "updates", values)


def jumps(sizes: np.ndarray) -> list[int]:
    """Return the places at which a size is `UPDATE_JUMP` times the median of its neighbours' and `LEAST_UPDATE`.

    >>> jumps(np.array([1.0, 1.1, 6.0, 0.9, 1.0])), jumps(np.array([1e-8, 6e-8, 1e-8]))
    ([2], [])
    """
    return [
        place
        for place, size in enumerate(sizes)
        if size >= max(LEAST_UPDATE, UPDATE_JUMP * _of_neighbours(sizes, place))
    ]


def _of_neighbours(sizes: np.ndarray, place: int) -> float:
    beside = np.concatenate([sizes[max(0, place - NEIGHBOURS) : place], sizes[place + 1 : place + 1 + NEIGHBOURS]])
    return float(np.nanmedian(beside)) if np.isfinite(beside).any() else np.inf


def _massive(trace: xr.Dataset) -> Finding:
    """Describe tokens of large norm by the first prompt that has one; the counts run over all prompts."""
    noun = noun_in(trace)
    having = [place for place in range(trace.sizes["prompt"]) if trace.massive_count[place].values.any()]
    if not having:
        text = "No token is massive: none stands out by its norm, and raw and unit-row figures can be read alike."
        return Finding(text, "norms", {"prompts_with_massive_tokens": 0})
    times = trace.massive_norm / trace.norm_median.sel(sinks="removed", site="feed_forward")
    largest = float(times.max())
    if not largest >= MASSIVE:
        text = (
            f"No token is massive: the largest has {largest:.1f} times its {noun}'s median norm, and is left out of "
            "the rest."
        )
        return Finding(text, "norms", {"prompts_with_massive_tokens": 0, "largest": largest})
    having = [place for place in having if bool((times[place] >= MASSIVE).any())]
    row = trace.isel(prompt=having[0])
    layers = np.flatnonzero(row.massive_count.values)
    peak = int(row.massive_norm.argmax("layer"))
    position, norm = int(row.massive_position[peak]), float(row.massive_norm[peak])
    token, name = str(row.token_text[position].item()).strip(), str(row.prompt.item())
    site = row.sel(site="feed_forward")
    median = float(site.norm_median.sel(sinks="removed")[peak])
    ranks = site.effective_rank
    raw, lowest, effect = _effect_on_rank(ranks.sel(sinks="kept").values, ranks.sel(sinks="removed").values, layers)
    text = (
        f"Token {position} (“{token}” in {noun} {name}) is massive, as is a token in {len(having)} of "
        f"{plural(trace.sizes['prompt'], noun)}: its norm reaches {norm:,.3g} at layer {peak} against a median of "
        f"{median:,.3g}, and massive tokens stand out in {in_layers(layers.tolist())}. They are left out of the "
        f"rest{effect}."
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
        "prompts_with_massive_tokens": len(having),
    }
    return Finding(text, "norms", values)


def _effect_on_rank(kept: np.ndarray, removed: np.ndarray, layers: np.ndarray) -> tuple[float, int, str]:
    """Return the effective rank with massive tokens where they change it most, that layer, and what they do to it."""
    quotient = np.full(len(kept), np.nan)
    quotient[layers] = kept[layers] / removed[layers]
    if np.isnan(quotient).all():
        return float("nan"), int(layers[0]), ""
    lowest = int(np.nanargmin(quotient))
    does = "so they dominate it" if quotient[lowest] <= DOMINATED else "so they lower it"
    does = "so they hardly affect it" if quotient[lowest] >= UNAFFECTED else does
    rank = f"{kept[lowest]:.2f} with them and {removed[lowest]:.2f} without"
    return float(kept[lowest]), lowest, f"; at layer {lowest} the effective rank is {rank}, {does}"
