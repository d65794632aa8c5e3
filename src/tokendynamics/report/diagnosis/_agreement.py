"""Further similarity measures over depth, one shown at a time."""

from __future__ import annotations

from dataclasses import dataclass

import altair as alt
import xarray as xr

from tokendynamics.figures.figure import Figure, Table, cells, nothing
from tokendynamics.figures.lines import depth_axis, hover
from tokendynamics.figures.palette import BLUE, INK, MUTED, ORANGE, PAPER
from tokendynamics.figures.svg import WIDE, Drawing, Key, draw_for_screens
from tokendynamics.report.diagnosis._depth import Spread, Step, at_steps, by_depth, steps, undrawn
from tokendynamics.words import number, plural

QUESTION = "Do the tokens draw together with depth?"
HEIGHT = 270
MOST_PROMPT_COLUMNS = 8
"""With more prompts than this the table holds only their mean and range; the data files hold every value."""


@dataclass(frozen=True)
class _Measure:
    variable: str
    label: str
    axis: str
    meaning: str
    bounds: tuple[float, float | None]


_MEASURES = (
    _Measure(
        "mean_pair_cosine",
        "Mean pair cosine",
        "Mean pair cosine (1: all point the same way)",
        "Mean cosine over all pairs of different tokens of a prompt. The dotted line is the mean cosine between tokens "
        "of different prompts at the same layer (the common share). A direction common to all prompts is not "
        "consensus; the gap between the two lines is what the tokens of one prompt share beyond it.",
        (0.0, 1.0),
    ),
    _Measure(
        "consensus_first",
        "E, first token",
        "E against the first token (0: consensus)",
        "E = 1 − mean of |cos(first token, token i)|, the consensus functional (asymptotic, eq. 25). An opposite pair "
        "counts as agreement.",
        (0.0, 1.0),
    ),
    _Measure(
        "consensus_first_signed",
        "E, first token, signed",
        "Signed E against the first token (0: consensus)",
        "1 − mean of cos(first token, token i), without the absolute value of eq. 25. An opposite pair counts as "
        "disagreement, so the range is 0 to 2.",
        (0.0, 1.0),
    ),
    _Measure(
        "consensus_last",
        "E, last token",
        "E against the last token (0: consensus)",
        "E = 1 − mean of |cos(last token, token i)|: eq. 25 with the last token as reference, which attends to all "
        "others in a causal model.",
        (0.0, 1.0),
    ),
    _Measure(
        "effective_rank_unit_rows",
        "Effective rank, unit rows",
        "Effective rank of unit rows (1: one direction)",
        "Number of directions that the tokens span: exp of the entropy of the squared singular values, normalised to "
        "sum 1. Each token is scaled to length 1, so that no large token dominates.",
        (0.0, None),
    ),
    _Measure(
        "effective_rank",
        "Effective rank, raw",
        "Effective rank of raw rows (1: one direction)",
        "As on unit rows, with each token at its own norm: one large token lowers it to 1 although the others are "
        "spread.",
        (0.0, None),
    ),
    _Measure(
        "rank_one_distance",
        "Distance to identical tokens",
        "‖X − 1x̄ᵀ‖ / ‖X‖ (0: all tokens identical)",
        "Relative Frobenius distance to the nearest matrix with identical rows; 0 is rank collapse in the literature.",
        (0.0, 1.0),
    ),
)


def agreement_figures(trace: xr.Dataset) -> list[Figure]:
    """Return one figure per measure, the default first."""
    where = steps(trace)
    return [_figure(trace, measure, where) for measure in _MEASURES if measure.variable in trace]


def _figure(trace: xr.Dataset, measure: _Measure, where: list[Step]) -> Figure:
    removed = by_depth(trace, measure.variable, "removed", where)
    kept = by_depth(trace, measure.variable, "kept", where)
    between = _between(trace, where) if measure.variable == "mean_pair_cosine" else None
    ident = f"agreement-{measure.variable.replace('_', '-')}"
    prompts = trace.sizes["prompt"]
    if all(each.mean is None for each in (*removed, *kept)):
        return nothing(ident, QUESTION, undrawn(trace), measure.label)
    return Figure(
        ident=ident,
        question=QUESTION,
        svg=draw_for_screens(
            lambda width: _chart(measure, where, removed, kept, between, width),
            ident=ident,
            title=f"{QUESTION} {measure.label}",
            description=_description(measure, where, removed, prompts),
            keys=_keys(prompts, between is not None, {step.part for step in where if step.layer}),
        ),
        caption=f"{measure.meaning} {_convention(prompts)}",
        table=_table(measure, where, removed, kept, between, [str(p) for p in trace["prompt"].values]),
        label=measure.label,
    )


def _between(trace: xr.Dataset, where: list[Step]) -> list[Spread] | None:
    values = at_steps(trace["shares"].sel(share="common").transpose("layer", "site"), where)
    return values if any(value.mean is not None for value in values) else None


def _convention(prompts: int) -> str:
    massive = (
        "Massive tokens, much larger than the rest of their prompt, are excluded; the thin dashed line includes them."
    )
    if prompts == 1:
        return f"One prompt. {massive}"
    return f"Line: mean over {prompts} prompts; band: lowest to highest prompt. {massive}"


def _keys(prompts: int, between: bool, parts: set[str]) -> list[Key]:
    keys = [Key("massive tokens removed" if prompts == 1 else "mean, massive tokens removed", "line", BLUE)]
    if prompts > 1:
        keys.append(Key("range over prompts", "band", BLUE))
    keys.append(Key("massive tokens kept", "line", MUTED, dash="5,3", width=1.3))
    if between:
        keys.append(Key("between prompts", "line", ORANGE, dash="1.5,2.5", width=2.2))
    disc = "after feed-forward" if "feed_forward" in parts else "embedding"
    keys += [Key("after attention", "circle", BLUE, width=1.5), Key(disc, "disc", BLUE)]
    return [*keys, Key("after the final norm", "diamond", INK)] if "final_norm" in parts else keys


def _chart(
    measure: _Measure,
    where: list[Step],
    removed: list[Spread],
    kept: list[Spread],
    between: list[Spread] | None,
    width: float = WIDE,
) -> Drawing:
    last = max((step.layer for step in where), default=0)
    rows = [
        {"x": s.x, "part": s.part, "mid": r.mean, "low": r.low, "high": r.high, "kept": k.mean}
        | ({"between": between[i].mean} if between else {})
        for i, (s, r, k) in enumerate(zip(where, removed, kept, strict=True))
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(x=depth_axis(last, width))
    y = _y_axis(measure, rows)
    layers: list[alt.Chart] = [
        base.mark_area(color=BLUE, opacity=0.16).encode(y=y("low"), y2="high:Q"),
        base.mark_line(color=MUTED, strokeDash=[5, 3], strokeWidth=1.3).encode(y=y("kept")),
    ]
    if between:
        layers.append(base.mark_line(color=ORANGE, strokeDash=[1.5, 2.5], strokeWidth=2.2).encode(y=y("between")))
    layers.append(base.mark_line(color=BLUE, strokeWidth=2.2).encode(y=y("mid")))
    layers += _marks(base, y("mid"))
    layers.append(hover(_columns(where, removed, kept, between), last, HEIGHT, width))
    return alt.layer(*layers, width=width, height=HEIGHT)


def _marks(base: alt.Chart, y: alt.Y) -> list[alt.Chart]:
    shapes = {
        "attention": {"shape": "circle", "fill": PAPER, "stroke": BLUE, "strokeWidth": 1.5, "size": 26},
        "feed_forward": {"shape": "circle", "fill": BLUE, "stroke": BLUE, "size": 26},
        "final_norm": {"shape": "diamond", "fill": INK, "stroke": PAPER, "size": 90},
    }
    return [
        base.transform_filter(f"datum.part === '{part}' && isValid(datum.mid)")
        .mark_point(opacity=1, **look)
        .encode(y=y)
        for part, look in shapes.items()
    ]


def _y_axis(measure: _Measure, rows: list[dict]):
    drawn = [row[name] for row in rows for name in ("low", "high", "kept", "between") if row.get(name) is not None]
    low = min([measure.bounds[0], *drawn])
    high = measure.bounds[1] or max([1.0, *drawn]) * 1.04
    scale = alt.Scale(domain=[low, max([high, *drawn])], nice=low < 0 or measure.bounds[1] is None)
    axis = alt.Axis(title=measure.axis, tickCount=6)
    return lambda field: alt.Y(f"{field}:Q", scale=scale, axis=axis)


def _columns(
    where: list[Step], removed: list[Spread], kept: list[Spread], between: list[Spread] | None
) -> list[tuple[float, float, str]]:
    columns = []
    for i, step in enumerate(where):
        text = f"{step.name}: {number(removed[i].mean)}"
        if len(removed[i].values) > 1 and removed[i].low is not None:
            text += f" ({number(removed[i].low)} to {number(removed[i].high)})"
        text += f"\nmassive tokens kept: {number(kept[i].mean)}"
        text += f"\nbetween prompts: {number(between[i].mean)}" if between else ""
        columns.append((step.x - 0.25, step.x + 0.25, text))
    return columns


def _description(measure: _Measure, where: list[Step], removed: list[Spread], prompts: int) -> str:
    drawn = [(step, value.mean) for step, value in zip(where, removed, strict=True) if value.mean is not None]
    if not drawn:
        return f"{measure.axis}: undefined because no prompt has two tokens that count."
    high = max(drawn, key=lambda pair: pair[1])
    low = min(drawn, key=lambda pair: pair[1])
    (first, start), (final, end) = drawn[0], drawn[-1]
    return (
        f"{measure.axis}. Mean over {plural(prompts, 'prompt')}, massive tokens removed: {number(start)} at "
        f"{first.name}, "
        f"highest {number(high[1])} at {high[0].name}, lowest {number(low[1])} at {low[0].name}, "
        f"{number(end)} at {final.name}. The table below holds every value."
    )


def _table(
    measure: _Measure,
    where: list[Step],
    removed: list[Spread],
    kept: list[Spread],
    between: list[Spread] | None,
    prompts: list[str],
) -> Table:
    single = len(prompts) == 1
    columns = ["Layer", "After", "Mean" if not single else "Massive removed"]
    columns += [] if single else ["Lowest", "Highest"]
    columns += ["Massive kept"] + (["Between prompts"] if between else [])
    each = [] if single or len(prompts) > MOST_PROMPT_COLUMNS else prompts
    rows = []
    for i, step in enumerate(where):
        row: list[float | int | str | None] = [step.layer, step.after, removed[i].mean]
        row += [] if single else [removed[i].low, removed[i].high]
        row += [kept[i].mean] + ([between[i].mean] if between else [])
        rows.append(cells(row + (list(removed[i].values) if each else [])))
    caption = f"{measure.label}, massive tokens removed unless stated otherwise"
    return Table(caption + (" (prompts by name)" if each else ""), tuple(columns + each), tuple(rows))
