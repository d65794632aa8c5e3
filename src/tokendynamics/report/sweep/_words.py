"""What is said of a sweep before its diagrams."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tokendynamics.plots._parameter import parameter
from tokendynamics.report.sweep._shares import Share, along, kind_of, percent, together, words_of
from tokendynamics.words import count, number, plural

HORIZON = "reached the horizon"
UNDECIDED = "undecided"


def findings(shares: xr.Dataset, status: xr.Dataset, again: int) -> list[str]:
    """Return sentences on how often each outcome was, where systems agree, and what moves it.

    Args:
        shares: Counts of each outcome over the parameters.
        status: Counts of each status, likewise.
        again: How many systems were tried again.
    """
    said = [_how_often(shares), *_agreement(shares)]
    said += [_moves(shares, str(axis)) for axis in shares.total.dims if shares.sizes[axis] > 1]
    return [*said, *_endings(status, again)]


def _how_often(shares: xr.Dataset) -> str:
    total, words = int(shares.total.sum()), words_of(shares)
    if len(words) == 1:
        low, _ = together(shares, words[0]).interval
        return f"{_all(total)} ended as “{words[0]}” (95 % interval from {percent(low)})."
    counts = [together(shares, word) for word in words]
    ended = [f"“{word}”: {share}" for word, share in zip(words, counts, strict=True)]
    listed = "; ".join(f"{count(share.count)} as {each}" for share, each in zip(counts[1:], ended[1:], strict=True))
    return f"Of {plural(total, 'system')}, {count(counts[0].count)} ended as {ended[0]}; {listed}."


def _all(total: int) -> str:
    return "The one system" if total == 1 else f"All {count(total)} systems"


def _agreement(shares: xr.Dataset) -> list[str]:
    """Say at how many points all systems ended alike, where points have several."""
    totals = shares.total.values.ravel()
    if len(totals) < 2 or totals.max() < 2:
        return []
    largest = shares["count"].max(kind_of(shares)).values.ravel()
    ran = totals > 1
    alike = int((ran & (largest == totals)).sum())
    where = f"{count(int(ran.sum()))} points of the design"
    if alike == ran.sum():
        return [f"At each of the {where} all systems ended alike."]
    if not alike:
        return [f"At none of the {where} did all systems end alike."]
    return [f"At {count(alike)} of the {where} all systems ended alike."]


def _moves(shares: xr.Dataset, axis: str) -> str:
    """Say which outcome's share changes most along one parameter, and whether that is more than chance."""
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
        return f"Along {axis} no share changes, all other parameters counted together."
    apart = _apart(found[first], found[last])
    verdict = "the intervals do not overlap" if apart else "the intervals overlap: that may be chance"
    ends = " and ".join(f"{found[place]} at {over.labels[place]}" for place in (first, last))
    return f"Along {axis} the share of “{word}” changes most: it is {ends}; {verdict}."


def _apart(one: Share, other: Share) -> bool:
    (low, high), (lower, higher) = one.interval, other.interval
    return high < lower or higher < low


def _endings(status: xr.Dataset, again: int) -> list[str]:
    total, words = int(status.total.sum()), words_of(status)
    tried = f"; {plural(again, 'system')} had spent the first budget of steps and ran again, in the stiff engine"
    rest = tried if again else ""
    if words == [HORIZON]:
        return [f"{_all(total)} reached the horizon{rest}."]
    listed = "; ".join(f"{count(together(status, word).count)} “{word}”" for word in words)
    return [f"The runs ended as follows: {listed}{rest}."]


def _values(shares: xr.Dataset, axis: str) -> np.ndarray:
    return shares[axis].values if axis in shares.coords else np.arange(shares.sizes[axis])


def ranges(shares: xr.Dataset) -> list[tuple[str, str]]:
    """Return what varied: each parameter with its values, or where they begin and end."""
    facts = []
    for axis in map(str, shares.total.dims):
        over = parameter(axis, _values(shares, axis))
        labels = over.labels
        few = len(labels) <= 8 or over.words
        text = ", ".join(labels[:20]) if few else f"{labels[0]} to {labels[-1]}, {number(len(labels))} values"
        facts.append((axis, f"{text}{', by equal factors' if over.log and not few else ''}"))
    return facts
