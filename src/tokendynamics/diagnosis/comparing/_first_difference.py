"""The first layer at which two networks differ, and the part that causes it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import nan
from typing import Any, Literal

import numpy as np
import xarray as xr

from tokendynamics.diagnosis.comparing._tensors import STORED, block_differences, outlying_from, standing_out
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

NEIGHBOURS = 3
"""Layers on either side whose parts of the same kind a part is compared with."""

SIZE_CHANGED = 2.0
"""A part whose update is this many times larger or smaller than the other network's is named."""

Part = Literal["embedding", "attention", "feed-forward part", "block", "final norm"]

Kind = Literal["equal", "rounding", "located", "from the start", "gradual"]
"""Equal to the last bit; equal up to rounding; one part stands out; different embeddings and no part stands out after
them; gradual divergence without a part that stands out."""


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
        size: ‖Δ_b‖/‖Δ_a‖.
        rounding: Relative error of the update from one rounding of the states; larger for smaller updates.
        own: ‖Δ_b − Δ_a‖/‖Δ_a‖ of both parts on the first network's states; NaN where not measured.
        beside: The median of `own` of the neighbours; NaN likewise.
        norms: Stored tensors of the layer's norms, where only norms differ in this part; empty otherwise.
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
        return f"the {self.part} of layer {self.layer}"


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
        late: Relative difference of the states after the last layer.
    """

    kind: Kind
    first: Difference | None
    start: Difference | None
    largest: Difference | None
    resized: tuple[Difference, ...]
    early: float
    late: float

    def plain(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


def parting_of(gaps: xr.Dataset, eps: float) -> Parting:
    """Locate the first difference of two networks.

    A part stands out relative to its neighbours, not to zero: otherwise two networks with the same embedding would
    always differ first in layer 1. On identical inputs its difference must be `TIMES_NEIGHBOURS` that of the same part
    in neighbouring layers. Where that was not measured, its updates must differ by `JUMP` times the difference of its
    input, relative to the other parts. A part also stands out if all earlier parts, at least one, are equal up to
    rounding. Differences are root mean squares over prompts.

    Args:
        gaps: `GAPS` of the two over (prompt, layer, component), from `run_together`.
        eps: Of the coarser of their dtypes.

    >>> dims, zero = ("prompt", "layer", "component"), np.zeros((1, 3, 3))
    >>> table = {name: (dims, zero.copy()) for name in GAPS} | {"update_size": (dims, zero + 1)}
    >>> table["update_difference"][1][:, 2, 0] = 0.5
    >>> found = parting_of(xr.Dataset(table, coords={"component": ["attention", "feed_forward", "final_norm"]}), 1e-7)
    >>> found.kind, str(found.first)
    ('located', 'the attention of layer 2')
    """
    parts = _parts(gaps, eps)
    moved = [each for each in parts if each.update > 0]
    start = next((each for each in parts if each.layer == 0 and each.beyond), None)
    first = next((each for each in moved if each.layer > 0 and each.beyond and _stands_out(each, parts)), None)
    if not moved:
        kind: Kind = "equal"
    elif first is not None:
        kind = "located"
    elif start is not None:
        kind = "from the start"
    else:
        kind = "gradual" if any(each.beyond for each in parts) else "rounding"
    largest = max((each for each in moved if each.layer > 0), key=lambda each: each.update, default=start)
    resized = tuple(
        each for each in parts if each.beyond and each.layer > 0 and not 1 / SIZE_CHANGED < each.size < SIZE_CHANGED
    )
    after = _pooled(gaps, "state_difference")[:, gaps.component.values.tolist().index("feed_forward")]
    return Parting(
        kind, first or start, start, largest, resized, float(after[min(1, len(after) - 1)]), float(after[-1])
    )


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
        rounding = eps * (1 + 1 / reach[layer, place]) if reach[layer, place] else np.inf
        before, moved, times, own = (float(each[layer, place]) for each in (came, update, size, on_same))
        parts.append(Difference(layer, name, before, moved, times, float(rounding), own))
    beside = [_neighbours(part, parts) for part in parts]
    return [
        replace(part, beside=float(np.median(others)) if others else nan)
        for part, others in zip(parts, beside, strict=True)
    ]


def _neighbours(part: Difference, parts: list[Difference]) -> list[float]:
    """Return what the parts of its kind around it differ by on the same inputs; without any, those of its layer."""
    known = [each for each in parts if each is not part and np.isfinite(each.own)]
    alike = [each.own for each in known if each.part == part.part and abs(each.layer - part.layer) <= NEIGHBOURS]
    return alike or [each.own for each in known if each.layer == part.layer]


def _stands_out(part: Difference, parts: list[Difference]) -> bool:
    before = [each for each in parts[: parts.index(part)] if each.layer > 0]
    if part.exact and before and not any(each.beyond for each in before):
        return True
    others = _neighbours(part, parts)
    if np.isfinite(part.own) and others:
        return part.own >= max(outlying_from(others, TIMES_NEIGHBOURS), ROUNDINGS * part.rounding)
    moved = [each for each in parts if each.update > 0 and each is not part]
    if part.exact:  # its input says nothing: what others add to what came before them is what it is compared with
        beside = [(max(each.update**2 - 4 * each.before**2, 0.0)) ** 0.5 for each in moved if each.layer > 0]
        return not beside or part.update >= JUMP * float(np.median(beside))
    return part.excess >= JUMP * max(1.0, float(np.median([each.excess for each in moved])) if moved else 1.0)


def with_norms_alone(parting: Parting | None, first: Checkpoint, other: Checkpoint) -> Parting | None:
    """Record in a located first difference the norms that cause it, where nothing else of the part differs.

    Args:
        parting: From `parting_of`; None where nothing was measured.
        first: The network compared with.
        other: The network that differs.
    """
    if parting is None or parting.first is None:
        return parting
    return replace(parting, first=replace(parting.first, norms=_norms_alone(parting.first, first, other)))


def _norms_alone(difference: Difference, first: Checkpoint, other: Checkpoint) -> tuple[str, ...]:
    """Return the tensors of norms that differ in a part, if no other tensor of the part does.

    Where other layers differ as well, tensors count that differ unlike those of their name in neighbouring layers.
    """
    depth = first.architecture.layers
    if difference.layer < 1 or difference.part == "final norm" or other.architecture.layers != depth:
        return ()
    start, stop = max(difference.layer - NEIGHBOURS, 1), min(difference.layer + NEIGHBOURS, depth)
    try:
        pairs = [(first.block_tensors(layer), other.block_tensors(layer)) for layer in range(start, stop + 1)]
    except CheckpointError:
        return ()
    compared = block_differences(pairs)
    if compared.why or compared.unmatched:
        return ()
    row, values = difference.layer - start, compared.table.tensor_difference.values
    names = compared.table.tensor.values.astype(str)
    layout = first.layout.layers[difference.layer - 1]
    in_part = np.array([_belongs(name, difference, layout) for name in names])
    differing = set(np.flatnonzero(in_part & (np.nan_to_num(values[row], nan=0.0) > STORED)).tolist())
    unusual = {place for layer, place in standing_out(values) if layer == row} & differing
    causes = [str(names[place]) for place in sorted(unusual or differing)]
    return tuple(causes) if all(_inside(name, layout.norms) for name in causes) else ()


def _belongs(tensor: str, difference: Difference, layout: BlockLayout) -> bool:
    """Whether a tensor of a block may change a part; a norm may change either."""
    if difference.part == "block" or _inside(tensor, layout.norms):
        return True
    modules = [] if layout.parts[0] is None else [layout.parts[0]]
    if layout.attention is not None:
        modules += [layout.attention.module, *layout.attention.modules]
    return _inside(tensor, modules) == (difference.part == "attention")


def _inside(tensor: str, modules: list[str] | tuple[str, ...]) -> bool:
    return any(tensor.startswith(f"{module}.") for module in modules)
