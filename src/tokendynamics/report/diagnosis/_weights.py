"""Balances of the weights per layer and head as heat maps; signs and regime per layer as a table."""

from __future__ import annotations

import math
from collections import Counter

import altair as alt
import numpy as np
import xarray as xr

from tokendynamics.figures.figure import Cell, Figure, Table, cells, fold
from tokendynamics.figures.palette import GRID, INK, NEGATIVE, PAPER, POSITIVE
from tokendynamics.figures.svg import WIDE, Drawing, Key, draw_for_screens
from tokendynamics.words import UNDEFINED, count, number, plural, signed

_KEYS = (
    Key("−1", "box", NEGATIVE),
    Key("−0.4", "box", NEGATIVE, opacity=0.4),
    Key("0", "box", NEGATIVE, opacity=0.03),
    Key("+0.4", "box", POSITIVE, opacity=0.4),
    Key("+1   (a dash marks cells below −0.05)", "box", POSITIVE),
)
_SHOWN_SIGN = 0.05
_SAID = ("A: +/−/0", "Paper’s conjecture")


def weights(audit: xr.Dataset) -> list[Figure]:
    """Draw heat maps of the QK and OV balance; for rotary models also of the QK balance at a distance."""
    figures = [
        _by_head(
            audit,
            "qk",
            "Do heads attend to similar tokens or to opposite ones?",
            "QK balance Σλ/Σ|λ| of the symmetric part of W_Q W_Kᵀ, per head. +1: the logit is highest for tokens that "
            "point the same way; −1: for those that point the opposite way; 0: the signs cancel. The table gives the "
            "numbers of positive, negative and zero eigenvalues.",
        ),
        _by_head(
            audit,
            "ov",
            "Do heads copy what they read, or its opposite?",
            "OV balance ΣRe λ/Σ|λ| over the eigenvalues of W_V W_O, per head. +1: a token is copied with its sign; −1: "
            "with the opposite sign; 0: the signs cancel. The table counts eigenvalues of the symmetric part.",
        ),
    ]
    if "qk_balance_at_offset" in audit:
        figures.append(_by_offset(audit))
    return figures


def regimes(audit: xr.Dataset, dim: int) -> Table:
    """List signs, conditioning and the regime of the paper's conjecture by layer; equal layers share one line."""
    rows = tuple(_layer_row(audit.sel(layer=layer), int(layer), dim) for layer in audit["layer"].values)
    columns = (
        "Layer",
        "W: +/−/0",
        "A: +/−/0",
        "rank V",
        "cond V",
        "λ near 0",
        "near 0 for ρ",
        "max Re λ",
        "Paper’s conjecture",
    )
    table = Table(
        "Signs (positive/negative/zero eigenvalues of the symmetric parts of W and A), conditioning and near-zero "
        "eigenvalues λ of V (|λ| below 10⁻³, and below 10⁻³ of the spectral radius ρ), and regime of each layer",
        columns,
        rows,
    )
    # Whether A exists, with the rank that decides it, and the regime; the other columns are numbers.
    known = audit.A_defined.values.all()
    return fold(table, [columns.index(name) for name in _SAID if name != "A: +/−/0" or not known])


def summary(audit: xr.Dataset, dim: int) -> str:
    """Return the number of layers in each regime of the paper's conjecture, in words.

    The criterion by Re λ(V) is omitted: some Re λ(V) is positive in every network, so it predicts nothing.
    """
    layers = [audit.sel(layer=layer) for layer in audit["layer"].values]
    counts = _counted(Counter(_conjecture(layer, dim) for layer in layers), len(layers))
    return f"By the signs of W and A (the paper’s conjecture): {counts}."


def _counted(counts: Counter[str], layers: int) -> str:
    return "; ".join(f"{name} in {many} of {plural(layers, 'layer')}" for name, many in counts.most_common())


def _conjecture(layer: xr.Dataset, dim: int) -> str:
    name = str(layer["regime"].item())
    return name if bool(layer["A_defined"]) else f"{name} ({_rank(layer, dim)})"


def _rank(layer: xr.Dataset, dim: int) -> str:
    return f"rank {int(layer['V_rank'])}/{dim}"


def _signs(inertia: np.ndarray) -> str:
    return "/".join(count(int(n)) for n in inertia)


def _layer_row(layer: xr.Dataset, index: int, dim: int) -> tuple[Cell, ...]:
    w = layer["W_inertia"].sel(sign=["positive", "negative", "zero"]).values
    a = layer["A_inertia"].sel(sign=["positive", "negative", "zero"]).values
    defined = bool(layer["A_defined"])
    return (
        *cells([index]),
        Cell(_signs(w), sort=str(int(w[0])), value=tuple(int(n) for n in w)),
        Cell(_signs(a), sort=str(int(a[0])), value=tuple(int(n) for n in a))
        if defined
        else Cell(f"{UNDEFINED} ({_rank(layer, dim)})", "", True),
        *cells([int(layer["V_rank"]), float(layer["V_condition"])]),
        *cells([int(layer["V_near_zero"]), int(layer["V_near_zero_relative"]), float(layer["V_max_real"])]),
        *cells([str(layer["regime"].item())]),
    )


def _by_head(audit: xr.Dataset, circuit: str, question: str, caption: str) -> Figure:
    balance = audit[f"{circuit}_balance"].transpose("layer", "head")
    signs = audit[f"{circuit}_inertia"].sel(sign=["positive", "negative", "zero"]).transpose("layer", "head", "sign")
    heads = [int(head) for head in balance["head"].values]
    places = [
        (int(layer), head, float(balance.values[i, j]), signs.values[i, j])
        for i, layer in enumerate(balance["layer"].values)
        for j, head in enumerate(heads)
    ]
    tiles = [
        (layer, head, value, f"Layer {layer}, head {head}: {signed(value)}\n+/−/0: {_signs(inertia)}")
        for layer, head, value, inertia in places
    ]
    ident = f"weights-{circuit}"
    name = f"{circuit.upper()} balance"
    rows = tuple(cells([layer, head, value, *(int(n) for n in inertia)]) for layer, head, value, inertia in places)
    return Figure(
        ident=ident,
        question=question,
        svg=draw_for_screens(
            lambda width: _heat_map(tiles, "Head", heads, width),
            ident=ident,
            title=f"{question} {name}, layers × heads",
            description=_description(name, [place[2] for place in places]),
            keys=_KEYS,
        ),
        caption=caption,
        table=Table(f"{name} and signs", ("Layer", "Head", name, "Positive", "Negative", "Zero"), rows),
    )


def _by_offset(audit: xr.Dataset) -> Figure:
    balance = audit["qk_balance_at_offset"].mean("head").transpose("layer", "offset")
    offsets = [int(offset) for offset in balance["offset"].values]
    places = [
        (int(layer), offset, float(balance.values[i, j]))
        for i, layer in enumerate(balance["layer"].values)
        for j, offset in enumerate(offsets)
    ]
    tiles = [
        (layer, offset, value, f"Layer {layer}, {offset} tokens apart: {signed(value)}")
        for layer, offset, value in places
    ]
    question = "Does the QK balance change with the distance between tokens?"
    return Figure(
        ident="weights-offset",
        question=question,
        svg=draw_for_screens(
            lambda width: _heat_map(tiles, "Tokens apart", offsets, width),
            ident="weights-offset",
            title=f"{question} QK balance, layers × distance",
            description=_description("Mean QK balance over heads", [place[2] for place in places]),
            keys=_KEYS,
        ),
        caption="QK balance with the query turned by the rotary angles of a distance i − j (receiver minus sender), "
        "mean over the heads of a layer; distance 0 is the circuit as stored.",
        table=Table(
            "QK balance at a distance, mean over heads",
            ("Layer", "Tokens apart", "QK balance"),
            tuple(cells([layer, offset, value]) for layer, offset, value in places),
        ),
    )


def _heat_map(
    tiles: list[tuple[int, int, float, str]], row_title: str, rows: list[int], width: float = WIDE
) -> Drawing:
    layers = sorted({tile[0] for tile in tiles})
    height = max(min(20 * len(rows), 400), 90)
    base = alt.Chart(alt.Data(values=[_tile(*tile) for tile in tiles])).encode(
        x=alt.X(
            "layer:O",
            axis=alt.Axis(title="Layer", values=_some(layers, width), labelAngle=0),
            scale=alt.Scale(padding=0),
        ),
        y=alt.Y("row:O", sort=rows, axis=alt.Axis(title=row_title, values=_some(rows)), scale=alt.Scale(padding=0)),
    )
    strength = alt.FillOpacity("strength:Q", scale=None, legend=None)
    fill = alt.Fill("sign:N", scale=alt.Scale(domain=["+", "−"], range=[POSITIVE, NEGATIVE]), legend=None)
    small = min(width / len(layers), height / len(rows)) < 9
    tiled = (
        base.properties(name="hover")
        .mark_rect(stroke=GRID, strokeWidth=0.6)
        .encode(fill=fill, fillOpacity=strength, description="text:N")
    )
    dashes = base.mark_text(fontSize=7 if small else 11, aria=False).encode(
        text="mark:N", color=alt.Color("ink:N", scale=None)
    )
    return alt.layer(tiled, dashes, width=width, height=height)


def _some(values: list[int], width: float = WIDE) -> list[int]:
    every = math.ceil(len(values) * 24 / width)
    return [int(value) for value in values[::every]]


def _tile(layer: int, row: int, value: float, text: str) -> dict:
    undefined = math.isnan(value)
    shown = 0.0 if undefined else value
    mark = "×" if undefined else "−" if value < -_SHOWN_SIGN else ""
    return {
        "layer": layer,
        "row": row,
        "sign": "+" if shown >= 0 else "−",
        "strength": round(abs(shown), 3),
        "text": text,
        "mark": mark,
        "ink": PAPER if abs(shown) > 0.55 else INK,
    }


def _description(name: str, balances: list[float]) -> str:
    values = [value for value in balances if not math.isnan(value)]
    if not values:
        return f"{name}: {UNDEFINED} everywhere."
    return (
        f"{name}: {sum(v > 0 for v in values)} of {len(values)} cells positive, {sum(v < 0 for v in values)} negative; "
        f"median {signed(float(np.median(values)))}, lowest {number(min(values))}, highest {number(max(values))}. "
        "The table below holds every value."
    )
