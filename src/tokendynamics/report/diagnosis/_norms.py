"""Norms of the tokens over depth on a log axis, with massive tokens apart."""

from __future__ import annotations

from dataclasses import dataclass

import altair as alt
import xarray as xr

from tokendynamics.figures.figure import Figure, Table, cells, nothing
from tokendynamics.figures.lines import depth_axis, hover, log_ticks
from tokendynamics.figures.palette import BLUE, INK, ORANGE, PAPER
from tokendynamics.figures.svg import WIDE, Drawing, Key, draw_for_screens
from tokendynamics.report.diagnosis._depth import Spread, Step, by_depth, spread, steps
from tokendynamics.words import number, percent, plural

QUESTION = "Do the token norms grow?"
HEIGHT = 270


def norms_figure(trace: xr.Dataset) -> Figure:
    """Draw median and quartiles of the tokens' norms, and the largest massive norm, at each state of the model."""
    where = steps(trace)
    bands = {
        name: by_depth(trace, f"norm_{name}", "removed", where)
        for name in ("lower_quartile", "median", "upper_quartile")
    }
    sinks = _sinks(trace)
    prompts = trace.sizes["prompt"]
    if all(each.mean is None for each in bands["median"]) and all(sink.norm.mean is None for sink in sinks.values()):
        return nothing("norms-chart", QUESTION, "Not plotted because no token has a known norm.")
    return Figure(
        ident="norms-chart",
        question=QUESTION,
        svg=draw_for_screens(
            lambda width: _chart(where, bands, sinks, width),
            ident="norms-chart",
            title=f"{QUESTION} Norm of the tokens over depth, on a log axis",
            description=_description(where, bands["median"], sinks, prompts),
            keys=_keys(any(sink.norm.mean is not None for sink in sinks.values()), where),
        ),
        caption=_caption(prompts, where, sinks),
        table=_table(where, bands, sinks),
    )


@dataclass(frozen=True)
class _Sink:
    norm: Spread
    share: Spread
    many: Spread


def _sinks(trace: xr.Dataset) -> dict[int, _Sink]:
    names = ("massive_norm", "massive_share", "massive_count")
    values = [trace[name].transpose("layer", "prompt").values.astype(float) for name in names]
    return {int(layer): _Sink(*(spread(each[i]) for each in values)) for i, layer in enumerate(trace["layer"].values)}


def _chart(where: list[Step], bands: dict[str, list[Spread]], sinks: dict[int, _Sink], width: float = WIDE) -> Drawing:
    last = max((step.layer for step in where), default=0)
    rows = [
        {"x": step.x, "site": step.site, "low": low.mean, "mid": mid.mean, "high": high.mean}
        for step, low, mid, high in zip(
            where, bands["lower_quartile"], bands["median"], bands["upper_quartile"], strict=True
        )
    ]
    large = [{"x": layer, "sink": sink.norm.mean} for layer, sink in sinks.items()]
    y = _log_axis([row[name] for row in rows for name in ("low", "mid", "high")] + [row["sink"] for row in large])
    base = alt.Chart(alt.Data(values=_positive(rows))).encode(x=depth_axis(last, width))
    apart = alt.Chart(alt.Data(values=_positive(large))).encode(x=depth_axis(last, width), y=y("sink"))
    valid = apart.transform_filter("isValid(datum.sink)")
    layers = [
        base.mark_area(color=BLUE, opacity=0.16).encode(y=y("low"), y2="high:Q"),
        base.mark_line(color=BLUE, strokeWidth=2.2).encode(y=y("mid")),
        base.transform_filter("datum.site === 'final_norm' && isValid(datum.mid)")
        .mark_point(shape="diamond", fill=INK, stroke=PAPER, size=90, opacity=1)
        .encode(y=y("mid")),
        apart.mark_line(color=ORANGE, strokeDash=[1.5, 2.5], strokeWidth=1.6),
        valid.mark_point(shape="triangle-up", fill=ORANGE, stroke=PAPER, strokeWidth=0.6, size=64, opacity=1),
        hover(_columns(where, bands, sinks), last, HEIGHT, width),
    ]
    return alt.layer(*layers, width=width, height=HEIGHT)


def _positive(rows: list[dict]) -> list[dict]:
    """Drop zero: a log axis has no place for it."""
    return [{k: None if k != "x" and isinstance(v, float) and v <= 0 else v for k, v in row.items()} for row in rows]


def _log_axis(values: list[float | None]):
    drawn = [v for v in values if v is not None and v > 0] or [1.0]
    low, high = min(drawn) / 1.25, max(drawn) * 1.25
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    axis = alt.Axis(title="Norm of a token (log scale)", values=log_ticks(low, high), format=",")
    return lambda field: alt.Y(f"{field}:Q", scale=scale, axis=axis)


def _keys(has_sink: bool, where: list[Step]) -> list[Key]:
    keys = [Key("median over tokens", "line", BLUE), Key("quartiles over tokens", "band", BLUE)]
    if any(step.site == "final_norm" for step in where):
        keys.append(Key("after the final norm", "diamond", INK))
    if has_sink:
        keys.append(Key("largest massive token of the layer", "triangle", ORANGE))
    return keys


def _columns(
    where: list[Step], bands: dict[str, list[Spread]], sinks: dict[int, _Sink]
) -> list[tuple[float, float, str]]:
    columns = []
    for i, step in enumerate(where):
        low, mid, high = (bands[name][i].mean for name in ("lower_quartile", "median", "upper_quartile"))
        text = f"{step.name}: median norm {number(mid)}, quartiles {number(low)} and {number(high)}"
        sink = sinks[step.layer]
        if step.site == "feed_forward" and sink.norm.mean is not None:
            text += f"\nlargest massive token: {number(sink.norm.mean)}"
        columns.append((step.x - 0.25, step.x + 0.25, text))
    return columns


def _caption(prompts: int, where: list[Step], sinks: dict[int, _Sink]) -> str:
    over = "" if prompts == 1 else f" Means over {prompts} prompts."
    both = any(step.layer and step.part == "feed_forward" for step in where)
    parts = "after attention and after the feed-forward part" if both else "after the attention"
    text = f"Euclidean norms {parts} of each layer, without massive tokens.{over}"
    with_sink = {layer: sink for layer, sink in sinks.items() if sink.norm.mean is not None}
    if not with_sink:
        return f"{text} No token is massive: no norm stands out."
    layer, top = max(with_sink.items(), key=lambda item: item[1].norm.mean or 0.0)
    share = top.share.mean
    total = f"; massive tokens have {percent(share)} of the total norm there" if share is not None else ""
    return (
        f"{text} Massive tokens are drawn separately: the largest norm is {number(top.norm.mean)}, after layer "
        f"{layer}{total}."
    )


def _description(where: list[Step], medians: list[Spread], sinks: dict[int, _Sink], prompts: int) -> str:
    drawn = [(s.name, m.mean) for s, m in zip(where, medians, strict=True) if m.mean is not None]
    if not drawn:
        return "Norms are undefined because every token of these prompts is massive."
    text = f"Median norm, {plural(prompts, 'prompt')}: {number(drawn[0][1])} at {drawn[0][0]}"
    text += f", {number(drawn[-1][1])} at {drawn[-1][0]}."
    found = [layer for layer, sink in sinks.items() if sink.norm.mean is not None]
    text += f" There are massive tokens in {plural(len(found), 'layer')}." if found else " No token is massive."
    return f"{text} The table below holds every value."


def _table(where: list[Step], bands: dict[str, list[Spread]], sinks: dict[int, _Sink]) -> Table:
    rows = []
    for i, step in enumerate(where):
        row: list[float | int | str | None] = [step.layer, step.after]
        row += [bands[name][i].mean for name in ("lower_quartile", "median", "upper_quartile")]
        sink = sinks[step.layer]
        if step.site == "feed_forward":
            share = None if sink.share.mean is None else 100 * sink.share.mean
            none = "no token" if sink.norm.mean is None else sink.norm.mean
            row += [sink.many.mean, none, share if sink.norm.mean is not None else "no token"]
        else:
            row += ["", "", ""]
        rows.append(cells(row))
    columns = ("Layer", "After", "Lower quartile", "Median", "Upper quartile", "Massive tokens", "Largest", "Share (%)")
    return Table("Norms of the tokens, massive ones removed; means over prompts", columns, tuple(rows))
