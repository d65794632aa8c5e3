"""The attention that the most attended token receives, compared with uniform, and whether it is massive."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.tracing.words import ATTENTION_SINK, TIMES_UNIFORM, attention_sinks
from tokendynamics.figures.figure import Figure, Given, Table, cells, nothing
from tokendynamics.figures.lines import Column, Curve, Rule, curve_keys, curves_chart
from tokendynamics.figures.palette import BLUE, MUTED, ORANGE
from tokendynamics.figures.svg import draw_for_screens
from tokendynamics.report._page import token_label
from tokendynamics.report.diagnosis._depth import Spread, spread
from tokendynamics.words import factor, number, plural

QUESTION = "Which tokens receive the attention?"


@dataclass(frozen=True)
class _Layer:
    """The most attended token of each prompt in one layer."""

    layer: int
    weight: Spread
    uniform: Spread
    token: str
    sinks: int
    massive: int


def attention_figure(trace: xr.Dataset) -> Figure:
    """Draw the attention received by the most attended token of each layer; words where it is not accessible.

    Args:
        trace: From `tokendynamics.trace`.
    """
    if not bool(trace.attention_received.notnull().any()):
        return nothing(
            "attention-chart",
            QUESTION,
            "Not plotted because the attention weights of this network are not accessible, or no prompt has tokens at "
            "least four positions apart. Attention sinks are then undefined.",
        )
    layers = [most for layer in trace.layer.values if (most := _layer(trace, int(layer)))]
    curves = _curves(layers, trace.sizes["prompt"])
    return Figure(
        ident="attention-chart",
        question=QUESTION,
        svg=draw_for_screens(
            lambda width: curves_chart(
                curves,
                last=int(trace.layer.values[-1]),
                title="Attention received by one token",
                width=width,
                domain=(0.0, 1.0),
                rules=(Rule(ATTENTION_SINK, f"attention sink from {ATTENTION_SINK:g}"),),
                columns=_columns(layers),
            ),
            ident="attention-chart",
            title=f"{QUESTION} Attention received by the most attended token, over depth",
            description=_description(layers),
            keys=curve_keys(curves),
        ),
        caption=_caption(trace.sizes["prompt"]),
        table=_table(layers, trace.sizes["prompt"]),
    )


def _layer(trace: xr.Dataset, layer: int) -> _Layer | None:
    received = trace.attention_received.transpose("prompt", "layer", "token").values[:, layer]
    uniform = trace.attention_uniform.transpose("prompt", "layer", "token").values[:, layer]
    seen = np.flatnonzero(np.isfinite(received).any(axis=1))
    if not seen.size:
        return None
    most = np.nanargmax(received[seen], axis=1)
    massive = trace.massive_position.transpose("prompt", "layer").values[seen, layer]
    texts = trace.token_text.transpose("prompt", "token").values[seen, most]
    position, many = Counter(most.tolist()).most_common(1)[0]
    text = Counter(str(each) for each, at in zip(texts, most, strict=True) if at == position).most_common(1)[0][0]
    return _Layer(
        layer,
        spread(received[seen, most]),
        spread(uniform[seen, most]),
        f"{position} ({token_label(text)})" + ("" if many == len(seen) else f", in {many} of {len(seen)} prompts"),
        int(attention_sinks(trace)[:, layer].any(axis=1).sum()),
        int((massive == most).sum()),
    )


def _curves(layers: list[_Layer], prompts: int) -> list[Curve]:
    x = [each.layer for each in layers]
    weights = [each.weight.mean for each in layers]
    several = {}
    if prompts > 1:
        band = {"low": [each.weight.low for each in layers], "high": [each.weight.high for each in layers]}
        several = {**band, "band": "range over prompts"}
    also = [each.weight.mean if 2 * each.massive >= prompts else None for each in layers]
    return [
        Curve("uniform attention", x, [each.uniform.mean for each in layers], MUTED, dash=(5, 3), width=1.5),
        Curve("most attended token", x, weights, BLUE, mark="disc", **several),
        Curve("also massive", x, also, ORANGE, width=0, mark="triangle"),
    ]


def _columns(layers: list[_Layer]) -> list[Column]:
    return [
        (
            each.layer - 0.5,
            each.layer + 0.5,
            f"Layer {each.layer}: {number(each.weight.mean)}, {number(each.uniform.mean)} under uniform attention\n"
            f"token {each.token}\nattention sinks in {plural(each.sinks, 'prompt')}",
        )
        for each in layers
    ]


def _caption(prompts: int) -> str:
    over = "" if prompts == 1 else f" Line: mean over {prompts} prompts; band: lowest to highest."
    return (
        "Attention received by the most attended token of each prompt: mean over heads and over the tokens at least "
        f"four positions away that can attend to it.{over} An attention sink receives at least {ATTENTION_SINK:g} and "
        f"{factor(TIMES_UNIFORM)} its share under uniform attention. A massive token has a large norm; either occurs "
        "without the other."
    )


def _description(layers: list[_Layer]) -> str:
    highest = max(layers, key=lambda each: each.weight.mean or 0.0)
    return (
        f"The most attended token receives most in layer {highest.layer}, {number(highest.weight.mean)} compared with "
        f"{number(highest.uniform.mean)} under uniform attention: token {highest.token}. There are attention sinks "
        f"in {sum(each.sinks > 0 for each in layers)} of {plural(len(layers), 'layer')}. The table below holds every "
        "value."
    )


def _table(layers: list[_Layer], prompts: int) -> Table:
    several = ["Lowest prompt", "Highest prompt"] if prompts > 1 else []
    rows = []
    for each in layers:
        row: list[Given] = [each.layer, each.token, each.weight.mean]
        row += [each.weight.low, each.weight.high] if prompts > 1 else []
        rows.append(cells([*row, each.uniform.mean, each.sinks, each.massive]))
    columns = (
        "Layer",
        "Most attended token",
        "Weight",
        *several,
        "Uniform",
        "With a sink",
        "Also massive",
    )
    return Table(
        "Attention received by the most attended token; number of prompts in which it is a sink, and massive",
        columns,
        tuple(rows),
    )
