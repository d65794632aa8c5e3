"""What the five instruments say: a table in words, and their numbers with intervals as a drawing."""

from __future__ import annotations

from collections.abc import Callable

from tokendynamics.circuits.evidence import Estimate, Evidence, Instrument
from tokendynamics.circuits.evidence._verdict import TAKES_PART
from tokendynamics.report.circuits._matrix import Parent, add, described, empty, line, text
from tokendynamics.report.kit._figure import Cell, Figure, Table, cells
from tokendynamics.report.kit._palette import AXIS, BLUE, GRID, INK, MUTED, ORANGE
from tokendynamics.report.kit._text import number

_WIDTH, _ROW, _LEFT, _RIGHT, _TOP = 830.0, 21.0, 268.0, 110.0, 34.0


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
    low, high = _domain([estimate for _, estimate in drawn])
    root, y, former = empty(_WIDTH), _TOP, ""

    def x(value: float) -> float:
        return _LEFT + (min(max(value, low), high) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    places = []
    for instrument, estimate in drawn:
        y += 12.0 if former and instrument.name != former else 0.0
        places.append((instrument if instrument.name != former else None, estimate, y))
        y, former = y + _ROW, instrument.name
    _axis(root, x, low, high, y)
    for headed, estimate, place in places:
        if headed is not None:
            text(root, headed.name, 0, place + 4, size=12, weight="600")
        _draw(root, x, estimate, place)
    svg = described(
        root,
        ident="evidence-numbers",
        width=_WIDTH,
        height=y + 34,
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


def _axis(root: Parent, x: Callable[[float], float], low: float, high: float, bottom: float) -> None:
    steps = [value / 4 for value in range(int(low * 4), int(high * 4) + 1)]
    for value in steps[:: max(1, len(steps) // 8)]:
        line(root, x(value), _TOP - 14, x(value), bottom, GRID, 1)
        text(root, number(value), x(value), bottom + 16, size=11, fill=MUTED, anchor="middle")
    line(root, x(TAKES_PART), _TOP - 14, x(TAKES_PART), bottom, ORANGE, 1.4, dash="5 3")
    text(root, f"takes part: {TAKES_PART:g}", x(TAKES_PART) + 5, _TOP - 18, size=11, fill=ORANGE)


def _draw(root: Parent, x: Callable[[float], float], estimate: Estimate, y: float) -> None:
    value = estimate.value if estimate.value is not None else 0.0
    text(root, estimate.name, _LEFT - 14, y + 4, size=12, fill=INK, anchor="end")
    if estimate.low is not None and estimate.high is not None:
        line(root, x(estimate.low), y, x(estimate.high), y, BLUE, 2.4)
        for end in (estimate.low, estimate.high):
            line(root, x(end), y - 4, x(end), y + 4, BLUE, 1.6)
    add(root, "circle", cx=f"{x(value):.5g}", cy=f"{y:g}", r="4.2", fill=BLUE, stroke=AXIS)
    text(root, number(value), _WIDTH - _RIGHT + 16, y + 4, size=12, fill=INK)


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
