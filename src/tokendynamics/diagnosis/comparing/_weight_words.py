"""Sentences of a comparison on weights: products of the attention, feed-forward matrices, stored tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr
from jaxtyping import Bool

from tokendynamics.diagnosis.comparing._outliers import STORED, TIMES_OTHERS
from tokendynamics.diagnosis.comparing._tensors import TensorDifferences
from tokendynamics.diagnosis.comparing._weights import WEIGHTS_DIFFER
from tokendynamics.words import Finding, factor, in_layers, listing, number, plural

MOST_NAMED = 6
"""Parts, tensors or texts that are named; the others are counted."""

_ANGLE_ROUNDING = 1e-3
"""Degrees between directions up to which they differ by rounding: weights in single precision turn them by 1e-5."""

_COMPUTED = 1e-12
"""Relative difference up to which products and folded matrices, which are computed in float64, are equal."""

_SCALE_ZERO = 1e-12
"""A scale this small is rounding: nothing is left."""

_SCALE_NAMED = 0.005
"""Relative change of a product's scale from which it is named."""

_SCALE_REST = 0.05
"""Largest square of what a factor leaves, relative to that of the product, at which the size is that of the product."""

_SCALE_ROUNDING = 1e-6
"""Square of a difference, relative to the matrix, that is rounding."""

_TENSORS_NAMED = 4
"""Tensors that are named; the others are counted."""


def weights_finding(names: tuple[str, str], weights: xr.Dataset, why: str) -> Finding:
    """Say in which layers the attention's products differ.

    Args:
        names: Of the first network and the other one.
        weights: From `weight_differences`, of the other one.
        why: What was not compared, and why.
    """
    if bool(weights.ov_difference.isnull().all() and weights.qk_difference.isnull().all()):
        return not_compared("The attention weights", names, why)
    layers = weights.layer.values
    largest = {name: weights[f"{name}_difference"].values for name in ("ov", "qk")}
    either = np.fmax(largest["ov"], largest["qk"])
    differing = layers[np.nan_to_num(either, nan=0.0) > WEIGHTS_DIFFER]
    known = ~np.isnan(either)
    some = f" Some layers were not compared{because(why)}." if why else ""
    values = {"layers": differing.tolist(), **{name: sizes.tolist() for name, sizes in largest.items()}}
    if not len(differing):
        but = _but_for(float(np.nanmax(either)), _COMPUTED)
        text = f"The QK and OV products of {names[1]} and {names[0]} are equal in all compared layers{but}."
        return Finding(text + some, "weights", values)
    most = {name: int(np.nanargmax(sizes)) for name, sizes in largest.items() if np.nanmax(sizes) > WEIGHTS_DIFFER}
    parts = [
        f"{name.upper()} in layer {layers[at]} (by {of_norm(float(largest[name][at]))})" for name, at in most.items()
    ]
    which = " and ".join(name.upper() for name in ("qk", "ov") if name in most)
    text = (
        f"The {which} products of {names[1]} and {names[0]} differ {where_differing(differing, known)}, most for "
        f"{listing(parts)}."
    )
    return Finding(text + some, "weights", values)


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
        return not_compared("The feed-forward weights", names, reason)
    rest = f" Some layers were not compared{because(why)}." * bool(why) + without_partner(unmatched)
    differing = layers[np.nan_to_num(sizes, nan=0.0) > WEIGHTS_DIFFER]
    values = {"layers": differing.tolist(), "ff": sizes.tolist(), "unmatched": list(unmatched)}
    subject = f"The feed-forward matrices {_whose(names, unmatched)}"
    if not len(differing):
        text = f"{subject} are equal in all compared layers{_but_for(float(np.nanmax(sizes)), _COMPUTED)}."
        return Finding(text + rest, "weights", values)
    at = int(np.nanargmax(sizes))
    angle = float(weights.ff_angle.values[at])
    most = f", most in layer {layers[at]}" if len(differing) > 1 else ""
    turned = f", with {number(angle if angle > _ANGLE_ROUNDING else 0.0, 2)}° between their leading directions"
    text = (
        f"{subject} differ {where_differing(differing, known)}{most}: by {of_norm(sizes[at], 'their')}"
        f"{'' if np.isnan(angle) else turned}."
    )
    return Finding(text + rest, "weights", values)


def _but_for(largest: float, rounding: float = 0.0) -> str:
    """Return the end of a sentence that calls weights equal; empty where no difference is larger than rounding."""
    return f", but for at most {of_norm(largest, 'their')}" if largest > rounding else ""


def _whose(names: tuple[str, str], unmatched: Sequence[str]) -> str:
    """Return whose weights are compared: those of two networks, or those that both have where some are in one only."""
    return f"that both {names[1]} and {names[0]} have" if unmatched else f"of {names[1]} and {names[0]}"


def not_compared(what: str, names: tuple[str, str], why: str) -> Finding:
    """Say that weights were not compared, and why.

    Args:
        what: "The attention weights" and the like.
        names: Of the first network and the other one.
        why: See `because`.
    """
    return Finding(f"{what} of {names[1]} and {names[0]} were not compared{because(why)}.", "weights", {"why": why})


def because(why: str) -> str:
    """Return a reason as the end of a sentence; in brackets where it names a layer first, and empty for none.

    Args:
        why: Such as "their widths differ" or "layer 2: its factors are unknown".

    >>> because("their widths differ"), because("layer 2: its factors are unknown"), because("")
    (' because their widths differ', ' (layer 2: its factors are unknown)', '')
    """
    return f" ({why})" if ": " in why else f" because {why}" if why else ""


def where_differing(layers: Sequence[int] | np.ndarray, compared: Bool[np.ndarray, " layer"]) -> str:
    """Return in which of the compared layers something differs.

    Args:
        layers: Those in which it differs, from 1.
        compared: Which of all layers were compared.

    >>> where_differing([2, 3], np.array([True, True, True]))
    'only in layers 2–3'
    >>> where_differing([1, 3], np.array([True, False, True])), where_differing([1, 2], np.array([True, True]))
    ('in every compared layer', 'in every layer')
    >>> where_differing([1], np.array([True]))
    'in the only layer'
    """
    if len(layers) == compared.sum() and (len(layers) > 1 or len(compared) == 1):
        every = "the only" if len(compared) == 1 else "every"
        return f"in {every} layer" if compared.all() else f"in {every} compared layer"
    return f"{'' if compared.all() else 'among the compared layers '}only in {in_layers(layers)}"


def without_partner(names: Sequence[str]) -> str:
    """Return a sentence on matrices or tensors that only one of two networks has; empty for none.

    Args:
        names: Of these tensors.
    """
    return f" Not in both networks with one name and shape: {listing(names, most=MOST_NAMED)}." if names else ""


def tensors_finding(names: tuple[str, str], compared: TensorDifferences) -> Finding:
    """Say which stored tensors differ and, if all layers differ, which unlike those of other layers.

    Args:
        names: Of the first network and the other one.
        compared: From `tensor_differences`.
    """
    if compared.why:
        text = f"The stored tensors of {names[1]} and {names[0]} were not compared because {compared.why}."
        return Finding(text, "weights", {"why": compared.why})
    values = compared.table.tensor_difference.values
    tensors, layers = compared.table.tensor.values.astype(str), compared.table.layer.values
    differing = np.nan_to_num(values, nan=0.0) > STORED
    rest = _rewritten(compared) + without_partner(compared.unmatched) + _packed(compared.codes)
    known = np.isfinite(values).any(axis=1)
    if not differing.any():
        vectors = ", including biases and norms" if compared.vectors else ""
        complete = not compared.unmatched and bool(known.all())
        whose = f"of the blocks {_whose(names, ())}" if complete else f"in the blocks of both {names[1]} and {names[0]}"
        subject = f"{'all' if complete else 'the'} stored tensors {whose}"
        but = _but_for(float(np.nan_to_num(values).max(initial=0.0)))
        text = f"{_apart_from(compared.codes, subject)} are equal{vectors}{but}."
        return Finding(text + rest + _outside(compared), "weights", {"tensors": []})
    outliers = compared.outliers
    changed = layers[differing.any(axis=1)]
    everywhere = bool(differing.any(axis=1)[known].all()) and int(known.sum()) > 1
    named = outliers or ([] if everywhere else [(int(row), int(place)) for row, place in np.argwhere(differing)])
    scales = compared.table.tensor_scale.values
    # Each tensor with its layers, its largest difference and scale, in decreasing order. Of one that is zero in the
    # first network, in these layers, no norm of its own gives the size.
    first = names[0]
    places = sorted({place for _, place in named}, key=lambda place: -max(values[at] for at in named if at[1] == place))
    parts = []
    for place in places[:_TENSORS_NAMED]:
        rows = [row for row, column in named if column == place]
        kind = " (a bias or norm)" if tensors[place] in compared.vectors else ""
        largest = max(values[row, place] for row in rows)
        size = f"by {'up to ' * (len(rows) > 1)}{of_norm(largest)}"
        if np.isnan(scales[rows, place]).all():
            size = f"where it is zero in {first}"
        elif len(rows) == 1:
            size += scale_in_words(scales[rows[0], place], largest)
        parts.append(f"{tensors[place]}{kind} in {in_layers(layers[rows].tolist())}, {size}")
    more = f"; and {plural(len(places) - _TENSORS_NAMED, 'more tensor')}" if len(places) > _TENSORS_NAMED else ""
    words = "; ".join(parts) + more
    subject = _apart_from(compared.codes, f"stored tensors {_whose(names, compared.unmatched)}")
    subject = f"{subject} differ {where_differing(changed, known)}"
    if named and everywhere:
        text = f"{subject}. Unlike those of other layers: {words}."
    elif named:
        text = f"{subject}: {words}."
    else:
        median = of_norm(float(np.median(values[differing])), "their")
        text = f"{subject}, by {median} in the median; none differs unlike those of other layers."
    rest += _outside(compared, TIMES_OTHERS * float(np.median(values[differing])) if everywhere else STORED)
    return Finding(text + rest, "weights", {"tensors": [f"{layers[layer]} {tensors[place]}" for layer, place in named]})


def _apart_from(codes: Sequence[str], subject: str) -> str:
    """Return the beginning of a sentence on stored tensors, which excludes packed weights that differ."""
    return f"Apart from packed weights, {subject}" if codes else subject[0].upper() + subject[1:]


def _packed(codes: Sequence[str]) -> str:
    """Return a sentence on tensors of integers that differ; empty for none."""
    return f" Packed weights (integers) that differ: {listing(codes, most=MOST_NAMED)}." if codes else ""


def _rewritten(compared: TensorDifferences) -> str:
    """Return a sentence on parts that are stored in another order, basis or scale; empty for none."""
    if not compared.rewritten:
        return ""
    parts = [f"the {part} in {in_layers(list(layers))}" for part, layers in compared.rewritten.items()]
    most = max(size for layers in compared.rewritten.values() for size in layers.values())
    return (
        f" The matrices of {listing(parts)} differ mainly in the order, basis or scale in which they are stored: what "
        f"they compute differs by at most {of_norm(most)}."
    )


def _outside(compared: TensorDifferences, least: float = STORED) -> str:
    """Return a sentence on tensors outside the blocks that differ, the largest difference first; empty for none.

    Args:
        compared: From `tensor_differences`.
        least: From which difference; more where all tensors differ, as with noise.
    """
    differing = sorted(
        ((size, name) for name, size in compared.outside.items() if size > least), key=lambda pair: -pair[0]
    )
    if not differing:
        return ""
    named = listing([f"{name} (by {of_norm(size)})" for size, name in differing], most=MOST_NAMED)
    return f" Outside the blocks, {named} {'differs' if len(differing) == 1 else 'differ'}."


def scale_in_words(scale: float, difference: float) -> str:
    """Say by which factor a matrix was multiplied, where that is a good part of its difference; else nothing.

    Nothing either where what the factor leaves is large beside the product, as between unrelated matrices.

    >>> scale_in_words(0.5, 0.51), scale_in_words(-6.7e-16, 1.0), scale_in_words(0.62, 280.0), scale_in_words(1.0, 0.3)
    (' (0.5× as large)', ' (0× as large)', '', '')
    >>> scale_in_words(0.02, 1.4), scale_in_words(-2.0, 3.0), scale_in_words(float("nan"), 3.0)
    ('', ' (multiplied by −2)', '')
    """
    if np.isnan(scale) or abs(scale - 1) < _SCALE_NAMED or 10 * (scale - 1) ** 2 < difference**2:
        return ""
    if difference**2 - (scale - 1) ** 2 > _SCALE_REST * scale**2 + _SCALE_ROUNDING:
        return ""
    scale = 0.0 if abs(scale) < _SCALE_ZERO else scale
    return f" ({number(scale)}× as large)" if scale >= 0 else f" (multiplied by {number(scale)})"


def of_norm(difference: float, whose: str = "its") -> str:
    """Write a relative difference: as a share of a norm, or as a multiple of it from 1 on.

    Args:
        difference: From 0 on.
        whose: "its" or "their".

    >>> of_norm(0.0123), of_norm(5.0, "their"), of_norm(float("inf"))
    ('0.012 of its norm', '5× their norm', 'more than its norm of 0')
    """
    if np.isinf(difference):
        return f"more than {whose} norm of 0"
    difference = 1.0 if number(difference, 2) == "1" else difference  # 0.9996 reads as 1
    return f"{factor(difference)} {whose} norm" if difference >= 1 else f"{number(difference, 2)} of {whose} norm"
