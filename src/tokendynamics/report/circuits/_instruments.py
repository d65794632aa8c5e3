"""What the five instruments say: a table in words, and their numbers with intervals as a drawing."""

from __future__ import annotations

from tokendynamics.circuits.evidence import Estimate, Evidence, Instrument
from tokendynamics.circuits.evidence._verdict import TAKES_PART
from tokendynamics.report.circuits._intervals import Row, intervals_chart
from tokendynamics.report.kit._figure import Cell, Figure, Table, cells
from tokendynamics.report.kit._svg import draw_for_screens
from tokendynamics.words import number


def instruments_table(found: Evidence) -> Table:
    """List each instrument with its role, its reading, its headline number and what it says."""
    rows = tuple(
        (
            Cell(f"{index}. {instrument.name}"),
            Cell(_role(found, instrument)),
            Cell(instrument.reading),
            Cell(f"{instrument.estimates[0].name}: {number(instrument.estimate)}"),
            Cell(_interval(instrument.estimates[0])),
            Cell(_sentence(instrument.sentence)),
        )
        for index, instrument in enumerate(found.instruments, start=1)
    )
    columns = ("Instrument", "Role", "Points at", "Estimate", f"{found.confidence:.0%} interval", "What it says")
    return Table(
        "The five instruments; path patching and ablation decide, the others support or question", columns, rows
    )


def thresholds_table(found: Evidence) -> Table:
    """Return the verdict at other shares from which a part counts."""
    columns = ("A part counts from", *(f"{share * 100:g} %" for share in found.by_threshold))
    row = (Cell("Verdict"), *(Cell(verdict) for verdict in found.by_threshold.values()))
    return Table(
        f"How the verdict moves with the share of the interaction from which a part counts ({TAKES_PART * 100:g} % "
        "here)",
        columns,
        (row,),
    )


def instruments_figure(found: Evidence) -> Figure:
    """Draw all numbers of all instruments with their intervals on one axis."""
    drawn = [
        (instrument, estimate)
        for instrument in found.instruments
        for estimate in instrument.estimates
        if estimate.value is not None
    ]
    domain = _domain([estimate for _, estimate in drawn])
    rows: list[Row] = []
    former = ""
    for instrument, estimate in drawn:
        if instrument.name != former:
            rows.append(Row(instrument.name))
        former = instrument.name
        rows.append(Row(estimate.name, estimate.value, estimate.low, estimate.high, number(estimate.value)))
    rule = (TAKES_PART, f"takes part: {TAKES_PART:g}")
    svg = draw_for_screens(
        lambda width: intervals_chart(rows, domain=domain, width=width, rule=rule),
        ident="evidence-numbers",
        title="How strongly does each instrument speak? Estimates with intervals",
        description="; ".join(f"{instrument.name}, {estimate}" for instrument, estimate in drawn) + ".",
    )
    return Figure(
        ident="evidence-numbers",
        question="How strongly does each instrument speak?",
        svg=svg,
        caption=f"Every number with its {found.confidence:.0%} interval: shares, |correlations| and R². The dashed "
        f"line at {TAKES_PART:g} is what a part must carry to count as taking part, its whole interval above. What "
        "exceeds 2 stands at the edge.",
        table=_numbers(found),
    )


def _domain(estimates: list[Estimate]) -> tuple[float, float]:
    """Choose the axis: shares lie in 0..1; a rise of the loss can exceed it, and 2 then shows that it is large."""
    ends = [end for e in estimates for end in (e.value, e.low, e.high) if end is not None]
    return (-0.25 if ends and min(ends) < -0.03 else 0.0), (min(2.0, max(1.0, *ends)) if ends else 1.0)


def _numbers(found: Evidence) -> Table:
    rows = [
        cells([instrument.name, estimate.name, estimate.value, estimate.low, estimate.high])
        for instrument in found.instruments
        for estimate in instrument.estimates
    ]
    columns = ("Instrument", "Number", "Estimate", "Lower end", "Upper end")
    return Table(f"Every number with its {found.confidence:.0%} interval", columns, tuple(rows))


def _role(found: Evidence, instrument: Instrument) -> str:
    role = "decides" if instrument.name in ("path patching", "ablation") else "supports"
    return {True: f"{role}, agrees", False: f"{role}, disagrees", None: role}[found.agrees(instrument)]


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "undefined"
    return f"{number(estimate.low)} to {number(estimate.high)}"


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]
