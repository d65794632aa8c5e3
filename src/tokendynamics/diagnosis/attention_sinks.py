"""Attention sinks: tokens that receive attention far above uniform, counted layer by layer, by place and by word."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from tokendynamics.diagnosis._noun import noun_in
from tokendynamics.words import Finding, factor, fixed, in_layers, plural

MOST = 0.6
"""Share of texts with the token as a sink in one layer, from which the sink is a property of the network."""

ATTENTION_SINK = 0.25
"""Mean weight from which a token counts as an attention sink (random networks give some token 0.24 by chance), and"""

TIMES_UNIFORM = 3.0
"""how many times its share under uniform attention that must be at least."""


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
    candidates = [("", _at_place(sinks, int(place))) for place in np.unique(np.nonzero(sinks)[2])]
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


def _at_place(sinks: np.ndarray, place: int) -> np.ndarray:
    only = np.zeros_like(sinks)
    only[:, :, place] = sinks[:, :, place]
    return only


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
        text = (
            "Attention sinks are not measured because the attention weights are not accessible or the "
            f"{noun}s have too few tokens."
        )
        return Finding(text, "attention", {})
    sinks, counted = attention_sinks(trace), trace.repeats.values < 0
    if not sinks.any():
        largest = float(np.nanmax(received))
        text = (
            f"No token is an attention sink: the most attended one receives {fixed(largest)} of the attention of "
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


def _of_named(trace: xr.Dataset, named: NamedSink, received: np.ndarray) -> Finding:
    noun, total = noun_in(trace), int((trace.repeats.values < 0).sum())
    seen = received[named.tokens]
    massive = _is_massive(trace, named)
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
        "largest": float(seen.max()), "massive": massive,
    }  # fmt: skip
    return Finding(text, "attention", values)


def _is_massive(trace: xr.Dataset, named: NamedSink) -> bool:
    """Tell whether the sink is massive in a text in which it is a sink."""
    positions = trace.massive_position.transpose("prompt", "layer").values
    is_sink = np.asarray(named.tokens.any(axis=1))
    return any(bool(is_sink[place, row[row >= 0].astype(int)].any()) for place, row in enumerate(positions))
