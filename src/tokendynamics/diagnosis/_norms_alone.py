"""Whether the first difference of two networks lies in norms alone: in the gain or bias before or after a part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tokendynamics.diagnosis._first_difference import NEIGHBOURS, Difference, Parting
from tokendynamics.diagnosis._tensor_differences import block_differences, standing_out
from tokendynamics.diagnosis._tensor_words import STORED
from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained import Checkpoint
from tokendynamics.pretrained.discovery.layout import BlockLayout


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
