"""What can be tried: the effects of gates on single parts and heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from tokendynamics.diagnosis import Diagnosis, Levers
from tokendynamics.diagnosis.network import PART_NAMES
from tokendynamics.diagnosis.result import levers_in_words, tried_in_words
from tokendynamics.diagnosis.tracing.prompts import noun_in
from tokendynamics.figures.curves import Curve, Curves, Rule
from tokendynamics.figures.figure import Cell, Figure, Section, Table, cells, columns_table
from tokendynamics.report.diagnosis._states import LOOKS, extremes, layer_columns
from tokendynamics.words import UNDEFINED, fixed, number, plural

_QUESTION = "What is the first-order effect of each part?"
_IDENT, _TITLE = "levers", "What can you try?"
_FIRST_ORDER = (
    "Derivative with respect to a gate α on the update of each part, at α = 1. Above zero, turning the part down "
    "slightly lowers the quantity. The derivative does not predict a gate of 0.5, so the best "
    "candidates are run and measured. "
)
_TRIED = (
    "The candidates were measured on {noun}s that did not propose them. κ falls significantly if the whole interval of "
    "its change is below 0. The 95 % confidence intervals are not corrected for the number of candidates."
)

_NO_HEAD = "no head that predicts the next token was found"
"""The reason for want of a loss in results that do not hold it."""


def section(diagnosis: Diagnosis) -> Section:
    """Return the section: the answer, what was measured, and the derivatives that chose it."""
    levers, noun = diagnosis.levers, noun_in(diagnosis.trace)
    sentences = (levers_in_words(diagnosis), *tried_in_words(diagnosis))
    tried = ((_remedies, diagnosis.remedies, "trial"), (_sets, diagnosis.joint, "step"))
    further = tuple(
        rows(trials, noun) for rows, trials, axis in tried if isinstance(trials, xr.Dataset) and trials.sizes[axis]
    )
    if not isinstance(levers, Levers):
        return Section(_IDENT, _TITLE, sentences, further)
    table, tables, unit = levers.table, (), levers.table.attrs.get("loss_unit", "nats")
    if table.sizes["candidate"]:
        measured_on = plural(table.sizes["measuring"], noun)
        effect = () if levers.effect is None else (_effect(levers.effect, levers.where, noun, measured_on),)
        tables = (_trials(table, measured_on), *effect)
    variants = (
        _levers_figure(
            table.consensus_sensitivity, "levers-kappa", noun, ("∂κ/∂α", "Consensus κ"),
            f"{_FIRST_ORDER}κ is read after layer {levers.where}; later parts do not affect it.",
            "Not plotted because κ has no derivative here.",
        ),
        _levers_figure(
            table.loss_sensitivity, "levers-loss", noun, ("∂loss/∂α (nats)", "Loss"),
            f"{_FIRST_ORDER}Below zero, the network predicts worse when the part is turned down.",
            f"Not plotted because there is no loss: {table.attrs.get('no_loss', _NO_HEAD)}."
            if unit else "Not plotted because a loss that is passed has no derivative here.",
        ),
    )  # fmt: skip
    notes = (_TRIED.format(noun=noun),) if tables or further else ()
    return Section(_IDENT, _TITLE, sentences, (*tables, *further), variants=variants, notes=notes)


def _levers_figure(
    values: xr.DataArray, ident: str, noun: str, names: tuple[str, str], caption: str, undefined: str
) -> Figure:
    """Draw derivatives by part; `names` are those of the axis and of the figure."""
    axis, label = names
    layers = [int(layer) for layer in values.layer.values]
    of_parts = {name: values.sel(component=name).values for name in PART_NAMES}
    by_part = {name: np.where(np.isfinite(part), part, np.nan) for name, part in of_parts.items()}
    by_part = {name: part for name, part in by_part.items() if np.isfinite(part).any()}
    if not by_part:
        return Figure(ident, _QUESTION, undefined, label=label)
    curves = [
        Curve(PART_NAMES[name], layers, part, LOOKS[name][0], dash=LOOKS[name][1], mark="disc")
        for name, part in by_part.items()
    ]
    ends = [(*end, name) for name, pair in extremes(layers, by_part).items() for end in pair]
    (high, at_high, above), (low, at_low, below) = (
        function(ends, key=lambda end: (end[0], end[2], end[1])) for function in (max, min)
    )

    def text(place: int, layer: int) -> str:
        return "\n".join(
            [f"Layer {layer}", *(f"{PART_NAMES[name]}: {number(part[place])}" for name, part in by_part.items())]
        )

    columns = [
        (PART_NAMES[name].capitalize(), [UNDEFINED if np.isnan(value) else value for value in part.tolist()])
        for name, part in by_part.items()
    ]
    return Figure(
        ident,
        _QUESTION,
        caption,
        Curves(curves, axis, last=layers[-1], rules=(Rule(0.0, ""),), columns=layer_columns(layers, text)),
        columns_table(f"{axis} at α = 1, on the {noun}s that propose candidates", [("Layer", layers), *columns]),
        title=f"{_QUESTION} {axis} of a gate on each part, over depth",
        description=f"{axis} is largest for the {above} of layer {at_high} ({number(high)}) and smallest for the "
        f"{below} of layer {at_low} ({number(low)}). The table below holds every value.",
        label=label,
    )


_CHANGES = ("Change of κ", "from", "to")


def _remedies(remedies: xr.Dataset, noun: str) -> Table:
    """Return what each remedy does; behind a remedy that the network cannot have stands the reason."""
    rows = []
    for place in range(remedies.sizes["trial"]):
        row = remedies.isel(trial=place)
        name, status = str(row["name"].item()), str(row.status.item())
        chosen = ("yes" if bool(row.recommended) else "no") if status == "measured" else f"not measured: {status}"
        effects = (*_effect_cells(row, "consensus_change"), *_effect_cells(row, "loss_change"))
        rows.append((*cells([name, float(row.strength)]), *effects, *cells([chosen, str(row.after_training.item())])))
    return _with_known_columns(
        f"Remedies tried without training: change of κ after layer {remedies.attrs['where']}"
        f"{_and_loss(remedies, 'of')}, with 95 % confidence intervals over {noun}s",
        ("Remedy", "Strength", *_CHANGES, "Change of loss", "from", "to", "Recommended", "After training"),
        rows,
    )


def _sets(joint: xr.Dataset, noun: str) -> Table:
    """Return the sets of the greedy search, each with one change more, and what that gains against the one before."""
    rows = []
    for place in range(joint.sizes["step"]):
        row = joint.isel(step=place)
        effects = [cell for name in ("kappa_change", "gain", "loss_change") for cell in _effect_cells(row, name)]
        part = "yes" if bool(row.reported) else "no"
        rows.append((*cells([str(row.change.item()), float(row.alpha)]), *effects, *cells([part])))
    return _with_known_columns(
        f"Sets of parts and heads, one change added a row: change of κ after layer {joint.attrs['where']}"
        f"{_and_loss(joint, 'of')}, with 95 % confidence intervals over {noun}s",
        ("Change added", "α", *_CHANGES, "Gain", "from", "to", "Change of loss", "from", "to", "Recommended"),
        rows,
    )


def _with_known_columns(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    """Return a table without the columns in which every cell is undefined, such as those of an unknown loss."""
    known = [place for place in range(len(columns)) if not all(row[place].undefined for row in rows)]
    return Table(caption, tuple(columns[place] for place in known), tuple(tuple(row[k] for k in known) for row in rows))


def _and_loss(table: xr.Dataset, preposition: str) -> str:
    """Return what a caption says of the loss: its unit, or nothing where it is unknown, as the columns have it."""
    if bool(table.loss_change.isnull().all()):
        return ""
    return f" and {preposition} the loss" + (" in nats" if table.attrs.get("loss_unit", "nats") else "")


def _effect_cells(row: xr.Dataset, name: str) -> tuple[Cell, ...]:
    return tuple(_change(value) for value in (float(row[name]), *map(float, row[f"{name}_interval"].values)))


def _trials(table: xr.Dataset, measured_on: str) -> Table:
    columns = ("Part turned down", "α", "Change of κ", "from", "to", "Change of loss", "from", "to", "κ falls")
    return _with_known_columns(
        f"Effect of turning one part down on κ{_and_loss(table, 'on')}, with 95 % confidence intervals over "
        f"{measured_on}",
        columns,
        [_trial(table.isel(candidate=place)) for place in range(table.sizes["candidate"])],
    )


def _trial(row: xr.Dataset) -> tuple[Cell, ...]:
    numbers = (
        *(float(row.kappa_change), *map(float, row.kappa_interval.values)),
        *(float(row.loss_change), *map(float, row.loss_interval.values)),
    )
    part = f"{PART_NAMES[str(row.candidate_part.item())]}, layer {int(row.candidate_layer)}"
    rises = float(row.kappa_interval.values[0]) > 0
    falls = "yes" if bool(row.verified) else "no, it rises" if rises else "not significant"
    return (*cells([part, float(row.alpha)]), *(_change(value) for value in numbers), *cells([falls]))


_MEASURES = (
    ("κ", "consensus_within", None),
    ("κ′", "consensus_relative", None),
    ("share common to all {noun}s", "shares", "common"),
    ("share within the {noun}", "shares", "prompt"),
    ("share of the token alone", "shares", "own"),
    ("centred cos²", "centred_cos2", None),
    ("effective rank", "effective_rank", None),
    ("loss (nats)", "loss", None),
)
"""Name, variable of `what_if`, and share."""


def _effect(effect: xr.Dataset, where: int, noun: str, measured_on: str) -> Table:
    """Return the effect of the gate that the answer names on every measure after the layer where κ is read.

    It differs in the last digits from the trial's: here a token that either network finds massive is left out of both.
    """
    end = effect.sel(layer=where, site="feed_forward")
    rows = []
    for words, name, share in _MEASURES:
        variables = [end[name + suffix] for suffix in ("", "_difference", "_difference_interval")]
        both, change, bounds = (variable if share is None else variable.sel(share=share) for variable in variables)
        changes = (_change(float(value)) for value in (change.item(), *bounds.values))
        rows.append((*cells([words.format(noun=noun), *map(float, both.values)]), *changes))
    return Table(
        f"Effect of {effect.attrs['changes']} after layer {where}, with 90 % confidence intervals over {measured_on}; "
        "tokens that are massive before or after the change are left out",
        ("Measure", "Unchanged", "Changed", "Change", "from", "to"),
        tuple(rows),
    )


def _change(value: float) -> Cell:
    if not np.isfinite(value):
        return Cell(UNDEFINED, undefined=True, value=value)
    return Cell(fixed(value, 3, sign=True), sort=f"{value:.6g}", value=value)
