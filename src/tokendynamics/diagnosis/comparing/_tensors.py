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


STORED = 1e-5
"""Relative difference from which a tensor differs by more than rounding in single precision."""


@dataclass(frozen=True)
class TensorDifferences:
    """Differences of the stored tensors of one network's blocks from those of the first.

    Attributes:
        table: Over ``layer`` (from 1) and ``tensor`` (its name in the block): ``tensor_difference``, ‖B − A‖ over ‖A‖,
            or over the median of ‖A‖ over layers where A is zero; NaN where either has no such tensor of this shape.
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


def standing_out(differences: Float64[np.ndarray, "layer tensor"]) -> list[tuple[int, int]]:
    """Return layer and tensor, from 0, of those that differ unlike the tensors of their name in other layers.

    Args:
        differences: See `TensorDifferences.table`.

    >>> standing_out(np.array([[0.01, 0.0], [0.012, 0.5], [0.9, 0.0], [0.011, 0.0]]))
    [(1, 1), (2, 0)]
    """
    outlying = []
    for layer, place in np.argwhere(differences > 0).tolist():
        others = np.delete(differences[:, place], layer)
        others = others[np.isfinite(others)]
        if len(others) and differences[layer, place] >= outlying_from(others, TIMES_OTHERS):
            outlying.append((layer, place))
    return outlying


def _nothing(why: str) -> TensorDifferences:
    table = xr.Dataset({"tensor_difference": (("layer", "tensor"), np.empty((0, 0)))})
    return TensorDifferences(table, (), (), why)


def block_differences(pairs: Sequence[tuple[dict[str, Tensor], dict[str, Tensor]]]) -> TensorDifferences:
    """Compare the tensors of consecutive blocks of two networks by name.

    Args:
        pairs: The tensors of each block of the first network and of the other one, by name; layers count from 1.
    """
    names = list(dict.fromkeys(name for pair in pairs for each in pair for name in each))
    gaps, sizes = (np.full((len(pairs), len(names)), np.nan) for _ in range(2))
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
            gaps[layer, place] = 0.0 if equal else float(torch.linalg.vector_norm(b.double() - a.double()))
    positive = np.where(sizes > 0, sizes, np.nan)
    typical = np.array([np.nanmedian(column) if np.isfinite(column).any() else 1.0 for column in positive.T])
    values = gaps / np.where(sizes > 0, sizes, typical[None])
    table = xr.Dataset(
        {"tensor_difference": (("layer", "tensor"), values)},
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
    places = [place for row, place in standing_out(values) if row == layer - 1 and values[row, place] > STORED]
    return [
        str(compared.table.tensor.values[place])
        for place in sorted(places, key=lambda place: -values[layer - 1, place])
    ]
