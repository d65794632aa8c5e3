"""The first layer at which two networks differ, and the part that causes it."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from math import nan
from typing import Any, Literal

import numpy as np
import xarray as xr
from jaxtyping import Bool, Float64

from tokendynamics.diagnosis.comparing._outliers import (
    NEIGHBOURS,
    STORED,
    final_norm_stands_out,
    from_chance,
    heads_standing_out,
    outlying_from,
    scales_standing_out,
    standing_out,
)
from tokendynamics.diagnosis.comparing._tensors import TensorDifferences, block_differences
from tokendynamics.diagnosis.comparing._weights import CIRCUITS, WEIGHTS_DIFFER
from tokendynamics.diagnosis.tracing._together import GAPS, OWN_DIFFERENCE
from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.discovery.layout import BlockLayout

ROUNDINGS = 10.0
"""Updates that differ by at most this many rounding errors differ by rounding: networks that differ only in the order
of their sums stay below three, half precision compared with single below one."""

JUMP = 10.0
"""A part stands out if its updates differ by this many times the difference of its input, relative to the median of the
other parts. Half precision, quantisation and noise on all weights give 1–4; planted damage began at 50."""

TIMES_NEIGHBOURS = 5.0
"""On identical inputs a part stands out if it differs by this many times the median of its neighbours, plus as many
median deviations. Noise on all weights, quantisation and adapters on every layer give at most 3 times; damage to one
bias, norm, head or matrix that affects the state gave at least 10."""

SIZE_CHANGED = 2.0
"""A part whose update is this many times as large as the other network's, or as small a part of it, is named."""

Part = Literal["embedding", "attention", "feed-forward part", "block", "final norm"]

_FEW_LAYERS = 0.25
"""Share of all layers, at least one layer, up to which weights that stand out locate a difference: beyond that the
weights of many layers differ unlike their neighbours, as after training."""

_UNDONE = 2.0
"""How many times less a product's scale changes than that of a matrix whose factor is undone in another one; the square
of it where no other one is seen."""

_REWRITTEN = 0.1
"""Relative difference of stored matrices from which they may be the same in another basis, order or scale, and of two
biases from which a constant may have moved from one to the other."""

_REPARAMETERISED, _MORE_THAN_OTHERS = 5.0, 3.0
"""Stored matrices of a part that differ by the first many times more than what they compute, or relative to it by the
second many times more than those of the other layers do, are the same in another basis, order or scale: they locate
nothing. Damage to one of four matrices gives at most 2 times more than in other layers, factors of a norm moved to its
readers 4."""

Kind = Literal["equal", "rounding", "located", "by weights", "from the start", "gradual"]
"""Equal to the last bit; equal up to rounding; one part stands out; the weights of one part stand out, its updates do
not; different embeddings and no part stands out after them; gradual divergence without a part that stands out."""


_NAMES: dict[tuple[str, bool], Part] = {
    ("attention", True): "attention", ("feed_forward", True): "feed-forward part", ("feed_forward", False): "block",
    ("final_norm", True): "final norm", ("final_norm", False): "final norm",
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """One part of one layer, and how much two networks differ in it.

    Attributes:
        layer: Counted from 1; 0 for the embedding.
        part: Its name.
        before: ‖x_b − x_a‖/‖x_a‖ of its input.
        update: ‖Δ_b − Δ_a‖/‖Δ_a‖ of its update; for the embedding and the final norm, of the states themselves.
        size: ‖Δ_b‖/‖Δ_a‖; infinite where the first network's update is zero.
        rounding: Relative error of the update from one rounding of the states; larger for smaller updates.
        own: ‖Δ_b − Δ_a‖/‖Δ_a‖ of both parts on the first network's states; NaN where not measured.
        beside: The median of `own` of the neighbours; NaN likewise.
        norms: Stored tensors of the layer's norms, where only norms differ in this part; empty otherwise.
        heads: Heads of the first network whose circuits stand out, where some of this attention do and others do not.
    """

    layer: int
    part: Part
    before: float
    update: float
    size: float
    rounding: float
    own: float = nan
    beside: float = nan
    norms: tuple[str, ...] = ()
    heads: tuple[int, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether its input differs only by rounding."""
        return self.before <= self.rounding

    @property
    def beyond(self) -> bool:
        """Whether its update differs by more than rounding."""
        return self.update > ROUNDINGS * self.rounding

    @property
    def excess(self) -> float:
        """`update` relative to the difference of its input, or to one rounding if that is larger."""
        return self.update / max(self.before, self.rounding)

    def __str__(self) -> str:
        if self.part in ("embedding", "final norm"):
            return f"the {self.part}"
        head = f"head {self.heads[0]} of " if len(self.heads) == 1 else ""
        return f"{head}the {self.part} of layer {self.layer}"


@dataclass(frozen=True)
class Parting:
    """How two networks diverge with depth.

    Attributes:
        kind: See `Kind`.
        first: The part that stands out first; with different embeddings and gradual divergence, the embedding. None
            where they are equal or no part stands out.
        start: The embedding, if it differs beyond rounding.
        largest: The part whose updates differ most; None where nothing differs.
        resized: Parts whose updates are larger or smaller by `SIZE_CHANGED`, in order.
        early: Relative difference of the states after layer 1.
        late: Relative difference of the states after the last layer that both have.
        missing: Layers, from 1, that only the deeper network has, where all other blocks are the same.
    """

    kind: Kind
    first: Difference | None
    start: Difference | None
    largest: Difference | None
    resized: tuple[Difference, ...]
    early: float
    late: float
    missing: tuple[int, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


def parting_of(gaps: xr.Dataset, eps: float, behind: Collection[int] = ()) -> Parting:
    """Locate the first difference of two networks.

    A part stands out relative to its neighbours, not to zero: otherwise two networks with the same embedding would
    always differ first in layer 1. On identical inputs its difference must be `TIMES_NEIGHBOURS` that of the same part
    in neighbouring layers. Where that was not measured, its updates must differ by `JUMP` times the difference of its
    input, relative to the other parts. A part also stands out if all earlier parts, at least one, are equal up to
    rounding. Differences are root mean squares over prompts.

    Args:
        gaps: `GAPS` of the two over (prompt, layer, component), from `run_together`.
        eps: Of the coarser of their dtypes.
        behind: Layers whose feed-forward part is not the first; see `behind_attention_alone`.

    >>> dims, zero = ("prompt", "layer", "component"), np.zeros((1, 3, 3))
    >>> table = {name: (dims, zero.copy()) for name in GAPS} | {"update_size": (dims, zero + 1)}
    >>> table["update_difference"][1][:, 2, 0] = 0.5
    >>> parting = parting_of(xr.Dataset(table, coords={"component": ["attention", "feed_forward", "final_norm"]}), 1e-7)
    >>> parting.kind, str(parting.first)
    ('located', 'the attention of layer 2')
    """
    parts = _parts(gaps, eps)
    differing = [part for part in parts if part.update > 0]
    start = next((part for part in parts if part.layer == 0 and part.beyond), None)
    causes = [part for part in differing if part.part != "feed-forward part" or part.layer not in behind]
    first = next((part for part in causes if part.layer > 0 and part.beyond and _stands_out(part, parts)), None)
    if not differing:
        kind: Kind = "equal"
    elif first is not None:
        kind = "located"
    elif start is not None:
        kind = "from the start"
    else:
        kind = "gradual" if any(part.beyond for part in parts) else "rounding"
    largest = max((part for part in differing if part.layer > 0), key=lambda part: part.update, default=start)
    resized = tuple(
        part for part in parts if part.beyond and part.layer > 0 and not 1 / SIZE_CHANGED < part.size < SIZE_CHANGED
    )
    after = _pooled(gaps, "state_difference")[:, gaps.component.values.tolist().index("feed_forward")]
    return Parting(
        kind, first or start, start, largest, resized, float(after[min(1, len(after) - 1)]), float(after[-1])
    )


def behind_attention_alone(tensors: TensorDifferences, first: Checkpoint) -> set[int]:
    """Return the layers of which the attention alone holds other tensors: what follows it differs for that alone.

    Args:
        tensors: From `tensor_differences`.
        first: The network compared with.
    """
    if tensors.why or tensors.unmatched or tensors.codes:
        return set()
    names = tensors.table.tensor.values.astype(str).tolist()
    differ = np.nan_to_num(tensors.table.tensor_difference.values) > 0
    changed = [
        {_part_of(names[place], layout) for place in np.flatnonzero(differ[row]).tolist()}
        for row, layout in enumerate(first.layout.layers)
    ]
    return {layer for layer, parts in enumerate(changed, 1) if parts == {"attention"}}


def _pooled(gaps: xr.Dataset, name: str) -> np.ndarray:
    """Return a gap over (layer, component), NaN where no prompt has it."""
    values = gaps[name].values ** 2
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    return np.sqrt(np.where(count > 0, np.where(known, values, 0.0).sum(axis=0) / np.maximum(count, 1), np.nan))


def _parts(gaps: xr.Dataset, eps: float) -> list[Difference]:
    """Return every part in the order in which they run."""
    came, update, reach, size, _ = (_pooled(gaps, name) for name in GAPS)
    on_same = _pooled(gaps, OWN_DIFFERENCE) if OWN_DIFFERENCE in gaps else np.full(update.shape, np.nan)
    parts = []
    for layer, place in np.argwhere(~np.isnan(update)).tolist():
        component = gaps.component.values.tolist()[place]
        with_attention = not np.isnan(update[layer, 0])  # where its sum is not known, the block is one part
        name: Part = "embedding" if layer == 0 else _NAMES[component, with_attention]
        # What adds nothing is compared with the rounding of the stream, see `GAPS`.
        rounding = eps * (1 + 1 / max(reach[layer, place], np.finfo(np.float64).eps))
        before, change, times, on_same_inputs = (float(gap[layer, place]) for gap in (came, update, size, on_same))
        parts.append(Difference(layer, name, before, change, times, float(rounding), on_same_inputs))
    beside = [_neighbours(part, parts) for part in parts]
    return [
        replace(part, beside=float(np.median(others)) if others else nan)
        for part, others in zip(parts, beside, strict=True)
    ]


def _neighbours(part: Difference, parts: list[Difference]) -> list[float]:
    """Return what the parts of its kind around it differ by on the same inputs; without any, those of its layer."""
    known = [other for other in parts if other is not part and np.isfinite(other.own) and np.isfinite(other.size)]
    alike = [other.own for other in known if other.part == part.part and abs(other.layer - part.layer) <= NEIGHBOURS]
    return alike or [other.own for other in known if other.layer == part.layer]


def _stands_out(part: Difference, parts: list[Difference]) -> bool:
    before = [other for other in parts[: parts.index(part)] if other.layer > 0]
    if part.exact and before and not any(other.beyond for other in before):
        return True
    others = _neighbours(part, parts)
    if np.isfinite(part.own) and others:
        return bool(part.own >= max(outlying_from(others, TIMES_NEIGHBOURS), ROUNDINGS * part.rounding))
    differing = [other for other in parts if other.update > 0 and other is not part]
    if part.exact:  # its input says nothing: what others add to what came before them is what it is compared with
        beside = [(max(other.update**2 - 4 * other.before**2, 0.0)) ** 0.5 for other in differing if other.layer > 0]
        return not beside or part.update >= JUMP * float(np.median(beside))
    return part.excess >= JUMP * max(1.0, float(np.median([other.excess for other in differing])) if differing else 1.0)


def by_weights(parting: Parting, gaps: xr.Dataset, eps: float, places: Sequence[tuple[int, Part]]) -> Parting:
    """Locate the first difference by the weights, where no part before it stands out by what it does to the states.

    Args:
        parting: From `parting_of`, also the next two.
        gaps: Likewise.
        eps: Likewise.
        places: Layers and parts whose weights stand out, in order; see `weights_standing_out`.
    """
    layers = {layer for layer, _ in places}
    if not places or len(layers) > max(1, int(_FEW_LAYERS * (gaps.sizes["layer"] - 1))):
        return parting
    layer, name = places[0]
    first = next((part for part in _parts(gaps, eps) if part.layer == layer and part.part in (name, "block")), None)
    if first is None or parting.kind in ("equal", "rounding"):
        return parting
    if parting.kind == "located":
        # The feed-forward part reads what a damaged attention gives, and stands out for that alone.
        behind = parting.first is not None and parting.first.layer == layer and parting.first.part != first.part
        return replace(parting, first=first) if behind and places == [(layer, "attention")] else parting
    return replace(parting, kind="by weights", first=first)


def without_layers(parting: Parting, gaps: xr.Dataset, eps: float, missing: Sequence[int]) -> Parting:
    """Locate the first difference at the first layer that one of two networks lacks.

    Args:
        parting: From `parting_of`, also the next two.
        gaps: Likewise.
        eps: Likewise.
        missing: Layers of the deeper network, from 1; see `missing_layers`.
    """
    first = next((part for part in _parts(gaps, eps) if part.layer == missing[0]), None)
    if first is None:  # behind the last layer that both have: there is no update to compare with
        first = Difference(missing[0], "attention", parting.late, 1.0, 0.0, eps)
    return replace(parting, kind="located", first=first, missing=tuple(missing))


def weights_standing_out(tensors: TensorDifferences, weights: xr.Dataset, first: Checkpoint) -> list[tuple[int, Part]]:
    """Return layers and parts with weights that differ unlike those around them, in order.

    Those are heads whose products differ unlike the heads around them, stored tensors unlike those of their name in
    other layers, and a final norm unlike the norms of the blocks. Tensors locate nothing where the part may compute
    the same: where its matrices are in another basis, see `_same_parameters`, a factor moved from a matrix or norm to
    the next one, or a constant from one bias to the next.

    Args:
        tensors: From `tensor_differences`.
        weights: Differences of products and feed-forward matrices, of one network.
        first: The network compared with.
    """
    if tensors.why:
        return []
    names = tensors.table.tensor.values.astype(str).tolist()
    parts: list[list[Part]] = [[_part_of(name, layer) for name in names] for layer in first.layout.layers]
    alike = _same_parameters(tensors, weights, parts)
    places: set[tuple[int, Part]] = {
        (layer, "attention") for layer in weights.layer.values.tolist() if heads_standing_out(weights, layer)
    }
    # Matrices in another basis are no others to compare with either.
    comparable = np.array([[alike[part][row] for part in of_layer] for row, of_layer in enumerate(parts)])
    table = tensors.table.where(xr.DataArray(comparable, dims=("layer", "tensor")))
    chosen: dict[tuple[int, Part], list[int]] = {}
    for row, place in standing_out(table):
        chosen.setdefault((row + 1, parts[row][place]), []).append(place)
    scales, of_products = scales_standing_out(table), _scales_of_products(weights)
    for (layer, part), outliers in chosen.items():
        errors = table.tensor_scale_error.values[layer - 1]
        left = _without_moved_factors(outliers, scales[layer - 1], errors)
        matrices = [place for place in left if names[place] not in tensors.vectors]
        if part == "attention":  # a fused matrix shows a factor of its values only in part
            times, layout = _UNDONE if len(matrices) > 1 else _UNDONE**2, first.layout.layers[layer - 1]
            undone = {
                place
                for place in matrices
                if abs(scales[layer - 1, place])
                > times * max(of_products[name][layer - 1] for name in _circuits_of(names[place], layout))
            }
            left = _without_counterparts(left, undone, scales[layer - 1], errors)
        # One constant, of a value say, may move to the next bias; it need not stand out where it did in all layers.
        biases = [
            place for place, name in enumerate(names) if name.endswith("bias") and parts[layer - 1][place] == part
        ]
        changed = [place for place in biases if table.tensor_difference.values[layer - 1, place] > _REWRITTEN]
        constants = set(left) <= set(biases) and len({*left, *changed}) > 1
        if left and not constants:
            places.add((layer, part))
    if final_norm_stands_out(table, tensors.final_norm, first.layout.layers[-1].norms):
        places.add((first.architecture.layers, "final norm"))
    return sorted(places)


def with_rewritten(tensors: TensorDifferences, weights: xr.Dataset, first: Checkpoint) -> TensorDifferences:
    """Record which parts are stored in another order, basis or scale, as they compute nearly the same.

    Args:
        tensors: From `tensor_differences`.
        weights: Differences of products and feed-forward matrices, of one network.
        first: The network compared with.
    """
    if tensors.why:
        return tensors
    names = tensors.table.tensor.values.astype(str).tolist()
    parts = np.array([[_part_of(name, layer) for name in names] for layer in first.layout.layers])
    computed, rewritten = _computed_by(weights), dict[str, dict[int, float]]()
    for part, same in _same_parameters(tensors, weights, parts.tolist()).items():
        layers = np.flatnonzero(np.isfinite(computed[part]) & ~same).tolist()
        if layers:
            rewritten[part] = {layer + 1: float(computed[part][layer]) for layer in layers}
    return replace(tensors, rewritten=rewritten, of_parts={part: parts == part for part in rewritten})


def _computed_by(weights: xr.Dataset) -> dict[Part, Float64[np.ndarray, " layer"]]:
    """Return the relative difference of what the matrices of each part compute."""
    return {
        "attention": np.fmax(weights.qk_difference.values, weights.ov_difference.values),
        "feed-forward part": weights.ff_difference.values,
    }


def _scales_of_products(weights: xr.Dataset) -> dict[str, Float64[np.ndarray, " layer"]]:
    """Return by how much the logarithm of the scale of each layer's heads differs from the other layers, by product."""
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # layers without heads
        scales = [np.nanmedian(weights[f"head_{name}_scale"].values, axis=1) for name in CIRCUITS]
        logarithms = np.log(np.abs(scales).clip(WEIGHTS_DIFFER))
        usual = np.nanmedian(logarithms, axis=1, keepdims=True)
        return dict(zip(CIRCUITS, np.abs(logarithms - usual), strict=True))


def _circuits_of(tensor: str, layout: BlockLayout) -> Sequence[str]:
    """Return the products that a tensor of a block is in; all of them where that is not known."""
    modules = {} if layout.attention is None else layout.attention.modules_of_products
    return [name for name, inside in modules.items() if _inside(tensor, inside)] or CIRCUITS


def _without_moved_factors(outliers: Sequence[int], scales: np.ndarray, errors: np.ndarray) -> list[int]:
    """Return the tensors that stand out but for those of which another one has the reciprocal scale, up to noise."""
    limit = from_chance(errors.size)
    undone = {
        place
        for place in outliers
        for other in outliers
        if scales[place] * scales[other] < 0
        and abs(scales[place] + scales[other]) <= limit * float(np.hypot(errors[place], errors[other]))
    }
    return [place for place in outliers if place not in undone]


def _without_counterparts(
    outliers: Sequence[int], undone: Collection[int], scales: np.ndarray, errors: np.ndarray
) -> list[int]:
    """Return the tensors that stand out but for those whose factor is undone and those that may undo it.

    Those have an opposite factor that is no larger: a fused matrix or bias shows a factor of its values only in part.
    """
    limit = from_chance(errors.size)
    counterparts = {
        place
        for place in outliers
        for other in undone
        if scales[place] * scales[other] < 0
        and abs(scales[place]) <= abs(scales[other]) + limit * float(np.hypot(errors[place], errors[other]))
    }
    return [place for place in outliers if place not in counterparts and place not in undone]


def _part_of(tensor: str, layout: BlockLayout) -> Part:
    """Return the part that a tensor of a block belongs to; a norm to the part that it stands before or after."""
    residual, attention = layout.residual, layout.attention
    if _inside(tensor, layout.norms):
        norms = [] if attention is None or attention.norm is None else [attention.norm[0]]
        norms += [] if residual is None or residual.attention_norm is None else [residual.attention_norm]
        return "attention" if _inside(tensor, norms) else "feed-forward part"
    return "attention" if _inside(tensor, _attention_modules(layout)) else "feed-forward part"


def _same_parameters(
    tensors: TensorDifferences, weights: xr.Dataset, parts: Sequence[Sequence[Part]]
) -> dict[Part, Bool[np.ndarray, " layer"]]:
    """Return in which layers the stored matrices of a part differ by about as much as what they compute.

    Matrices in another basis or order compute the same.
    """
    stored = tensors.table.tensor_difference.values
    matrices = ~np.isin(tensors.table.tensor.values.astype(str), tensors.vectors)
    alike: dict[Part, Bool[np.ndarray, " layer"]] = {}
    for part, products in _computed_by(weights).items():
        chosen = (np.array(parts) == part) & matrices & np.isfinite(stored)
        largest = np.where(chosen, stored, 0.0).max(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            excess = np.where(largest > STORED, largest / products, 1.0)
        usual = [float(np.median(np.delete(excess, row))) if len(excess) > 1 else 1.0 for row in range(len(excess))]
        rewritten = (excess > _REPARAMETERISED) & (largest > _REWRITTEN)
        alike[part] = np.isfinite(products) & (excess <= _MORE_THAN_OTHERS * np.array(usual)) & ~rewritten
    return alike


def with_heads(parting: Parting | None, weights: xr.Dataset) -> Parting | None:
    """Record in a difference located in an attention the heads whose circuits stand out, if at most half of them do.

    Args:
        parting: From `parting_of`; None where nothing was measured.
        weights: From `weight_differences`, of one network.
    """
    if parting is None or parting.first is None or parting.first.part != "attention" or parting.first.norms:
        return parting
    heads = heads_standing_out(weights, parting.first.layer)
    count = int(weights.head_ov_difference.sel(layer=parting.first.layer).notnull().sum())  # infinite beside zero
    return replace(parting, first=replace(parting.first, heads=heads if len(heads) <= count // 2 else ()))


def with_norms_alone(
    parting: Parting | None, first: Checkpoint, other: Checkpoint, tensors: TensorDifferences | None = None
) -> Parting | None:
    """Record in a located first difference the norms that cause it, where nothing else of the part differs.

    Args:
        parting: From `parting_of`; None where nothing was measured.
        first: The network compared with.
        other: The network that differs.
        tensors: From `tensor_differences`; None to compare those of neighbouring layers.
    """
    if parting is None or parting.first is None:
        return parting
    return replace(parting, first=replace(parting.first, norms=_norms_alone(parting.first, first, other, tensors)))


def _norms_alone(
    difference: Difference, first: Checkpoint, other: Checkpoint, tensors: TensorDifferences | None
) -> tuple[str, ...]:
    """Return the tensors of norms that differ in a part, if no other tensor of the part does.

    Where other layers differ as well, tensors count that differ unlike those of their name in other layers.
    """
    depth = first.architecture.layers
    if difference.layer < 1 or difference.part == "final norm" or other.architecture.layers != depth:
        return ()
    start, stop = (1, depth) if tensors else (max(difference.layer - NEIGHBOURS, 1), difference.layer + NEIGHBOURS)
    layers = range(start, min(stop, depth) + 1)
    try:
        compared = tensors or block_differences([(first.block_tensors(at), other.block_tensors(at)) for at in layers])
    except CheckpointError:
        return ()
    if compared.why or compared.unmatched or compared.codes:
        return ()
    row, values = difference.layer - start, compared.table.tensor_difference.values
    names = compared.table.tensor.values.astype(str)
    layout = first.layout.layers[difference.layer - 1]
    in_part = np.array([_belongs(name, difference, layout) for name in names])
    differing = set(np.flatnonzero(in_part & (np.nan_to_num(values[row], nan=0.0) > STORED)).tolist())
    unusual = {place for layer, place in standing_out(compared.table) if layer == row} & differing
    causes = [str(names[place]) for place in sorted(unusual or differing)]
    return tuple(causes) if all(_inside(name, layout.norms) for name in causes) else ()


def _belongs(tensor: str, difference: Difference, layout: BlockLayout) -> bool:
    """Whether a tensor of a block may change a part; a norm may change either."""
    if difference.part == "block" or _inside(tensor, layout.norms):
        return True
    return _inside(tensor, _attention_modules(layout)) == (difference.part == "attention")


def _attention_modules(layout: BlockLayout) -> list[str]:
    modules = [] if layout.parts[0] is None else [layout.parts[0]]
    return modules if layout.attention is None else [*modules, layout.attention.module, *layout.attention.modules]


def _inside(tensor: str, modules: list[str] | tuple[str, ...]) -> bool:
    # What is no module is named as its parameter is, with a number where that has several.
    return any(f"{tensor}.".startswith(f"{module.partition('#')[0]}.") for module in modules)
