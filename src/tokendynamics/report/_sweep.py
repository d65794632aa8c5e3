"""The page of a sweep: how often each outcome occurred, over which parameters, and how the runs ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import altair as alt
import numpy as np
import xarray as xr
from contourpy import contour_generator

from tokendynamics.figures.figure import Cell, Charts, Figure, Section, Table, cells
from tokendynamics.figures.lines import LOOKS
from tokendynamics.figures.palette import GRID, ORANGE, PAPER, POSITIONS
from tokendynamics.figures.parameter import MOST_TICKS, Parameter, parameter, ticks
from tokendynamics.figures.svg import WIDE, Drawing, Key, inline
from tokendynamics.numerics.intervals import wilson
from tokendynamics.report._page import render, shortened
from tokendynamics.report._registry import page_of
from tokendynamics.sweeps.systems.results import SweepResult, with_intervals
from tokendynamics.words import Convention, count, fixed, number, percent, plural

_ROUNDING = 1e-9


@dataclass(frozen=True)
class SystemShare:
    """How many of some systems ended in one way.

    Attributes:
        count: How many did.
        total: How many were run.
    """

    count: int
    total: int

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson interval of the probability; the whole of what is possible where no system was run."""
        return wilson(self.count, self.total) if self.total else (0.0, 1.0)

    def __str__(self) -> str:
        if not self.total:
            return "no system was run"
        low, high = self.interval
        share, low, high = (100 * value for value in (self.count / self.total, low, high))
        digits = _decimals(share, low, high)
        share, low, high = (fixed(value, digits if 0 < value < 100 else 0) for value in (share, low, high))
        return f"{share} % (95 % CI {low}–{high} %)"


def _decimals(share: float, low: float, high: float) -> int:
    """Return the decimals that distinguish the ends of an interval, and shares near 0 and 100 % from these."""
    near = [min(each, 100 - each) for each in (share, low, high) if 0 < each < 100]
    needed = [-np.floor(np.log10(high - low)), *(1 - np.floor(np.log10(each)) for each in near if each > _ROUNDING)]
    return int(max(0, *needed))


def kind_of(shares: xr.Dataset) -> str:
    """Return the dim of the words: "outcome" or "status"."""
    return next(str(dim) for dim in shares["count"].dims if dim not in shares.total.dims)


def words_of(shares: xr.Dataset) -> list[str]:
    """Return the words that occur, the most frequent first."""
    kind = kind_of(shares)
    counts = shares["count"].sum(shares.total.dims)
    found = [str(word) for word in shares[kind].values if int(counts.sel({kind: word}))]
    return sorted(found, key=lambda word: -int(counts.sel({kind: word})))


def together(shares: xr.Dataset, word: str) -> SystemShare:
    """Count one word over everything."""
    return SystemShare(int(shares["count"].sel({kind_of(shares): word}).sum()), int(shares.total.sum()))


def along(shares: xr.Dataset, word: str, axis: str) -> list[SystemShare]:
    """Count one word for each value of one parameter, over all others."""
    others = [dim for dim in shares.total.dims if dim != axis]
    counts, totals = shares["count"].sel({kind_of(shares): word}).sum(others), shares.total.sum(others)
    return [SystemShare(int(count), int(total)) for count, total in zip(counts.values, totals.values, strict=True)]


def summed(shares: xr.Dataset, axes: list[str]) -> xr.Dataset:
    """Return the shares over some parameters, with the systems of all others counted together."""
    others = [dim for dim in shares.total.dims if dim not in axes]
    if not others:
        return shares
    return with_intervals(shares["count"].sum(others), shares.total.sum(others))


MOST_ROWS = 400
"""Rows of a table that are read on the page; the file has all."""


def parameter_of(shares: xr.Dataset, name: str) -> Parameter:
    """Return a parameter of the design as an axis."""
    return parameter(name, shares[name].values if name in shares.coords else np.arange(shares.sizes[name]))


C = TypeVar("C", alt.X, alt.Y)


def axis(kind: type[C], field: str, over: Parameter, length: float) -> C:
    """Return the axis of a chart.

    Args:
        kind: Which: alt.X or alt.Y.
        field: Of the rows.
        over: What stands on it.
        length: Of the axis: a short one has fewer ticks.
    """
    ends = over.edges[[0, -1]].tolist()
    scale = alt.Scale(type="log" if over.log else "linear", domain=ends, nice=False, zero=False)
    if not over.words and len(over.places) > MOST_TICKS:
        shown = alt.Axis(title=over.name, tickCount=10 if length >= WIDE else 5, format="~g")
        return kind(f"{field}:Q", scale=scale, axis=shown)
    at, labels = ticks(over)
    near = (f"abs(datum.value - {place!r}) <= {1e-9 * abs(place)!r}" for place in at)
    named = "".join(f"{test} ? {json.dumps(label)} : " for test, label in zip(near, labels, strict=True))
    return kind(f"{field}:Q", scale=scale, axis=alt.Axis(title=over.name, values=at, labelExpr=f"{named}''"))


def value_of(over: Parameter, place: int) -> str | float | int:
    """Return a value of a parameter for a table."""
    value = over.values[place]
    return str(value) if over.words else value.item()


def first_rows(caption: str, columns: tuple[str, ...], rows: list[tuple[Cell, ...]]) -> Table:
    """Return a table of which the first rows are read."""
    if len(rows) <= MOST_ROWS:
        return Table(caption, columns, tuple(rows))
    return Table(f"{caption}; the first {MOST_ROWS} of {len(rows):,}", columns, tuple(rows), tuple(rows[:MOST_ROWS]))


HORIZON = "reached the horizon"
UNDECIDED = "undecided"


def findings(shares: xr.Dataset, status: xr.Dataset, again: int) -> list[str]:
    """Return sentences on how often each outcome occurred, where systems agree, and which parameters change it.

    Args:
        shares: Counts of each outcome over the parameters.
        status: Counts of each status, likewise.
        again: How many systems were tried again.
    """
    sentences = [_how_often(shares), *_agreement(shares)]
    sentences += [_change(shares, str(axis)) for axis in shares.total.dims if shares.sizes[axis] > 1]
    return [*sentences, *_endings(status, again)]


def _how_often(shares: xr.Dataset) -> str:
    total, words = int(shares.total.sum()), words_of(shares)
    if len(words) == 1:
        low, _ = together(shares, words[0]).interval
        return f"{_all(total)} ended as “{words[0]}” (95 % CI {percent(low)} or more)."
    shares_of = [(word, together(shares, word)) for word in words]
    listed = "; ".join(f"{count(share.count)} as “{word}”, {share}" for word, share in shares_of)
    return f"Of {plural(total, 'system')}, {listed.replace(' as ', ' ended as ', 1)}."


def _all(total: int) -> str:
    return "The one system" if total == 1 else f"All {count(total)} systems"


def _agreement(shares: xr.Dataset) -> list[str]:
    """Return at how many points of the design all systems had the same outcome."""
    totals = shares.total.values.ravel()
    if len(totals) < 2 or totals.max() < 2:
        return []
    largest = shares["count"].max(kind_of(shares)).values.ravel()
    ran = totals > 1
    alike = int((ran & (largest == totals)).sum())
    where = f"{count(int(ran.sum()))} points of the design"
    if alike == ran.sum():
        return [f"All systems had the same outcome at each of the {where}."]
    if not alike:
        return [f"Systems had different outcomes at each of the {where}."]
    return [f"All systems had the same outcome at {count(alike)} of the {where}."]


def _change(shares: xr.Dataset, axis: str) -> str:
    """Return which outcome's share changes most along one parameter, and whether the change is significant."""
    over = parameter(axis, _values(shares, axis))
    spans = []
    for word in words_of(shares):
        found = [along(shares, word, axis)[place] for place in over.order]
        known = [place for place, share in enumerate(found) if share.total]
        fractions = [found[place].count / found[place].total for place in known]
        low, high = known[int(np.argmin(fractions))], known[int(np.argmax(fractions))]
        spans.append((max(fractions) - min(fractions), word, sorted((low, high)), found))
    span, word, (first, last), found = max(spans, key=lambda each: each[0])
    if span == 0:
        return f"No share changes with {axis} (pooled over the other parameters)."
    apart = _apart(found[first], found[last])
    verdict = "the intervals do not overlap" if apart else "the intervals overlap, so the change may be chance"
    ends = " and ".join(f"{found[place]} at {over.labels[place]}" for place in (first, last))
    return f"With {axis}, the share of “{word}” changes most: {ends}; {verdict}."


def _apart(one: SystemShare, other: SystemShare) -> bool:
    (low, high), (lower, higher) = one.interval, other.interval
    return high < lower or higher < low


def _endings(status: xr.Dataset, again: int) -> list[str]:
    total, words = int(status.total.sum()), words_of(status)
    tried = f"; {plural(again, 'system')} spent the first step budget and ran again with the stiff engine"
    rest = tried if again else ""
    if words == [HORIZON]:
        return [f"{_all(total)} reached the horizon{rest}."]
    listed = "; ".join(f"{count(together(status, word).count)} “{word}”" for word in words)
    return [f"Status of the runs: {listed}{rest}."]


def _values(shares: xr.Dataset, axis: str) -> np.ndarray:
    return shares[axis].values if axis in shares.coords else np.arange(shares.sizes[axis])


def ranges(shares: xr.Dataset) -> list[tuple[str, str]]:
    """Return every parameter with its values, or their range."""
    facts = []
    for axis in map(str, shares.total.dims):
        over = parameter(axis, _values(shares, axis))
        labels = over.labels
        few = len(labels) <= 8 or over.words
        text = ", ".join(labels[:20]) if few else f"{labels[0]} to {labels[-1]}, {number(len(labels))} values"
        facts.append((axis, f"{text}{', by equal factors' if over.log and not few else ''}"))
    return facts


_COLUMNS = ("End", "Count", "Systems", "Share", "Low", "High")


def curves(over: xr.Dataset, along: Parameter, words: Sequence[str]) -> Figure:
    """Draw the shares of some words over one parameter.

    Args:
        over: Their counts.
        along: The parameter.
        words: At most six.
    """
    over = over.isel({along.name: along.order})
    found = {word: over.sel({kind_of(over): word}) for word in words}
    mark: Literal["disc", "line"] = "disc" if along.words else "line"
    looks = zip(words, LOOKS, strict=False)
    ends = "; ".join(
        f"{word} {number(one.fraction[0].item())} at first and {number(one.fraction[-1].item())} at last"
        for word, one in found.items()
    )
    joined = "" if along.words else "; lines join the points that were run"
    return Figure(
        "shares",
        f"How often does each outcome occur along {along.name}?",
        f"The share of systems that ended in each way, with its 95 % Wilson interval{joined}.",
        Charts(
            lambda width: _chart(found, along, width),
            [Key(word, mark, colour, dash=" ".join(map(str, dash))) for word, (colour, dash) in looks],
        ),
        first_rows("Shares with 95 % intervals", (along.name, *_COLUMNS), _rows(found, along)),
        title=f"Share of each outcome over {along.name}",
        description=f"Shares of systems: {ends}. The table below holds every value drawn.",
    )


def _rows(found: Mapping[str, xr.Dataset], along: Parameter) -> list:
    names = ("fraction", "low", "high")
    return [
        cells(
            [value_of(along, place), word, int(one["count"][place]), int(one.total[place])]
            + [one[name][place].item() for name in names]
        )
        for place in range(len(along.values))
        for word, one in found.items()
    ]


def _chart(found: Mapping[str, xr.Dataset], along: Parameter, width: float) -> Drawing:
    x = axis(alt.X, "x", along, width)
    bands: list[alt.Chart] = []
    points: list[alt.Chart] = []
    for number_of, (word, one) in enumerate(found.items()):
        colour, dash = LOOKS[number_of]
        rows = _curves_drawn(word, one, along)
        base = alt.Chart(inline(rows)).encode(x=x)
        # Words have no values between; their bars stand side by side, or they would cover each other.
        aside: dict[str, Any] = {"xOffset": 9.0 * (number_of - (len(found) - 1) / 2)} if along.words else {}
        if along.words:
            bands.append(base.mark_rule(color=colour, strokeWidth=1.4, **aside).encode(y=_share("low"), y2="high:Q"))
        else:
            stroke: dict[str, Any] = {"strokeDash": list(dash)} if dash else {}
            bands.append(base.mark_area(color=colour, opacity=0.16).encode(y=_share("low"), y2="high:Q"))
            bands.append(base.mark_line(color=colour, strokeWidth=2.2, **stroke).encode(y=_share("fraction")))
        dots = alt.Chart(inline(rows), name=f"hover-{number_of}").encode(x=x, description="text:N")
        look: dict[str, Any] = {"shape": "circle", "filled": True, "size": 40, "opacity": 1, "fill": colour, **aside}
        points.append(dots.mark_point(**look).encode(y=_share("fraction")))
    return alt.layer(*bands, *points, width=width, height=280)


def _share(field: str) -> alt.Y:
    scale = alt.Scale(domain=[0, 1], nice=False)
    return alt.Y(f"{field}:Q", scale=scale, axis=alt.Axis(title="Share of systems", tickCount=6))


def _curves_drawn(word: str, one: xr.Dataset, along: Parameter) -> list[dict[str, object]]:
    rows = []
    for place, label in enumerate(along.labels):
        share = SystemShare(int(one["count"][place]), int(one.total[place]))
        numbers = {name: one[name][place].item() for name in ("fraction", "low", "high")}
        if share.total:
            text = f"{along.name} = {label}: {word} {share.count} of {share.total}, {share}"
            rows.append({"x": along.places[place].item(), **numbers, "text": text})
    return rows


MOST_WORDS = 6
"""Words that have a diagram."""

_STEPS = (0.2, 0.4, 0.6, 0.8)
_HALF = 0.5
_CAPTION = "Each cell is a point that was run; its colour is the share of its systems that ended as “{word}”."
_BORDER = (
    " The line shows where this share is 1/2, straight between the middles of cells; the dashed ones where an end of "
    "its 95 % Wilson interval is: the border is between these."
)


def diagrams(shares: xr.Dataset) -> list[Figure]:
    """Return the diagrams of a design: one of curves, or one map for each outcome.

    Args:
        shares: Counts over one parameter or more; of more than two the further ones are counted together.
    """
    axes = [str(axis) for axis in shares.total.dims if shares.sizes[axis] > 1][:2]
    if not axes:
        return []
    over = summed(shares, axes).transpose(*axes, ...)
    across = parameter_of(over, axes[0])
    words = words_of(shares)[:MOST_WORDS]
    if len(axes) == 1:
        return [curves(over, across, words)]
    up = parameter_of(over, axes[1])
    over = over.isel({across.name: across.order, up.name: up.order})
    return [_map(over, across, up, word) for word in words]


def _map(over: xr.Dataset, across: Parameter, up: Parameter, word: str) -> Figure:
    ident = f"share-of-{word.replace(' ', '-')}"
    one = over.sel({kind_of(over): word})
    rows = [
        _cell(across, up, place, word, SystemShare(int(one["count"][place]), int(one.total[place])))
        for place in np.ndindex(len(across.values), len(up.values))
    ]
    borders = _borders(one, across, up)
    keys = [Key(label, "box", colour) for label, colour in _classes()]
    keys += [Key("no system was run", "box", GRID)] if bool((one.total == 0).any()) else []
    keys += [Key("share 1/2", "line", ORANGE)] if any(not each["dashed"] for each in borders) else []
    dashed = any(each["dashed"] for each in borders)
    keys += [Key("an end of its interval is 1/2", "line", ORANGE, dash="4 3", width=1.3)] if dashed else []
    return Figure(
        ident,
        f"Where do systems end as “{word}”?",
        _CAPTION.format(word=word) + (_BORDER if borders else ""),
        Charts(lambda width: _map_drawn(rows, borders, across, up, width), keys),
        _map_table(one, across, up, word),
        title=f"Share of “{word}” over {across.name} and {up.name}",
        description=_described(one, word, across, up),
        label=word,
    )


def _classes() -> list[tuple[str, str]]:
    bounds = [0.0, *_STEPS, 1.0]
    steps = [f"to {100 * high:.0f} %" for high in bounds[1:]]
    return [("0", PAPER), *zip(steps, POSITIONS, strict=True)]


def _colour(share: SystemShare) -> str:
    if not share.total:
        return GRID
    if not share.count:
        return PAPER
    return POSITIONS[int(np.searchsorted(_STEPS, share.count / share.total))]


def _cell(across: Parameter, up: Parameter, place: tuple[int, ...], word: str, share: SystemShare) -> dict[str, object]:
    x, y = place
    where = f"{across.name} = {across.labels[x]}, {up.name} = {up.labels[y]}"
    said = f"{word} {share.count} of {share.total}: {share}" if share.total else "no system was run"
    return {
        "x": across.edges[x], "x2": across.edges[x + 1], "y": up.edges[y], "y2": up.edges[y + 1],
        "colour": _colour(share), "text": f"{where}: {said}",
    }  # fmt: skip


def _borders(one: xr.Dataset, across: Parameter, up: Parameter) -> list[dict[str, object]]:
    """Return the points of the lines at which a share, or an end of its interval, is one half."""
    if across.words or up.words:
        return []
    x, y = (np.log(axis.places) if axis.log else axis.places for axis in (across, up))
    found: list[dict[str, object]] = []
    for name in ("fraction", "low", "high"):
        numbers = np.ma.masked_invalid(one[name].values.T)
        for line in map(np.asarray, contour_generator(x, y, numbers).lines(_HALF)):
            places = [np.exp(line[:, side]) if axis.log else line[:, side] for side, axis in ((0, across), (1, up))]
            ident = len({each["line"] for each in found})
            dashed = name != "fraction"
            found += [
                {"line": ident, "order": order, "x": px, "y": py, "dashed": dashed}
                for order, (px, py) in enumerate(zip(*(each.tolist() for each in places), strict=True))
            ]
    return found


def _map_drawn(
    rows: Sequence[dict[str, object]],
    borders: Sequence[dict[str, object]],
    across: Parameter,
    up: Parameter,
    width: float,
) -> Drawing:
    height = min(0.62 * width, 420.0) if width >= WIDE else 0.95 * width
    x, y = axis(alt.X, "x", across, width), axis(alt.Y, "y", up, 2 * height)
    layers: list[alt.Chart] = [
        alt.Chart(inline(rows), name="hover")
        .mark_rect(stroke=GRID, strokeWidth=0.5)
        .encode(x=x, x2="x2:Q", y=y, y2="y2:Q", fill=alt.Fill("colour:N", scale=None), description="text:N")
    ]
    for dashed, look in (
        (False, {"color": ORANGE, "strokeWidth": 2.2}),
        (True, {"color": ORANGE, "strokeWidth": 1.3, "strokeDash": [4, 3]}),
    ):
        points = [each for each in borders if each["dashed"] == dashed]
        if points:
            base = alt.Chart(inline(points)).encode(x=x, y=y, detail="line:N", order="order:Q")
            # The paper below, or the line would be lost on dark cells.
            layers += [base.mark_line(color=PAPER, strokeWidth=look["strokeWidth"] + 2.4), base.mark_line(**look)]
    return alt.layer(*layers, width=width, height=height)


def _described(one: xr.Dataset, word: str, across: Parameter, up: Parameter) -> str:
    fraction = one.fraction.values
    best = np.unravel_index(np.nanargmax(fraction), fraction.shape)
    worst = np.unravel_index(np.nanargmin(fraction), fraction.shape)
    ends = (
        f"{100 * fraction[place]:.3g} % at {across.name} = {across.labels[place[0]]}, {up.name} = {up.labels[place[1]]}"
        for place in (best, worst)
    )
    highest, lowest = ends
    return f"The share of “{word}” is highest, {highest}, and lowest, {lowest}. The table below holds every cell."


def _map_table(one: xr.Dataset, across: Parameter, up: Parameter, word: str) -> Table:
    rows = []
    for x, y in np.ndindex(len(across.values), len(up.values)):
        numbers = (one[name][x, y].item() for name in ("fraction", "low", "high"))
        values = (value_of(across, x), value_of(up, y), int(one["count"][x, y]), int(one.total[x, y]))
        rows.append(cells([*values, *numbers]))
    columns = (across.name, up.name, word, "Systems", "Share", "Low", "High")
    return first_rows(f"Systems that ended as “{word}”, with 95 % intervals", columns, rows)


@page_of.register(SweepResult)
def sweep_page(found: SweepResult) -> str:
    """Return the whole page as HTML that needs nothing else; all text that came from a user is escaped.

    Args:
        found: What is shown; nothing is measured here.
    """
    run = int(found.status.total.sum())
    missing = [] if run == found.systems else [f"Of {count(found.systems)} systems {count(run)} were run so far."]
    said = missing + (findings(found.shares, found.status, found.again) if run else [])
    return render(
        "sweep.html.jinja",
        title=f"{found.title}: how often does each outcome occur?",
        verdict_title="Result",
        sections=_sections(found) if run else [],
        conventions=_CONVENTIONS,
        manifest={name: shortened(value) for name, value in found.manifest.items()},
        files=found.files,
        scripts=("shared.js",),
        sheets=("page.css",),
        name=found.title,
        shape=found.shape,
        facts=[*ranges(found.shares), *found.facts],
        findings=said,
    )


def _sections(found: SweepResult) -> list[Section]:
    shown = diagrams(found.shares)
    further = [str(axis) for axis in found.shares.total.dims if found.shares.sizes[axis] > 1][2:]
    notes = [f"Systems of all values of {' and of '.join(further)} are counted together here."] if further else []
    many = len(shown) > 1
    parts = {"variants" if many else "figures": tuple(shown), "notes": (*notes, *found.notes)}
    sections = [Section("where", "Where does each outcome occur?", **parts)] if shown else []
    return [*sections, Section("ends", "How did the runs end?", tables=_tables(found))]


def _tables(found: SweepResult) -> tuple[Table, ...]:
    shown = [found.status] if kind_of(found.shares) == "status" else [found.shares, found.status]
    return tuple(_page_table(shares) for shares in shown)


def _page_table(shares: xr.Dataset) -> Table:
    rows = []
    for word in words_of(shares):
        share = together(shares, word)
        rows.append(cells([word, share.count, share.count / share.total, *share.interval]))
    kind = kind_of(shares).capitalize()
    return Table(f"{kind} of all systems, with 95 % intervals", (kind, "Systems", "Share", "Low", "High"), tuple(rows))


_CONVENTIONS = (
    Convention(
        "Intervals",
        "are Wilson’s, of 95 %, of the probability with which a system drawn at a point ends in that way",
        "shares of few systems would look as sure as those of many",
    ),
    Convention(
        "Along a parameter",
        "systems of all values of the others are counted together, with the weight that the design gives them",
        "an effect that is opposite at two values of another parameter would show, which cancels here: see the maps",
    ),
    Convention(
        "What changes most",
        "is the largest difference of any two values; it was looked for, so that of many values some differ by chance, "
        "and intervals that just do not overlap are a weak sign",
        "a difference would have to be named before the sweep",
    ),
    Convention(
        "Undecided",
        "is what neither rests nor has met at the end of its run; of these a longer run may decide some",
        "they would be counted with an outcome that they have not reached",
    ),
)
