"""The paths of one prompt's tokens: still pictures at a few depths, and the data of the animation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis import Diagnosis
from tokendynamics.diagnosis.tracing.prompts import noun_in
from tokendynamics.figures.figure import Figure, Section, Table, cells
from tokendynamics.figures.planes import Still, Stills
from tokendynamics.numerics.printable import token_label
from tokendynamics.report._page import piece
from tokendynamics.words import number, percent, plural

_QUESTION = "How do the tokens of one {noun} move?"
_MOST_TOKENS = 256
"""Tokens that are drawn; of a longer prompt the first ones, and the caption says so."""
_STILLS = 6


@dataclass(frozen=True)
class Player:
    """Data of the animation: labels, and per layer and token (x, y, norm, sink)."""

    tokens: list[str]
    data: dict[str, Any]


def section(diagnosis: Diagnosis) -> Section:
    """Return the section: the animation, and one prompt's tokens at a few depths."""
    text = str(diagnosis.paths.attrs.get("prompt", ""))
    followed = next((name for name, prompt in prompts_of(diagnosis.trace) if prompt == text), "")
    noun = noun_in(diagnosis.trace)
    markup = piece("player.html.jinja", player=player(diagnosis.paths), followed=followed, noun=noun)
    stills = _stills_figure(diagnosis.paths, _QUESTION.format(noun=noun))
    return Section("paths", "Watch the tokens", figures=(stills,), markup=markup)


def prompts_of(trace: xr.Dataset) -> list[tuple[str, str]]:
    """Return name and text of each prompt; empty texts where they are not recorded."""
    names = [str(name) for name in trace["prompt"].values]
    texts = map(str, trace["text"].values) if "text" in trace.coords or "text" in trace else [""] * len(names)
    return list(zip(names, texts, strict=True))


def _stills_figure(paths: xr.Dataset, question: str) -> Figure:
    """Draw one prompt's tokens at a few depths, with every number of these depths in the table."""
    shown = paths.isel(token=slice(0, _MOST_TOKENS)).transpose("layer", "token", "axis")
    layers = [int(layer) for layer in shown["layer"].values]
    places = np.linspace(0, len(layers) - 1, min(_STILLS, len(layers)))
    stills = [layers[round(float(place))] for place in places]
    pictures = [_still(shown.sel(layer=layer), _name(layer)) for layer in stills]
    text = f"{plural(shown.sizes['token'], 'token')} at {', '.join(_name(layer).lower() for layer in stills)}."
    spreads = []
    for layer in stills:
        position = shown["position"].sel(layer=layer).transpose("token", "axis").values
        defined = position[np.isfinite(position).all(axis=1)]
        radius = float(np.sqrt(((defined - defined.mean(axis=0)) ** 2).sum(axis=1).mean())) if len(defined) else None
        spreads.append(number(radius, 2))
    texts = [token_label(str(label)) for label in shown["token_text"].values]
    rows = []
    for depth in stills:
        at = shown.sel(layer=depth).transpose("token", "axis")
        for j, label in enumerate(texts):
            sink = bool(at["is_sink"].values[j])
            place = ["massive", "massive"] if sink else [float(v) for v in at["position"].values[j]]
            rows.append(cells([depth, j, label, *place, float(at["norm"].values[j])]))
    columns = ("Layer", "Position", "Token", "First dimension", "Second dimension", "Norm")
    tokens = paths.sizes["token"]
    explained = paths.attrs.get("explained")
    share = ""
    if explained is not None and math.isfinite(float(explained)):
        share = f" The two dimensions explain {percent(float(explained))} of the variance of the rows drawn."
    cut = f" The first {_MOST_TOKENS} of {tokens} tokens are drawn." if tokens > _MOST_TOKENS else ""
    convention = str(paths.attrs.get("convention", "")).strip()
    convention = f" {convention[0].upper()}{convention[1:].rstrip('.')}." if convention else ""
    return Figure(
        "paths-stills",
        question,
        "Each dot is a token scaled to length 1, in the same two principal dimensions at every depth. Both axes have "
        f"the same scale; the lines cross at zero. Massive tokens are listed with their norm.{convention}{share}{cut}",
        Stills(pictures, shown["position"].values),
        Table("Tokens at the depths of the still pictures", columns, tuple(rows)),
        title=f"{question} Still pictures at {plural(len(stills), 'depth')}",
        description=f"{text} Root mean square distance from their mean in the plane, in this order: "
        f"{', '.join(spreads)}.",
    )


def _still(layer: xr.Dataset, name: str) -> Still:
    massive = int(layer["is_sink"].sum())
    largest = float(layer["norm"].where(layer["is_sink"]).max()) if massive else math.nan
    note = f"{plural(massive, 'massive token')}: norm {number(largest, 3)}" if massive else ""
    return Still(name, layer["position"].values, note)


def player(paths: xr.Dataset) -> Player:
    """Return the whole path of each token, rounded to what a screen can show."""
    shown = paths.isel(token=slice(0, _MOST_TOKENS)).transpose("layer", "token", "axis")
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
