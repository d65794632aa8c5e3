"""What a comparison says of feed-forward weights: in which layers they differ, and what has no partner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from tokendynamics.diagnosis._compared_words import MOST_NAMED, WEIGHTS_DIFFER
from tokendynamics.words import Finding, ranges


def feed_forward_finding(names: tuple[str, str], weights: xr.Dataset, why: str, unmatched: Sequence[str]) -> Finding:
    """Say in which layers the matrices of the feed-forward parts differ.

    Args:
        names: Of the first network and the other one.
        weights: From `feed_forward_differences`, of the other one.
        why: Why some layers or all were not compared.
        unmatched: Matrices without a partner.
    """
    sizes, layers = weights.ff_difference.values, weights.layer.values
    known = ~np.isnan(sizes)
    lonely = _lonely(unmatched)
    if not known.any():
        reason = why or "none has a partner of its name and shape"
        text = f"The feed-forward weights of {names[1]} and {names[0]} are not compared: {reason}."
        return Finding(text, "weights", {"why": reason})
    rest = f" In some layers they are not compared: {why}." * bool(why) + lonely
    differing = layers[np.nan_to_num(sizes, nan=0.0) > WEIGHTS_DIFFER]
    values = {"layers": differing.tolist(), "ff": sizes.tolist(), "unmatched": list(unmatched)}
    if not len(differing):
        what = "that have a partner " * bool(lonely)
        text = f"The feed-forward matrices {what}of {names[1]} are those of {names[0]} in all layers that are compared."
        return Finding(text + rest, "weights", values)
    every = len(differing) == known.sum() > 1
    where = "in every layer" if every else f"in layer{'s' * (len(differing) > 1)} {ranges(differing)} alone"
    at = int(np.nanargmax(sizes))
    angle = float(weights.ff_angle.values[at])
    text = (
        f"The feed-forward matrices of {names[1]} differ from those of {names[0]} {where}, most in layer {layers[at]}: "
        f"by {sizes[at]:.2g} of their norm, with {angle:.2g}° between their leading directions."
    )
    return Finding(text + rest, "weights", values)


def _lonely(unmatched: Sequence[str]) -> str:
    if not unmatched:
        return ""
    more = f" and {len(unmatched) - MOST_NAMED} more" if len(unmatched) > MOST_NAMED else ""
    return f" Without a partner of its name and shape: {', '.join(unmatched[:MOST_NAMED])}{more}."
