"""A diagnosis in a notebook: the sentences with the figure of the shares, and that figure as a chart."""

from __future__ import annotations

import hashlib

import altair as alt

from tokendynamics.diagnosis import Diagnosis
from tokendynamics.figures.drawing import drawing
from tokendynamics.figures.palette import chart_config
from tokendynamics.figures.svg import NARROW, WIDE, Drawing
from tokendynamics.report._page import piece
from tokendynamics.report.diagnosis._shares import AXIS, QUESTION, shares_drawing, shares_sketch, unshared


@drawing()
def notebook_html(diagnosis: Diagnosis) -> str:
    """Return the verdict's sentences and the shares as self-contained HTML; all foreign text is escaped.

    Args:
        diagnosis: From `tokendynamics.diagnose`.
    """
    # Two figures in one notebook must not share the ids of their parts.
    content = f"{diagnosis.model['name']}{diagnosis.verdict}{diagnosis.trace.shares.values.tobytes().hex()}"
    ident = f"shares-{hashlib.sha256(content.encode()).hexdigest()[:8]}"
    whole = piece(
        "notebook.html.jinja",
        model=str(diagnosis.model["name"]),
        verdict=diagnosis.verdict,
        figure=shares_sketch(diagnosis.trace, ident),
    )
    return str(whole)


def shares_chart(diagnosis: Diagnosis) -> Drawing:
    """Return the shares of a token's direction over depth as an Altair chart; without shares, a chart of the reason.

    Args:
        diagnosis: From `tokendynamics.diagnose`.
    """
    chart = shares_drawing(diagnosis.trace, WIDE * 0.75)
    if chart is None:
        lines = [AXIS, *_lines(unshared(diagnosis.trace), 70)]
        blank = alt.Chart(alt.Data(values=[{}]))
        chart = blank.mark_text(text=lines, align="left", x=0).properties(width=2 * NARROW, height=60)
    return chart.properties(title=QUESTION, config=chart_config() | {"background": "#fefefd"})


def _lines(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
