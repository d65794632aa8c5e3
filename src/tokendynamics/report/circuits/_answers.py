"""What a transformer answers on a sequence, beside what was asked."""

from __future__ import annotations

import altair as alt

from tokendynamics.circuits.constructions._comparison import Answer, Comparison
from tokendynamics.report.diagnosis._depth import WIDTH
from tokendynamics.report.kit._figure import Figure, Table, cells
from tokendynamics.report.kit._palette import BLUE, INK, ORANGE, PAPER
from tokendynamics.report.kit._svg import Drawing, Key, draw
from tokendynamics.report.kit._text import number, plural


def answers_table(answers: tuple[Answer, ...]) -> Table:
    """List every token of the given sequences: category, target, output and error."""
    rows = [
        cells([index, place, int(category), float(target), float(output), float(output - target)])
        for index, answer in enumerate(answers, start=1)
        for place, (category, target, output) in enumerate(
            zip(answer.x, answer.targets, answer.outputs, strict=True), start=1
        )
    ]
    columns = ("Sequence", "Token", "Category X", "Target Y", "Output", "Output − target")
    return Table("Targets and outputs", columns, tuple(rows))


def answers_figure(comparison: Comparison) -> Figure:
    """Draw targets as rings, outputs as discs: exact where each disc fills its ring."""
    answers = comparison.answers[:4]
    question = "What does it answer, token by token?"
    charts = [_chart(answer) for answer in answers]
    worst = max((answer.largest_error for answer in answers), default=0.0)
    return Figure(
        ident="answers",
        question=question,
        svg=draw(
            alt.concat(*charts, columns=1, spacing=26),
            ident="answers",
            title=f"{question} Targets and outputs",
            description=f"{plural(len(answers), 'sequence')}; largest error from the second token on: {number(worst)}.",
            keys=(Key("target Y", "circle", INK), Key("output", "disc", BLUE), Key("difference", "line", ORANGE)),
        ),
        caption="Below each token stands its category. The target of a token is q_true of the category before it and "
        "its own; that of the first token is 0 and counts in no loss.",
        table=answers_table(comparison.answers),
    )


def _chart(answer: Answer) -> Drawing:
    rows = [
        {"token": f"{place}", "label": str(int(category)), "target": float(target), "output": float(output)}
        for place, (category, target, output) in enumerate(
            zip(answer.x, answer.targets, answer.outputs, strict=True), start=1
        )
    ]
    label = f"{[row['label'] for row in rows]}[toNumber(datum.value) - 1]"
    axis = alt.Axis(title="Category of the token", labelExpr=label, labelAngle=0)
    base = alt.Chart(alt.Data(values=rows)).encode(x=alt.X("token:O", sort=None, axis=axis))
    y = alt.Axis(title="Y")
    layers = [
        base.mark_rule(color=ORANGE, strokeWidth=2).encode(y=alt.Y("target:Q", axis=y), y2="output:Q"),
        base.mark_point(shape="circle", fill=PAPER, stroke=INK, strokeWidth=1.4, size=110, opacity=1).encode(
            y=alt.Y("target:Q", axis=y)
        ),
        base.mark_point(shape="circle", fill=BLUE, stroke=BLUE, size=26, opacity=1).encode(y=alt.Y("output:Q", axis=y)),
    ]
    return alt.layer(*layers, width=WIDTH, height=190)
