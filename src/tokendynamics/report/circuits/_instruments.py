"""The results of the five instruments: a table of sentences, and a figure of the estimates with their intervals."""

from __future__ import annotations

from tokendynamics.circuits.evidence import Evidence
from tokendynamics.circuits.evidence.instrument import Estimate, Instrument
from tokendynamics.circuits.evidence.verdict import TAKES_PART
from tokendynamics.figures.figure import Cell, Figure, Table, cells
from tokendynamics.figures.svg import draw_for_screens
from tokendynamics.report.circuits._intervals import Row, intervals_chart
from tokendynamics.words import number, percent


def instruments_table(evidence: Evidence) -> Table:
    """List each instrument with its role, its reading, its headline estimate and its result."""
    rows = tuple(
        (
            Cell(f"{index}. {instrument.name}"),
            Cell(_role(evidence, instrument)),
            Cell(instrument.reading),
            Cell(f"{instrument.estimates[0].name}: {number(instrument.estimate)}"),
            Cell(_interval(instrument.estimates[0])),
            Cell(instrument.sentence),
        )
        for index, instrument in enumerate(evidence.instruments, start=1)
    )
    columns = ("Instrument", "Role", "Reading", "Estimate", f"{percent(evidence.confidence)} CI", "Result")
    return Table(
        "The five instruments: path patching and ablation decide, the others support or question the verdict",
        columns,
        rows,
    )


def thresholds_table(evidence: Evidence) -> Table:
    """Return the verdict at each threshold."""
    columns = ("Threshold", *(percent(share) for share in evidence.by_threshold))
    row = (Cell("Verdict"), *(Cell(verdict) for verdict in evidence.by_threshold.values()))
    return Table(
        f"Verdict by threshold: the share of the interaction from which a part counts ({percent(TAKES_PART)} here)",
        columns,
        (row,),
    )


def instruments_figure(evidence: Evidence) -> Figure:
    """Draw all numbers of all instruments with their intervals on one axis."""
    drawn = [
        (instrument, estimate)
        for instrument in evidence.instruments
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
    question = "How large is the effect in each instrument?"
    rule = (TAKES_PART, f"threshold: {number(TAKES_PART)}")
    svg = draw_for_screens(
        lambda width: intervals_chart(rows, domain=domain, width=width, rule=rule),
        ident="evidence-numbers",
        title=f"{question} Estimates with confidence intervals",
        description="; ".join(
            f"{instrument.name}, {estimate.name} {estimate.written(evidence.confidence)}"
            for instrument, estimate in drawn
        )
        + ".",
    )
    return Figure(
        ident="evidence-numbers",
        question=question,
        svg=svg,
        caption=f"Shares, |correlations| and R² with their {percent(evidence.confidence)} confidence intervals. A part "
        f"counts if its whole interval lies above the dashed line at {number(TAKES_PART)}. Values above 2 are drawn at "
        "the edge.",
        table=_numbers(evidence),
    )


def _domain(estimates: list[Estimate]) -> tuple[float, float]:
    """Return the range of the axis: shares lie in 0 … 1; a rise of the loss can exceed that, and is cut at 2."""
    ends = [end for e in estimates for end in (e.value, e.low, e.high) if end is not None]
    return (-0.25 if ends and min(ends) < -0.03 else 0.0), (min(2.0, max(1.0, *ends)) if ends else 1.0)


def _numbers(evidence: Evidence) -> Table:
    rows = [
        cells([instrument.name, estimate.name, estimate.value, estimate.low, estimate.high])
        for instrument in evidence.instruments
        for estimate in instrument.estimates
    ]
    columns = ("Instrument", "Quantity", "Estimate", "Lower end", "Upper end")
    return Table(f"Every estimate with its {percent(evidence.confidence)} confidence interval", columns, tuple(rows))


def _role(evidence: Evidence, instrument: Instrument) -> str:
    role = "decides" if instrument.name in ("path patching", "ablation") else "supports"
    return {True: f"{role}, agrees", False: f"{role}, disagrees", None: role}[evidence.agrees(instrument)]


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "undefined"
    return f"{number(estimate.low)} to {number(estimate.high)}"
