"""Paired differences seed by seed: a dot for each, the mean with its interval, and the line of no difference."""

from __future__ import annotations

import json
from collections.abc import Sequence

import altair as alt

from tokendynamics.figures.figure import Figure, Table, cells, nothing
from tokendynamics.figures.palette import AXIS, BLUE, INK, PAPER
from tokendynamics.figures.svg import WIDE, Drawing, Key, draw_for_screens, inline
from tokendynamics.numerics.intervals import T_COVERAGE
from tokendynamics.numerics.printable import printable
from tokendynamics.sweeps.study import PairedComparison, StudyResult
from tokendynamics.sweeps.study.words import VERDICTS
from tokendynamics.words import percent, plural, signed

_QUESTION = "Does every seed say the same?"
_ROW = 44
_LETTER = 6.6


def differences(result: StudyResult) -> Figure:
    """Draw every paired difference.

    Args:
        result: What the study found.
    """
    ident, unit, level = "seeds", result.unit, percent(result.confidence)
    shown = [pair for pair in result.comparisons if pair.seeds]
    if not shown:
        return nothing(ident, _QUESTION, "Nothing to plot: no seed finished both in an arm and in the reference.")
    left, right = ("better", "worse") if result.lower_is_better else ("worse", "better")
    return Figure(
        ident=ident,
        question=_QUESTION,
        svg=draw_for_screens(
            lambda width: _chart(
                shown, f"← {left} · {f'difference in {unit} · ' if width >= WIDE else ''}{right} →", width
            ),
            ident=ident,
            title=f"{_QUESTION} Paired differences in {unit}",
            description=f"{'; '.join(_described(pair) for pair in shown)}. The table below holds every difference.",
            keys=[
                Key("one seed", "circle", BLUE, width=1.5),
                Key(f"mean, {level} interval", "diamond", INK),
                Key("no difference", "line", AXIS, width=1.5),
            ],
        ),
        caption=f"Each ring is one seed: the arm minus {result.reference}, on the test split. The bar is the {level} "
        f"t-interval of the mean: the difference is significant where it excludes zero. One seed has no interval. "
        f"{T_COVERAGE}.",
        table=_table(result, shown),
    )


def _described(pair: PairedComparison) -> str:
    least, most = signed(min(pair.differences)), signed(max(pair.differences))
    return f"{_name(pair)}: {plural(len(pair.seeds), 'seed')} from {least} to {most}, {VERDICTS[pair.verdict]}"


def _name(pair: PairedComparison) -> str:
    return printable(f"{pair.arm} − {pair.reference}")


def _chart(pairs: Sequence[PairedComparison], title: str, width: float) -> Drawing:
    seeds = [
        {"x": value, "y": row + 0.5 + _aside(place, len(pair.seeds)), "text": f"seed {seed}: {signed(value)}"}
        for row, pair in enumerate(pairs)
        for place, (seed, value) in enumerate(zip(pair.seeds, pair.differences, strict=True))
    ]
    means = [
        {"x": pair.mean, "low": pair.low, "high": pair.high, "y": row + 0.5, "text": f"{_name(pair)}: {_mean(pair)}"}
        for row, pair in enumerate(pairs)
    ]
    y, names = _names([printable(pair.arm) for pair in pairs])
    x = _axis(
        [each["x"] for each in seeds] + [end for each in means for end in (each["low"], each["high"])], title, width
    )
    zero = alt.Chart(inline([{"x": 0.0}])).mark_rule(color=AXIS, strokeWidth=1.5).encode(x=x("x"))
    base = alt.Chart(inline(means)).encode(y=y)
    bar = base.transform_filter("isValid(datum.low)").mark_rule(color=INK, strokeWidth=2.4)
    rings = alt.Chart(inline(seeds), name="hover-seeds").encode(x=x("x"), y=y, description="text:N")
    middle = alt.Chart(inline(means), name="hover-means").encode(x=x("x"), y=y, description="text:N")
    return alt.layer(
        zero,
        bar.encode(x=x("low"), x2="high:Q"),
        rings.mark_point(shape="circle", fill=PAPER, stroke=BLUE, strokeWidth=1.5, size=44, opacity=1),
        middle.mark_point(shape="diamond", fill=INK, stroke=PAPER, size=110, opacity=1),
        width=width + 40 - names,
        height=_ROW * len(pairs),
    )


def _aside(place: int, many: int) -> float:
    """Return how far from the middle of its row a seed stands, so that seeds do not cover each other."""
    return 0.0 if many == 1 else 0.62 * (place / (many - 1) - 0.5)


def _mean(pair: PairedComparison) -> str:
    if pair.low is None or pair.high is None:
        return f"{signed(pair.mean)}, one seed"
    return f"{signed(pair.mean)} ({signed(pair.low)} to {signed(pair.high)})"


def _axis(values: Sequence[float | None], title: str, width: float):
    """Return what makes the axis of a field: zero is always on it, with room beyond the last mark."""
    known = [0.0, *(value for value in values if value is not None)]
    low, high = min(known), max(known)
    room = 0.06 * (high - low) or 1.0
    scale = alt.Scale(domain=[low - room * (low < 0), high + room * (high > 0)], nice=False)
    axis = alt.Axis(title=title, grid=True, tickCount=8 if width >= WIDE else 4, format="~g")
    return lambda field: alt.X(f"{field}:Q", scale=scale, axis=axis)


def _names(arms: Sequence[str]) -> tuple[alt.Y, float]:
    """Return an axis with the name of each row, as wide as browsers' letters may be, and how wide that is."""
    wide = min(max(_LETTER * len(arm) for arm in arms) + 16, 150)
    places = [row + 0.5 for row in range(len(arms))]
    labels = json.dumps({str(place): arm for place, arm in zip(places, arms, strict=True)})
    axis = alt.Axis(
        title=None, values=places, labelExpr=f"({labels})[datum.value]", labelColor=INK, labelLimit=wide, grid=False,
        labelPadding=8, minExtent=wide,
    )  # fmt: skip
    return alt.Y("y:Q", scale=alt.Scale(domain=[len(arms), 0], nice=False), axis=axis), wide


def _table(result: StudyResult, pairs: Sequence[PairedComparison]) -> Table:
    """Put the measure of every arm and seed beside the differences."""
    by_seed = [dict(zip(pair.seeds, pair.differences, strict=True)) for pair in pairs]
    rows = [
        cells([seed, *(values.get(seed) for values in result.values.values()), *(each.get(seed) for each in by_seed)])
        for seed in result.seeds
    ]
    names = ("Seed", *result.values, *(f"{pair.arm} − {pair.reference}" for pair in pairs))
    return Table(f"{result.unit.capitalize()} on the test split, and differences, seed by seed", names, tuple(rows))
