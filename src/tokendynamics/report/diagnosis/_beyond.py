"""What can be tried: effects of gates on single parts; and what happens in a deeper network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np
import xarray as xr

from tokendynamics.diagnosis import Deeper, Diagnosis, Levers
from tokendynamics.diagnosis.deepening.repeated_passes import COLLAPSED
from tokendynamics.diagnosis.deepening.result import first_lost, known_until, seen_below
from tokendynamics.diagnosis.network import PART_NAMES
from tokendynamics.diagnosis.result import deeper_in_words, levers_in_words
from tokendynamics.figures.curves import Column, Curve, Number, Rule, curve_keys, curves_chart, time_axis
from tokendynamics.figures.figure import Cell, Figure, Given, Table, cells, nothing
from tokendynamics.figures.palette import BLUE, GREEN, MUTED, NEGATIVE, ORANGE
from tokendynamics.figures.svg import WIDE, Key, draw_for_screens
from tokendynamics.numerics.printable import printable, shortened
from tokendynamics.report._page import token_label
from tokendynamics.words import UNDEFINED, count, fixed, number

LEVERS_QUESTION = "What is the first-order effect of each part?"
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
    return _levers_figure(
        found.table.consensus_sensitivity,
        "levers-kappa",
        "∂κ/∂α",
        "Consensus κ",
        f"{_FIRST_ORDER}κ is read after layer {found.where}; later parts do not affect it.",
        "Not plotted because κ has no derivative here.",
    )


def _of_loss(table: xr.Dataset) -> Figure:
    return _levers_figure(
        table.loss_sensitivity,
        "levers-loss",
        "∂loss/∂α (nats)",
        "Loss",
        f"{_FIRST_ORDER}Below zero, the network predicts worse when the part is turned down.",
        "Not plotted because there is no loss: no head that predicts the next token was found.",
    )


def _levers_figure(values: xr.DataArray, ident: str, axis: str, label: str, caption: str, undefined: str) -> Figure:
    layers = [int(layer) for layer in values.layer.values]
    of_parts = {name: [_known(each) for each in values.sel(component=name).values] for name in PART_NAMES}
    by_part = {name: part for name, part in of_parts.items() if any(each is not None for each in part)}
    if not by_part:
        return nothing(ident, LEVERS_QUESTION, undefined, label)
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
        question=LEVERS_QUESTION,
        svg=draw_for_screens(
            lambda width: curves_chart(
                curves, last=layers[-1], title=axis, width=width, rules=(Rule(0.0, ""),), columns=columns
            ),
            ident=ident,
            title=f"{LEVERS_QUESTION} {axis} of a gate on each part, over depth",
            description=_levers_description(axis, layers, by_part),
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


def _levers_description(axis: str, layers: list[int], by_part: dict[str, list[float | None]]) -> str:
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


DEEPER_QUESTION = "How fast do the tokens collapse?"
LOOKS: dict[str, tuple[str, tuple[float, ...]]] = {
    "full": (BLUE, ()),
    "no-ffn": (ORANGE, (7.0, 3.0)),
    "no-norm": (GREEN, (2.0, 2.0)),
    "attention-only": (NEGATIVE, (9.0, 3.0, 2.0, 3.0)),
}
"""Colour and dash of each variant."""

_MOST_PASSES = 120
"""Points of a curve at most, for any number of passes."""

_FAR_APART = 20
"""How many times longer than the shortest the longest curve may be on a linear axis."""


@dataclass(frozen=True)
class _Measure:
    """Values of one figure by (variant, pass)."""

    ident: str
    label: str
    axis: str
    caption: str
    values: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def deeper_figures(found: Deeper) -> tuple[Figure, ...]:
    """Return a figure for each measure, over passes, with a curve for each variant.

    Args:
        found: From `tokendynamics.deeper`.
    """
    table, prompts = found.table, found.table.sizes["prompt"]
    median = table.median_consensus.values
    each = table.consensus.transpose("prompt", "variant", "pass").values + 0 * median  # NaN where the median ends
    spread: dict[str, np.ndarray] = {} if prompts == 1 else {"low": each.min(axis=0), "high": each.max(axis=0)}
    over = "" if prompts == 1 else f", median over {prompts} prompts; bands: lowest to highest"
    measures = (
        _Measure(
            "deeper-consensus", "Consensus E", "E (log scale)",
            f"E = 1 − mean |cos| with the first token{over}. Thin lines: fits of the half-life.",
            median, **spread,
        ),
        _Measure(
            "deeper-kappa", "Consensus κ", "1 − κ (log scale)",
            "κ approaches 1 and may be negative, so 1 − κ is drawn on the log axis: the share of a token's direction "
            "that is its own, beyond what all prompts share. Above 1, κ is negative.",
            1 - table.consensus_within.values,
        ),
        _Measure(
            "deeper-own", "Own share", "own share (log scale)",
            "The share of a token's direction that neither its prompt nor all prompts share. It also falls when all "
            "prompts become one point, which κ does not measure.",
            table.share_own.values,
        ),
    )  # fmt: skip
    return tuple(_deeper_figure(each, found) for each in measures)


def _deeper_figure(measure: _Measure, found: Deeper) -> Figure:
    floor = float(found.table.attrs["resolution"])
    ends = [_last_drawn(row, floor) for row in measure.values]
    last = max(ends)
    if last < 1:
        return nothing(measure.ident, DEEPER_QUESTION, _why_not(measure, found), measure.label)
    log = last > _FAR_APART * max(1, min(ends))
    shown = _shown(last, log)
    curves = [
        _curve(measure, place, name, [k for k in shown if k <= ends[place]], floor)
        for place, name in enumerate(found.variants)
    ]
    fits = _fits(found, shown, measure)
    fitted = [Key("fit of the half-life", "line", MUTED, width=1.0)] if fits else []
    named = f"{measure.label} over passes"
    return Figure(
        ident=measure.ident,
        question=DEEPER_QUESTION,
        svg=draw_for_screens(
            lambda width: curves_chart(
                [*curves, *fits], x=_pass_axis(last, log, width), title=measure.axis, width=width, log=True,
                rules=_rules(measure, curves), columns=_columns(measure, found, shown),
            ),
            ident=measure.ident,
            title=f"{DEEPER_QUESTION} {named}, for each variant",
            description=_deeper_description(measure, found, ends),
            keys=[*curve_keys(curves), *fitted],
        ),
        caption=f"{measure.caption} {_of_axis(found, last, log, len(shown), floor)}",
        table=_table(measure, found, shown),
        label=measure.label,
    )  # fmt: skip


def _why_not(measure: _Measure, found: Deeper) -> str:
    if measure.ident != "deeper-consensus" and found.table.sizes["prompt"] == 1:
        return "Not plotted because κ and the shares need two prompts."
    return "Not plotted because no value after the embedding is finite and above rounding."


def _last_drawn(values: np.ndarray, floor: float) -> int:
    """Return where a curve ends: at the first value that stays within rounding, or at the last known one."""
    known = known_until(values)
    above = np.flatnonzero(values[: known + 1] > floor)
    return min(int(above[-1]) + 1, known) if len(above) else 0


def _shown(last: int, log: bool) -> list[int]:
    """Choose the passes that are drawn."""
    if last < _MOST_PASSES:
        return list(range(log, last + 1))
    chosen = np.geomspace(1, last, _MOST_PASSES) if log else np.linspace(0, last, _MOST_PASSES)
    return sorted({round(float(each)) for each in chosen})


def _curve(measure: _Measure, place: int, name: str, shown: list[int], floor: float) -> Curve:
    colour, dash = LOOKS[name]

    def above(values: np.ndarray | None) -> list[Number] | None:
        """Return the values, clipped below at the rounding floor."""
        return (
            None if values is None else [float(max(v, floor)) if np.isfinite(v) else None for v in values[place, shown]]
        )

    middle = above(measure.values) or []
    return Curve(name, shown, middle, colour, low=above(measure.low), high=above(measure.high), dash=dash)


def _fits(found: Deeper, shown: list[int], measure: _Measure) -> list[Curve]:
    """Return the fits of the half-lives of E, from the first to the last fitted value."""
    if measure.ident != "deeper-consensus":
        return []
    lines = []
    for name in found.variants:
        row = found.table.sel(variant=name)
        first, last = int(row.fit_first), int(row.fit_last)
        if not math.isfinite(float(row.median_half_life.sel(estimate="value"))) or last <= first:
            continue
        (begin, end), places = row.median_consensus.values[[first, last]], [k for k in shown if first <= k <= last]
        values = [float(begin * (end / begin) ** ((k - first) / (last - first))) for k in places]
        lines.append(Curve("", places, values, LOOKS[name][0], width=1.0))
    return lines


def _pass_axis(last: int, log: bool, width: float) -> alt.X:
    title = "Passes through the blocks"
    if log:
        return time_axis(1, last, f"{title} (log scale)", log=True, width=width)
    axis = alt.Axis(title=f"{title} (0 = embedding)", tickMinStep=1, tickCount=10 if width >= WIDE else 5, format=",d")
    return alt.X("x:Q", scale=alt.Scale(domain=[0, last], nice=False), axis=axis)


def _rules(measure: _Measure, curves: list[Curve]) -> tuple[Rule, ...]:
    if measure.ident != "deeper-consensus":
        return ()
    drawn = [value for curve in curves for value in curve.values if value is not None]
    return (Rule(COLLAPSED, f"E = {COLLAPSED:g}"),) if min(drawn) <= COLLAPSED <= max(drawn) else ()


def _columns(measure: _Measure, found: Deeper, shown: list[int]) -> list[Column]:
    edges = [float(shown[0]), *((a + b) / 2 for a, b in pairwise(shown)), float(shown[-1])]
    told = []
    for step, (left, right) in zip(shown, pairwise(edges), strict=True):
        values = zip(found.variants, measure.values[:, step], strict=True)
        lines = [f"{name}: {number(float(value))}" for name, value in values]
        told.append((left, right, "\n".join(["Embedding" if step == 0 else f"Pass {count(step)}", *lines])))
    return told


def _of_axis(found: Deeper, last: int, log: bool, drawn: int, floor: float) -> str:
    passes = found.table.sizes["pass"] - 1
    notes = [f"A curve ends at the rounding floor, {number(floor, 2)}, or where states are not finite"]
    if last < passes:
        notes.append(f"; no curve goes beyond pass {count(last)} of {count(passes)}")
    if log:
        notes.append(". Both axes are logarithmic because some curves end much earlier; the embedding is not shown")
    if drawn < last:
        notes.append(f". {count(drawn)} of {count(last)} passes are drawn; the data file has all")
    return "".join(notes) + "."


def _deeper_description(measure: _Measure, found: Deeper, ends: list[int]) -> str:
    told = [
        f"{name}: {number(float(row[0]))} at the embedding, {number(float(row[end]))} at pass {count(end)}"
        for name, row, end in zip(found.variants, measure.values, ends, strict=True)
    ]
    return f"{'; '.join(told)}. The table below holds the values."


def _table(measure: _Measure, found: Deeper, shown: list[int]) -> Table:
    given = {"": measure.values, ", lowest": measure.low, ", highest": measure.high}
    parts = {ending: values for ending, values in given.items() if values is not None}
    columns = [f"{name}{ending}" for name in found.variants for ending in parts]
    rows = []
    for step in sorted({0, *shown}):
        row: list[Given] = [step]
        row += [float(values[place, step]) for place in range(len(found.variants)) for values in parts.values()]
        rows.append(cells(row))
    what = measure.axis.partition(" (")[0]
    return Table(f"{measure.label}: {what} after each pass that is drawn", ("Pass", *columns), tuple(rows))


_LONGEST = 400
"""Characters of a decoded text on the page."""

_OF_TEXTS = (
    "The texts are the most likely next token at every position of the first prompt, decoded by the language head from "
    "the states after each pass. Pass 1 of the variant “full” is the network itself."
)


def deeper_parts(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the parts of the section: sentences, variants side by side, curves over passes, decoded text.

    Args:
        diagnosis: From `tokendynamics.diagnose`, with passes asked for.
    """
    deeper = diagnosis.deeper
    sentences = deeper_in_words(diagnosis)
    if not isinstance(deeper, Deeper):
        return {"sentences": sentences}
    texts = () if deeper.undecoded else (_texts(deeper),)
    return {
        "sentences": sentences,
        "tables": (_side_by_side(deeper), *texts),
        "variants": deeper_figures(deeper),
        "notes": (_OF_TEXTS,) if texts else (),
    }


def _side_by_side(deeper: Deeper) -> Table:
    columns = ["Variant", "E at the end", "κ at the end", "Half-life (passes)", f"E below {COLLAPSED:g}"]
    columns += ["Status"] if deeper.undecoded else ["Share of different tokens", "Status"]
    rows = tuple(_row(deeper, name) for name in deeper.variants)
    over = deeper.table.sizes["prompt"]
    of = "" if over == 1 else f", of the median of E over {over} prompts"
    return Table(f"Variants side by side{of}; 90 % confidence intervals in brackets", tuple(columns), rows)


def _row(deeper: Deeper, name: str) -> tuple[Cell, ...]:
    row = deeper.table.sel(variant=name)
    values = row.median_consensus.values
    half, reached = row.median_half_life.values, row.median_collapse_pass.values
    middle = [_estimate(*map(float, half)), _reached(seen_below(values), *map(float, reached))]
    if not deeper.undecoded:
        middle.append(_different(row))
    return (*cells([name, _end(values), _end(row.consensus_within.values)]), *middle, Cell(_status(row)))


def _end(values: np.ndarray) -> float:
    """Return the last known value; NaN if no pass has one."""
    last = known_until(values)
    return float(values[last]) if last > 0 else math.nan


def _estimate(value: float, low: float, high: float) -> Cell:
    if math.isnan(value):
        return Cell(UNDEFINED, undefined=True, value=value)
    if math.isinf(value):
        return Cell("does not fall", sort="inf")
    between = f"{number(low)}–{number(high)}" if math.isfinite(high) else f"{number(low)} or more"
    return Cell(f"{number(value)} ({between})", sort=f"{value:.6g}")


def _reached(seen: int | None, value: float, low: float, high: float) -> Cell:
    if seen is not None:
        return Cell(f"pass {count(seen)}", sort=str(seen))
    if not math.isfinite(value):
        return Cell("not reached", sort="inf")
    between = f"{number(low)}–{number(high)}" if math.isfinite(high) else f"{number(low)} or later"
    return Cell(f"not reached; extrapolated: {number(value)} ({between})", sort=f"{value:.6g}")


def _different(row: xr.Dataset) -> Cell:
    shares = [float(each) for each in row.distinct_1.values if math.isfinite(each)]
    if not shares:
        return Cell(UNDEFINED, undefined=True)
    return Cell(f"{number(shares[0], 2)} → {number(shares[-1], 2)}", sort=f"{shares[-1]:.6g}")


def _status(row: xr.Dataset) -> str:
    lost = [place for place in first_lost(row) if place is not None]
    if not lost:
        return "all passes done"
    return f"not finite from pass {count(min(lost))} on ({len(lost)} of {row.sizes['prompt']})"


def _texts(deeper: Deeper) -> Table:
    table = deeper.table
    named = printable(str(table.prompt.values[0]))
    rows = []
    for place, step in enumerate(table.decoded_pass.values.tolist()):
        texts = [_text(table.isel(variant=number_of, decoded_pass=place)) for number_of in range(len(deeper.variants))]
        rows.append((*cells([int(step)]), *texts))
    return Table(f"Decoded text after each pass, for the prompt “{named}”", ("Pass", *deeper.variants), tuple(rows))


def _text(one: xr.Dataset) -> Cell:
    if not math.isfinite(float(one.distinct_1)):
        return Cell("not finite", undefined=True)
    return Cell(shortened(token_label(str(one.decoded.item())), _LONGEST))
