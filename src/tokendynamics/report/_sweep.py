"""The page of a sweep: how often each outcome occurred, over which parameters, and how the runs ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from tokendynamics.figures.axes import Parameter, parameter
from tokendynamics.figures.figure import Cell, Figure, Section, Table, cells
from tokendynamics.figures.outcomes import OutcomeCurves, OutcomeMap, Shares
from tokendynamics.numerics.intervals import wilson
from tokendynamics.report._page import conventions, page_of, render, shortened
from tokendynamics.sweeps.systems.results import SweepResult, with_intervals
from tokendynamics.words import count, fixed, number, percent, plural

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
        # The decimals that distinguish the ends of an interval, and shares near 0 and 100 % from these.
        near = [min(value, 100 - value) for value in (share, low, high) if 0 < value < 100]
        needed = [
            -np.floor(np.log10(high - low)),
            *(1 - np.floor(np.log10(distance)) for distance in near if distance > _ROUNDING),
        ]
        digits = int(max(0, *needed))
        share, low, high = (fixed(value, digits if 0 < value < 100 else 0) for value in (share, low, high))
        return f"{share} % (95 % CI {low}–{high} %)"


def kind_of(shares: xr.Dataset) -> str:
    """Return the dim of the words: "outcome" or "status"."""
    return next(str(dim) for dim in shares["count"].dims if dim not in shares.total.dims)


def words_of(shares: xr.Dataset) -> list[str]:
    """Return the words that occur, the most frequent first."""
    kind = kind_of(shares)
    counts = shares["count"].sum(shares.total.dims)
    occurring = [str(word) for word in shares[kind].values if int(counts.sel({kind: word}))]
    return sorted(occurring, key=lambda word: -int(counts.sel({kind: word})))


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
    total, words = int(shares.total.sum()), words_of(shares)
    if len(words) == 1:
        low, _ = together(shares, words[0]).interval
        how_often = f"{_all(total)} ended as “{words[0]}” (95 % CI {percent(low)} or more)."
    else:
        shares_of = [(word, together(shares, word)) for word in words]
        listed = "; ".join(f"{count(share.count)} as “{word}”, {share}" for word, share in shares_of)
        how_often = f"Of {plural(total, 'system')}, {listed.replace(' as ', ' ended as ', 1)}."
    sentences = [how_often]
    if UNDECIDED in words_of(shares):
        sentences.append("“Undecided” systems had reached no outcome when their runs ended; some may in longer runs.")
    sentences += _agreement(shares)
    sentences += [_change(shares, str(axis)) for axis in shares.total.dims if shares.sizes[axis] > 1]
    runs, statuses = int(status.total.sum()), words_of(status)
    tried = f"; {plural(again, 'system')} spent the first step budget and ran again with the stiff engine"
    rest = tried if again else ""
    if statuses == [HORIZON]:
        endings = [f"{_all(runs)} reached the horizon{rest}."]
    else:
        counts = "; ".join(f"{count(together(status, word).count)} “{word}”" for word in statuses)
        endings = [f"Status of the runs: {counts}{rest}."]
    return [*sentences, *endings]


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
    if ran.sum() == 1:
        had = "had the same outcome" if alike else "had different outcomes"
        return [f"Systems {had} at the one point of the design where several ran."]
    if alike == ran.sum():
        return [f"All systems had the same outcome at each of the {where}."]
    if not alike:
        return [f"Systems had different outcomes at each of the {where}."]
    return [f"All systems had the same outcome at {count(alike)} of the {where}."]


def _change(shares: xr.Dataset, axis: str) -> str:
    """Return which outcome's share changes most along one parameter, and whether the change is significant."""
    over = parameter_of(shares, axis)
    spans = []
    for word in words_of(shares):
        course = [along(shares, word, axis)[place] for place in over.order]
        known = [place for place, share in enumerate(course) if share.total]
        fractions = [course[place].count / course[place].total for place in known]
        low, high = known[int(np.argmin(fractions))], known[int(np.argmax(fractions))]
        spans.append((max(fractions) - min(fractions), word, sorted((low, high)), course))
    span, word, (first, last), course = max(spans, key=lambda entry: entry[0])
    if span == 0:
        return f"No share changes with {axis} (pooled over the other parameters)."
    (low, high), (lower, higher) = course[first].interval, course[last].interval
    apart = high < lower or higher < low
    verdict = "the intervals do not overlap" if apart else "the intervals overlap, so the change may be chance"
    ends = " and ".join(f"{course[place]} at {over.labels[place]}" for place in (first, last))
    return f"With {axis}, the share of “{word}” changes most: {ends}; {verdict}."


def ranges(shares: xr.Dataset) -> list[tuple[str, str]]:
    """Return every parameter with its values, or their range."""
    facts = []
    for axis in map(str, shares.total.dims):
        over = parameter_of(shares, axis)
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
    by_word = {word: over.sel({kind_of(over): word}) for word in words}
    ends = "; ".join(
        f"{word} {number(one.fraction[0].item())} at first and {number(one.fraction[-1].item())} at last"
        for word, one in by_word.items()
    )
    joined = "" if along.words else "; lines join the points that were run"
    return Figure(
        "shares",
        f"How often does each outcome occur along {along.name}?",
        f"The share of systems that ended in each way, with its 95 % Wilson interval{joined}.",
        OutcomeCurves(along, [_shares(word, one, (along,)) for word, one in by_word.items()]),
        first_rows("Shares with 95 % intervals", (along.name, *_COLUMNS), _rows(by_word, along)),
        title=f"Share of each outcome over {along.name}",
        description=f"Shares of systems: {ends}. The table below holds every value drawn.",
    )


def _shares(word: str, one: xr.Dataset, axes: Sequence[Parameter]) -> Shares:
    """Return the shares of one outcome with what is shown of each point on hover."""
    texts = []
    for place in np.ndindex(one.total.shape):
        where = ", ".join(f"{axis.name} = {axis.labels[at]}" for axis, at in zip(axes, place, strict=True))
        share = SystemShare(int(one["count"][place]), int(one.total[place]))
        counted = f"{word} {share.count} of {share.total}{': ' if len(axes) > 1 else ', '}{share}"
        texts.append(f"{where}: {counted if share.total else share}")
    return Shares(word, one.fraction.values, one.low.values, one.high.values, texts)


def _rows(by_word: Mapping[str, xr.Dataset], along: Parameter) -> list:
    names = ("fraction", "low", "high")
    return [
        cells(
            [value_of(along, place), word, int(one["count"][place]), int(one.total[place])]
            + [one[name][place].item() for name in names]
        )
        for place in range(len(along.values))
        for word, one in by_word.items()
    ]


MOST_WORDS = 6
"""Words that have a diagram."""

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
    one = over.sel({kind_of(over): word})
    drawn = OutcomeMap(across, up, _shares(word, one, (across, up)))
    rows = []
    for x, y in np.ndindex(len(across.values), len(up.values)):
        numbers = (one[name][x, y].item() for name in ("fraction", "low", "high"))
        values = (value_of(across, x), value_of(up, y), int(one["count"][x, y]), int(one.total[x, y]))
        rows.append(cells([*values, *numbers]))
    columns = (across.name, up.name, word, "Systems", "Share", "Low", "High")
    fraction = one.fraction.values
    best = np.unravel_index(np.nanargmax(fraction), fraction.shape)
    worst = np.unravel_index(np.nanargmin(fraction), fraction.shape)
    ends = (
        f"{100 * fraction[place]:.3g} % at {across.name} = {across.labels[place[0]]}, {up.name} = {up.labels[place[1]]}"
        for place in (best, worst)
    )
    highest, lowest = ends
    return Figure(
        f"share-of-{word.replace(' ', '-')}",
        f"Where do systems end as “{word}”?",
        _CAPTION.format(word=word) + (_BORDER if drawn.borders else ""),
        drawn,
        first_rows(f"Systems that ended as “{word}”, with 95 % intervals", columns, rows),
        title=f"Share of “{word}” over {across.name} and {up.name}",
        description=f"The share of “{word}” is highest, {highest}, and lowest, {lowest}. "
        "The table below holds every cell.",
        label=word,
    )


@page_of.register(SweepResult)
def sweep_page(result: SweepResult) -> str:
    """Return the whole page as HTML that needs nothing else; all text that came from a user is escaped.

    Args:
        result: What is shown; nothing is measured here.
    """
    run = int(result.status.total.sum())
    missing = [] if run == result.systems else [f"Of {count(result.systems)} systems {count(run)} were run so far."]
    sentences = missing + (findings(result.shares, result.status, result.again) if run else [])
    return render(
        "sweep.html.jinja",
        title=f"{result.title}: how often does each outcome occur?",
        sections=_sections(result) if run else [],
        conventions=conventions("wilson", "along", "changes_most", "undecided"),
        manifest={name: shortened(value) for name, value in result.manifest.items()},
        files=result.files,
        name=result.title,
        shape=result.shape,
        facts=[*ranges(result.shares), *result.facts],
        findings=sentences,
    )


def _sections(result: SweepResult) -> list[Section]:
    shown = diagrams(result.shares)
    further = [str(axis) for axis in result.shares.total.dims if result.shares.sizes[axis] > 1][2:]
    notes = [f"Systems of all values of {' and of '.join(further)} are counted together here."] if further else []
    many = len(shown) > 1
    parts = {"variants" if many else "figures": tuple(shown), "notes": (*notes, *result.notes)}
    sections = [Section("where", "Where does each outcome occur?", **parts)] if shown else []
    tables = [result.status] if kind_of(result.shares) == "status" else [result.shares, result.status]
    return [*sections, Section("ends", "How did the runs end?", tables=tuple(map(_page_table, tables)))]


def _page_table(shares: xr.Dataset) -> Table:
    rows = []
    for word in words_of(shares):
        share = together(shares, word)
        rows.append(cells([word, share.count, share.count / share.total, *share.interval]))
    kind = kind_of(shares).capitalize()
    return Table(f"{kind} of all systems, with 95 % intervals", (kind, "Systems", "Share", "Low", "High"), tuple(rows))
