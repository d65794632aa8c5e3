"""Which directions the tokens share: how much lies along them, who writes them, and from which tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from tokendynamics.diagnosis import Diagnosis
from tokendynamics.diagnosis.network import parts_there
from tokendynamics.diagnosis.tracing.direction_words import (
    amounts_of,
    entries_of,
    heads_of_direction,
    source_of,
    writers_of,
)
from tokendynamics.figures.curves import Curve, Curves
from tokendynamics.figures.figure import Figure, Section, Table, cells, columns_table
from tokendynamics.figures.palette import BLUE, ORANGE
from tokendynamics.figures.parts import Bar, Bars
from tokendynamics.figures.rows import Intervals, Row
from tokendynamics.numerics.printable import shortened, token_label
from tokendynamics.report.diagnosis._parts import PARTS
from tokendynamics.report.diagnosis._states import layer_columns
from tokendynamics.results.result import reason_of
from tokendynamics.words import fixed, indefinite, listing, number, plural, signed

_IDENT, _TITLE = "directions", "Which directions do the tokens share?"
_AMOUNT, _WRITERS = "How much of a token's direction is shared?", "Which parts write the shared directions?"
_SOURCES = "From which tokens does attention bring them?"


def _kinds(table: xr.Dataset) -> dict[str, str]:
    """Return the words for both kinds of directions, with an article where one belongs to a text."""
    return {"common": "common direction", "text": f"{indefinite(table.attrs['prompt_noun'])}'s own direction"}


def _direction(kind: str) -> str:
    """Return the words for a kind of directions without an article."""
    return kind.removeprefix("an ").removeprefix("a ")


_MOST = 3
"""Parts, and heads, of a direction in the table."""
_TOKENS = 16
"""Source tokens that are drawn, the largest contributions,"""
_LONGEST = 16
"""and characters that are shown of each."""


def section(diagnosis: Diagnosis) -> Section | None:
    """Return the section; None where the directions were not requested or could not be measured yet."""
    directions, sources = diagnosis.directions, diagnosis.sources
    if not isinstance(directions, xr.Dataset):
        why = reason_of(directions)
        if why in ("", "it was not requested"):
            return None
        return Section(_IDENT, _TITLE, (f"Shared directions were not measured: {why}.",))
    notes = []
    if why := str(directions.attrs["no_heads"]):
        notes.append(f"Heads are not shown: {why}.")
    if why := str(directions.attrs["no_reading"]):
        notes.append(f"The directions are not read as vocabulary entries: {why}.")
    existing = [name for name, layers in parts_there(diagnosis.trace).items() if layers.any()]
    writers = [_writers_figure(directions, kind, existing) for kind in ("common", "text")]
    from_tokens = (
        [_sources_figure(sources, kind) for kind in ("common", "text")] if isinstance(sources, xr.Dataset) else []
    )
    tables = (_writers_table(directions), *((_readings(directions),) if "token_text" in directions else ()))
    figures = (_amount_figure(directions),)
    return Section(_IDENT, _TITLE, (), tables, figures, (*writers, *from_tokens), tuple(notes))


def _amount_figure(directions: xr.Dataset) -> Figure:
    layers, noun = directions.layer.values.tolist(), directions.attrs["prompt_noun"]
    common, of_text = amounts_of(directions)
    rows = directions.similarity.transpose("direction", "layer").values[1:]
    low, high = np.fmin.reduce(rows), np.fmax.reduce(rows)  # undefined where no text has a value
    count = len(rows)

    def text(place: int, layer: int) -> str:
        return f"Layer {layer}\ncommon to all {noun}s: {number(common[place])}\nof its {noun}: {number(of_text[place])}"

    return Figure(
        f"{_IDENT}-chart",
        _AMOUNT,
        f"Share of a token's direction along one direction common to all {noun}s, and beyond it along its {noun}'s "
        "own: the mean product of the components of different tokens. Each layer has directions of its own, along the "
        f"mean unit rows. Massive tokens are excluded. Line of {noun}s: median over {count}; band: lowest to highest.",
        Curves(
            [
                Curve(f"of its {noun}", layers, of_text, BLUE, low, high, f"range over {noun}s", mark="disc"),
                Curve(f"common to all {noun}s", layers, common, ORANGE, dash=(5, 3), mark="ring"),
            ],
            "Share of a token's direction", last=layers[-1], domain=(0.0, 1.0),
            columns=layer_columns(layers, text),
        ),
        columns_table(
            "Share of a token's direction along shared directions",
            [
                ("Layer", layers), ("Common", common), (f"{noun.capitalize()} (median)", of_text), ("lowest", low),
                ("highest", high),
            ],
        ),
        title=f"{_AMOUNT} Share along shared directions, over depth",
        description=f"After the last layer {number(common[-1])} lies along the common direction and "
        f"{number(of_text[-1])} along that of its {noun} (median of {plural(count, noun)}). The table below holds "
        "every value.",
    )  # fmt: skip


def _last(values: xr.DataArray, kind: str) -> xr.DataArray:
    last = values.isel(layer=-1, drop=True)
    return last.isel(direction=0) if kind == "common" else last.isel(direction=slice(1, None)).mean("direction")


def _writers_figure(directions: xr.Dataset, kind: str, existing: Sequence[str]) -> Figure:
    """Draw the signed share that each existing part has written of a direction after the last layer."""
    written = _last(directions.written, kind).transpose("source", "component")
    shares, parts = written.values, [name for name in written.component.values.tolist() if name in existing]
    name = _kinds(directions)[kind]
    ident, label, direction = f"{_IDENT}-writers-{kind}", f"Writers, {name}", _direction(name)
    if not np.isfinite(shares).any():
        return Figure(
            ident, _WRITERS, "Not plotted because the direction is undefined after the last layer.", label=label
        )
    layers, embedding, totals = list(range(1, len(shares))), float(shares[0].sum()), shares[1:].sum(axis=1)
    none = np.full(len(layers), np.nan)
    by_part = {PARTS[name][0]: written.sel(component=name).values for name in parts}
    texts = plural(directions.sizes["direction"] - 1, directions.attrs["prompt_noun"])
    over = "" if kind == "common" else f" Mean over {texts}."
    writers = writers_of(directions, kind == "text")
    named = listing([f"{writer.name} ({signed(writer.share)})" for writer in writers[:3]])

    def text(place: int, layer: int) -> str:
        lines = (f"{name}: {signed(part[layer])}" for name, part in by_part.items())
        return "\n".join([f"Layer {layer}: {signed(totals[place])}", *lines])

    return Figure(
        ident,
        _WRITERS,
        f"Signed shares of the mean component of the tokens along the {direction} after the last "
        f"layer. The bars of all layers and the embedding ({signed(embedding)}) add up to 1. Above zero a part writes "
        f"the direction, below zero it removes it.{over} Behind a part with a norm, its share is the change of the "
        "state.",
        Bars(
            layers,
            [Bar(*PARTS[name], by_part[PARTS[name][0]][1:], none, none) for name in parts],
            totals,
            "Share of the direction",
            layer_columns(layers, text),
        ),
        columns_table(
            f"Signed shares of the {direction} after the last layer; layer 0 is the embedding",
            [("Layer", [0, *layers]), *((name.capitalize(), part) for name, part in by_part.items())],
        ),
        title=f"{_WRITERS} Signed share of each part, {name}",
        description=f"The largest shares are those of {named}. The table below holds every value.",
        label=label,
    )


def _writers_table(directions: xr.Dataset) -> Table:
    rows = [
        cells([name, writer.name, writer.share])
        for kind, name in _kinds(directions).items()
        for several in (writers_of(directions, kind == "text"), heads_of_direction(directions, kind == "text"))
        for writer in several[:_MOST]
    ]
    return Table(
        "Parts and heads that write most of the shared directions after the last layer; the share of a head is part of "
        "that of its attention",
        ("Direction", "Part or head", "Share"),
        tuple(rows),
    )


def _readings(directions: xr.Dataset) -> Table:
    last = directions.similarity.isel(layer=-1).values
    rows = [
        cells(
            [
                token_label(str(name)),
                float(last[place]),
                " ".join(f"“{entry}”" for entry in entries_of(directions, place)),
            ]
        )
        for place, name in enumerate(directions.direction.values)
    ]
    return Table(
        "What final norm and language head read from each direction after the last layer, the likeliest entries first",
        ("Direction", "Share of a token's direction", "Vocabulary entries"),
        tuple(rows),
    )


def _sources_figure(sources: xr.Dataset, kind: str) -> Figure:
    """Draw the largest source tokens of one text, in the layer whose heads add most to a direction."""
    of_kind, noun, source = _kinds(sources)[kind], sources.attrs["prompt_noun"], source_of(sources, kind)
    ident, label = f"{_IDENT}-sources-{kind}", f"Sources, {of_kind}"
    if source is None:
        return Figure(ident, _SOURCES, "Not plotted because no heads add to the direction.", label=label)
    here = sources.sel(kind=kind, layer=source.layer)
    prompt = int(np.nanargmax(here.added.values))
    values = here.contribution.transpose("prompt", "token").values[prompt] / float(here.added[prompt])
    texts = [token_label(str(text)) for text in sources.token_text.transpose("prompt", "token").values[prompt]]
    largest = sorted(np.argsort(-np.nan_to_num(np.abs(values)), kind="stable")[:_TOKENS].tolist())
    shown = [place for place in largest if np.isfinite(values[place])]
    name, everything = token_label(str(sources.prompt.values[prompt])), np.flatnonzero(np.isfinite(values)).tolist()
    rows = [
        Row(
            f"{place} {shortened(texts[place], _LONGEST)}",
            share,
            written=fixed(share),
            colour=BLUE if share >= 0 else ORANGE,
        )
        for place, share in zip(shown, values[shown].tolist(), strict=True)
    ]
    low, high = (float(end) for end in (values[shown].min(initial=0.0), values[shown].max(initial=0.0)))
    return Figure(
        ident,
        _SOURCES,
        f"Share of what heads add to the {_direction(of_kind)} by source token of one {noun} ({name}), in the layer in "
        f"which they add most relative to the tokens' norm (layer {source.layer}). It is the attention weight times "
        f"what the heads write of the token, over all tokens that receive it. The {len(shown)} largest of "
        f"{len(everything)}; all together give 1.",
        Intervals(rows, (low, high if high > low else 1.0), bars=True),
        columns_table(
            f"Share of each source token in layer {source.layer}, {noun} {name}",
            [("Position", everything), ("Token", [texts[n] for n in everything]), ("Share", values[everything])],
        ),
        title=f"{_SOURCES} Share by source token, layer {source.layer}, {of_kind}",
        description=f"Over all {noun}s, most comes from position {source.position} ({number(source.share)}). The table "
        "below holds every value.",
        label=label,
    )
