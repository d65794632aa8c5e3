"""Further measures of how the tokens draw together with depth."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from tokendynamics.diagnosis import Diagnosis
from tokendynamics.diagnosis.tracing.prompts import noun_in
from tokendynamics.figures.curves import Curve, Curves, Mark, curve_keys
from tokendynamics.figures.figure import Figure, Section, Table, columns_table
from tokendynamics.figures.palette import BLUE, INK, MUTED, ORANGE
from tokendynamics.report._page import resource
from tokendynamics.report.diagnosis._states import (
    Band,
    Step,
    at_steps,
    by_prompt,
    over_prompts,
    step_columns,
    steps_of,
    undrawn,
)
from tokendynamics.words import number, plural

_QUESTION = "Do the tokens draw together with depth?"
MOST_PROMPT_COLUMNS = 8
"""With more prompts than this the table holds only their mean and range; the data files hold every value."""


@dataclass(frozen=True)
class _Measure:
    """A variable of the trace; its axis begins at 0 and ends at `top`, 0 for the largest value."""

    variable: str
    label: str
    axis: str
    meaning: str
    top: float


_MEASURES = [_Measure(variable, **entry) for variable, entry in tomllib.loads(resource("measures.toml")).items()]


def section(diagnosis: Diagnosis) -> Section:
    """Return the section: one figure per measure, the default first."""
    trace = diagnosis.trace
    variants = tuple(_figure(trace, measure) for measure in _MEASURES if measure.variable in trace)
    return Section("agreement", "What do other measures show?", variants=variants)


def _figure(trace: xr.Dataset, measure: _Measure) -> Figure:
    ident, steps = f"agreement-{measure.variable.replace('_', '-')}", steps_of(trace)
    per_prompt = by_prompt(trace, measure.variable, "removed", steps)
    removed, kept = over_prompts(per_prompt), over_prompts(by_prompt(trace, measure.variable, "kept", steps)).values
    between = None
    if measure.variable == "mean_pair_cosine":
        common = at_steps(trace["shares"].sel(share="common"), steps)
        between = common if np.isfinite(common).any() else None
    prompts, noun = [str(prompt) for prompt in trace["prompt"].values], noun_in(trace)
    if not (removed.defined or np.isfinite(kept).any()):
        return Figure(ident, _QUESTION, undrawn(trace), label=measure.label)

    def text(place: int, step: Step) -> str:
        value = removed.text(place) if len(prompts) > 1 else number(removed.values[place])
        words = f"{step.name}: {value}\nmassive tokens kept: {number(kept[place])}"
        return words + ("" if between is None else f"\nbetween {noun}s: {number(between[place])}")

    curves = _curves(steps, removed, kept, between, "" if len(prompts) == 1 else f"range over {noun}s")
    several = f"Line: mean over {len(prompts)} {noun}s; band: lowest to highest {noun}."
    top = float(np.nanmax(np.concatenate([[1.0], removed.values, removed.high, kept])))
    return Figure(
        ident,
        _QUESTION,
        f"{measure.meaning.format(noun=noun)} {f'One {noun}.' if len(prompts) == 1 else several} Massive tokens, much "
        f"larger than the rest of their {noun}, are excluded; the thin dashed line includes them.",
        Curves(
            # What the mean is compared with lies below it.
            [*curves[1:-3], curves[0], *curves[-3:]], measure.axis, last=steps[-1].layer,
            domain=(0.0, measure.top or 1.04 * top),
            columns=step_columns(steps, text),
        ),
        _table(measure, steps, (removed, kept, between), prompts, per_prompt, noun),
        title=f"{_QUESTION} {measure.label}",
        description=_description(measure, steps, removed.values, len(prompts), noun),
        label=measure.label,
        keys=curve_keys(curves),
    )  # fmt: skip


def _curves(
    steps: Sequence[Step], removed: Band, kept: np.ndarray, between: np.ndarray | None, range_over: str
) -> list[Curve]:
    """Return the mean with its band, what it is compared with, and a mark for each part that wrote a state."""
    x = [step.x for step in steps]
    mean = Curve("massive tokens removed", x, removed.values, BLUE)
    if range_over:
        mean = replace(mean, label=f"mean, {mean.label}", low=removed.low, high=removed.high, band=range_over)
    curves = [mean, Curve("massive tokens kept", x, kept, MUTED, dash=(5, 3), width=1.3)]
    if between is not None:
        curves.append(Curve(range_over.replace("range over", "between"), x, between, ORANGE, dash=(1.5, 2.5)))
    disc = "after feed-forward" if any(step.layer and step.part == "feed_forward" for step in steps) else "embedding"
    marks: tuple[tuple[str, str, str, Mark], ...] = (
        ("attention", "after attention", BLUE, "ring"), ("feed_forward", disc, BLUE, "disc"),
        ("final_norm", "after the final norm", INK, "diamond"),
    )  # fmt: skip
    for part, label, colour, mark in marks:
        at = np.where([step.part == part for step in steps], removed.values, np.nan)
        curves.append(Curve(label, x, at, colour, width=0, mark=mark))
    return curves


def _description(measure: _Measure, steps: Sequence[Step], values: np.ndarray, prompts: int, noun: str) -> str:
    known = np.flatnonzero(np.isfinite(values))
    if not known.size:
        return f"{measure.axis}: undefined because no {noun} has two tokens that count."
    places = (known[0], np.nanargmax(values), np.nanargmin(values), known[-1])
    start, high, low, end = (f"{number(values[place])} at {steps[place].name}" for place in map(int, places))
    return (
        f"{measure.axis}. Mean over {plural(prompts, noun)}, massive tokens removed: {start}, {end}. Highest: {high}. "
        f"Lowest: {low}. The table below holds every value."
    )


def _table(
    measure: _Measure, steps: Sequence[Step], values: tuple[Band, np.ndarray, np.ndarray | None],
    prompts: Sequence[str], per_prompt: np.ndarray, noun: str,
) -> Table:  # fmt: skip
    removed, kept, between = values
    single, by_name = len(prompts) == 1, 1 < len(prompts) <= MOST_PROMPT_COLUMNS
    caption = f"{measure.label}, massive tokens removed unless stated otherwise"
    return columns_table(
        f"{caption} ({noun}s by name)" if by_name else caption,
        [
            ("Layer", [step.layer for step in steps]),
            ("After", [step.after for step in steps]),
            ("Massive removed" if single else "Mean", removed.values),
            *([] if single else [("Lowest", removed.low), ("Highest", removed.high)]),
            ("Massive kept", kept),
            *([] if between is None else [(f"Between {noun}s", between)]),
            *(zip(prompts, np.where(np.isfinite(per_prompt), per_prompt, np.nan).T, strict=True) if by_name else ()),
        ],
    )
