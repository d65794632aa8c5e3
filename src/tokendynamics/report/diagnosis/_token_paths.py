"""The tokens of one prompt in two principal dimensions: still pictures, and an animation where scripts run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import xarray as xr

from tokendynamics.figures.figure import Figure, Table, cells
from tokendynamics.figures.palette import AXIS, BLUE, GRID, MUTED, POSITIONS
from tokendynamics.figures.svg import WIDE, Drawing, Key, draw_for_screens
from tokendynamics.report._page import token_label
from tokendynamics.words import UNDEFINED, number, percent, plural

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
            description=_description(shown, stills),
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


def _description(paths: xr.Dataset, stills: list[int]) -> str:
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
