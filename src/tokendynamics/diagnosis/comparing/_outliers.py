"""Which stored tensors, and which heads, of two networks differ unlike the others, by more than chance."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float64

from tokendynamics.diagnosis.comparing._weights import CIRCUITS, WEIGHTS_DIFFER

TIMES_OTHERS = 5.0
"""A tensor stands out if it differs by this many times the median over the same tensor of the other layers, plus as
many median deviations."""

FALSE_ALARMS = 1e-3
"""Share of comparisons in which noise on all weights alone makes some tensor or head stand out."""

_WAYS = 4
"""Ways of standing out: a tensor's scale from those of all tensors or of its name, its noise, a head's scale."""

_MUCH_MORE = 2.0
"""How many times more noise tensors of several layers have where that is no variation: integers of SmolLM2 give 1.2."""

_UNLIKE = 3.0
"""Standard errors by which a scale that differs from those of all tensors also differs from those of its name."""

_ROUNDING = 1e-7
"""Standard error below which no scale of numbers in single precision is known."""

_TO_DEVIATION = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""

_MOST, _QUANTILE = 0.7, 1.0364
"""Share of all scales that show how much scales vary, and that quantile of |z| for normal z: matrices, a third or more
of the tensors of a block, may have another scale than the rest."""

_OF_MEDIAN = np.pi / 2
"""Variance of a median of normal values over that of their mean."""

_ENOUGH = 7
"""Scales of one name, or heads of one layer, that show how much these vary; of fewer, all together do."""

_WIDER = 2.0
"""How many times more than by noise the scales of one name vary where that is no chance."""

STORED = 1e-5
"""Relative difference from which a tensor differs by more than rounding in single precision."""

NEIGHBOURS = 3
"""Layers on either side whose parts of the same kind a part is compared with."""


def outlying_from(others: Any, times: float) -> Any:
    """Return from where values stand out: a number of times the median of others, plus as many median deviations.

    Args:
        others: Over the first axis; NaN does not count.
        times: Of the median, and of the median absolute deviation.

    >>> float(outlying_from([1.0, 1.1, 0.9], 5.0)), float(outlying_from([1.0, 1.0, 9.0], 2.0))
    (5.0, 2.0)
    """
    others = np.asarray(others)
    median = _median(others)
    return np.maximum(times * median, median + times * _median(np.abs(others - median)))


def from_chance(count: int) -> float:
    """Return from how many standard errors a scale stands out among a number of scales, at the rate `FALSE_ALARMS`.

    >>> round(from_chance(1), 2), round(from_chance(1000), 2)
    (3.66, 5.16)
    """
    from scipy.special import ndtri

    return -float(ndtri(FALSE_ALARMS / (2 * _WAYS * max(count, 1))))


def beyond_noise(deviations: Float64[np.ndarray, "place kind"]) -> Float64[np.ndarray, "place kind"]:
    """Return deviations in standard errors, relative to how many of these they vary by where that is more than one.

    Noise varies them by one. Training varies them by more, and those of one kind by more than those of another.

    Args:
        deviations: Absolute values; NaN for what does not count.

    >>> beyond_noise(np.array([[0.5], [0.7], [0.9], [1.1], [9.0]])).ravel().round(1).tolist()
    [0.5, 0.7, 0.9, 1.1, 8.8]
    """
    counted = np.isfinite(deviations)
    if not counted.any():
        return deviations
    together = max(1.0, float(np.quantile(deviations[counted], _MOST)) / _QUANTILE)
    by_kind = [
        _TO_DEVIATION * float(np.median(kind[known])) if known.sum() >= _ENOUGH else 0.0
        for kind, known in zip(deviations.T, counted.T, strict=True)
    ]
    return deviations / np.array([max(together, wide if wide > _WIDER else 1.0) for wide in by_kind])


def with_median_of(others: Any) -> Any:
    """Return the standard error of a value less the median of a number of others, relative to that of one value.

    >>> round(float(with_median_of(1e9)), 2), round(float(with_median_of(3)), 2)
    (1.0, 1.23)
    """
    return (1 + _OF_MEDIAN / np.maximum(others, 1)) ** 0.5


def standing_out(table: xr.Dataset) -> list[tuple[int, int]]:
    """Return layer and tensor, from 0, of those that differ unlike the tensors of their name in other layers.

    They differ by more, by another scale, or by more noise. Noise of relative size d changes the scale of n elements
    only by d/√n, so that a scale shows a small factor beneath noise that is as large.

    Args:
        table: See `TensorDifferences.table`.
    """
    differences = table.tensor_difference.values
    unlike = (scales_standing_out(table) != 0) | _noise_standing_out(table)
    with warnings.catch_warnings(
        action="ignore", category=RuntimeWarning
    ):  # of names in one layer alone: nothing to compare with
        for layer, of_layer in enumerate(differences):
            unlike[layer] |= of_layer >= outlying_from(np.delete(differences, layer, axis=0), TIMES_OTHERS)
    return [(int(layer), int(place)) for layer, place in np.argwhere(unlike & (differences > STORED))]


def final_norm_stands_out(table: xr.Dataset, last: xr.Dataset | None, norms: Sequence[str]) -> bool:
    """Return whether the norm after the last block differs unlike all tensors and unlike the norms of the blocks.

    Args:
        table: See `TensorDifferences.table`.
        last: Likewise of that norm; None without one.
        norms: Modules of the norms of a block.
    """
    if last is None:
        return False
    depth, names = table.sizes["layer"], table.tensor.values.astype(str).tolist()
    for name in last.tensor.values:
        alike = [inner for inner in names if inner in {f"{norm}.{name}" for norm in norms}]
        difference, others = (
            last.tensor_difference.sel(tensor=name).item(),
            table.tensor_difference.sel(tensor=alike).values,
        )
        others = others[np.isfinite(others)]
        if difference <= STORED or not len(others):
            continue
        row = last.sel(tensor=[name]).assign_coords(tensor=alike[:1], layer=[depth + 1])
        extended = xr.concat([table, row.reindex(tensor=names)], dim="layer")
        unlike = _unlike_scales(extended)[0] | _noise_standing_out(extended)
        if unlike[depth, names.index(alike[0])] or difference >= outlying_from(others, TIMES_OTHERS):
            return True
    return False


def scales_standing_out(table: xr.Dataset) -> Float64[np.ndarray, "layer tensor"]:
    """Return the logarithm of each scale, relative to those it is compared with, where it stands out; elsewhere 0.

    A scale is compared with the common scale of all tensors, which is known best. Where the tensors of a name have a
    scale of their own, as after weight decay, scales vary widely about the common one, and those of the name count.

    Args:
        table: See `TensorDifferences.table`.
    """
    of_all, of_name, logarithms = _unlike_scales(table)
    return np.where(of_all | of_name, logarithms, 0.0)


def _unlike_scales(table: xr.Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return which scales stand out from all and which from those of their name, and `scales_standing_out` of each."""
    differences, scales, errors = (table[f"tensor_{name}"].values for name in ("difference", "scale", "scale_error"))
    if len(scales) < 2 or not np.isfinite(scales).any():
        none = np.zeros(scales.shape, dtype=bool)
        return none, none, np.zeros(scales.shape)
    # The median of scales, weighted by how well each is known.
    known = np.isfinite(scales) & (errors > 0)
    values, weights = scales[known], 1 / errors[known]
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    common = float(values[order][np.searchsorted(reached, reached[-1] / 2)]) if len(values) else 1.0
    with warnings.catch_warnings(
        action="ignore", category=RuntimeWarning
    ):  # medians without a value, and errors of zero
        usual, noise = (
            np.stack([_median(np.delete(values, layer, axis=0)) for layer in range(len(scales))])
            for values in (scales, errors)
        )
        noise = np.where(differences > STORED, np.fmax(errors, noise).clip(_ROUNDING), np.nan)
        from_name = np.abs(scales - usual) / noise / with_median_of(np.isfinite(scales).sum(axis=0) - 1)
        from_all = beyond_noise(np.abs(scales - common) / noise)
        limit = from_chance(int(np.isfinite(noise).sum()))
        of_all = (from_all >= limit) & (from_name >= _UNLIKE)
        ratios = scales / np.where(of_all, common, usual)
        return of_all, beyond_noise(from_name) >= limit, np.log(np.abs(ratios).clip(STORED))


def _noise_standing_out(table: xr.Dataset) -> Bool[np.ndarray, "layer tensor"]:
    """Return which tensors differ by more noise than those of their name, where all others differ by noise of one size.

    Noise on all weights that is in proportion to each tensor has a size that n elements show up to 1/√(2n), so that one
    tensor with more of it stands out far below `TIMES_OTHERS`. Sizes that vary by more than that are no such noise, and
    show nothing; those of several layers only from `_MUCH_MORE` on. Noise of one absolute size is more, relatively,
    where a tensor is smaller: both sizes have to be more.
    """
    noise, errors, sizes = (table[name].values for name in ("tensor_noise", "tensor_noise_error", "tensor_size"))
    known = (table.tensor_difference.values > STORED) & (noise > 0) & np.isfinite(errors)
    if len(noise) <= 2 or not known.any():
        return np.zeros(noise.shape, dtype=bool)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # medians without a value
        deviations, ratios = [], np.full(noise.shape, np.inf)
        for sized in (noise, noise * sizes):
            logarithms = np.log(np.where(known, sized, np.nan))
            usual, error = (
                np.stack([_median(np.delete(values, layer, axis=0)) for layer in range(len(values))])
                for values in (logarithms, np.where(known, errors, np.nan))
            )
            deviations.append((logarithms - usual) / error / with_median_of(known.sum(axis=0) - 1))
            ratios = np.fmin(ratios, logarithms - usual)
    relative = deviations[0]
    compared = np.isfinite(relative)
    if not compared.any() or float(np.quantile(np.abs(relative[compared]), _MOST)) > _WIDER * _QUANTILE:
        return np.zeros(noise.shape, dtype=bool)
    more = beyond_noise(np.minimum(*deviations)) >= from_chance(int(compared.sum()))
    if more.any(axis=1).sum() > 1:  # sizes vary, as rounding errors do with the largest elements of a tensor
        more &= ratios >= np.log(_MUCH_MORE)
    # Factors of a gain that went into the columns of the next matrix, or back, are no noise.
    channels = table.tensor_channels.values
    return more & ~(np.isnan(channels) & (channels == 1).any(axis=1, keepdims=True))


def _median(values: np.ndarray) -> Any:
    """Return medians over the first axis, without NaN."""
    return np.median(values, axis=0) if np.isfinite(values).all() else np.nanmedian(values, axis=0)


def heads_standing_out(weights: xr.Dataset, layer: int) -> tuple[int, ...]:
    """Return the heads of a layer of which one product differs unlike those of the heads in and around it.

    They differ by more than those of `NEIGHBOURS` layers, or by another scale than the heads of their layer.

    Args:
        weights: From `weight_differences`, of one network.
        layer: From 1.
    """
    row = weights.layer.values.tolist().index(layer)
    near = slice(max(row - NEIGHBOURS, 0), row + NEIGHBOURS + 1)
    heads: set[int] = set()
    for name in CIRCUITS:
        differences, scales, errors = (
            weights[f"head_{name}_{kind}"].values for kind in ("difference", "scale", "scale_error")
        )
        different = differences > WEIGHTS_DIFFER
        scaled = _scales_of_heads(scales, np.where(different, errors, np.nan))[row]
        for head in np.flatnonzero(different[row]).tolist():
            others = np.delete(differences[near].ravel(), (row - near.start) * weights.sizes["head"] + head)
            others = others[np.isfinite(others)]
            if not len(others):
                continue
            if scaled[head] or differences[row, head] >= outlying_from(others, TIMES_OTHERS):
                heads.add(head)
    return tuple(sorted(heads))


def _scales_of_heads(scales: np.ndarray, errors: np.ndarray) -> Bool[np.ndarray, "layer head"]:
    """Return which heads differ by another scale than the others of their layer, by more than chance."""
    limit = from_chance(len(CIRCUITS) * int(np.isfinite(errors).sum()))
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # layers without heads, and errors of zero
        # What scales all heads of a layer, such as its norm, is the matter of no single head.
        usual = np.nanmedian(scales, axis=1, keepdims=True)
        others = np.isfinite(scales).sum(axis=1, keepdims=True) - 1
        # Noise of the gain that all share moves a scale by up to as much as noise of a head's factors.
        deviations = np.abs(scales - usual) / (2**0.5 * errors) / with_median_of(others)
        deviations = beyond_noise(deviations.T).T
    return deviations >= limit
