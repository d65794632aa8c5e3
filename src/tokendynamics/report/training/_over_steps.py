"""What changes in the course of training: lines over the steps of the optimiser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tokendynamics.figures.figure import Figure, nothing
from tokendynamics.figures.lines import Rule, curve_keys, curves_chart, time_axis
from tokendynamics.figures.svg import draw_for_screens
from tokendynamics.report.training._lines import Line, columns, curve, described, table

_HEIGHT = 260
_ROOM = 1.02
"""By how much an axis is longer than the last step, so that the mark there is whole."""


def over_steps(
    ident: str,
    question: str,
    axis: str,
    caption: str,
    lines: Sequence[Line],
    *,
    log: bool = False,
    rules: Sequence[Rule] = (),
    ends: tuple[str, str] = ("low", "high"),
) -> Figure:
    """Draw lines over steps, or say that there is nothing to draw.

    Args:
        ident: For links.
        question: What the figure answers.
        axis: What the numbers are.
        caption: The convention in words.
        lines: What is drawn.
        log: Whether the vertical axis is logarithmic; what is not above zero is then left out.
        rules: Values that are marked across.
        ends: What the ends of a band are called in the table.
    """
    shown = [line for line in lines if line.drawn(log)]
    numbers = table(f"{axis} over steps", "Step", lines, ends)
    if not shown:
        return replace(nothing(ident, question, f"Nothing is drawn: there is no number. {caption}"), table=None)
    last = _ROOM * max(float(line.x.max()) for line in shown)
    marked = [rule.value for rule in rules]
    curves, title = [curve(line) for line in shown], f"{axis} (log scale)" if log else axis
    hovered = columns(shown, "step", 0.0, last)
    return Figure(
        ident=ident,
        question=question,
        svg=draw_for_screens(
            lambda width: curves_chart(
                curves, x=time_axis(0.0, last, "Step", width=width), title=title, width=width, height=_HEIGHT,
                log=log, domain=(min(marked), max(marked)) if marked else None, rules=rules, columns=hovered,
            ),
            ident=ident,
            title=question,
            description=f"{axis} over steps. {described(shown)} The table below holds every value drawn.",
            keys=curve_keys(curves),
        ),
        caption=caption,
        table=numbers,
    )  # fmt: skip
