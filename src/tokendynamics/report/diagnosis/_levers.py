"""What can be tried: effects of gates on single parts, to first order and measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis import Diagnosis, Levers
from tokendynamics.diagnosis.network import PART_NAMES
from tokendynamics.diagnosis.result import levers_in_words
from tokendynamics.figures.figure import Cell, Figure, Table, cells, nothing
from tokendynamics.figures.lines import Curve, Rule, curve_keys, curves_chart
from tokendynamics.figures.palette import BLUE, ORANGE
from tokendynamics.figures.svg import draw_for_screens
from tokendynamics.words import UNDEFINED, fixed, number

QUESTION = "What is the first-order effect of each part?"
_COLOURS = {"attention": BLUE, "feed_forward": ORANGE}
_FIRST_ORDER = (
    "Derivative with respect to a gate α on the update of each part, at α = 1. Above zero, turning the part down "
    "slightly lowers the quantity. The derivative does not predict a gate of 0.5, so the best "
    "candidates are run and measured. "
)
_TRIED = (
    "The candidates were measured on prompts that did not propose them. κ falls significantly if the whole interval of "
    "its change is below 0. The 95 % confidence intervals are not corrected for the number of candidates."
)


def levers_parts(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the parts of the section: the answer, what was measured, and the derivatives that chose it.

    Args:
        diagnosis: From `tokendynamics.diagnose`.
    """
    found = diagnosis.levers
    sentences = (levers_in_words(diagnosis),)
    if not isinstance(found, Levers):
        return {"sentences": sentences}
    measured = {}
    if found.table.sizes["candidate"]:
        effect = () if found.effect is None else (_effect(found.effect, found.where),)
        measured = {"tables": (_trials(found.table), *effect), "notes": (_TRIED,)}
    return {
        "sentences": sentences,
        "variants": (_of_kappa(found), _of_loss(found.table)),
        **measured,
    }


def _of_kappa(found: Levers) -> Figure:
    return _figure(
        found.table.consensus_sensitivity,
        "levers-kappa",
        "∂κ/∂α",
        "Consensus κ",
        f"{_FIRST_ORDER}κ is read after layer {found.where}; later parts do not affect it.",
        "Not plotted because κ has no derivative here.",
    )


def _of_loss(table: xr.Dataset) -> Figure:
    return _figure(
        table.loss_sensitivity,
        "levers-loss",
        "∂loss/∂α (nats)",
        "Loss",
        f"{_FIRST_ORDER}Below zero, the network predicts worse when the part is turned down.",
        "Not plotted because there is no loss: no head that predicts the next token was found.",
    )


def _figure(values: xr.DataArray, ident: str, axis: str, label: str, caption: str, undefined: str) -> Figure:
    layers = [int(layer) for layer in values.layer.values]
    of_parts = {name: [_known(each) for each in values.sel(component=name).values] for name in PART_NAMES}
    by_part = {name: part for name, part in of_parts.items() if any(each is not None for each in part)}
    if not by_part:
        return nothing(ident, QUESTION, undefined, label)
    curves = [
        Curve(
            PART_NAMES[name], layers, by_part[name], _COLOURS[name], dash=() if name == "attention" else (5.0, 3.0),
            mark="disc",
        )
        for name in by_part
    ]  # fmt: skip
    columns = [(layer - 0.5, layer + 0.5, _lines(layer, by_part, place)) for place, layer in enumerate(layers)]
    return Figure(
        ident=ident,
        question=QUESTION,
        svg=draw_for_screens(
            lambda width: curves_chart(
                curves, last=layers[-1], title=axis, width=width, rules=(Rule(0.0, ""),), columns=columns
            ),
            ident=ident,
            title=f"{QUESTION} {axis} of a gate on each part, over depth",
            description=_description(axis, layers, by_part),
            keys=curve_keys(curves),
        ),
        caption=caption,
        table=Table(
            f"{axis} at α = 1, on the prompts that propose candidates",
            ("Layer", *(PART_NAMES[name].capitalize() for name in by_part)),
            tuple(
                cells([layer, *(UNDEFINED if part[place] is None else part[place] for part in by_part.values())])
                for place, layer in enumerate(layers)
            ),
        ),
        label=label,
    )


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _lines(layer: int, by_part: dict[str, list[float | None]], place: int) -> str:
    known = {name: values[place] for name, values in by_part.items()}
    lines = [f"{PART_NAMES[name]}: {UNDEFINED if value is None else number(value)}" for name, value in known.items()]
    return "\n".join([f"Layer {layer}", *lines])


def _description(axis: str, layers: list[int], by_part: dict[str, list[float | None]]) -> str:
    drawn = [
        (value, PART_NAMES[name], layers[place])
        for name, values in by_part.items()
        for place, value in enumerate(values)
        if value is not None
    ]
    (high, above, at_high), (low, below, at_low) = max(drawn), min(drawn)
    return (
        f"{axis} is largest for the {above} of layer {at_high} ({number(high)}) and smallest for the {below} of layer "
        f"{at_low} ({number(low)}). The table below holds every value."
    )


def _trials(table: xr.Dataset) -> Table:
    columns = ("Part turned down", "α", "Change of κ", "from", "to", "Change of loss", "from", "to", "κ falls")
    return Table(
        "Effect of turning one part down on κ and on the loss in nats, with 95 % confidence intervals over prompts",
        columns,
        tuple(_trial(table.isel(candidate=place)) for place in range(table.sizes["candidate"])),
    )


def _trial(row: xr.Dataset) -> tuple[Cell, ...]:
    numbers = (
        *(float(row.kappa_change), *map(float, row.kappa_interval.values)),
        *(float(row.loss_change), *map(float, row.loss_interval.values)),
    )
    part = f"{PART_NAMES[str(row.candidate_part.item())]}, layer {int(row.candidate_layer)}"
    falls = "yes" if bool(row.verified) else "not significant"
    return (*cells([part, float(row.alpha)]), *(_change(value) for value in numbers), *cells([falls]))


_MEASURES = (
    ("κ", "consensus_within", None),
    ("κ′", "consensus_relative", None),
    ("share common to all prompts", "shares", "common"),
    ("share within the prompt", "shares", "prompt"),
    ("share of the token alone", "shares", "own"),
    ("centred cos²", "centred_cos2", None),
    ("effective rank", "effective_rank", None),
    ("loss (nats)", "loss", None),
)
"""Name, variable of `what_if`, and share."""


def _effect(effect: xr.Dataset, where: int) -> Table:
    """Return the effect of the gate that the answer names on every measure after the layer where κ is read."""
    end = effect.sel(layer=where, site="feed_forward")
    rows = []
    for words, name, share in _MEASURES:
        own = [end[name + suffix] for suffix in ("", "_difference", "_difference_interval")]
        both, change, bounds = (each if share is None else each.sel(share=share) for each in own)
        changes = (_change(float(value)) for value in (change.item(), *bounds.values))
        rows.append((*cells([words, *map(float, both.values)]), *changes))
    return Table(
        f"Effect of {effect.attrs['changes']} after layer {where}, with 90 % confidence intervals over prompts",
        ("Measure", "Unchanged", "Changed", "Change", "from", "to"),
        tuple(rows),
    )


def _change(value: float) -> Cell:
    if not np.isfinite(value):
        return Cell(UNDEFINED, undefined=True, value=value)
    return Cell(fixed(value, 3, sign=True), sort=f"{value:.6g}", value=value)
