"""Sentence of a comparison on feed-forward weights: in which layers they differ, and which are not in both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from tokendynamics.diagnosis._compared_words import WEIGHTS_DIFFER, because, of_norm, where_differing, without_partner
from tokendynamics.words import Finding, number


def feed_forward_finding(names: tuple[str, str], weights: xr.Dataset, why: str, unmatched: Sequence[str]) -> Finding:
    """Say in which layers the matrices of the feed-forward parts differ.

    Args:
        names: Of the first network and the other one.
        weights: From `feed_forward_differences`, of the other one.
        why: Why some layers or all were not compared.
        unmatched: Matrices that only one of the networks has.
    """
    sizes, layers = weights.ff_difference.values, weights.layer.values
    known = ~np.isnan(sizes)
    if not known.any():
        reason = why or "none is in both networks with one name and shape"
        text = f"The feed-forward weights of {names[1]} and {names[0]} were not compared{because(reason)}."
        return Finding(text, "weights", {"why": reason})
    rest = f" Some layers were not compared{because(why)}." * bool(why) + without_partner(unmatched)
    differing = layers[np.nan_to_num(sizes, nan=0.0) > WEIGHTS_DIFFER]
    values = {"layers": differing.tolist(), "ff": sizes.tolist(), "unmatched": list(unmatched)}
    if not len(differing):
        text = f"The feed-forward matrices of {names[1]} and {names[0]} are equal in all compared layers."
        return Finding(text + rest, "weights", values)
    at = int(np.nanargmax(sizes))
    angle = float(weights.ff_angle.values[at])
    text = (
        f"The feed-forward matrices of {names[1]} and {names[0]} differ "
        f"{where_differing(differing, int(known.sum()))}, most in layer {layers[at]}: by "
        f"{of_norm(sizes[at], 'their')}, with {number(angle, 2)}° between their leading directions."
    )
    return Finding(text + rest, "weights", values)
