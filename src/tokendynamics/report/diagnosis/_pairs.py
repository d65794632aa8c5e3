"""How similar pairs of tokens are: the cosines of all pairs of a prompt over depth, and the mean against distance."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tokendynamics.diagnosis import Diagnosis
from tokendynamics.diagnosis.tracing.prompts import noun_in
from tokendynamics.diagnosis.tracing.words import merging_neighbours
from tokendynamics.figures.axes import Axis
from tokendynamics.figures.curves import Curve, Curves, Mark
from tokendynamics.figures.figure import Figure, Section, columns_table
from tokendynamics.figures.maps import SignedMap, Tile
from tokendynamics.figures.palette import BLUE, INK, MUTED, ORANGE, POSITIVE
from tokendynamics.figures.svg import Key
from tokendynamics.report.diagnosis._states import undrawn
from tokendynamics.words import fixed, listing, number, percent

_IDENT, _QUESTION = "pairs", "How similar are pairs of tokens?"
_STRENGTHS = (0.03, 0.4, 1.0)
_LOOKS: tuple[tuple[str, tuple[float, ...], Mark], ...] = (
    (MUTED, (5.0, 3.0), "ring"), (BLUE, (), "disc"), (ORANGE, (1.5, 2.5), "diamond"), (INK, (7.0, 3.0), "triangle"),
)  # fmt: skip
"""Colour, dash and mark of the curves against distance, the embedding first."""


def section(diagnosis: Diagnosis) -> Section | None:
    """Return the section, the drawing against distance first where neighbours merge; None for an older trace."""
    trace = diagnosis.trace
    figures = [draw(trace) for name, draw in (("pair_share", _map), ("cosine_at_distance", _distance)) if name in trace]
    if merging_neighbours(trace):
        figures.reverse()
    return Section(_IDENT, _QUESTION, variants=tuple(figures)) if figures else None


def _map(trace: xr.Dataset) -> Figure:
    """Draw the share of pairs in each bin of the cosine, layers × bins."""
    ident, label, noun = "pairs-map", "All pairs over depth", noun_in(trace)
    shares = trace.pair_share.transpose("layer", "cosine").values
    if not np.isfinite(shares).any():
        return Figure(ident, _QUESTION, undrawn(trace), label=label)
    layers, middles = trace.layer.values.tolist(), trace.cosine.values
    half, largest = float(middles[1] - middles[0]) / 2, float(np.nanmax(shares))
    used = np.flatnonzero((shares > 0).any(axis=0))
    bins = list(range(int(used[-1]), int(used[0]) - 1, -1))
    names = {place: f"{fixed(middles[place] - half)} to {fixed(middles[place] + half)}" for place in bins}
    tiles = [
        Tile(
            layer,
            round(100 * float(middles[place] - half)),
            float(shares[row, place]),
            f"Layer {layer}, cosine {names[place]}: {percent(float(shares[row, place]))} of pairs",
        )
        for row, layer in enumerate(layers)
        for place in bins
        if shares[row, place] > 0
    ]
    most = [int(np.nanargmax(shares[row])) for row in (0, -1)]
    return Figure(
        ident,
        _QUESTION,
        f"Share of the pairs of different tokens of one {noun} by their cosine: the darker, the more. A column "
        f"adds up to 1. Every {noun} counts alike, and massive tokens are excluded. Tokens condense where the dark "
        f"cells rise to 1; a direction common to all {noun}s raises them too.",
        SignedMap(tiles, "100 × cosine, from", [round(100 * float(middles[place] - half)) for place in bins], largest),
        columns_table(
            "Share of pairs by cosine",
            [("Layer", layers), *((names[place], shares[:, place]) for place in reversed(bins))],
        ),
        title=f"{_QUESTION} Share of pairs by cosine, over depth",
        description=f"Most pairs have a cosine of {names[most[0]]} at the embedding and of {names[most[1]]} after "
        "the last layer. The table below holds every value.",
        label=label,
        keys=[Key(number(part * largest, 2), "box", POSITIVE, opacity=part) for part in _STRENGTHS],
    )


def _distance(trace: xr.Dataset) -> Figure:
    """Draw the mean cosine against distance at the embedding, where neighbours are most alike, and at the end."""
    ident, label, noun = "pairs-distance", "Mean by distance", noun_in(trace)
    cosines = trace.cosine_at_distance.transpose("layer", "distance").values
    distances = trace.distance.values.astype(float)
    if not np.isfinite(cosines).any():
        return Figure(ident, _QUESTION, undrawn(trace), label=label)
    nearest, last = int(np.nanargmax(cosines[:, 0])), len(cosines) - 1
    merged = merging_neighbours(trace)
    shown = {0: "embedding"} | {layer: f"layer {layer}" for layer in sorted({nearest, *list(merged)[-1:], last} - {0})}
    curves = [
        Curve(name, distances.tolist(), cosines[layer], colour, dash=dash, mark=mark)
        for (layer, name), (colour, dash, mark) in zip(shown.items(), _LOOKS, strict=False)
    ]
    ends = listing([f"{name} {number(cosines[layer, 0])}" for layer, name in shown.items()])
    return Figure(
        ident,
        _QUESTION,
        f"Mean cosine of tokens of one {noun} that stand 1, 2, 4 … places apart; each {noun} counts alike, and massive "
        "tokens are excluded. Curves: the embedding, the layer in which adjacent tokens are most alike, and the last "
        "layer. Where a curve falls, near tokens are more alike than distant ones.",
        Curves(
            curves,
            "Mean cosine",
            axis=Axis(
                "Distance in tokens (log)",
                (1.0, max(2.0, float(distances[-1]))),
                log=True,
                at=distances.tolist(),
                form="d",
            ),
            domain=(0.0, 1.0),
        ),
        columns_table(
            "Mean cosine by distance in tokens",
            [
                ("Distance", trace.distance.values.tolist()),
                *((name[0].upper() + name[1:], cosines[layer]) for layer, name in shown.items()),
            ],
        ),
        title=f"{_QUESTION} Mean cosine against distance",
        description=f"Adjacent tokens have a mean cosine of: {ends}. The table below holds every value.",
        label=label,
    )
