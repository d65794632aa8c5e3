"""What can you try? What gates on single parts do to the agreement of the tokens, to first order and measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis._figure_names import PART_NAMES
from tokendynamics.diagnosis._levers_found import Levers
from tokendynamics.diagnosis._result import Diagnosis, levers_in_words
from tokendynamics.report.kit._curves import Curve, Rule, curve_keys, curves_chart
from tokendynamics.report.kit._figure import Cell, Figure, Table, cells, nothing
from tokendynamics.report.kit._palette import BLUE, ORANGE
from tokendynamics.report.kit._svg import draw_for_screens
from tokendynamics.words import UNDEFINED, fixed, number

QUESTION = "What would happen to first order?"
_COLOURS = {"attention": BLUE, "feed_forward": ORANGE}
_FIRST_ORDER = (
    "A gate α = 1 stands on what each part adds. Above zero, turning the part down lowers what is shown, were it only "
    "for the first step: the derivative is no guide to a gate of 0.5, which is why the best are run and measured. "
)
_TRIED = (
    "The candidates were measured on prompts that did not choose them. κ falls where the whole interval of its change "
    "lies below nought. Each interval is one of 95 % by itself: with so many of them, one that only just leaves out "
    "nought says little."
)


def levers_parts(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the parts of the section: the answer, what was measured, and the derivatives that chose it.

    Args:
        diagnosis: From `tokendynamics.diagnose`.
    """
    found = diagnosis.levers
    said = (levers_in_words(diagnosis),)
    if found is None:
        return {"sentences": said}
    measured = {}
    if found.table.sizes["candidate"]:
        effect = () if found.effect is None else (_effect(found.effect, found.where),)
        measured = {"tables": (_trials(found.table), *effect), "notes": (_TRIED,)}
    return {
        "sentences": (levers_in_words(diagnosis),),
        "variants": (_of_kappa(found), _of_loss(found.table)),
        **measured,
    }


def _of_kappa(found: Levers) -> Figure:
    return _figure(
        found.table.consensus_sensitivity,
        "levers-kappa",
        "∂κ/∂α",
        "Consensus κ",
        f"{_FIRST_ORDER}κ is read after layer {found.where}; parts behind it change nothing there.",
        "κ has no derivative here.",
    )


def _of_loss(table: xr.Dataset) -> Figure:
    return _figure(
        table.loss_sensitivity,
        "levers-loss",
        "∂loss/∂α (nats)",
        "Loss",
        f"{_FIRST_ORDER}Below zero, the network predicts worse when the part is turned down.",
        "Nothing is drawn: no head that predicts the next token was found, so that there is no loss.",
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
            f"{axis} at α = 1, on the prompts that find candidates",
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
    told = [f"{PART_NAMES[name]}: {UNDEFINED if value is None else number(value)}" for name, value in known.items()]
    return "\n".join([f"Layer {layer}", *told])


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
        "What turning one part down does: change of κ and of the loss in nats, with 95 % intervals over prompts",
        columns,
        tuple(_trial(table.isel(candidate=place)) for place in range(table.sizes["candidate"])),
    )


def _trial(row: xr.Dataset) -> tuple[Cell, ...]:
    numbers = (
        *(float(row.kappa_change), *map(float, row.kappa_interval.values)),
        *(float(row.loss_change), *map(float, row.loss_interval.values)),
    )
    part = f"{PART_NAMES[str(row.candidate_part.item())]}, layer {int(row.candidate_layer)}"
    falls = "yes" if bool(row.verified) else "not sure"
    return (*cells([part, float(row.alpha)]), *(_change(value) for value in numbers), *cells([falls]))


_MEASURES = (
    ("κ", "consensus_within", None),
    ("κ′", "consensus_relative", None),
    ("share common to all prompts", "shares", "common"),
    ("share of the prompt", "shares", "prompt"),
    ("share of the token", "shares", "own"),
    ("centred cos²", "centred_cos2", None),
    ("effective rank", "effective_rank", None),
    ("loss (nats)", "loss", None),
)
"""Words, variable of `what_if`, and share."""


def _effect(effect: xr.Dataset, where: int) -> Table:
    """Return what the gate that the answer names does to every measure behind the layer where κ is read."""
    end = effect.sel(layer=where, site="feed_forward")
    rows = []
    for words, name, share in _MEASURES:
        own = [end[name + suffix] for suffix in ("", "_difference", "_difference_interval")]
        both, change, bounds = (each if share is None else each.sel(share=share) for each in own)
        changes = (_change(float(value)) for value in (change.item(), *bounds.values))
        rows.append((*cells([words, *map(float, both.values)]), *changes))
    return Table(
        f"{effect.attrs['changes']}: what it changes behind layer {where}, with 90 % intervals over prompts",
        ("Measure", "As it is", "Changed", "Change", "from", "to"),
        tuple(rows),
    )


def _change(value: float) -> Cell:
    if not np.isfinite(value):
        return Cell(UNDEFINED, undefined=True, value=value)
    return Cell(fixed(value, 3, sign=True), sort=f"{value:.6g}", value=value)
