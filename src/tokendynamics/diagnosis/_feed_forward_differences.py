"""How far the feed-forward weights of networks differ, layer by layer, matrix by matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float64
from torch import Tensor

from tokendynamics.diagnosis._leading_subspaces import degrees_of, leading_subspace, squared_sine
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.feed_forward import FeedForwardWeights
from tokendynamics.provenance.progress import Progress, tracked

_REORDERED = 1e-4
"""Hidden units are matched in another order if their sorted sizes differ by less than this although the unsorted ones
do not; sizes of independently drawn networks differ by more."""


@dataclass
class FeedForwardDifferences:
    """Differences of the feed-forward weights of several networks.

    Attributes:
        table: Over ``model`` (all), ``other`` (all but the first) and ``layer`` (from 1): ``ff_norm`` (model, layer),
            √Σ ‖·‖² over the matrices of the feed-forward part; ``ff_difference`` (other, layer), √Σ ‖A − B‖² over those
            of one name and shape, relative to √Σ ‖A‖²; ``ff_angle`` (other, layer), degrees between the leading
            singular subspaces of what they read or write, arcsin of the root mean square sine.
        reasons: For all but the first, why some or all layers were not compared; empty otherwise.
        unmatched: For all but the first, matrices that only one of the pair has with this name and shape.
    """

    table: xr.Dataset
    reasons: tuple[str, ...]
    unmatched: tuple[tuple[str, ...], ...]


@dataclass
class _Pair:
    """One network compared with the first, for the layers read so far."""

    why: str
    problems: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)


def feed_forward_differences(ckpts: Sequence[Checkpoint], report: Progress) -> FeedForwardDifferences:
    """Compare the matrices of each layer's feed-forward part with those of the first network.

    Matrices are matched by name. The gain of the preceding norm is folded into matrices that read the state, and hidden
    units may be in another order; experts are compared as stored. Biases are not compared.

    Args:
        ckpts: The first is the one that the others are compared with.
        report: Called after each layer.

    Raises:
        CheckpointError: A tensor cannot be read.
    """
    depths = [ckpt.architecture.layers for ckpt in ckpts]
    pairs = [_Pair(_why_not(ckpts[0], other)) for other in ckpts[1:]]
    norms = np.full((len(ckpts), max(depths)), np.nan)
    found = np.full((2, len(pairs), max(depths)), np.nan)
    for layer in tracked(range(1, max(depths) + 1), report, "comparing the feed-forward weights"):
        first: FeedForwardWeights | str = "it has no such layer"
        for number, ckpt in enumerate(ckpts):
            if layer > depths[number]:
                continue
            own = ckpt.feed_forward(layer)
            first = own if number == 0 else first
            if isinstance(own, FeedForwardWeights):
                norms[number, layer - 1] = sum(_square(each) for each in own.matrices.values()) ** 0.5
            if number == 0 or pairs[number - 1].why:
                continue
            pair = pairs[number - 1]
            both = [(which, each) for which, each in ((ckpts[0], first), (ckpt, own)) if isinstance(each, str)]
            pair.problems += [f"layer {layer} of {which.name}: {each}" for which, each in both]
            if isinstance(own, FeedForwardWeights) and isinstance(first, FeedForwardWeights):
                found[:, number - 1, layer - 1] = _differences(first, own, pair)
    table = xr.Dataset(
        {
            "ff_norm": (("model", "layer"), norms),
            "ff_difference": (("other", "layer"), found[0]),
            "ff_angle": (("other", "layer"), found[1]),
        },
        coords={"layer": np.arange(1, max(depths) + 1)},
    )
    reasons = tuple(pair.why or _in_short(pair.problems) for pair in pairs)
    return FeedForwardDifferences(table, reasons, tuple(tuple(dict.fromkeys(pair.unmatched)) for pair in pairs))


def _why_not(first: Checkpoint, other: Checkpoint) -> str:
    a, b = first.architecture, other.architecture
    for name, one, two in (("widths", a.dim, b.dim), ("depths", a.layers, b.layers)):
        if one != two:
            return f"their {name} differ ({one} and {two})"
    return ""


def _in_short(problems: Sequence[str]) -> str:
    more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"{problems[0]}{more}" if problems else ""


def _differences(a: FeedForwardWeights, b: FeedForwardWeights, pair: _Pair) -> tuple[float, float]:
    """Return the relative difference and the angle of one layer; what has no partner is noted."""
    names = [name for name, each in a.matrices.items() if name in b.matrices and b.matrices[name].shape == each.shape]
    pair.unmatched += [name for name in {**a.matrices, **b.matrices} if name not in names]
    if not names:
        return np.nan, np.nan
    ones, twos = ({name: each.matrices[name] for name in names} for each in (a, b))
    if all(torch.equal(ones[name], twos[name]) for name in names):
        return 0.0, 0.0
    if len(names) == len(a.matrices) == len(b.matrices):
        twos = _in_order(ones, twos, a)
    total = sum(_square(each) for each in ones.values())
    gap = sum(_square(twos[name] - each) for name, each in ones.items())
    difference = (gap / total) ** 0.5 if total else (np.inf if gap else 0.0)
    sines = [_sine(*(_by_state(each[name], a.roles[name]) for each in (ones, twos))) for name in names]
    return difference, degrees_of(sum(sines) / len(sines))


def _square(matrix: Tensor) -> float:
    return float(matrix.square().sum())


def _by_state(matrix: Tensor, role: str) -> Float64[Tensor, "row column"]:
    """Return a matrix with the features of the state as rows, where it is known which they are."""
    if matrix.ndim == 3:  # experts side by side: their sizes are in order
        matrix = matrix.movedim(0, 1).flatten(1)
    return matrix.mT if role == "writes" else matrix


def _sine(one: Tensor, two: Tensor) -> float:
    if torch.equal(one, two):
        return 0.0
    spans = [leading_subspace(lambda y, m=each: m @ y, lambda x, m=each: m.mT @ x, len(each)) for each in (one, two)]
    return squared_sine(*spans)


def _in_order(ones: dict[str, Tensor], twos: dict[str, Tensor], a: FeedForwardWeights) -> dict[str, Tensor]:
    """Return the second's matrices with their hidden units in the first's order, if they are the same in another."""
    widths = {matrix.shape[0] for name, matrix in ones.items() if a.roles[name] == "writes"}
    if len(widths) != 1 or any(role == "stored" for role in a.roles.values()):
        return twos
    (width,) = widths
    if any(matrix.shape[1] % width for name, matrix in ones.items() if a.roles[name] == "reads"):
        return twos
    one, two = (torch.cat([_units(each[name], a.roles[name], width) for name in ones], dim=1) for each in (ones, twos))
    sizes = [torch.linalg.vector_norm(each, dim=1).sort().values for each in (one, two)]
    scale = float(sizes[0].norm())
    if float((sizes[0] - sizes[1]).norm()) > _REORDERED * scale or float((one - two).norm()) <= _REORDERED * scale:
        return twos
    order = (one @ two.mT).argmax(dim=1)
    if len(order.unique()) < width or float((one - two[order]).norm()) >= float((one - two).norm()):
        return twos
    return {name: _reordered(matrix, a.roles[name], width, order) for name, matrix in twos.items()}


def _units(matrix: Tensor, role: str, width: int) -> Float64[Tensor, "unit feature"]:
    """Return what each hidden unit reads, of several maps side by side, or writes."""
    return matrix if role == "writes" else matrix.unflatten(1, (-1, width)).movedim(2, 0).flatten(1)


def _reordered(matrix: Tensor, role: str, width: int, order: Tensor) -> Tensor:
    return matrix[order] if role == "writes" else matrix.unflatten(1, (-1, width))[..., order].flatten(1)
