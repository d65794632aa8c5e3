"""A sweep in sentences: how often each outcome occurred, where systems agree, which parameter changes the shares."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tokendynamics.figures.parameter import parameter
from tokendynamics.report.sweep._shares import SystemShare, along, kind_of, together, words_of
from tokendynamics.words import count, number, percent, plural

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
