"""How far the stored tensors of the blocks of two networks differ, name by name: biases and norms are weights too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float64
from torch import Tensor

from tokendynamics.diagnosis.comparing._outliers import from_chance, standing_out
from tokendynamics.diagnosis.network import sizes_differ
from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import why
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.network import submodule
from tokendynamics.provenance.progress import Progress, tracked
from tokendynamics.words import in_layers

_LEAST = float(np.finfo(np.float64).tiny)

_FEWEST = 16
"""Elements from which the scale of a tensor and its standard error are known well enough to compare."""

NOT_SHOWN = ("tensor_scale_error", "tensor_noise", "tensor_noise_error", "tensor_channels", "tensor_size")
"""Variables that only show which tensors stand out, and are in no result."""

_SAME_BLOCK = 0.5
"""Median relative difference of its matrices up to which a block is the same one, changed; others differ by 1."""

_ELEMENTS = 2**22
"""Elements of a tensor outside the blocks that are compared at a time."""


@dataclass(frozen=True)
class TensorDifferences:
    """Differences of the stored tensors of one network's blocks from those of the first.

    Attributes:
        table: Over ``layer`` (from 1) and ``tensor`` (its name in the block): ``tensor_difference``, ‖B − A‖ over ‖A‖,
            or over the median of ‖A‖ over layers where A is zero, and ``tensor_scale``, ⟨B, A⟩/⟨A, A⟩; NaN where either
            has no such tensor of this shape. ``tensor_scale_error`` is its standard error if the n elements of the rest
            R = B − sA are independent noise, ‖R‖/(√(n − 1) ‖A‖) for a scale s; times the median over layers of √n ‖R ∘
            A‖/(‖R‖ ‖A‖) where that is above 1, as for noise in proportion to the elements. NaN for fewer than `_FEWEST`
            elements. ``tensor_noise``, ‖R‖ over |s| ‖A‖ without what another scale of each row and column of a matrix
            explains, and ``tensor_noise_error``, the standard error of its logarithm, the largest for independent
            elements, rows and columns, √(Σ_t s_t² − S²/m)/2S of m sums s_t of R², S their sum. ``tensor_channels``, 1
            where those scales explain more of R than of noise, NaN of vectors; and ``tensor_size``, ‖A‖.
        final_norm: Likewise of the norm after the last block, as layer 1; None without one.
        vectors: Names of the tensors of one axis: biases, and gains and biases of norms.
        unmatched: Names of tensors that only one network has in this shape, with their layers where other layers of
            both have them.
        codes: Names of tensors of integers that differ, as packed weights do: their differences have no size.
        why: Why nothing was compared; empty otherwise.
        outside: Relative difference of each tensor outside the blocks, by name: embeddings, the final norm, the
            language head. Of those that both networks have in one shape.
        rewritten: For each part, by layer (from 1) the relative difference of what its matrices compute, where they are
            stored in another order, basis or scale: heads or hidden units permuted, or a gain moved. Nothing stands
            out among the tensors of these parts.
        of_parts: Tensors of each part, (layer, tensor).
    """

    table: xr.Dataset
    vectors: tuple[str, ...]
    unmatched: tuple[str, ...]
    codes: tuple[str, ...]
    why: str
    final_norm: xr.Dataset | None = None
    outside: Mapping[str, float] = field(default_factory=dict[str, float])
    rewritten: Mapping[str, Mapping[int, float]] = field(default_factory=dict[str, dict[int, float]])
    of_parts: Mapping[str, Bool[np.ndarray, "layer tensor"]] = field(default_factory=dict[str, np.ndarray])

    @property
    def outliers(self) -> list[tuple[int, int]]:
        """Layer and tensor, from 0, of those that differ unlike the tensors of their name in other layers."""
        stored = np.zeros(self.table.tensor_difference.shape, dtype=bool)
        for part, layers in self.rewritten.items():
            rows = [layer - 1 for layer in layers]
            stored[rows] |= self.of_parts[part][rows]
        return standing_out(self.table.where(xr.DataArray(~stored, dims=("layer", "tensor"))))

    @property
    def blocks_equal(self) -> bool:
        """Whether every stored tensor of the blocks was compared and is equal."""
        values = self.table.tensor_difference.values
        complete = not (self.why or self.unmatched or self.codes) and bool(np.isfinite(values).any(axis=1).all())
        return complete and not bool((np.nan_to_num(values) > 0).any())


def tensor_differences(ckpts: Sequence[Checkpoint], report: Progress) -> tuple[TensorDifferences, ...]:
    """Compare every stored tensor of every block with the first network's of the same name.

    Unlike products and folded matrices, they may differ although the network computes the same.

    Args:
        ckpts: The first is what the others are compared with.
        report: Called after each layer.
    """
    differences = []
    for other in ckpts[1:]:
        if unlike := sizes_differ(other, ckpts[0], "depths"):
            differences.append(_nothing(unlike))
            continue
        try:
            layers = tracked(range(1, other.architecture.layers + 1), report, "comparing the stored tensors")
            blocks = block_differences(
                [(ckpts[0].block_tensors(layer), other.block_tensors(layer)) for layer in layers]
            )
            one, two = _outside_blocks(ckpts[0], other), _outside_blocks(other, ckpts[0])
            alike = [name for name in one if name in two and one[name].shape == two[name].shape]
            outside = {name: _relative_difference(one[name], two[name]) for name in alike}
            differences.append(replace(blocks, final_norm=_final_norm_differences(ckpts[0], other), outside=outside))
        except CheckpointError as error:
            differences.append(_nothing(why(error, other.name)))
    return tuple(differences)


def _outside_blocks(ckpt: Checkpoint, other: Checkpoint) -> dict[str, Tensor]:
    """Return the parameters of a network with its language head that are of no block.

    Names are without what stands before the names of the blocks and of those of the other network does not, such as
    ``model.`` in a network with a head beside one without.
    """
    whole, blocks = ckpt.with_head or ckpt.model, [f".{block}." for block in ckpt.layout.blocks]
    # The parts of a layer may stand in lists beside each other.
    inside = {id(tensor) for name in ckpt.layout.blocks for tensor in submodule(ckpt.model, name).parameters()}
    prefix = before_shared_end(_first_block(ckpt), _first_block(other))
    return {
        name.removeprefix(prefix): parameter.detach()
        for name, parameter in whole.named_parameters()
        if not parameter.is_meta
        and parameter.is_floating_point()
        and id(parameter) not in inside
        and not any(block in f".{name}" for block in blocks)
    }


def _first_block(ckpt: Checkpoint) -> str:
    """Return the name of the first block in the network with its language head."""
    whole, block = ckpt.with_head or ckpt.model, ckpt.layout.blocks[0]
    return next((name for name, _ in whole.named_modules() if f".{name}".endswith(f".{block}")), block)


def before_shared_end(name: str, other: str) -> str:
    """Return what of a dotted name stands before the end that it shares with another one.

    >>> before_shared_end("model.layers.0", "layers.0"), before_shared_end("layers.0", "model.layers.0")
    ('model.', '')
    """
    parts, others = name.split("."), other.split(".")
    shared = 0
    while shared < min(len(parts), len(others)) and parts[-1 - shared] == others[-1 - shared]:
        shared += 1
    return "".join(f"{part}." for part in parts[: len(parts) - shared])


def _relative_difference(a: Tensor, b: Tensor) -> float:
    """Return ‖b − a‖/‖a‖, some rows at a time: tables of large vocabularies need not be in memory in float64."""
    a, b = a.cpu(), b.cpu()
    if a.dtype == b.dtype and torch.equal(a, b):
        return 0.0
    rows = max(1, _ELEMENTS * len(a) // max(a.numel(), 1)) if a.ndim else 1
    gap = size = 0.0
    for some, others in zip(torch.atleast_1d(a).split(rows), torch.atleast_1d(b).split(rows), strict=True):
        one, two = some.double(), others.double()
        gap, size = gap + float((two - one).square().sum()), size + float(one.square().sum())
    return (gap / size) ** 0.5 if size else float("inf")


def _final_norm_differences(first: Checkpoint, other: Checkpoint) -> xr.Dataset | None:
    ends = first.layout.final_norm, other.layout.final_norm
    if ends[0] is None or ends[1] is None:
        return None
    modules = first.model.get_submodule(ends[0][0]), other.model.get_submodule(ends[1][0])
    one, two = (
        {name: tensor.detach() for name, tensor in module.named_parameters() if not tensor.is_meta}
        for module in modules
    )
    return block_differences([(one, two)]).table if one.keys() & two.keys() else None


def _nothing(why: str) -> TensorDifferences:
    empty = (("layer", "tensor"), np.empty((0, 0)))
    table = xr.Dataset(dict.fromkeys(("tensor_difference", "tensor_scale", *NOT_SHOWN), empty))
    return TensorDifferences(table, (), (), (), why)


def block_differences(pairs: Sequence[tuple[dict[str, Tensor], dict[str, Tensor]]]) -> TensorDifferences:
    """Compare the tensors of consecutive blocks of two networks by name.

    Args:
        pairs: The tensors of each block of the first network and of the other one, by name; layers count from 1.
    """
    names = list(dict.fromkeys(name for pair in pairs for tensors in pair for name in tensors))
    gaps, sizes, products, errors, excess = (np.full((len(pairs), len(names)), np.nan) for _ in range(5))
    noises, vary, scaled = (np.full((len(pairs), len(names)), np.nan) for _ in range(3))
    vectors, codes, unmatched = [], [], dict[str, list[int]]()
    for layer, (one, two) in enumerate(pairs):
        for place, name in enumerate(names):
            a, b = (None if (tensor := pair.get(name)) is None else tensor.detach().cpu() for pair in (one, two))
            if a is None and b is None:
                continue
            if a is None or b is None or a.shape != b.shape:
                unmatched.setdefault(name, []).append(layer + 1)
                continue
            if not (a.is_floating_point() and b.is_floating_point()):
                codes += [] if torch.equal(a, b) else [name]
                gaps[layer, place] = np.nan if name in codes else 0.0
                continue
            vectors += [name] if a.ndim == 1 else []
            sizes[layer, place] = float(torch.linalg.vector_norm(a, dtype=torch.float64))
            equal = a.dtype == b.dtype and torch.equal(a, b)
            gap = torch.zeros((), dtype=torch.float64) if equal else b.double() - a.double()
            gaps[layer, place] = float(torch.linalg.vector_norm(gap))
            products[layer, place] = float((gap * a).sum())
            # Of what another scale leaves of the difference, so that a factor is no noise.
            rest = gap - products[layer, place] / max(sizes[layer, place] ** 2, _LEAST) * a
            noise = float(torch.linalg.vector_norm(rest))
            errors[layer, place] = noise / (a.numel() - 1) ** 0.5 if a.numel() >= _FEWEST else np.nan
            if noise > 0 and a.numel() >= _FEWEST:
                noises[layer, place], vary[layer, place], scaled[layer, place] = _noise_in(rest, a)
            if noise > 0 and sizes[layer, place] > 0:
                together = float(torch.linalg.vector_norm(rest * a))
                excess[layer, place] = a.numel() ** 0.5 * together / (noise * sizes[layer, place])
    positive = np.where(sizes > 0, sizes, np.nan)
    typical = np.array([np.nanmedian(column) if np.isfinite(column).any() else 1.0 for column in positive.T])
    values = gaps / np.where(sizes > 0, sizes, typical[None])
    scales = 1 + products / positive**2
    factors = [max(1.0, float(np.nanmedian(column))) if np.isfinite(column).any() else 1.0 for column in excess.T]
    table = xr.Dataset(
        {
            "tensor_difference": (("layer", "tensor"), values),
            "tensor_scale": (("layer", "tensor"), scales),
            "tensor_scale_error": (("layer", "tensor"), errors / positive * np.array(factors)),
            "tensor_noise": (("layer", "tensor"), noises / np.abs(scales) / positive),
            "tensor_noise_error": (("layer", "tensor"), vary),
            "tensor_channels": (("layer", "tensor"), scaled),
            "tensor_size": (("layer", "tensor"), positive),
        },
        coords={"layer": np.arange(1, len(pairs) + 1), "tensor": names},
    )
    why = "" if np.isfinite(values).any() else "they have no tensor of the same name and shape"
    somewhere = {name for place, name in enumerate(names) if np.isfinite(values[:, place]).any()}
    apart = tuple(f"{name} in {in_layers(at)}" if name in somewhere else name for name, at in unmatched.items())
    return TensorDifferences(table, tuple(dict.fromkeys(vectors)), apart, tuple(dict.fromkeys(codes)), why)


def _noise_in(rest: Tensor, a: Tensor) -> tuple[float, float, float]:
    """Return the norm of a difference less scales of rows and columns, its relative error, and whether these show.

    Args:
        rest: The difference, less another scale of the whole.
        a: What it is the difference from.

    >>> a = 2 * torch.ones(8, 8, dtype=torch.float64)
    >>> signs = torch.tensor([1.0, -1] * 4, dtype=torch.float64)
    >>> odd = torch.outer(signs, signs)  # orthogonal to all rows and columns
    >>> _noise_in(odd, a)
    (8.0, 0.0, 0.0)
    >>> norm, error, show = _noise_in(odd + 0.75 * signs[:, None] * a - 0.5 * signs * a, a)
    >>> norm, round(error, 6), show  # R is 1.5, 1.5, -3.5 or 0.5, and Σ R² of a column 58 or 10: √4608/(2 · 272)
    (8.0, 0.124784, 1.0)
    """
    squared = rest.square()
    total = float(squared.sum())
    if a.ndim == 1:
        return total**0.5, _error_of_root(squared), np.nan
    rest, squared, a = (tensor.flatten(0, -2) for tensor in (rest, squared, a.double()))
    # Rounding with a scale for each row, or column, has errors that are large or small together.
    error = max(_error_of_root(terms) for terms in (squared.flatten(), squared.sum(0), squared.sum(1)))
    products, squares = rest * a, a.square()
    by_row, by_column = (squares.sum(axis).clamp_min(_LEAST) for axis in (1, 0))
    of_rows = products.sum(1)
    of_columns = products.sum(0) - squares.mT @ (of_rows / by_row)  # of what the rows leave
    explained = float((of_rows.square() / by_row).sum() + (of_columns.square() / by_column).sum())
    scales = sum(a.shape)  # of noise each explains as much as one element, give or take the root of twice that
    show = explained * a.numel() > total * (scales + from_chance(1) * (2 * scales) ** 0.5)
    return max(total - explained, 0.0) ** 0.5, error, float(show)


def _error_of_root(terms: Float64[Tensor, " term"]) -> float:
    """Return the relative standard error of the root of a sum of independent terms of one kind.

    >>> round(_error_of_root(torch.tensor([1.0, 3.0], dtype=torch.float64)), 6)  # √(1 + 9 − 16/2)/(2 · 4)
    0.176777
    """
    count, total = len(terms), float(terms.sum())
    return (max(float(terms @ terms) - total**2 / count, 0.0)) ** 0.5 / (2 * total)


def tensors_of_layer(compared: TensorDifferences, layer: int) -> list[str]:
    """Return the names of the tensors of one layer that differ more than in other layers, largest first.

    Args:
        compared: From `tensor_differences`.
        layer: From 1.
    """
    if compared.why:
        return []
    values = compared.table.tensor_difference.values
    places = [place for row, place in compared.outliers if row == layer - 1]
    return [
        str(compared.table.tensor.values[place])
        for place in sorted(places, key=lambda place: -values[layer - 1, place])
    ]


@dataclass(frozen=True)
class MissingLayers:
    """Layers that one of two networks has and the other one lacks, where all other blocks are the same.

    Attributes:
        layers: Their numbers in the deeper network, from 1.
        rest: The median over the other blocks of the median relative difference of their matrices.
        most: The largest relative difference of a matrix of the other blocks.
    """

    layers: tuple[int, ...]
    rest: float
    most: float


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
    largest = distance.copy()
    try:
        for row, shift in np.ndindex(distance.shape):
            pair = deep.block_tensors(row + shift + 1), shallow.block_tensors(row + 1)
            compared = block_differences([pair])
            matrices = compared.table.drop_sel(tensor=list(compared.vectors)).tensor_difference.values
            if not compared.unmatched and not compared.codes and matrices.size:
                distance[row, shift], largest[row, shift] = float(np.median(matrices)), float(np.max(matrices))
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
    return MissingLayers(layers, float(np.median(chosen)), float(largest[range(depth), shifts].max()))
