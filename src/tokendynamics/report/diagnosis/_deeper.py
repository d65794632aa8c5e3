"""What happens in a deeper network: variants side by side, curves over passes, decoded texts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis._deeper_found import Deeper
from tokendynamics.diagnosis._deeper_words import first_lost, known_until, seen_below
from tokendynamics.diagnosis._passes import COLLAPSED
from tokendynamics.diagnosis._result import Diagnosis, deeper_in_words
from tokendynamics.numerics._printable import printable, shortened
from tokendynamics.report.diagnosis._deeper_curves import deeper_figures
from tokendynamics.report.kit._figure import Cell, Table, cells
from tokendynamics.report.kit._text import token_label
from tokendynamics.words import UNDEFINED, count, number

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
    if deeper is None:
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
