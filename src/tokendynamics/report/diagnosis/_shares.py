"""What the tokens share: the composition of their directions, and whether those of one prompt converge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from tokendynamics.diagnosis import Diagnosis
from tokendynamics.diagnosis.tracing.layer_states import CONSENSUS, SPREAD
from tokendynamics.diagnosis.tracing.prompts import noun_in
from tokendynamics.figures.axes import Column
from tokendynamics.figures.curves import Curve, Curves, Rule
from tokendynamics.figures.figure import Figure, Section, Table, columns_table
from tokendynamics.figures.palette import BLUE, COMMON, MUTED, OF_PROMPT, ORANGE, OWN
from tokendynamics.figures.parts import Part, Stack
from tokendynamics.report.diagnosis._states import (
    Band,
    Step,
    estimates,
    step_columns,
    steps_of,
    unshared,
    without_intervals,
)
from tokendynamics.words import listing, number, plural

QUESTION = "How is a token's direction composed?"
AXIS = "Share of a token's direction"
UNTRAINED = "κ′ of the untrained network"
_CONVERGE = "Do the tokens of one {noun} converge?"
_PARTS = {
    "common": ("common to all {noun}s", COMMON), "prompt": ("shared within its {noun}", OF_PROMPT),
    "own": ("its own", OWN),
}  # fmt: skip
"""Name and colour of each share."""
_RULES = (
    Rule(SPREAD, f"spread below {SPREAD:g}", "right", below=True),
    Rule(CONSENSUS, f"consensus from {CONSENSUS:g}"),
)


def section(diagnosis: Diagnosis) -> Section:
    """Return the section: three shares that add up to 1, the picture of the whole page; κ′ and centred cos²."""
    baseline = diagnosis.baseline if isinstance(diagnosis.baseline, xr.Dataset) else None
    figures = (shares_figure(diagnosis.trace), _consensus_figure(diagnosis.trace, baseline))
    return Section("shares", "What do the tokens share?", figures=figures)


def shares_figure(trace: xr.Dataset, ident: str = "shares-chart") -> Figure:
    """Draw the three shares as areas that add up to 1.

    Args:
        trace: From `tokendynamics.trace`.
        ident: Prefix of every id inside.
    """
    steps, noun = steps_of(trace), noun_in(trace)
    prompts = plural(trace.sizes["prompt"], noun)
    colours = {name.format(noun=noun): (key, colour) for key, (name, colour) in _PARTS.items()}
    shares = {name: estimates(trace, "shares", steps, share=key) for name, (key, _) in colours.items()}
    if not any(share.defined for share in shares.values()):
        return Figure(ident, QUESTION, unshared(trace))
    at = {
        place: f"{steps[place].name}: "
        + ", ".join(f"{name} {number(float(share.values[place]))}" for name, share in shares.items())
        for place in (0, -1)
    }
    caption = (
        f"Three shares that add up to 1: common to tokens of different {noun}s, shared beyond that by tokens of one "
        f"{noun}, and shared with no other token. Massive tokens are excluded."
    )
    if any((share.values < 0).any() for share in shares.values()):
        caption += " A share is an estimate and may be below 0; it is then not drawn, and the table gives the number."
    known = any(share.has_ends for share in shares.values())
    why = without_intervals(trace)
    how = "; the table gives 90 % confidence intervals." if known else f", without intervals because {why}."
    return Figure(
        ident,
        QUESTION,
        f"{caption} Over {prompts}{how}",
        Stack(
            [step.x for step in steps],
            [Part(name, shares[name].values, colour) for name, (_, colour) in colours.items()],
            last=max(step.layer for step in steps), title=AXIS, height=300, columns=_columns(steps, shares),
        ),
        _table("Shares of a token's direction", steps, shares),
        title=f"{QUESTION} Three shares over depth that add up to 1",
        description=f"Shares of a token's direction over {prompts}. {at[0]}. {at[-1]}. The table holds every value.",
    )  # fmt: skip


def _consensus_figure(trace: xr.Dataset, baseline: xr.Dataset | None) -> Figure:
    """Draw κ′ and centred cos² with their intervals, κ′ of the untrained network, and the thresholds of the states."""
    ident, steps, noun = "shares-consensus", steps_of(trace), noun_in(trace)
    question = _CONVERGE.format(noun=noun)
    x = [step.x for step in steps]
    kappa, cos2 = (estimates(trace, name, steps) for name in ("consensus_relative", "centred_cos2"))
    measures = {"κ′": kappa, "centred cos²": cos2}
    if not (kappa.defined or cos2.defined):
        return Figure(ident, question, unshared(trace))
    beside, about = [], ""
    if baseline is not None and (untrained := estimates(baseline, "consensus_relative", steps)).defined:
        measures[UNTRAINED] = untrained
        beside = [Curve(UNTRAINED, x, untrained.values, MUTED, untrained.low, untrained.high, dash=(7, 3, 2, 3))]
        about = f"The dash-dotted line is κ′ of an untrained network of the same architecture on the same {noun}s. "
    bands = (
        f"Bands: 90 % confidence intervals over {noun}s."
        if kappa.has_ends or cos2.has_ends
        else f"There are no bands because {without_intervals(trace)}."
    )
    ends = " ".join(
        f"{name}: {number(float(band.values[0]))} at the embedding, {number(float(band.values[-1]))} at "
        f"{steps[-1].name}."
        for name, band in measures.items()
    )
    return Figure(
        ident,
        question,
        f"Within-{noun} similarity κ′: what the tokens of one {noun} share beyond what all {noun}s share, relative to "
        f"the embedding. 0 is the embedding's value, 1 is one point per {noun}. Centred cos² also detects a collapse "
        f"to a line or to few directions, where it is far above κ′². {about}{bands}",
        Curves(
            [
                *beside,
                Curve("centred cos²", x, cos2.values, ORANGE, cos2.low, cos2.high, dash=(5, 3)),
                Curve("κ′", x, kappa.values, BLUE, kappa.low, kappa.high, "90 % CI of κ′", mark="disc"),
            ],
            "κ′ and centred cos²", last=max(step.layer for step in steps), domain=(0.0, 1.0), rules=_RULES,
            columns=_columns(steps, measures),
        ),
        _table(listing([*measures]), steps, measures),
        title=f"{question} κ′ and centred cos² over depth",
        description=f"{ends} The table holds every value.",
    )  # fmt: skip


def _columns(steps: Sequence[Step], measures: Mapping[str, Band]) -> list[Column]:
    return step_columns(
        steps,
        lambda place, step: "\n".join(
            [step.name, *(f"{name}: {band.text(place, '90 % CI ')}" for name, band in measures.items())]
        ),
    )


def _table(caption: str, steps: Sequence[Step], measures: Mapping[str, Band]) -> Table:
    columns: list[tuple[str, Sequence | np.ndarray]] = [
        ("Layer", [step.layer for step in steps]), ("After", [step.after for step in steps])
    ]  # fmt: skip
    for name, band in measures.items():
        title = name[0].upper() + name[1:] if name[0].isascii() else name  # κ′ has no capital
        columns += [(title, band.values), ("from", band.low), ("to", band.high)]
    return columns_table(f"{caption}, each with its 90 % confidence interval", columns)
