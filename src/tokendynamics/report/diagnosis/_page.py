"""The page of a diagnosis: verdict, sections, weights, token paths, conventions; and its figure in a notebook."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import altair as alt
import numpy as np
import xarray as xr

from tokendynamics.diagnosis import Diagnosis
from tokendynamics.diagnosis.network import norms_there
from tokendynamics.diagnosis.result import levers_in_words
from tokendynamics.diagnosis.tracing.layer_states import State
from tokendynamics.diagnosis.verdict import FigureName
from tokendynamics.figures.drawing import drawing
from tokendynamics.figures.figure import Cell, Figure, Section, Table, cells, fold
from tokendynamics.figures.palette import (
    AXIS,
    BLUE,
    GRID,
    INK,
    MUTED,
    NEGATIVE,
    PAPER,
    POSITIONS,
    POSITIVE,
    chart_config,
)
from tokendynamics.figures.svg import NARROW, WIDE, Drawing, Key, draw_for_screens
from tokendynamics.report._page import piece, render, token_label
from tokendynamics.report._registry import page_of
from tokendynamics.report.diagnosis._beyond import deeper_parts, levers_parts
from tokendynamics.report.diagnosis._trace import (
    SHARES_AXIS,
    SHARES_QUESTION,
    agreement_figures,
    attention_figure,
    components_figures,
    consensus_figure,
    norms_figure,
    shares_drawing,
    shares_figure,
    shares_sketch,
    unshared,
    updates_figure,
)
from tokendynamics.results import Refused
from tokendynamics.words import (
    UNDEFINED,
    Convention,
    count,
    duration,
    in_layers,
    moment,
    number,
    percent,
    plural,
    signed,
    written,
)

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
            description=_weights_description(name, [place[2] for place in places]),
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
            description=_weights_description("Mean QK balance over heads", [place[2] for place in places]),
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


def _weights_description(name: str, balances: list[float]) -> str:
    values = [value for value in balances if not math.isnan(value)]
    if not values:
        return f"{name}: {UNDEFINED} everywhere."
    return (
        f"{name}: {sum(v > 0 for v in values)} of {len(values)} cells positive, {sum(v < 0 for v in values)} negative; "
        f"median {signed(float(np.median(values)))}, lowest {number(min(values))}, highest {number(max(values))}. "
        "The table below holds every value."
    )


QUESTION = "How do the tokens of a prompt move?"
MOST_TOKENS = 256
"""Tokens that are drawn; of a longer prompt the first ones, and the caption says so."""
_STILLS, _COLUMNS, _GAP = 6, 3, 18


@dataclass(frozen=True)
class Player:
    """Data of the animation: labels, and per layer and token (x, y, norm, sink)."""

    tokens: list[str]
    data: dict[str, Any]


def token_paths_figure(paths: xr.Dataset) -> Figure:
    """Draw one prompt's tokens at a few depths, with every number of these depths in the table."""
    shown = paths.isel(token=slice(0, MOST_TOKENS))
    stills = _stills([int(layer) for layer in shown["layer"].values])
    return Figure(
        ident="paths-stills",
        question=QUESTION,
        svg=draw_for_screens(
            lambda width: _chart(shown, stills, width),
            ident="paths-stills",
            title=f"{QUESTION} Still pictures at {plural(len(stills), 'depth')}",
            description=_paths_description(shown, stills),
            keys=_keys(),
        ),
        caption=_caption(paths),
        table=_table(shown, stills),
    )


def player(paths: xr.Dataset) -> Player:
    """Return the whole path of each token, rounded to what a screen can show."""
    shown = paths.isel(token=slice(0, MOST_TOKENS)).transpose("layer", "token", "axis")
    position, norm, sink = (shown[name].values for name in ("position", "norm", "is_sink"))
    frames = [
        [_point(position[i, j], float(norm[i, j]), bool(sink[i, j])) for j in range(shown.sizes["token"])]
        for i in range(shown.sizes["layer"])
    ]
    tokens = [token_label(str(text)) for text in shown["token_text"].values]
    names = [_name(int(layer)) for layer in shown["layer"].values]
    return Player(tokens, {"tokens": tokens, "layers": names, "frames": frames})


def _point(position: np.ndarray, norm: float, sink: bool) -> list[float | int | None]:
    x, y = (round(float(v), 4) if math.isfinite(v) else None for v in position)
    size = float(f"{norm:.4g}") if math.isfinite(norm) else None
    return [x, y, size, int(sink)]


def _name(layer: int) -> str:
    return "Embedding" if layer == 0 else f"Layer {layer}"


def _stills(layers: list[int]) -> list[int]:
    places = np.linspace(0, len(layers) - 1, min(_STILLS, len(layers)))
    return [layers[round(float(place))] for place in places]


def _chart(paths: xr.Dataset, stills: list[int], width: float = WIDE) -> Drawing:
    columns = _COLUMNS if width >= WIDE else 1
    each = (width + 55 - (columns - 1) * _GAP) / columns
    height = 185 if width >= WIDE else 130
    domains = _domains(paths, each / height)
    panels = [_panel(paths.sel(layer=layer), _name(layer), (each, height), domains) for layer in stills]
    return alt.concat(*panels, columns=columns, spacing=_GAP)


def _domains(paths: xr.Dataset, aspect: float) -> tuple[list[float], list[float]]:
    """Return one domain for all panels, with the same length for one unit along both axes."""
    values = paths["position"].transpose("axis", ...).values.reshape(2, -1)
    finite = values[:, np.isfinite(values).all(axis=0)]
    if finite.size == 0:
        return [-aspect, aspect], [-1.0, 1.0]
    low, high = finite.min(axis=1), finite.max(axis=1)
    middle, half = (low + high) / 2, np.maximum((high - low) / 2, 1e-3) * 1.1
    tall = max(float(half[1]), float(half[0]) / aspect)
    x, y = float(middle[0]), float(middle[1])
    return [x - tall * aspect, x + tall * aspect], [y - tall, y + tall]


def _panel(
    layer: xr.Dataset, name: str, size: tuple[float, float], domains: tuple[list[float], list[float]]
) -> Drawing:
    width, height = size
    points = [
        {"x": float(x), "y": float(y), "part": min(5 * j // layer.sizes["token"], 4)}
        for j, (x, y) in enumerate(layer["position"].transpose("token", "axis").values)
        if math.isfinite(x) and math.isfinite(y)
    ]
    sinks = int(layer["is_sink"].sum())
    axis = alt.Axis(title=None, labels=False, ticks=False, grid=False, domain=False, minExtent=0)
    x = alt.X("x:Q", scale=alt.Scale(domain=domains[0], nice=False), axis=axis)
    y = alt.Y("y:Q", scale=alt.Scale(domain=domains[1], nice=False), axis=axis)
    shade = alt.Fill("part:O", scale=alt.Scale(domain=list(range(5)), range=list(POSITIONS)), legend=None)
    dots = (
        alt.Chart(alt.Data(values=points))
        .mark_point(shape="circle", size=46, stroke=BLUE, strokeWidth=0.7, opacity=1)
        .encode(x=x, y=y, fill=shade)
    )
    blank = alt.Chart(alt.Data(values=[{}]))
    frame = blank.mark_rect(fillOpacity=0, stroke=GRID, x=0, x2=width, y=0, y2=height)
    layers = [frame, _cross(domains, x, y), dots]
    if sinks:
        note = plural(sinks, "massive token") + ": norm " + number(_largest(layer), 3)
        layers.append(blank.mark_text(text=note, x=width - 6, y=11, align="right", color=MUTED, fontSize=11))
    elif not points:
        layers.append(blank.mark_text(text=UNDEFINED, x=width / 2, y=height / 2, color=MUTED, fontSize=12))
    title = alt.TitleParams(text=name, anchor="start", frame="group", offset=4)
    return alt.layer(*layers, width=width, height=height, title=title)


def _cross(domains: tuple[list[float], list[float]], x: alt.X, y: alt.Y) -> Drawing:
    """Draw lines through the origin, the point that unit vectors reach only where they cancel."""
    lines = []
    if domains[0][0] < 0 < domains[0][1]:
        lines.append(alt.Chart(alt.Data(values=[{"x": 0}])).mark_rule(color=GRID).encode(x=x))
    if domains[1][0] < 0 < domains[1][1]:
        lines.append(alt.Chart(alt.Data(values=[{"y": 0}])).mark_rule(color=GRID).encode(y=y))
    return alt.layer(*lines) if lines else alt.layer(alt.Chart(alt.Data(values=[])).mark_rule(color=AXIS))


def _largest(layer: xr.Dataset) -> float:
    return float(layer["norm"].where(layer["is_sink"]).max())


def _keys() -> list[Key]:
    labels = ("first fifth of the prompt", "second", "third", "fourth", "last fifth")
    return [Key(label, "dot", colour) for label, colour in zip(labels, POSITIONS, strict=True)]


def _caption(paths: xr.Dataset) -> str:
    tokens = paths.sizes["token"]
    explained = paths.attrs.get("explained")
    share = ""
    if explained is not None and math.isfinite(float(explained)):
        share = f" The two dimensions explain {percent(float(explained))} of the variance of the rows drawn."
    cut = f" The first {MOST_TOKENS} of {tokens} tokens are drawn." if tokens > MOST_TOKENS else ""
    convention = str(paths.attrs.get("convention", "")).strip()
    convention = f" {convention[0].upper()}{convention[1:].rstrip('.')}." if convention else ""
    return (
        "Each dot is a token scaled to length 1, in the same two principal dimensions at every depth. Both axes have "
        f"the same scale; the lines cross at zero. Massive tokens are listed with their norm.{convention}{share}{cut}"
    )


def _paths_description(paths: xr.Dataset, stills: list[int]) -> str:
    text = f"{plural(paths.sizes['token'], 'token')} at {', '.join(_name(layer).lower() for layer in stills)}."
    spreads = []
    for layer in stills:
        position = paths["position"].sel(layer=layer).transpose("token", "axis").values
        defined = position[np.isfinite(position).all(axis=1)]
        radius = float(np.sqrt(((defined - defined.mean(axis=0)) ** 2).sum(axis=1).mean())) if len(defined) else None
        spreads.append(f"{number(radius, 2)} at {_name(layer).lower()}")
    return f"{text} Root mean square distance from their mean in the plane: {', '.join(spreads)}."


def _table(paths: xr.Dataset, stills: list[int]) -> Table:
    texts = [token_label(str(text)) for text in paths["token_text"].values]
    rows = []
    for layer in stills:
        at = paths.sel(layer=layer).transpose("token", "axis")
        for j, text in enumerate(texts):
            sink = bool(at["is_sink"].values[j])
            place = ["massive", "massive"] if sink else [float(v) for v in at["position"].values[j]]
            rows.append(cells([layer, j, text, *place, float(at["norm"].values[j])]))
    columns = ("Layer", "Position", "Token", "First dimension", "Second dimension", "Norm")
    return Table("Tokens at the depths of the still pictures", columns, tuple(rows))


_TITLES: dict[FigureName, str] = {
    "shares": "What do the tokens share?",
    "components": "Which parts cause it?",
    "levers": "What can you try?",
    "deeper": "What happens in a deeper network?",
    "updates": "How large are the updates?",
    "norms": "Do the token norms grow?",
    "attention": "Which tokens receive the attention?",
    "agreement": "What do other measures show?",
    "weights": "What do the weights show?",
    "paths": "Watch the tokens",
}
"""The sections in order, by the name that a finding links to; those not requested are omitted."""

_GLYPHS: dict[State, str] = {
    "spread": "⁘", "drawing together": "›‹", "consensus": "●", "rank collapse": "│", "anisotropic": "↗",
    "undetermined": "?",
}  # fmt: skip

_OF_REGIMES = (
    "W is the sum of W_Q W_Kᵀ over heads and A = W (Vᵀ)⁻¹. A exists only if V is invertible; otherwise the table shows "
    "“undefined” with the rank of V. Signs are those of the symmetric parts. The conjecture is about attention alone, "
    "as a free flow without the other parts of a layer. Layers with equal entries share one line with the range of "
    "their numbers; the CSV file lists every layer."
)
_UNAUDITED = (
    "The weights were not audited; the verdict gives the reason. All other results on this page need only token states."
)


@page_of.register(Diagnosis)
def diagnosis_page(diagnosis: Diagnosis) -> str:
    """Return the report as one self-contained HTML page.

    Every figure is an SVG with title, description and a table of its numbers. Nothing is fetched, and all text from a
    user, a tokenizer or a checkpoint is escaped, with control characters made visible.

    Args:
        diagnosis: From `tokendynamics.diagnose`.

    Returns:
        HTML, to be stored as UTF-8.
    """
    model, moving = str(diagnosis.model["name"]), player(diagnosis.paths)
    return render(
        "diagnosis.html.jinja",
        title=f"Diagnosis of {model}",
        verdict_title="Verdict",
        sections=_sections(diagnosis, moving),
        conventions=_conventions(diagnosis),
        manifest=diagnosis.manifest,
        files=diagnosis.files,
        scripts=("shared.js", "paths.js"),
        sheets=("page.css",),
        about=piece("about.html.jinja", entries=_facts(diagnosis), prompts=_prompts(diagnosis)),
        titles=_TITLES,
        model=model,
        shape=f"{_shape(diagnosis.model)}, on {plural(diagnosis.trace.sizes['prompt'], 'prompt')}",
        verdict=diagnosis.verdict,
        lines=_page_lines(diagnosis),
        layers=_layers(diagnosis),
        player=moving,
    )


def _sections(diagnosis: Diagnosis, moving: Player) -> list[Section]:
    trace = diagnosis.trace
    own = piece("player.html.jinja", player=moving, followed=_followed_prompt(diagnosis))
    parts: dict[FigureName, dict[str, Any]] = {
        "shares": {"figures": (shares_figure(trace), consensus_figure(trace))},
        "components": {"variants": tuple(sorted(components_figures(trace), key=lambda figure: not figure.svg))},
        "levers": levers_parts(diagnosis),
        "updates": {"figures": (updates_figure(trace),)},
        "norms": {"figures": (norms_figure(trace),)},
        "attention": {"figures": (attention_figure(trace),)},
        "agreement": {"variants": tuple(agreement_figures(trace))},
        "weights": _of_the_weights(diagnosis),
        "paths": {"own": own, "figures": (token_paths_figure(diagnosis.paths),)},
    }
    if diagnosis.deeper is not None:
        parts["deeper"] = deeper_parts(diagnosis)
    return [Section(name, title, **parts[name]) for name, title in _TITLES.items() if name in parts]


def _of_the_weights(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the parts of the section about the weights; one sentence where there is no audit."""
    audit, dim = diagnosis.audit, int(diagnosis.model["dim"])
    if isinstance(audit, Refused):
        return {"sentences": (_UNAUDITED,)}
    return {
        "sentences": (summary(audit, dim),),
        "tables": (regimes(audit, dim),),
        "figures": tuple(weights(audit)),
        "notes": (_OF_REGIMES,),
    }


def _conventions(diagnosis: Diagnosis) -> tuple[Convention, ...]:
    further = {"Levers": diagnosis.levers, "Deeper": diagnosis.deeper}
    named = [
        replace(convention, name=f"{name}: {convention.name}")
        for name, result in further.items()
        if result is not None and not isinstance(result, Refused)
        for convention in result.conventions
    ]
    return (*diagnosis.conventions, *named)


def _facts(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    model, manifest = diagnosis.model, diagnosis.manifest
    seed = model.get("random_seed")
    weights = "random" if seed is not None else "pretrained" if model.get("source") else "of a live network"
    form = "" if isinstance(diagnosis.audit, Refused) else str(diagnosis.audit.attrs.get("form", ""))
    facts = [
        ("Parameters", f"{count(model['parameters'])}, {weights}" + (f" (seed {seed})" if seed is not None else "")),
        ("Shape", _shape(model)),
        ("Architecture", _architecture(model, norms_there(diagnosis.trace))),
        ("Form", form if "normalized" in form else ""),
        ("Source", written(model.get("source"))),
        ("Measured", f"{moment(manifest.get('started'))}, in {duration(manifest.get('duration_seconds'))}"),
        ("With", written(manifest.get("versions"))),
    ]
    return [(name, text) for name, text in facts if text]


def _shape(model: Mapping[str, Any]) -> str:
    heads = plural(model["heads"], "head")
    if model.get("kv_heads") not in (None, model["heads"]):
        heads += f" ({count(model['kv_heads'])} for keys and values)"
    # An attention that could not be read is recorded with no heads.
    parts = (plural(model["layers"], "layer"), heads if model["heads"] else "", f"dim {count(model['dim'])}")
    return " × ".join(part for part in parts if part)


def _architecture(model: Mapping[str, Any], normed: bool) -> str:
    parts = [model.get("model_type") or model.get("family")]
    # The kind of norm is recorded even for a network without one.
    model = model if normed else {**model, "norm": "none"}
    parts += [
        f"{str(model[name]).replace('none', 'no')} {noun}"
        for name, noun in (("positions", "positions"), ("norm", "norm"))
        # Rotary positions and biases are known only for an attention that could be read.
        if model.get(name) and (model["heads"] or model[name] != "none")
    ]
    return ", ".join(str(part) for part in parts if part)


def _prompts(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    trace = diagnosis.trace
    names = [str(name) for name in trace["prompt"].values]
    texts = (
        [str(text) for text in trace["text"].values] if "text" in trace.coords or "text" in trace else [""] * len(names)
    )
    return list(zip(names, texts, strict=True))


def _followed_prompt(diagnosis: Diagnosis) -> str:
    """Return the name of the prompt whose tokens are drawn."""
    text = str(diagnosis.paths.attrs.get("prompt", ""))
    return next((name for name, prompt in _prompts(diagnosis) if prompt == text), "")


def _page_lines(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Return what, why and what to do, for the first screen."""
    what, *further = (finding.text for finding in diagnosis.verdict.sentences)
    why = [("Why", further[0])] if len(further) > 1 else []
    return [
        ("What", what),
        *why,
        ("What to do", levers_in_words(diagnosis)),
        *(("How sure", text) for text in further[-1:]),
    ]


def _layers(diagnosis: Diagnosis) -> dict[str, Any]:
    states = np.array(diagnosis.verdict.layers)
    where = {state: np.flatnonzero(states == state) + 1 for state in _GLYPHS}
    return {
        "badges": [(index, state, _GLYPHS[state]) for index, state in enumerate(diagnosis.verdict.layers, start=1)],
        "legend": [(state, glyph, in_layers(where[state])) for state, glyph in _GLYPHS.items() if len(where[state])],
    }


@drawing()
def notebook_html(diagnosis: Diagnosis) -> str:
    """Return the verdict's sentences and the shares as self-contained HTML; all foreign text is escaped.

    Args:
        diagnosis: From `tokendynamics.diagnose`.
    """
    # Two figures in one notebook must not share the ids of their parts.
    content = f"{diagnosis.model['name']}{diagnosis.verdict}{diagnosis.trace.shares.values.tobytes().hex()}"
    ident = f"shares-{hashlib.sha256(content.encode()).hexdigest()[:8]}"
    whole = piece(
        "notebook.html.jinja",
        model=str(diagnosis.model["name"]),
        verdict=diagnosis.verdict,
        figure=shares_sketch(diagnosis.trace, ident),
    )
    return str(whole)


def shares_chart(diagnosis: Diagnosis) -> Drawing:
    """Return the shares of a token's direction over depth as an Altair chart; without shares, a chart of the reason.

    Args:
        diagnosis: From `tokendynamics.diagnose`.
    """
    chart = shares_drawing(diagnosis.trace, WIDE * 0.75)
    if chart is None:
        lines = [SHARES_AXIS, *_notebook_lines(unshared(diagnosis.trace), 70)]
        blank = alt.Chart(alt.Data(values=[{}]))
        chart = blank.mark_text(text=lines, align="left", x=0).properties(width=2 * NARROW, height=60)
    return chart.properties(title=SHARES_QUESTION, config=chart_config() | {"background": "#fefefd"})


def _notebook_lines(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
