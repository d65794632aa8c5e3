"""What happens in a deeper network: consensus over repeated passes, and the decoded text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import xarray as xr

from tokendynamics.diagnosis import Deeper, Diagnosis
from tokendynamics.diagnosis.deepening.repeated_passes import COLLAPSED
from tokendynamics.diagnosis.deepening.result import first_lost, known_until, seen_below
from tokendynamics.diagnosis.result import deeper_in_words
from tokendynamics.diagnosis.tracing.prompts import noun_in
from tokendynamics.figures.axes import Axis, time_axis
from tokendynamics.figures.curves import Curve, Curves, Number, Rule, curve_keys
from tokendynamics.figures.figure import Cell, Figure, Given, Section, Table, cells
from tokendynamics.figures.palette import BLUE, GREEN, MUTED, NEGATIVE, ORANGE
from tokendynamics.figures.svg import Key
from tokendynamics.numerics.printable import printable, shortened, token_label
from tokendynamics.words import UNDEFINED, count, number

_QUESTION = "How fast do the tokens collapse?"
_LOOKS: dict[str, tuple[str, tuple[float, ...]]] = {
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


def _figures(deeper: Deeper) -> tuple[Figure, ...]:
    """Return a figure for each measure, over passes, with a curve for each variant."""
    table, prompts, noun = deeper.table, deeper.table.sizes["prompt"], noun_in(deeper.table)
    median = table.median_consensus.values
    consensus = table.consensus.transpose("prompt", "variant", "pass").values + 0 * median  # NaN where the median ends
    spread: dict[str, np.ndarray] = (
        {} if prompts == 1 else {"low": consensus.min(axis=0), "high": consensus.max(axis=0)}
    )
    over = "" if prompts == 1 else f", median over {prompts} {noun}s; bands: lowest to highest"
    measures = (
        _Measure(
            "deeper-consensus", "Consensus E", "E (log scale)",
            f"E = 1 − mean |cos| with the first token{over}. Thin lines: fits of the half-life.",
            median, **spread,
        ),
        _Measure(
            "deeper-kappa", "Consensus κ", "1 − κ (log scale)",
            "κ approaches 1 and may be negative, so 1 − κ is drawn on the log axis: the share of a token's direction "
            f"that is its own, beyond what all {noun}s share. Above 1, κ is negative.",
            1 - table.consensus_within.values,
        ),
        _Measure(
            "deeper-own", "Own share", "own share (log scale)",
            f"The share of a token's direction that neither its {noun} nor all {noun}s share. It also falls when all "
            f"{noun}s become one point, which κ does not measure.",
            table.share_own.values,
        ),
    )  # fmt: skip
    return tuple(_deeper_figure(measure, deeper) for measure in measures)


def _deeper_figure(measure: _Measure, deeper: Deeper) -> Figure:
    floor = float(deeper.table.attrs["resolution"])
    ends = [_last_drawn(row, floor) for row in measure.values]
    last = max(ends)
    if last < 1:
        return Figure(measure.ident, _QUESTION, _why_not(measure, deeper), label=measure.label)
    log = last > _FAR_APART * max(1, min(ends))
    if last < _MOST_PASSES:
        shown = list(range(log, last + 1))
    else:
        chosen = np.geomspace(1, last, _MOST_PASSES) if log else np.linspace(0, last, _MOST_PASSES)
        shown = sorted({round(float(step)) for step in chosen})
    curves = [
        _curve(measure, place, name, [k for k in shown if k <= ends[place]], floor)
        for place, name in enumerate(deeper.variants)
    ]
    fits = _fits(deeper, shown, measure)
    fitted = [Key("fit of the half-life", "line", MUTED, width=1.0)] if fits else []
    descriptions = [
        f"{name}: {number(float(row[0]))} at the embedding, {number(float(row[end]))} at pass {count(end)}"
        for name, row, end in zip(deeper.variants, measure.values, ends, strict=True)
    ]
    title = "Passes through the blocks"
    if log:
        pass_axis = time_axis(1, last, f"{title} (log scale)", log=True)
    else:
        pass_axis = Axis(f"{title} (0 = embedding)", (0, last), form=",d", whole=True)
    edges = [float(shown[0]), *((a + b) / 2 for a, b in pairwise(shown)), float(shown[-1])]
    columns = []
    for step, (left, right) in zip(shown, pairwise(edges), strict=True):
        values = zip(deeper.variants, measure.values[:, step], strict=True)
        lines = [f"{name}: {number(float(value))}" for name, value in values]
        columns.append((left, right, "\n".join(["Embedding" if step == 0 else f"Pass {count(step)}", *lines])))
    given = {"": measure.values, ", lowest": measure.low, ", highest": measure.high}
    parts = {ending: values for ending, values in given.items() if values is not None}
    headers = [f"{name}{ending}" for name in deeper.variants for ending in parts]
    rows = []
    for at in sorted({0, *shown}):
        row: list[Given] = [at]
        row += [float(values[place, at]) for place in range(len(deeper.variants)) for values in parts.values()]
        rows.append(cells(row))
    what = measure.axis.partition(" (")[0]
    return Figure(
        measure.ident,
        _QUESTION,
        f"{measure.caption} {_of_axis(deeper, last, log, len(shown), floor)}",
        Curves(
            [*curves, *fits], measure.axis, axis=pass_axis, log=True, rules=_rules(measure, curves),
            columns=columns,
        ),
        Table(f"{measure.label}: {what} after each pass that is drawn", ("Pass", *headers), tuple(rows)),
        title=f"{_QUESTION} {measure.label} over passes, for each variant",
        description=f"{'; '.join(descriptions)}. The table below holds the values.",
        label=measure.label,
        keys=[*curve_keys(curves), *fitted],
    )  # fmt: skip


def _why_not(measure: _Measure, deeper: Deeper) -> str:
    if measure.ident != "deeper-consensus" and deeper.table.sizes["prompt"] == 1:
        return f"Not plotted because κ and the shares need two {noun_in(deeper.table)}s."
    return "Not plotted because no value after the embedding is finite and above rounding."


def _last_drawn(values: np.ndarray, floor: float) -> int:
    """Return where a curve ends: at the first value that stays within rounding, or at the last known one."""
    known = known_until(values)
    above = np.flatnonzero(values[: known + 1] > floor)
    return min(int(above[-1]) + 1, known) if len(above) else 0


def _curve(measure: _Measure, place: int, name: str, shown: list[int], floor: float) -> Curve:
    colour, dash = _LOOKS[name]

    def above(values: np.ndarray | None) -> list[Number] | None:
        """Return the values, clipped below at the rounding floor."""
        return (
            None if values is None else [float(max(v, floor)) if np.isfinite(v) else None for v in values[place, shown]]
        )

    middle = above(measure.values) or []
    return Curve(name, shown, middle, colour, low=above(measure.low), high=above(measure.high), dash=dash)


def _fits(deeper: Deeper, shown: list[int], measure: _Measure) -> list[Curve]:
    """Return the fits of the half-lives of E, from the first to the last fitted value."""
    if measure.ident != "deeper-consensus":
        return []
    lines = []
    for name in deeper.variants:
        row = deeper.table.sel(variant=name)
        first, last = int(row.fit_first), int(row.fit_last)
        if not math.isfinite(float(row.median_half_life.sel(estimate="value"))) or last <= first:
            continue
        (begin, end), places = row.median_consensus.values[[first, last]], [k for k in shown if first <= k <= last]
        values = [float(begin * (end / begin) ** ((k - first) / (last - first))) for k in places]
        lines.append(Curve("", places, values, _LOOKS[name][0], width=1.0))
    return lines


def _rules(measure: _Measure, curves: list[Curve]) -> tuple[Rule, ...]:
    if measure.ident != "deeper-consensus":
        return ()
    drawn = [value for curve in curves for value in curve.values if value is not None]
    return (Rule(COLLAPSED, f"E = {COLLAPSED:g}"),) if min(drawn) <= COLLAPSED <= max(drawn) else ()


def _of_axis(deeper: Deeper, last: int, log: bool, drawn: int, floor: float) -> str:
    passes = deeper.table.sizes["pass"] - 1
    notes = [f"A curve ends at the rounding floor, {number(floor, 2)}, or where states are not finite"]
    if last < passes:
        notes.append(f"; no curve goes beyond pass {count(last)} of {count(passes)}")
    if log:
        notes.append(". Both axes are logarithmic because some curves end much earlier; the embedding is not shown")
    if drawn < last:
        notes.append(f". {count(drawn)} of {count(last)} passes are drawn; the data file has all")
    return "".join(notes) + "."


_LONGEST = 400
"""Characters of a decoded text on the page."""

_OF_TEXTS = (
    "The texts are the most likely next token at every position of the first {noun}, decoded by the language head from "
    "the states after each pass. Pass 1 of the variant “full” is the network itself."
)


def section(diagnosis: Diagnosis) -> Section | None:
    """Return the section: sentences, variants side by side, curves over passes, decoded text; None if not asked for."""
    ident, title, deeper = "deeper", "What happens in a deeper network?", diagnosis.deeper
    if deeper is None:
        return None
    sentences = deeper_in_words(diagnosis)
    if not isinstance(deeper, Deeper):
        return Section(ident, title, sentences)
    texts = () if deeper.undecoded else (_texts(deeper),)
    tables, notes = (_side_by_side(deeper), *texts), (_OF_TEXTS.format(noun=noun_in(deeper.table)),) if texts else ()
    return Section(ident, title, sentences, tables=tables, variants=_figures(deeper), notes=notes)


def _side_by_side(deeper: Deeper) -> Table:
    columns = ["Variant", "E at the end", "κ at the end", "Half-life (passes)", f"E below {COLLAPSED:g}"]
    columns += ["Status"] if deeper.undecoded else ["Share of different tokens", "Status"]
    rows = tuple(_row(deeper, name) for name in deeper.variants)
    over = deeper.table.sizes["prompt"]
    of = "" if over == 1 else f", of the median of E over {over} {noun_in(deeper.table)}s"
    return Table(f"Variants side by side{of}; 90 % confidence intervals in brackets", tuple(columns), rows)


def _row(deeper: Deeper, name: str) -> tuple[Cell, ...]:
    row = deeper.table.sel(variant=name)
    values = row.median_consensus.values
    half, reached = row.median_half_life.values, row.median_collapse_pass.values
    middle = [_estimate(*map(float, half)), _reached(seen_below(values), *map(float, reached))]
    if not deeper.undecoded:
        shares = [float(share) for share in row.distinct_1.values if math.isfinite(share)]
        if not shares:
            different = Cell(UNDEFINED, undefined=True)
        else:
            different = Cell(f"{number(shares[0], 2)} → {number(shares[-1], 2)}", sort=f"{shares[-1]:.6g}")
        middle.append(different)
    lost = [place for place in first_lost(row) if place is not None]
    if not lost:
        status = "all passes done"
    else:
        status = f"not finite from pass {count(min(lost))} on ({len(lost)} of {row.sizes['prompt']})"
    return (*cells([name, _end(values), _end(row.consensus_within.values)]), *middle, Cell(status))


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


def _texts(deeper: Deeper) -> Table:
    table = deeper.table
    named = printable(str(table.prompt.values[0]))
    rows = []
    for place, step in enumerate(table.decoded_pass.values.tolist()):
        texts = [_text(table.isel(variant=number_of, decoded_pass=place)) for number_of in range(len(deeper.variants))]
        rows.append((*cells([int(step)]), *texts))
    return Table(
        f"Decoded text after each pass, for the {noun_in(table)} “{named}”", ("Pass", *deeper.variants), tuple(rows)
    )


def _text(one: xr.Dataset) -> Cell:
    if not math.isfinite(float(one.distinct_1)):
        return Cell("not finite", undefined=True)
    return Cell(shortened(token_label(str(one.decoded.item())), _LONGEST))
