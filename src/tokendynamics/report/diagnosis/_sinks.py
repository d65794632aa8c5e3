"""Which tokens receive the attention, and whether they are attention sinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from tokendynamics.diagnosis import Diagnosis
from tokendynamics.diagnosis.tracing.prompts import noun_in
from tokendynamics.diagnosis.tracing.words import ATTENTION_SINK, TIMES_UNIFORM, attention_sinks, why_no_sinks
from tokendynamics.figures.curves import Curve, Curves, Rule
from tokendynamics.figures.figure import Figure, Section, columns_table
from tokendynamics.figures.palette import BLUE, MUTED, ORANGE
from tokendynamics.numerics.printable import token_label
from tokendynamics.report.diagnosis._states import Band, layer_columns, over_prompts
from tokendynamics.words import factor, number, plural

_IDENT, _QUESTION = "attention-chart", "Which tokens receive the attention?"


@dataclass(frozen=True)
class _Layers:
    """The most attended token of each prompt in each layer that has any; counts are of prompts."""

    layers: list[int]
    tokens: list[str]
    weight: Band
    uniform: np.ndarray
    sinks: list[int]
    massive: list[int]


def section(diagnosis: Diagnosis) -> Section:
    """Return the section: the attention received by the most attended token of each layer."""
    return Section("attention", _QUESTION, figures=(_attention_figure(diagnosis.trace),))


def _attention_figure(trace: xr.Dataset) -> Figure:
    if not bool(trace.attention_received.notnull().any()):
        why = f"Not plotted because {why_no_sinks(trace)}. Attention sinks are then undefined."
        return Figure(_IDENT, _QUESTION, why)
    prompts, noun = trace.sizes["prompt"], noun_in(trace)
    seen = _layers(trace, noun)
    weight, top = seen.weight, int(np.argmax(seen.weight.values))
    over = "" if prompts == 1 else f" Line: mean over {prompts} {noun}s; band: lowest to highest."
    ends = [(f"Lowest {noun}", weight.low), (f"Highest {noun}", weight.high)] if prompts > 1 else []

    def text(place: int, layer: int) -> str:
        return (
            f"Layer {layer}: {number(weight.values[place])}, {number(seen.uniform[place])} under uniform attention\n"
            f"token {seen.tokens[place]}\nattention sinks in {plural(seen.sinks[place], noun)}"
        )

    return Figure(
        _IDENT,
        _QUESTION,
        f"Attention received by the most attended token of each {noun}: mean over heads and over the tokens at least "
        f"four positions away that can attend to it.{over} An attention sink receives at least {ATTENTION_SINK:g} and "
        f"{factor(TIMES_UNIFORM)} its share under uniform attention. A massive token has a large norm; either occurs "
        "without the other.",
        Curves(
            _curves(seen, prompts, noun),
            "Attention received by one token",
            last=int(trace.layer.values[-1]),
            domain=(0.0, 1.0),
            rules=(Rule(ATTENTION_SINK, f"attention sink from {ATTENTION_SINK:g}"),),
            columns=layer_columns(seen.layers, text),
        ),
        columns_table(
            f"Attention received by the most attended token; number of {noun}s in which it is a sink, and massive",
            [
                ("Layer", seen.layers), ("Most attended token", seen.tokens), ("Weight", weight.values), *ends,
                ("Uniform", seen.uniform), ("With a sink", seen.sinks), ("Also massive", seen.massive),
            ],
        ),
        title=f"{_QUESTION} Attention received by the most attended token, over depth",
        description=f"The most attended token receives most in layer {seen.layers[top]}, {number(weight.values[top])} "
        f"compared with {number(seen.uniform[top])} under uniform attention: token {seen.tokens[top]}. There are "
        f"attention sinks in {sum(many > 0 for many in seen.sinks)} of {plural(len(seen.layers), 'layer')}. The table "
        "below holds every value.",
    )  # fmt: skip


def _layers(trace: xr.Dataset, noun: str) -> _Layers:
    received, uniform = (
        trace[f"attention_{name}"].transpose("layer", "prompt", "token").values for name in ("received", "uniform")
    )
    layers = np.flatnonzero(np.isfinite(received).any(axis=(1, 2)))
    position = trace.massive_position.transpose("layer", "prompt").values
    texts = trace.token_text.transpose("prompt", "token").values
    tokens, weights, uniforms, massive = [], [], [], []
    for place in layers:
        seen = np.flatnonzero(np.isfinite(received[place]).any(axis=1))
        most = np.nanargmax(received[place, seen], axis=1)
        tokens.append(_token(texts[seen, most].tolist(), most.tolist(), noun))
        weights.append(over_prompts(received[place, seen, most][None]))
        uniforms.append(over_prompts(uniform[place, seen, most][None]).values[0])
        massive.append(int((position[place, seen] == most).sum()))
    sinks = attention_sinks(trace).any(axis=2).sum(axis=0)
    ends = (np.concatenate([getattr(weight, name) for weight in weights]) for name in ("values", "low", "high"))
    return _Layers(
        trace.layer.values[layers].tolist(), tokens, Band(*ends), np.array(uniforms), sinks[layers].tolist(), massive
    )


def _token(texts: Sequence[str], positions: Sequence[int], noun: str) -> str:
    """Return the position that most prompts have in common, with its most frequent text and how many prompts it is."""
    position, many = Counter(positions).most_common(1)[0]
    here = Counter(str(text) for text, at in zip(texts, positions, strict=True) if at == position)
    some = "" if many == len(positions) else f", in {many} of {len(positions)} {noun}s"
    return f"{position} ({token_label(here.most_common(1)[0][0])}){some}"


def _curves(seen: _Layers, prompts: int, noun: str) -> list[Curve]:
    weight = seen.weight
    most = Curve("most attended token", seen.layers, weight.values, BLUE, mark="disc")
    if prompts > 1:
        most = replace(most, low=weight.low, high=weight.high, band=f"range over {noun}s")
    also = np.where(2 * np.array(seen.massive) >= prompts, weight.values, np.nan)
    return [
        Curve("uniform attention", seen.layers, seen.uniform, MUTED, dash=(5, 3), width=1.5),
        most,
        Curve("also massive", seen.layers, also, ORANGE, width=0, mark="triangle"),
    ]
