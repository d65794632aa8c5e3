"""A trace in sentences, the details of a verdict: shares, parts, single texts, updates, massive and attended tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.network import crossing_layers, hidden_attention, joins_there, part_of_layer, parts_there
from tokendynamics.diagnosis.tracing.layer_states import COLLAPSES, CONSENSUS, State
from tokendynamics.diagnosis.tracing.prompt_shares import CONFIDENCE
from tokendynamics.diagnosis.tracing.prompts import noun_in, token_finding
from tokendynamics.pretrained.edits.states import FAR, FEWEST
from tokendynamics.words import (
    Finding,
    digits_apart,
    estimate,
    factor,
    fixed,
    in_layers,
    is_share,
    listing,
    number,
    plural,
    share,
)

NEUTRAL = 0.005
"""Change of κ by one part of one layer up to which it counts as noise from rounding and from the few texts."""

MOST_CHANGE = 2.0
"""Largest change of κ, which lies between −1 and 1."""

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

_CLOSED = 0.5
"""Share of the distance 1 − κ at the embedding that its tokens keep at most."""

MOST_TEXTS_NAMED = 4
"""Texts that a sentence names; the others are counted."""

PLACED = 0.05
"""Share of a direction that belongs to a token's place, from which sentences name it. The default texts leave an error
of 0.01; SmolLM2 has 0.004 after its last layer."""

MERGED = 0.9
"""Mean cosine of adjacent tokens from which they count as merged; distant ones must have less, and"""

FAR_APART = 0.5
"""(near − far)/(1 − far) must be at least this: otherwise tokens merge with all of their text."""

_FAR = 4
"""Least distance at which tokens count as distant."""

_NO_INTERVAL = (np.nan, np.nan)

MOST = 0.6
"""Share of texts with the token as a sink in one layer, from which the sink is a property of the network."""

ATTENTION_SINK = 0.25
"""Mean weight from which a token counts as an attention sink (random networks give some token 0.24 by chance), and"""

TIMES_UNIFORM = 3.0
"""how many times its share under uniform attention that must be at least."""


def detailed_findings(trace: xr.Dataset, states: tuple[State, ...]) -> list[Finding]:
    """Return the details that a trace supports, in a fixed order.

    Args:
        trace: From `tokendynamics.trace`.
        states: From `layer_states`.
    """
    details = [
        token_finding(trace),
        _shares(trace, on_a_line=states[-1:] == ("rank collapse",)),
        _parts(trace),
        _single_texts(trace),
        _updates(trace),
        _massive(trace),
        attention_finding(trace),
    ]
    return [finding for finding in details if finding is not None]


def own_share(site: xr.Dataset) -> float:
    """Return the share of a direction that is a token's own, beyond what its place gives it where that is named.

    Args:
        site: One layer and site of a trace.
    """
    share_own, position = float(site.shares.sel(share="own")), _position(site)
    return share_own - position if position >= PLACED else share_own


def _position(site: xr.Dataset) -> float:
    """Return the share that tokens at one place of different texts have in common; 0 where it is not significant."""
    if "share_position" not in site:  # stored by an earlier version
        return 0.0
    low = float(site.share_position_interval[0])
    return 0.0 if low <= 0 else float(np.nan_to_num(site.share_position))


def qualifications(trace: xr.Dataset, state: State) -> list[str]:
    """Return sentences without which the state after the last layer would mislead.

    They name tokens that are alike from the start, places, and neighbours that merge.

    Args:
        trace: From `tokendynamics.trace`.
        state: After the last layer.
    """
    site = trace.sel(site="feed_forward").isel(layer=-1)
    noun, position, sentences = noun_in(trace), _position(site), list[str]()
    start = float(trace.sel(site="feed_forward").consensus_within[0])
    if start >= CONSENSUS and state != "undetermined":
        sentences.append(
            f"The tokens of each {noun} are already alike at the embedding ({fixed(start)}, where 1 is one point per "
            f"{noun}); the state describes only what the layers add."
        )
    if determined_by_place(trace):
        interval = site.share_position_interval
        sentences.append(
            f"Position determines most of the rest: {share(position, interval, CONFIDENCE)} of a direction is shared "
            f"by tokens at the same place of different {noun}s, and {fixed(max(own_share(site), 0.0))} is a token's "
            "own."
        )
    merged = merging_neighbours(trace)
    if merged and (state not in COLLAPSES or trace.sizes["layer"] - 1 in merged):
        layer, (near, far, distance) = next(reversed(merged.items()))
        start = trace.cosine_at_distance[0].sel(distance=1)
        # Where all tokens of a text meet, distant ones do too, if less than neighbours.
        what = "are closer still" if state in ("consensus", "one point") else "merge while distant ones do not"
        sentences.append(
            f"Neighbouring tokens {what}: after {in_layers(list(merged))}, adjacent tokens have a mean cosine of "
            f"{fixed(near)} (layer {layer}; {fixed(float(start))} at the embedding), and tokens {distance} places "
            f"apart {fixed(far)}."
        )
    return sentences


def determined_by_place(trace: xr.Dataset) -> bool:
    """Tell whether more of a direction after the last layer belongs to a token's place than to the token.

    More at both ends of the interval of what belongs to the place.

    Args:
        trace: From `tokendynamics.trace`.
    """
    site = trace.sel(site="feed_forward").isel(layer=-1)
    if _position(site) < PLACED:
        return False
    return 2 * float(site.share_position_interval[0]) > float(site.shares.sel(share="own"))  # which includes it


def merging_neighbours(trace: xr.Dataset) -> dict[int, tuple[float, float, int]]:
    """Return the layers, from 1, at which neighbouring tokens merge and distant ones do not.

    Args:
        trace: From `tokendynamics.trace`.

    Returns:
        By layer the mean cosine of adjacent tokens, that of the most distant ones measured, and their distance. Empty
        where adjacent tokens are merged at the embedding.
    """
    if "cosine_at_distance" not in trace:  # stored by an earlier version
        return {}
    by_layer = trace.cosine_at_distance.transpose("layer", "distance").values
    known = np.flatnonzero(np.isfinite(by_layer).all(axis=0))
    distance = int(trace.distance.values[known[-1]]) if known.size else 0
    if distance < _FAR or by_layer[0, 0] >= MERGED:
        return {}
    near, far = by_layer[:, 0], by_layer[:, known[-1]]
    merged = (near >= MERGED) & (far < MERGED) & (near - far >= FAR_APART * (1 - far))
    return {int(layer): (near[layer], far[layer], distance) for layer in np.flatnonzero(merged) if layer > 0}


def _shares(trace: xr.Dataset, *, on_a_line: bool) -> Finding | None:
    site = trace.sel(site="feed_forward")
    first, last = site.shares.isel(layer=0), site.shares.isel(layer=-1)
    if bool(last.isnull().any()):
        return None
    noun = noun_in(trace)
    if _position(site.isel(layer=-1)) >= PLACED:
        return _four_shares(site.isel(layer=-1), noun)
    values = {str(name): float(last.sel(share=name)) for name in trace.share.values}
    if not is_share(last):
        return Finding(_NO_SHARES.format(noun=noun), "shares", values)
    interval = site.shares_interval.isel(layer=-1)
    parts = {name: share(value, interval.sel(share=name), CONFIDENCE) for name, value in values.items()}
    start = listing([share(float(value), _NO_INTERVAL, CONFIDENCE) for value in first])
    text = (
        f"After the last layer, {parts['common']} of a token's direction is common to all {noun}s, {parts['prompt']} "
        f"is shared within its {noun} and {parts['own']} is its own."
    )
    text += f" At the embedding the shares are {start}." if is_share(first) else ""
    text += _BOTH_WAYS if on_a_line else ""
    return Finding(text, "shares", values)


_NO_SHARES = (
    "The shares of a token's direction after the last layer are not stated because an estimate lies outside 0 to 1. "
    "This happens by chance with few {noun}s, or if tokens point both ways along one direction."
)


_BOTH_WAYS = (
    " Directions that point both ways along a line cancel in these shares and count as a token's own, so the shares do "
    "not show the rank collapse."
)


def _four_shares(site: xr.Dataset, noun: str) -> Finding:
    """State the shares with what belongs to a place apart (`mathematics` 11)."""
    common, within, position = float(site.cosine_elsewhere), 1 - float(site.share_own), float(site.share_position)
    values = {"common": common, "position": position, "prompt": within - common, "own": own_share(site)}
    if not is_share(list(values.values())):
        return Finding(_NO_SHARES.format(noun=noun), "shares", values)
    placed = share(position, site.share_position_interval, CONFIDENCE)
    text = (
        f"After the last layer, {fixed(common)} of a token's direction is common to all {noun}s, and {placed} is "
        f"shared by tokens at the same place of different {noun}s. {fixed(within - common)} is shared within its "
        f"{noun}, and {fixed(own_share(site))} is its own."
    )
    return Finding(text, "shares", values)


def _parts(trace: xr.Dataset) -> Finding | None:
    total = trace.kappa_change_sum
    existing = {name: layers for name, layers in parts_there(trace).items() if layers.any()}
    if bool(total.sel(component=list(existing)).isnull().any()):
        return None
    names = {"attention": "Attention", "feed_forward": "the feed-forward part"}
    sentences = [_by_part(trace, component, names[component], layers) for component, layers in existing.items()]
    values = {str(name): float(total.sel(component=name)) for name in trace.component.values}
    text = f"{'; '.join(sentences)}."
    if crossing := crossing_layers(trace):
        text += f" In {in_layers(crossing)} the change by the feed-forward part includes that by the cross-attention."
    return Finding(text, "components", values)


def _by_part(trace: xr.Dataset, component: str, name: str, exists: np.ndarray) -> str:
    low, high = trace.kappa_change_sum_interval.sel(component=component).values
    change = float(trace.kappa_change_sum.sel(component=component))
    by_layer = trace.kappa_change.sel(component=component).values[1:][exists]
    if abs(change) <= NEUTRAL or low <= 0 <= high:
        why = "not significant" if low <= 0 <= high else "negligible"
        return f"{name} changes similarity κ by {_change(trace, component)} in total, which is {why}"
    verb, counted = ("raises", by_layer > NEUTRAL) if change > 0 else ("lowers", by_layer < -NEUTRAL)
    one = "" if exists.all() else f" that {'has' if len(by_layer) == 1 else 'have'} one"
    layers = f"the only layer{one}" if len(by_layer) == 1 else f"{'the ' * bool(one)}{len(by_layer)} layers{one}"
    how_far = estimate(abs(change), sorted((abs(low), abs(high))), CONFIDENCE, at_most=MOST_CHANGE)
    if not counted.any():
        return f"{name} {verb} similarity κ by {how_far} in total over {layers}, in none by more than {NEUTRAL:g}"
    counted_of = "" if len(by_layer) == 1 else f"{int(counted.sum())} of "
    return f"{name} {verb} similarity κ in {counted_of}{layers}, by {how_far} in total"


def _change(trace: xr.Dataset, component: str) -> str:
    change = float(trace.kappa_change_sum.sel(component=component))
    interval = trace.kappa_change_sum_interval.sel(component=component)
    return estimate(change, interval, CONFIDENCE, sign=True, at_least=-MOST_CHANGE, at_most=MOST_CHANGE)


def _single_texts(trace: xr.Dataset) -> Finding | None:
    """Name texts whose tokens converge although those of all texts together do not."""
    site = trace.sel(site="feed_forward").isel(layer=-1)
    kappa = site.kappa_of_prompt.values
    start = trace.kappa_of_prompt.sel(site="feed_forward").isel(layer=0).values
    # Where tokens agree from the start, or all but, it is not the network that makes them.
    converged = (kappa >= ALONE) & ~(start >= ALONE) & ~(1 - kappa > _CLOSED * (1 - start))
    alone = [str(name) for name in trace.prompt.values[converged]]
    if not alone or float(site.consensus_relative) >= CONSENSUS:
        return None
    named, noun = listing([f"“{name}”" for name in alone], most=MOST_TEXTS_NAMED), noun_in(trace)
    least = fixed(float(kappa[converged].min()))
    size = f"κ of that {noun} alone is {least}" if len(alone) == 1 else f"κ of each alone is at least {least}"
    text = f"In {len(alone)} of {plural(len(kappa), noun)} the tokens converge to one direction: {named} ({size})."
    return Finding(text, "shares", {"texts": alone})


def _updates(trace: xr.Dataset) -> Finding:
    """Name layers whose update is several times that of their neighbours."""
    ratio = trace.update_ratio.median("prompt")
    if trace.sizes["layer"] == 2:
        return Finding(
            "Updates are not compared with neighbouring layers because there is only one layer.", "updates", {}
        )
    words, values, measured = [], {}, list[bool]()
    parts = parts_there(trace)
    # What the network itself adds before a layer is no update of the first part there.
    joins = np.isin(trace.layer.values[1:], joins_there(trace))
    for name, exists in parts.items():
        first = np.ones_like(joins) if name == "attention" else ~parts["attention"]
        sizes = np.where(exists & ~(joins & first), ratio.sel(component=name).values[1:], np.nan)
        measured += np.isfinite(sizes[exists]).tolist()
        for layer in jumps(sizes):
            size, median = number(sizes[layer], 2), number(_of_neighbours(sizes, layer), 2)
            words.append(f"{part_of_layer(name, layer + 1)} ({size}; neighbouring layers {median})")
            values[f"{name} {layer + 1}"] = float(sizes[layer])
    if not any(measured):
        return Finding("Updates are not measured because no state shows between the parts of a layer.", "updates", {})
    if not words:
        whose = "No layer's update" if all(measured) else f"None of the {sum(measured)} updates that are measured"
        return Finding(f"{whose} is unusually large relative to the residual stream.", "updates", {})
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
        text = "No token is massive: no norm stands out, so all measures describe the same tokens."
        return Finding(text, "norms", {"prompts_with_massive_tokens": 0})
    times = _times_median(trace)
    largest = float(times.max())
    if not largest >= MASSIVE:
        text = (
            f"No token is massive, with {MASSIVE:g}× the median norm of its {noun} or more. The largest norm is "
            f"{number(largest, digits_apart(largest, MASSIVE, 2, number))}× that median: an outlier, which the other "
            "measures leave out all the same."
        )
        return Finding(text, "norms", {"prompts_with_massive_tokens": 0, "largest": largest})
    affected = [place for place in affected if bool((times[place] >= MASSIVE).any())]
    row = trace.isel(prompt=affected[0])
    layers = np.flatnonzero(times[affected[0]] >= MASSIVE)
    peak = int(times[affected[0]].argmax("layer"))  # later norms can be larger beside medians that have grown more
    position, norm = int(row.massive_position[peak]), float(row.massive_norm[peak])
    token, name = str(row.token_text[position].item()).strip(), str(row.prompt.item())
    site = row.sel(site="feed_forward")
    median = float(site.norm_median.sel(sinks="removed")[peak])
    ranks = site.effective_rank
    most = int(trace.massive_count.values[affected].max())
    several = (
        "Massive tokens are" if most == 1 else f"Up to {most} tokens of one {noun} stand out by their norm and are"
    )
    raw, lowest, effect = _effect_on_rank(ranks.sel(sinks="kept").values, ranks.sel(sinks="removed").values, layers)
    text = (
        f"Token {position} (“{token}” in {noun} {name}) is massive: its norm reaches {number(norm)} in layer {peak} "
        f"(median {number(median)}). {len(affected)} of {plural(trace.sizes['prompt'], noun)} "
        f"{'has' if len(affected) == 1 else 'have'} a massive token, {noun} {name} in {in_layers(layers.tolist())}. "
        f"{several} excluded from the other measures.{effect}"
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


def _times_median(trace: xr.Dataset) -> xr.DataArray:
    """Return the largest norm that stands out, relative to the median of its text, (prompt, layer)."""
    times = trace.massive_norm / trace.norm_median.sel(sinks="removed", site="feed_forward")
    return times.transpose("prompt", "layer")


def _effect_on_rank(kept: np.ndarray, removed: np.ndarray, layers: np.ndarray) -> tuple[float, int, str]:
    """Return the effective rank with massive tokens where they change it most, that layer, and what they do to it."""
    quotient = np.full(len(kept), np.nan)
    quotient[layers] = kept[layers] / removed[layers]
    if np.isnan(quotient).all():
        return float("nan"), int(layers[0]), ""
    most = int(np.nanargmax(np.abs(np.log(quotient))))
    does = "dominate" if quotient[most] <= DOMINATED else "lower" if quotient[most] < UNAFFECTED else "raise"
    does = "hardly affect" if UNAFFECTED <= quotient[most] <= 1 / UNAFFECTED else does
    rank = f"{fixed(kept[most])} with them and {fixed(removed[most])} without"
    text = f" In layer {most} the effective rank is {rank}, so they {does} it."
    return float(kept[most]), most, text


@dataclass(frozen=True)
class NamedSink:
    """A token that is an attention sink in one layer in most texts.

    Attributes:
        word: The word, where it is the same one at several positions; empty for a single position.
        position: Its place; of a word the place in the first text that has it as a sink.
        prompt: The first text in which it is a sink.
        texts: In how many texts it is a sink, by layer 0 … L.
        tokens: (prompt, layer, token), where it is a sink.
        layers: Those in which it is one in `MOST` of the texts.
        others: Number of texts with other sinks, in the layer where it is largest.
    """

    word: str
    position: int
    prompt: int
    texts: np.ndarray
    tokens: np.ndarray
    layers: np.ndarray
    others: int


def attention_sinks(trace: xr.Dataset) -> np.ndarray:
    """Tell which tokens are attention sinks at each layer, (prompt, layer, token).

    Args:
        trace: From `tokendynamics.trace`.
    """
    axes = ("prompt", "layer", "token")
    received, uniform = (trace[f"attention_{name}"].transpose(*axes).values for name in ("received", "uniform"))
    return (received >= ATTENTION_SINK) & (received >= TIMES_UNIFORM * uniform)


def named_sink(trace: xr.Dataset) -> NamedSink | None:
    """Return the position or word that is a sink in most texts; None if no sink is.

    Texts that repeat others do not count. Of all places and words the one with most texts in one layer is named, a
    place before a word where they are equal.

    Args:
        trace: From `tokendynamics.trace`.
    """
    sinks = attention_sinks(trace) & (trace.repeats.values < 0)[:, None, None]
    words = _words(trace)
    places = np.arange(sinks.shape[2])
    candidates = [("", sinks & (places == place)) for place in np.unique(np.nonzero(sinks)[2])]
    candidates += [
        (word, sinks & (words == word)[:, None, :]) for word in np.unique(words[sinks.any(axis=1)]).tolist() if word
    ]
    if not candidates:
        return None
    counts = [tokens.any(axis=2).sum(axis=0) for _, tokens in candidates]
    best = max(range(len(candidates)), key=lambda number: (counts[number].max(), counts[number].sum(), -number))
    (word, tokens), texts = candidates[best], counts[best]
    layers = np.flatnonzero(texts >= MOST * (trace.repeats.values < 0).sum())
    if not layers.size:
        return None
    prompt, _, position = (int(axis[0]) for axis in np.nonzero(tokens[:, layers]))
    others = (sinks & ~tokens).any(axis=2).sum(axis=0)[layers].max()
    places = np.unique(np.nonzero(tokens)[2])
    return NamedSink(word if len(places) > 1 else "", position, prompt, texts, tokens, layers, int(others))


def _words(trace: xr.Dataset) -> np.ndarray:
    """Return the word of each token without white space around it, (prompt, token); white space alone as an escape."""
    words = trace.token_text.transpose("prompt", "token").values.astype(str)
    escaped = {word: repr(word)[1:-1] for word in np.unique(words).tolist() if not word.strip()}
    return np.array([[escaped.get(word, word.strip()) for word in row] for row in words.tolist()])


def attention_finding(trace: xr.Dataset) -> Finding:
    """Say whether a token is an attention sink, in how many texts and layers, and whether it is massive.

    Args:
        trace: From `tokendynamics.trace`.
    """
    received, noun = trace.attention_received.transpose("prompt", "layer", "token").values, noun_in(trace)
    if np.isnan(received).all():
        return Finding(f"Attention sinks are not measured because {why_no_sinks(trace)}.", "attention", {})
    sinks, counted = attention_sinks(trace), trace.repeats.values < 0
    if not sinks.any():
        largest = float(np.nanmax(received))
        text = (
            f"No token is an attention sink: the most attended one receives "
            f"{fixed(largest, digits_apart(largest, ATTENTION_SINK))} of the attention of "
            f"tokens at least four positions away. A sink receives at least {ATTENTION_SINK:g} and "
            f"{factor(TIMES_UNIFORM)} its share under uniform attention."
        )
        return Finding(text, "attention", {"largest": largest})
    named = named_sink(trace)
    if named is None:
        few = int(sinks[counted].any(axis=2).sum(axis=0).max())
        text = (
            f"No single token or word is an attention sink in most {noun}s. In any one layer, at most {few} of "
            f"{plural(int(counted.sum()), noun)} {'has' if few == 1 else 'have'} a sink."
        )
        return Finding(text, "attention", {"texts": few})
    return _of_named(trace, named, received)


def why_no_sinks(trace: xr.Dataset) -> str:
    """Return why no token has a mean weight that it receives: hidden weights, short texts or a short window.

    Args:
        trace: From `tokendynamics.trace`, where none has.
    """
    noun, needed = noun_in(trace), FAR + FEWEST
    counts = trace.token_count.sel(sinks="kept").max("layer").values
    shown = counts >= 0  # in traces of an earlier version weights that do not show cannot be distinguished
    if "attention_accessible" in trace:
        shown = trace.attention_accessible.values.astype(bool)
    if not shown.any():
        hidden = hidden_attention(trace)
        return f"the attention weights between the tokens are not accessible{f' ({hidden})' if hidden else ''}"
    longest = int(counts[shown].max())
    rest = (
        "" if shown.all() else f"the attention weights of {plural(int((~shown).sum()), noun)} are not accessible, and "
    )
    whose = f"the longest {noun}" if shown.all() else "the longest of the others"
    if longest < needed:
        return f"{rest}{whose} has {plural(longest, 'token')}; at least {needed} are needed"
    return (
        f"{rest}no token can be attended to by at least {FEWEST} tokens that are {FAR} or more positions away, as "
        "under a short attention window"
    )


def _of_named(trace: xr.Dataset, named: NamedSink, received: np.ndarray) -> Finding:
    noun, total = noun_in(trace), int((trace.repeats.values < 0).sum())
    seen = received[named.tokens]
    positions = trace.massive_position.transpose("prompt", "layer").values
    positions = np.where(_times_median(trace).values >= MASSIVE, positions, -1)
    is_sink = np.asarray(named.tokens.any(axis=1))
    massive = any(is_sink[place, row[row >= 0].astype(int)].any() for place, row in enumerate(positions))
    if named.word:
        subject = f"“{named.word}”, at several positions, is an attention sink"
    else:
        token = str(_words(trace)[named.prompt, named.position])
        subject = (
            f"Token {named.position} (“{token}” in {noun} {trace.prompt.values[named.prompt]}) is an attention sink"
        )
    counts = named.texts[named.layers]
    low, high = int(counts.min()), int(counts.max())
    many = f"{low}–{high}" if low < high else f"{high}"
    where, weights = in_layers(named.layers.tolist()), sorted({fixed(seen.min()), fixed(seen.max())})
    text = (
        f"{subject} in {many} of {plural(total, noun)}, in {where}: it receives {'–'.join(weights)} of the attention "
        f"of tokens at least four positions away. It is {'also' if massive else 'not'} massive."
    )
    text += f" Other tokens are attention sinks in {plural(named.others, noun)}." if named.others else ""
    values = {
        "position": named.position, "word": named.word, "layers": named.layers.tolist(), "prompts_with_it": high,
        "largest": float(seen.max()), "massive": bool(massive),
    }  # fmt: skip
    return Finding(text, "attention", values)
