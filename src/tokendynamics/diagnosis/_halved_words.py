"""What a comparison says of parts at a half: where the losses of two networks change differently, if that is sure."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from tokendynamics.diagnosis._figure_names import PART_NAMES
from tokendynamics.diagnosis._first_difference import ROUNDINGS
from tokendynamics.diagnosis._halved_parts import HalvedParts
from tokendynamics.diagnosis._prompt_shares import CONFIDENCE
from tokendynamics.words import Finding, plural, signed


def halved_finding(names: tuple[str, str], found: HalvedParts, place: int, eps: float) -> Finding:
    """Name the part whose halving changes the two losses most differently, where that is beyond chance and rounding.

    Args:
        names: Of the first network and the other one.
        found: From `halved_parts`.
        place: Which of the others it is.
        eps: Of the coarser of their dtypes.
    """
    own = found.table.isel(other=place)
    why = _why_not(names, found, place)
    if why:
        text = f"What halving a part does to the loss is not compared between {names[1]} and {names[0]}: {why}."
        return Finding(text, "halved", {"why": why})
    gaps = own.difference.values
    least = ROUNDINGS * eps * max(1.0, float(found.table.loss.isel(model=[0, place + 1]).max()))
    if not np.nanmax(np.abs(gaps)) > least:
        how = "to the last bit" if not np.nanmax(np.abs(gaps)) else "but for rounding"
        text = f"With one part at a half the loss of {names[1]} changes as that of {names[0]} does, {how}."
        return Finding(text, "halved", {"parts": []})
    low, high = (own.difference_surely.sel(bound=bound).values for bound in ("low", "high"))
    sure = ((low > 0) | (high < 0)) & (np.abs(gaps) > least)
    if not sure.any():
        return _nothing_sure(names, own, bool(np.isnan(low).all()))
    size = np.where(np.isnan(gaps), -1.0, np.abs(gaps))
    at = np.unravel_index(np.argmax(np.where(sure, size, -1.0)), gaps.shape)
    most = "most" if size[at] == size.max() else "most, of the parts where that is sure,"
    changes = found.table.loss_change.mean("prompt").values
    its_layer = int(own.other_layer[at[0]])
    first, other = changes[0][at], changes[place + 1][its_layer - 1, at[1]]
    interval, known = f"{signed(low[at], 2)} to {signed(high[at], 2)}", int((~np.isnan(gaps)).sum())
    text = (
        f"With one part at a half the loss of {names[1]} changes {most} unlike that of {names[0]} for "
        f"{_part(own, at)}: by {signed(other, 2)} nats instead of {signed(first, 2)}, a difference of "
        f"{signed(gaps[at], 2)} ({interval}); that is sure of {int(sure.sum())} of {plural(known, 'part')}."
    )
    values = _values(own, at) | {"parts": int(sure.sum()), "interval": [float(low[at]), float(high[at])]}
    return Finding(text, "halved", values)


def _why_not(names: tuple[str, str], found: HalvedParts, place: int) -> str:
    reasons = [found.unknown[0], found.unknown[place + 1]]
    if reasons[0] and reasons[0] == reasons[1]:
        return f"of either, {reasons[0]}"
    each = [f"of {name}, {why}" for name, why in zip(names, reasons, strict=True) if why]
    return "; ".join(each) or found.unpaired[place]


def _nothing_sure(names: tuple[str, str], own: xr.Dataset, without: bool) -> Finding:
    gaps = own.difference.values
    at = np.unravel_index(np.nanargmax(np.abs(gaps)), gaps.shape)
    low, high = own.difference_surely.values[at]
    known = "of too few texts for an interval" if without else f"{signed(low, 2)} to {signed(high, 2)}"
    text = (
        f"With one part at a half the losses of {names[1]} and {names[0]} are not told apart: they differ most for "
        f"{_part(own, at)}, by {signed(gaps[at], 2)} nats ({known})."
    )
    return Finding(text, "halved", _values(own, at) | {"parts": 0})


def _part(own: xr.Dataset, at: Any) -> str:
    layer, its_layer = int(own.layer[at[0]]), int(own.other_layer[at[0]])
    instead = f" (of layer {its_layer} in the other)" if its_layer != layer else ""
    return f"the {PART_NAMES[str(own.part.values[at[1]])]} of layer {layer}{instead}"


def _values(own: xr.Dataset, at: Any) -> dict[str, Any]:
    layer, part = int(own.layer[at[0]]), str(own.part.values[at[1]])
    return {"layer": layer, "part": part, "difference": float(own.difference.values[at])}


def halved_convention() -> tuple[str, str, str]:
    """Return what is done, as name, choice and what would be otherwise."""
    return (
        "Halved parts",
        f"what one part adds times 0.5, before the norm in post-norm blocks, one part at a time; change of the mean "
        f"cross-entropy of the next token; {CONFIDENCE:.0%} intervals over texts, in the sentence of all parts at once",
        "at 0 parts that hold others in place stand out more; each interval by itself leaves out one part in ten",
    )
