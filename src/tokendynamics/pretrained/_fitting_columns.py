"""The columns of a remedy that fit a network: new ones, or those that a folder holds."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained._checkpoint import Checkpoint
from tokendynamics.pretrained._remedy_columns import NAME, Kind, LambdaColumns
from tokendynamics.pretrained._stored_names import natural
from tokendynamics.pretrained.sources._tensor_files import SafetensorsFiles


def new_columns(network: Checkpoint, kind: Kind, start: float = 0.0) -> dict[nn.Module, LambdaColumns]:
    """Return columns for every attention of a network by its module, in the order of the layers.

    Args:
        network: A live one.
        kind: Of the columns.
        start: λ of each.

    Raises:
        CheckpointError: The remedy is not for it; layer and cause are named.
    """
    layout, name = network.layout, network.name
    found: dict[nn.Module, LambdaColumns] = {}
    for number, (block, layer) in enumerate(zip(layout.blocks, layout.layers, strict=True), start=1):
        where, attention = f"{name}: layer {number}", layer.attention
        if attention is None:
            raise CheckpointError(expected(where, "an attention whose queries and keys are found", layer.problem))
        if not attention.causal:
            raise CheckpointError(expected(where, "an attention that sees no later token", "one that does"))
        if not attention.module:
            raise CheckpointError(expected(where, "an attention in its own module", "a block that attends itself"))
        module = network.model.get_submodule(f"{block}.{attention.module}")
        first, sizes = next(module.parameters()), {"heads": attention.heads, "kv_heads": attention.kv_heads}
        columns = LambdaColumns(kind, network.architecture.dim, **sizes, start=start)
        # In half precision small steps of λ would be lost.
        found[module] = columns.to(first.device, torch.promote_types(first.dtype, torch.float32))
    if layout.positions != "rotary":
        wanted, came = "rotary positions, to which the remedy is added", f"positions of the kind {layout.positions!r}"
        raise CheckpointError(expected(name, wanted, came))
    return found


def stored_columns(network: Checkpoint, folder: Path) -> dict[nn.Module, LambdaColumns]:
    """Return columns as `new_columns` does, with the values that a folder holds.

    Args:
        network: A live one.
        folder: Of a network of the same sizes, which `save_pretrained` has written.

    Raises:
        CheckpointError: The folder holds none, or those of another network; see also there.
    """
    files = SafetensorsFiles(folder)
    stored = {leaf: _ending(f".{NAME}.{leaf}", files) for leaf in ("size", "log_diagonal")}
    if not stored["size"]:
        raise CheckpointError(expected(str(folder), "a network with a remedy, saved as safetensors", "none"))
    found = new_columns(network, "lambda-diagonal" if stored["log_diagonal"] else "lambda-identity")
    for leaf, names in stored.items():
        places = [values for columns in found.values() for own, values in columns.named_parameters() if own == leaf]
        wanted, came = [tuple(each.shape) for each in places], [files.shapes[each] for each in names]
        if wanted != came:
            where = f"{folder}: {NAME}.{leaf}"
            raise CheckpointError(expected(where, f"{_counted(wanted)}, as {network.name} has", _counted(came)))
        for place, values in zip(places, map(files.read, names), strict=True):
            place.data.copy_(values)
    return found


def _ending(end: str, files: SafetensorsFiles) -> list[str]:
    return sorted((name for name in files.shapes if name.endswith(end)), key=natural)


def _counted(shapes: list[tuple[int, ...]]) -> str:
    return f"{len(shapes)} of shape {shapes[0]}" if shapes else "none"
