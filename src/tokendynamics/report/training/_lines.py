"""Lines of several arms, or of several quantities of one run: over steps, and through layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tokendynamics.figures.axes import time_axis
from tokendynamics.figures.curves import Curve, Curves, Panels, Rule, columns, described, table
from tokendynamics.figures.figure import Figure

_STEPS_HEIGHT = 260
_ROOM = 1.02
"""By how much an axis is longer than the last step, so that the mark there is whole."""


def over_steps(
    ident: str,
    question: str,
    axis: str,
    caption: str,
    lines: Sequence[Curve],
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
    shown = [line for line in lines if line.shown(log)]
    numbers = table(f"{axis} over steps", "Step", lines, ends)
    if not shown:
        return Figure(ident, question, f"Not plotted because no number was measured. {caption}")
    last = _ROOM * max(float(max(line.x)) for line in shown)
    marked = [rule.value for rule in rules]
    return Figure(
        ident, question, caption,
        Curves(
            shown, f"{axis} (log scale)" if log else axis,
            axis=time_axis(0.0, last, "Step"), height=_STEPS_HEIGHT, log=log,
            domain=(min(marked), max(marked)) if marked else None, rules=rules,
            columns=columns(shown, "step", 0.0, last),
        ),
        numbers,
        description=f"{axis} over steps. {described(shown)} The table below holds every value drawn.",
    )  # fmt: skip


STATES = {"full": "The whole network", "bare": "Attention alone"}
"""The entries of a record's layers, with their labels."""

MEASURES = {
    "norm": ("Do the tokens grow?", "Mean norm", "Norm of a token, the mean over tokens,"),
    "distance": (
        "Do the tokens draw together?",
        "Mean distance",
        "Distance of two tokens of a sequence, the mean over pairs,",
    ),
}


_LAYERS_HEIGHT = 240

_CAPTION = (
    "{of} after each layer, on the test split. The whole network: before the last norm. Attention alone: the same "
    "weights without norms and feed-forward parts, x ← x + attention(x), from the same embeddings. The axes differ."
)
_ONE = "{of} after each layer, on the test split. Only {what} was measured."


def through_layers(
    measure: str, lines: Mapping[str, Sequence[Curve]], band: str = "", ends: tuple[str, str] = ("low", "high")
) -> Figure:
    """Draw one measure through the layers.

    Args:
        measure: A key of `MEASURES`.
        lines: By a key of `STATES`, over layers.
        band: What their bands are, in words.
        ends: What the ends of a band are called in the table.
    """
    question, axis, of = MEASURES[measure]
    ident = f"layers-{measure}"
    shown = {state: [line for line in lines.get(state, ()) if line.shown(log=True)] for state in STATES}
    shown = {state: some for state, some in shown.items() if some}
    if not shown:
        return Figure(ident, question, f"Nothing to plot: no {axis.lower()} above zero was measured.")
    parts = [f"{STATES[state]}: {described(some)}" for state, some in shown.items()]
    # Both states are in one table: a line has a column, or three, in each.
    named = [
        replace(line, label=f"{line.label}, {'as it is' if state == 'full' else 'attention alone'}")
        for state, some in shown.items()
        for line in some
    ]
    what = STATES[next(iter(shown))].lower()
    caption = _CAPTION.format(of=of) if len(shown) == len(STATES) else _ONE.format(of=of, what=what)
    return Figure(
        ident,
        question,
        f"{caption}{band}",
        Panels({STATES[state]: _curves(some, axis) for state, some in shown.items()}),
        table(f"{axis} after each layer", "Layer", named, ends),
        title=f"{question} {axis} through the layers",
        description=f"{axis}. {' '.join(parts)} The table below holds every value.",
    )


def _curves(lines: Sequence[Curve], axis: str) -> Curves:
    last = int(max(max(line.x) for line in lines))
    return Curves(
        lines, f"{axis} (log scale)", last, height=_LAYERS_HEIGHT, log=True,
        columns=columns(lines, "layer", -0.6, last + 1.0),
    )  # fmt: skip
