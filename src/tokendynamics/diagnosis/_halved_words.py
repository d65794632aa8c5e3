"""Sentence of a comparison on halved parts: where the losses of two networks change differently, if significantly."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis._first_difference import ROUNDINGS
from tokendynamics.diagnosis.figure_names import PART_NAMES
from tokendynamics.diagnosis.halved_parts import HalvedParts
from tokendynamics.diagnosis.prompt_shares import CONFIDENCE
from tokendynamics.words import Finding, number, percent, plural, signed


def halved_finding(names: tuple[str, str], halved: HalvedParts, place: int, eps: float) -> Finding:
    """Name the part whose halving changes the two losses most differently, if significant and above rounding.

    Args:
        names: Of the first network and the other one.
        halved: From `halved_parts`.
        place: Index of the other one.
        eps: Of the coarser of their dtypes.
    """
    pair = halved.table.isel(other=place)
    why = _why_not(names, halved, place)
    if why:
        text = f"The effect of halving parts was not compared between {names[1]} and {names[0]} because {why}."
        return Finding(text, "halved", {"why": why})
    gaps = pair.difference.values
    least = ROUNDINGS * eps * max(1.0, float(halved.table.loss.isel(model=[0, place + 1]).max()))
    if not np.nanmax(np.abs(gaps)) > least:
        how = "to the last bit" if not np.nanmax(np.abs(gaps)) else "except for rounding"
        text = f"Halving one part changes the loss of {names[1]} and {names[0]} equally, {how}."
        return Finding(text, "halved", {"parts": []})
    low, high = (pair.difference_surely.sel(bound=bound).values for bound in ("low", "high"))
    significant = ((low > 0) | (high < 0)) & (np.abs(gaps) > least)
    if not significant.any():
        return _not_significant(names, pair, bool(np.isnan(low).all()))
    size = np.where(np.isnan(gaps), -1.0, np.abs(gaps))
    at = np.unravel_index(np.argmax(np.where(significant, size, -1.0)), gaps.shape)
    among = "" if size[at] == size.max() else ", among significant differences,"
    changes = halved.table.loss_change.mean("prompt").values
    its_layer = int(pair.other_layer[at[0]])
    first, other = changes[0][at], changes[place + 1][its_layer - 1, at[1]]
    known = int((~np.isnan(gaps)).sum())
    text = (
        f"Halving one part changes the loss of {names[1]} and {names[0]} most differently{among} for "
        f"{_part(pair, at)}: by {signed(other, 2)} and {signed(first, 2)} nats. The difference is "
        f"{signed(gaps[at], 2)} ({_interval(low[at], high[at])}); it is significant for {int(significant.sum())} of "
        f"{plural(known, 'part')}."
    )
    values = _values(pair, at) | {"parts": int(significant.sum()), "interval": [float(low[at]), float(high[at])]}
    return Finding(text, "halved", values)


def _why_not(names: tuple[str, str], halved: HalvedParts, place: int) -> str:
    reasons = [halved.unknown[0], halved.unknown[place + 1]]
    if reasons[0] and reasons[0] == reasons[1]:
        return f"neither has a known loss ({reasons[0]})"
    unknown = [f"the loss of {name} is unknown ({why})" for name, why in zip(names, reasons, strict=True) if why]
    return "; ".join(unknown) or halved.unpaired[place]


def _not_significant(names: tuple[str, str], pair: xr.Dataset, without: bool) -> Finding:
    gaps = pair.difference.values
    at = np.unravel_index(np.nanargmax(np.abs(gaps)), gaps.shape)
    gap = f"{signed(gaps[at], 2)} nats, for {_part(pair, at)}"
    if without:
        text = (
            f"Whether halving one part changes the loss of {names[1]} and {names[0]} differently is unknown: there are "
            f"too few texts for a confidence interval. The largest difference is {gap}."
        )
    else:
        text = (
            f"Halving one part changes the loss of {names[1]} and {names[0]} without significant differences. The "
            f"largest is {gap} ({_interval(*pair.difference_surely.values[at])})."
        )
    return Finding(text, "halved", _values(pair, at) | {"parts": 0})


def _interval(low: float, high: float) -> str:
    """Write an interval that holds for all parts at once, with significant digits rather than decimal places."""
    return f"{percent(CONFIDENCE)} simultaneous CI {number(low, 2)} to {number(high, 2)}"


def _part(pair: xr.Dataset, at: Any) -> str:
    layer, its_layer = int(pair.layer[at[0]]), int(pair.other_layer[at[0]])
    instead = f" (layer {its_layer} in the other)" if its_layer != layer else ""
    return f"the {PART_NAMES[str(pair.part.values[at[1]])]} of layer {layer}{instead}"


def _values(pair: xr.Dataset, at: Any) -> dict[str, Any]:
    layer, part = int(pair.layer[at[0]]), str(pair.part.values[at[1]])
    return {"layer": layer, "part": part, "difference": float(pair.difference.values[at])}


def halved_convention() -> tuple[str, str, str]:
    """Return name, choice and alternative of the convention."""
    return (
        "Halved parts",
        "the update of one part times 0.5, before the norm in post-norm blocks, one part at a time; change of the mean "
        f"cross-entropy of the next token; {percent(CONFIDENCE)} intervals over texts, in the sentence simultaneous "
        "for all parts",
        "at 0, parts that stabilise others stand out more; separate intervals miss one part in ten",
    )
