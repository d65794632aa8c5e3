"""How far the stored tensors of the blocks of two networks differ, name by name: biases and norms are weights too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float64
from torch import Tensor

from tokendynamics.diagnosis.network import sizes_differ
from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained import Checkpoint
from tokendynamics.provenance.progress import Progress, tracked

TIMES_OTHERS = 5.0
"""A tensor stands out if it differs by this many times the median over the same tensor of the other layers, plus as
many median deviations."""

SCALE_DEVIATIONS = 5.0
"""A tensor also stands out if its scale is this many standard deviations from the median of the others."""

_TO_DEVIATION = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""

_LEAST = float(np.finfo(np.float64).tiny)

_ENOUGH = 6
"""Tensors of other layers from which their scales show how much scales vary; of fewer, those of all names do."""

_SAME_BLOCK = 0.5
"""Median relative difference of its matrices up to which a block is the same one, changed; others differ by 1."""

STORED = 1e-5
"""Relative difference from which a tensor differs by more than rounding in single precision."""


@dataclass(frozen=True)
class TensorDifferences:
    """Differences of the stored tensors of one network's blocks from those of the first.

    Attributes:
        table: Over ``layer`` (from 1) and ``tensor`` (its name in the block): ``tensor_difference``, ‖B − A‖ over ‖A‖,
            or over the median of ‖A‖ over layers where A is zero, and ``tensor_scale``, ⟨B, A⟩/⟨A, A⟩; NaN where either
            has no such tensor of this shape. ``tensor_scale_error``, √Σ((B − sA) A)²/⟨A, A⟩ for a scale s, is its
            standard error if the elements of B − sA are independent noise.
        vectors: Names of the tensors of one axis: biases, and gains and biases of norms.
        unmatched: Names of tensors that only one network has in this shape, in the first layer that has them.
        why: Why nothing was compared; empty otherwise.
    """

    table: xr.Dataset
    vectors: tuple[str, ...]
    unmatched: tuple[str, ...]
    why: str


def tensor_differences(ckpts: Sequence[Checkpoint], report: Progress) -> tuple[TensorDifferences, ...]:
    """Compare every stored tensor of every block with the first network's of the same name.

    Unlike products and folded matrices, they may differ although the network computes the same.

    Args:
        ckpts: The first is what the others are compared with.
        report: Called after each layer.
    """
    found = []
    for other in ckpts[1:]:
        if unlike := sizes_differ(ckpts[0], other, "depths"):
            found.append(_nothing(unlike))
            continue
        try:
            layers = tracked(range(1, other.architecture.layers + 1), report, "comparing the stored tensors")
            found.append(
                block_differences([(ckpts[0].block_tensors(each), other.block_tensors(each)) for each in layers])
            )
        except CheckpointError as error:
            found.append(_nothing(str(error)))
    return tuple(found)


def outlying_from(others: Sequence[float] | np.ndarray, times: float) -> float:
    """Return from where a value stands out: a number of times the median of others, plus as many deviations.

    >>> outlying_from([1.0, 1.1, 0.9], 5.0), outlying_from([1.0, 1.0, 9.0], 2.0)
    (5.0, 2.0)
    """
    median = float(np.median(others))
    return max(times * median, median + times * float(np.median(np.abs(np.asarray(others) - median))))


def outlying(
    value: tuple[float, float],
    differences: Float64[np.ndarray, " other"],
    scales: Float64[np.ndarray, " other"],
    noise: float,
    few: float = 1.0,
    deviations: float = SCALE_DEVIATIONS,
) -> bool:
    """Return whether a tensor differs unlike others: by more, or by another scale.

    Noise of relative size d changes the scale of a tensor of n elements only by about d/√n. So a scale shows a small
    factor beneath noise that is as large.

    Args:
        value: ‖B − A‖/‖A‖ and ⟨B, A⟩/⟨A, A⟩ of the tensor.
        differences: Likewise of the others, finite; at least one.
        scales: Likewise.
        noise: Standard deviation of the scales if the differences are noise.
        few: How many times more scales vary than by noise, where there are fewer others than show it.
        deviations: From how many standard deviations a scale is another one.

    >>> others = np.array([0.01, 0.011, 0.009])
    >>> outlying((0.05, 1.0), others, 1 + others / 30, 0.0003), outlying((0.014, 1.01), others, 1 + others / 30, 0.0003)
    (True, True)
    >>> outlying((0.014, 1.0), others, 1 + others / 30, 0.0003)
    False
    """
    difference, scale = value
    if difference >= outlying_from(differences, TIMES_OTHERS):
        return True
    median = float(np.median(scales))
    deviation = noise * max(few, 1.0) if len(scales) < _ENOUGH else max(noise, spread_of(scales))
    return abs(scale - median) >= deviations * deviation  # NaN of a tensor that is zero compares false


def spread_of(values: np.ndarray) -> float:
    """Return the standard deviation of values as their median absolute deviation shows it; 0 without any.

    >>> round(spread_of(np.array([1.0, 2.0, 3.0, 40.0, np.nan])), 2)
    1.48
    """
    known = values[np.isfinite(values)]
    return _TO_DEVIATION * float(np.median(np.abs(known - np.median(known)))) if len(known) else 0.0


def standing_out(table: xr.Dataset) -> list[tuple[int, int]]:
    """Return layer and tensor, from 0, of those that differ unlike the tensors of their name in other layers.

    Args:
        table: See `TensorDifferences.table`.
    """
    places = []
    differences, scales, errors = (table[f"tensor_{name}"].values for name in ("difference", "scale", "scale_error"))
    few = _variation(scales, errors)
    for layer, place in np.argwhere(differences > STORED).tolist():
        columns = [np.delete(column[:, place], layer) for column in (differences, scales, errors)]
        known = np.isfinite(columns[0])
        value = float(differences[layer, place]), float(scales[layer, place])
        if not known.any():
            continue
        others, their_scales, their_errors = (column[known] for column in columns)
        noise = np.fmax(errors[layer, place], np.median(their_errors))
        if outlying(value, others, their_scales, float(noise), few):
            places.append((layer, place))
    return places


def _variation(scales: np.ndarray, errors: np.ndarray) -> float:
    """Return how many times more scales vary over layers than by noise, in the median over all tensors."""
    ratios: list[float] = []
    for scale, error in zip(scales.T, errors.T, strict=True):
        known = np.isfinite(scale) & (error > 0)
        if known.any():
            ratios += (np.abs(scale[known] - np.median(scale[known])) / np.median(error[known])).tolist()
    return _TO_DEVIATION * float(np.median(ratios)) if ratios else 1.0


def _nothing(why: str) -> TensorDifferences:
    empty = (("layer", "tensor"), np.empty((0, 0)))
    table = xr.Dataset({"tensor_difference": empty, "tensor_scale": empty, "tensor_scale_error": empty})
    return TensorDifferences(table, (), (), why)


def block_differences(pairs: Sequence[tuple[dict[str, Tensor], dict[str, Tensor]]]) -> TensorDifferences:
    """Compare the tensors of consecutive blocks of two networks by name.

    Args:
        pairs: The tensors of each block of the first network and of the other one, by name; layers count from 1.
    """
    names = list(dict.fromkeys(name for pair in pairs for each in pair for name in each))
    gaps, sizes, products, errors = (np.full((len(pairs), len(names)), np.nan) for _ in range(4))
    vectors, unmatched = [], []
    for layer, (one, two) in enumerate(pairs):
        for place, name in enumerate(names):
            a, b = (None if (each := pair.get(name)) is None else each.detach().cpu() for pair in (one, two))
            if a is None and b is None:
                continue
            if a is None or b is None or a.shape != b.shape:
                unmatched.append(name)
                continue
            vectors += [name] if a.ndim == 1 else []
            sizes[layer, place] = float(torch.linalg.vector_norm(a, dtype=torch.float64))
            equal = a.dtype == b.dtype and torch.equal(a, b)
            gap = torch.zeros((), dtype=torch.float64) if equal else b.double() - a.double()
            gaps[layer, place] = float(torch.linalg.vector_norm(gap))
            products[layer, place] = float((gap * a).sum())
            # Of what another scale leaves of the difference, so that a factor is no noise.
            rest = gap - products[layer, place] / max(sizes[layer, place] ** 2, _LEAST) * a
            errors[layer, place] = float(torch.linalg.vector_norm(rest * a))
    positive = np.where(sizes > 0, sizes, np.nan)
    typical = np.array([np.nanmedian(column) if np.isfinite(column).any() else 1.0 for column in positive.T])
    values = gaps / np.where(sizes > 0, sizes, typical[None])
    table = xr.Dataset(
        {
            "tensor_difference": (("layer", "tensor"), values),
            "tensor_scale": (("layer", "tensor"), 1 + products / positive**2),
            "tensor_scale_error": (("layer", "tensor"), errors / positive**2),
        },
        coords={"layer": np.arange(1, len(pairs) + 1), "tensor": names},
    )
    why = "" if np.isfinite(values).any() else "they have no tensor of the same name and shape"
    return TensorDifferences(table, tuple(dict.fromkeys(vectors)), tuple(dict.fromkeys(unmatched)), why)


def tensors_of_layer(compared: TensorDifferences, layer: int) -> list[str]:
    """Return the names of the tensors of one layer that differ more than in other layers, largest first.

    Args:
        compared: From `tensor_differences`.
        layer: From 1.
    """
    if compared.why:
        return []
    values = compared.table.tensor_difference.values
    places = [place for row, place in standing_out(compared.table) if row == layer - 1]
    return [
        str(compared.table.tensor.values[place])
        for place in sorted(places, key=lambda place: -values[layer - 1, place])
    ]


@dataclass(frozen=True)
class MissingLayers:
    """Layers that one of two networks has and the other one lacks, where all other blocks are the same.

    Attributes:
        layers: Their numbers in the deeper network, from 1.
        rest: The median relative difference of the matrices of the other blocks.
    """

    layers: tuple[int, ...]
    rest: float


def missing_layers(first: Checkpoint, other: Checkpoint) -> MissingLayers | None:
    """Return the layers that the shallower of two networks lacks; None unless all its blocks are in the deeper one.

    Args:
        first: The network compared with.
        other: Of the same width.
    """
    deep, shallow = sorted((first, other), key=lambda ckpt: -ckpt.architecture.layers)
    depth, count = shallow.architecture.layers, deep.architecture.layers - shallow.architecture.layers
    if not count or sizes_differ(first, other, "widths"):
        return None
    distance = np.full((depth, count + 1), np.inf)  # of a block from those that many layers deeper
    try:
        for row, shift in np.ndindex(distance.shape):
            pair = deep.block_tensors(row + shift + 1), shallow.block_tensors(row + 1)
            compared = block_differences([pair])
            matrices = compared.table.drop_sel(tensor=list(compared.vectors)).tensor_difference.values
            if not compared.unmatched and matrices.size:
                distance[row, shift] = float(np.median(matrices))
    except CheckpointError:
        return None
    total = distance.copy()  # of the best assignment of all blocks up to one; shifts never decrease
    for row in range(1, depth):
        total[row] += np.minimum.accumulate(total[row - 1])
    shifts = [int(np.argmin(total[-1]))]
    for row in range(depth - 2, -1, -1):
        shifts.insert(0, int(np.argmin(total[row, : shifts[0] + 1])))
    chosen = distance[range(depth), shifts]
    others = distance.copy()
    others[range(depth), shifts] = np.inf
    if not bool((chosen < _SAME_BLOCK).all()) or bool((others < _SAME_BLOCK).any()):
        return None
    present = {row + shift for row, shift in enumerate(shifts)}
    layers = tuple(layer + 1 for layer in range(depth + count) if layer not in present)
    return MissingLayers(layers, float(np.median(chosen)))
