"""The checkpoint of a live network: its inputs are checked, and adapters of PEFT (LoRA and the like) put on it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.numerics.arguments import as_path, plain_tensor
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.extras import require
from tokendynamics.pretrained._checkpoint import Checkpoint
from tokendynamics.pretrained._dispatch import without_hooks
from tokendynamics.pretrained._filling import Network
from tokendynamics.pretrained._remedied_network import remedies_in
from tokendynamics.pretrained._stored_tensors import check_finite_weights
from tokendynamics.pretrained._torch_attention import fused_otherwise, hide_cross_attentions, run_like, turn_states
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.discovery._discover import Discovery
from tokendynamics.pretrained.discovery._maps import in_single_precision
from tokendynamics.pretrained.discovery._random_inputs import random_inputs
from tokendynamics.pretrained.discovery.random_weights import discover_in_network
from tokendynamics.pretrained.edits.language_head import base_of
from tokendynamics.pretrained.encoding import Origin
from tokendynamics.pretrained.length_dependence import noting_written_buffers
from tokendynamics.pretrained.network import (
    copied,
    evaluating,
    half_of,
    submodule,
    tensors_given,
    weights_of_evaluation,
)
from tokendynamics.pretrained.other_libraries import refusing, silenced
from tokendynamics.pretrained.sources._configuration import check_files, check_settings, read_json_object
from tokendynamics.pretrained.sources._tensor_files import ADAPTER_CONFIGURATION, adapter_weights, stored_tensors
from tokendynamics.provenance.reading import kind_of

_EXAMPLE = 'such as lambda count: {"ids": torch.randint(0, 100, (count, 7))}'

_WRAP = "wrap the network in a module whose arguments are tensors"


def inputs_like(example: Tensor | tuple[Any, ...] | Mapping[str, Any], network: nn.Module) -> Callable[[int], Any]:
    """Return a function that makes arguments like an example for a number of inputs.

    Masks, positions, token types, a one or a zero for every token and what has no axis of inputs stay as they are, as
    does one number for each input (a time step). Other numbers are drawn: whole ones between the least and the largest,
    real ones from the normal law with the example's mean and standard deviation.

    Args:
        example: A tensor for the first argument, a tuple for the first ones, or arguments by name; inputs come first.
        network: What takes them.

    Raises:
        ArgumentTypeError: It does not fit the arguments of the network.
        ArgumentValueError: It has no tensor (input, token, …) of numbers that differ.
    """
    arguments = _by_name(example, network)
    tensors = {name: plain_tensor(value, "inputs") for name, value in arguments.items() if isinstance(value, Tensor)}
    drawn = {name: value for name, value in tensors.items() if value.ndim > 1 and not _is_kept(name, value)}
    usable = [
        value for value in drawn.values() if value.numel() and value.isfinite().all() and value.unique().numel() > 1
    ]
    if not drawn or len(usable) < len(drawn):
        wanted = "an example with tensors (input, token, …) of finite numbers that differ"
        shapes = ", ".join(f"{name} of shape {tuple(value.shape)}" for name, value in tensors.items())
        inside = "" if drawn else _tensors_inside(arguments)
        came, advice = inside or shapes or "no tensor", _WRAP if inside else "pass real inputs"
        raise ArgumentValueError("inputs", wanted, came, advice)
    rows, lengths = len(usable[0]), {value.shape[1] for value in usable}

    def made(count: int) -> dict[str, Any]:
        generator, several = torch.Generator().manual_seed(1), dict(arguments)
        for name, value in tensors.items():
            # One number for each input, such as a time step or a label; as many as tokens may be one for each of these.
            of_inputs = value.ndim == 1 and rows not in lengths and not _is_kept(name, value)
            if (value.ndim > 1 or of_inputs) and len(value) == rows:
                repeated = value[torch.arange(count, device=value.device) % rows]
                several[name] = _drawn_like(value, repeated.shape, generator) if name in drawn else repeated
        return several

    return made


def _tensors_inside(arguments: Mapping[str, Any]) -> str:
    """Return in words which argument has tensors inside a mapping, a list or an object; empty where none has."""
    holding = [name for name, value in arguments.items() if not isinstance(value, Tensor) and tensors_given(value)]
    return f"tensors inside of {holding[0]}" if holding else ""


def _is_kept(name: str, value: Tensor) -> bool:
    """Tell whether a tensor says which tokens count or where they are, so that other numbers would change its sense."""
    named = any(word in name for word in ("mask", "position", "token_type"))
    by_token = value.ndim > 1 and value.numel() == len(value) * value.shape[-1]
    flags = by_token and any(bool((value == flag).all()) for flag in (0, 1))
    return named or value.dtype == torch.bool or value.is_complex() or flags


def _drawn_like(example: Tensor, shape: torch.Size, generator: torch.Generator) -> Tensor:
    if example.is_floating_point():
        numbers = torch.randn(shape, generator=generator) * float(example.std()) + float(example.mean())
    else:
        numbers = torch.randint(int(example.min()), int(example.max()) + 1, shape, generator=generator)
    return numbers.to(example)


def _unwrapped(network: nn.Module) -> nn.Module:
    """Return the network inside torch.compile's or DataParallel's wrapper, which pass all arguments on."""
    while True:
        inner = getattr(network, "_orig_mod", None)
        if isinstance(network, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = network.module
        if not isinstance(inner, nn.Module):
            return network
        network = inner


def _by_name(example: Any, network: nn.Module) -> dict[str, Any]:
    """Return an example as arguments by name."""
    parameters = inspect.signature(_unwrapped(network).forward).parameters.values()
    unnamed = [one.name for one in parameters if one.kind == one.POSITIONAL_ONLY]
    if unnamed:
        wanted, advice = "a network whose arguments can be passed by name", "wrap it in a module that passes them on"
        raise ArgumentTypeError("inputs", wanted, f"{unnamed[0]}, which cannot", advice)
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    if isinstance(example, Mapping):
        arguments = dict(example)
    else:
        values = example if isinstance(example, tuple) else (example,)
        names = [one.name for one in named if one.kind == one.POSITIONAL_OR_KEYWORD]
        if len(values) > len(names):
            wanted, came = "no more values than the network has named arguments", f"{len(values)} for {len(names)}"
            advice = (
                "" if names else "pass a mapping, or wrap the network in a module whose forward names its arguments"
            )
            raise ArgumentTypeError("inputs", wanted, came, advice)
        arguments = dict(zip(names, values, strict=False))
    missing = [one.name for one in named if one.default is one.empty and one.name not in arguments]
    if missing:
        advice = "pass a mapping of names to tensors"
        raise ArgumentTypeError("inputs", "every required argument", f"none for {missing[0]}", advice)
    return arguments


def checked_inputs(inputs: Any) -> Callable[[int], Mapping[str, Any]]:
    """Return the function, with what it returns checked at each call.

    Args:
        inputs: From the user.

    Raises:
        ArgumentTypeError: No function; or, when it is called, one that fails or returns no arguments by name.
        ArgumentValueError: When it is called: no tensor has as many inputs as were asked for along its first axis.
    """
    if not callable(inputs):
        wanted = "an example, or a function that makes the arguments for a given number of inputs"
        raise ArgumentTypeError("inputs", wanted, shown(inputs), _EXAMPLE)

    def refusal(words: str) -> ArgumentTypeError:
        return ArgumentTypeError("inputs", "a function of the number of inputs", words, _EXAMPLE)

    def made(count: int) -> Mapping[str, Any]:
        with refusing(refusal):
            given = inputs(count)
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            wanted, came = "a function that returns arguments by name", f"one that returns a {type(given).__name__}"
            raise ArgumentTypeError("inputs", wanted, came, _EXAMPLE)
        shapes = {name: tuple(value.shape) for name, value in given.items() if isinstance(value, Tensor)}
        if not any(shape[:1] == (count,) for shape in shapes.values()):
            wanted = f"a tensor whose first axis is that of the {count} inputs asked for"
            inside = _tensors_inside(given)
            raise ArgumentValueError("inputs", wanted, inside or shapes or "no tensor", _WRAP if inside else _EXAMPLE)
        return copied(given)

    return made


_WRAPPED = "base_model.model."


def check_no_virtual_tokens(network: nn.Module, name: str) -> None:
    """Refuse a network that puts tokens of its own before every prompt, as prompt tuning does.

    Raises:
        CheckpointError: Its states would be those of other tokens than the prompt's.
    """
    chosen: Any = getattr(network, "active_peft_config", None)
    kind = getattr(getattr(chosen, "peft_type", None), "value", "")
    if getattr(chosen, "is_prompt_learning", False) and kind != "PREFIX_TUNING":
        came = f"one with {chosen.num_virtual_tokens} virtual tokens before every prompt ({kind})"
        advice = "pass get_base_model() for the network without them"
        raise CheckpointError(name, "a network whose states are those of a prompt's tokens", came, advice)


def _refusal(words: str) -> CheckpointError:
    came = f"one that does not fit ({words})"
    return CheckpointError("adapter", "an adapter made for this network", came, "pass its own base model")


def _configuration_of(folder: Path, network: nn.Module) -> Any:
    """Return PEFT's configuration of an adapter, for a network that may have another head or none.

    Raises:
        CheckpointError: The file is missing, or its adapter has virtual tokens or mixes several adapters.
    """
    path = folder / ADAPTER_CONFIGURATION
    if not folder.is_dir():
        raise CheckpointError("adapter", f"a folder with {path.name}", f"{kind_of(folder)} ({folder})")
    check_files(folder)
    if not path.is_file():
        raise CheckpointError("adapter", f"a folder with {path.name}", f"none in {folder}")
    from peft import PeftConfig

    check_settings(read_json_object(path), str(path))
    with refusing(_refusal), silenced():
        config: Any = PeftConfig.from_pretrained(str(folder))
    kind = config.peft_type.value
    if config.is_prompt_learning:
        after = "pass the network that PeftModel.from_pretrained makes" if kind == "PREFIX_TUNING" else "leave it out"
        came = f"one of {config.num_virtual_tokens} virtual tokens ({kind})"
        raise CheckpointError("adapter", "an adapter of the weights", came, after)
    if kind in ("POLY", "XLORA"):
        came = f"one that mixes several by the {'task' if kind == 'POLY' else 'prompt'} ({kind})"
        raise CheckpointError("adapter", "an adapter of the weights alone", came, "merge one of them")
    # The task changes how PEFT calls the network, and no weight.
    config.task_type, config.inference_mode = None, True
    names = {name for name, _ in network.named_modules()}
    if saved := getattr(config, "modules_to_save", None):
        config.modules_to_save = [
            module for module in saved if any(f".{name}".endswith(f".{module}") for name in names)
        ] or None
    return config


def with_adapter(network: Any, folder: Path, allow_pickle: bool = False) -> nn.Module:
    """Return a network with the adapter of a folder on it; the network itself is changed.

    What the adapter holds for a head that the network does not have is left out: it changes no state.

    Args:
        network: A base model, or one with its language head.
        folder: With adapter_config.json, and its weights as adapter_model.safetensors or adapter_model.bin.
        allow_pickle: Whether pickled weights are read.

    Raises:
        CheckpointError: PEFT is not installed, the folder holds no adapter, or one that was made for another network.
    """
    require("peft", "adapter", "adapters", error=CheckpointError)
    config, weights = _configuration_of(folder, network), adapter_weights(folder)
    if weights is None:
        raise CheckpointError("adapter", "a folder with adapter_model.safetensors", f"none in {folder}")
    from peft import get_peft_model, set_peft_model_state_dict

    files = stored_tensors(folder, weights, allow_pickle)
    with refusing(_refusal), silenced():
        renamed = {new: files.read(name) for name in files.shapes if (new := _fitting(name, network)) is not None}
        adapted: Any = get_peft_model(network, config)
        result: Any = set_peft_model_state_dict(adapted, renamed)
    # What PEFT makes for the layers of one kind of adapter begins with a word that its class knows.
    prefix = getattr(adapted.base_model, "prefix", None) or config.peft_type.value.lower()
    # A vector that layers share is stored once, under one of its names.
    tensors, absent = adapted.state_dict(), set(result.missing_keys)
    there = {tensor.data_ptr() for name, tensor in tensors.items() if name not in absent}
    missing = [name for name in result.missing_keys if prefix in name and tensors[name].data_ptr() not in there]
    for names, what in ((result.unexpected_keys, "no place for"), (missing, "nothing for")):
        if names:
            raise _refusal(f"{what} {names[0]}, the first of {len(names)}")
    return adapted.eval()


def _fitting(name: str, network: Any) -> str | None:
    """Return what a tensor of the adapter is called on this network; None for one of a head that it does not have.

    An adapter of a network with a head calls the base model by a name of its own, one of a base model does not.
    """
    inner = name.removeprefix(_WRAPPED)
    prefix, base = base_of(network)
    if inner == name:
        return name
    if prefix:  # the network has a head
        known = {child for child, _ in network.named_children()}
        return name if inner.split(".")[0] in known else f"{_WRAPPED}{prefix}{inner}"
    inner = inner.removeprefix(f"{network.base_model_prefix}.")
    return _WRAPPED + inner if getattr(base, inner.split(".")[0], None) is not None else None


def check_live(stream: bool | None, device_map: Any) -> None:
    if stream:
        raise ArgumentValueError("stream", "None or False for a live network", stream)
    if device_map is not None:
        advice = "dispatch it with accelerate.dispatch_model; it then runs where it is"
        raise ArgumentValueError("device_map", "None for a live network", shown(device_map), advice)


def _check_can_be_watched(network: nn.Module, name: str) -> None:
    """Refuse a network that calls no blocks, or whose own arguments have the tokens first.

    Raises:
        CheckpointError: A compiled program, or one of PyTorch's stacks without `batch_first`.
    """
    if isinstance(network, torch.jit.ScriptModule) or (
        isinstance(network, torch.fx.GraphModule) and "eval" in vars(network)  # torch.export puts its own there
    ):
        wanted, came = (
            "a network that calls its blocks as modules",
            "a program without them (TorchScript, torch.export)",
        )
        raise CheckpointError(name, wanted, came, "pass the network that it was made from")
    if isinstance(network, nn.TransformerEncoder | nn.TransformerDecoder):
        attention = getattr(next(iter(network.layers), None), "self_attn", None)
        if isinstance(attention, nn.MultiheadAttention) and not attention.batch_first:
            wanted, came = "a network whose arguments have inputs first", "one with tokens first (batch_first=False)"
            turned = "wrap it in a module whose forward(x) returns network(x.transpose(0, 1)).transpose(0, 1)"
            raise CheckpointError(name, wanted, came, turned)


def _check_in_memory(network: nn.Module, name: str) -> None:
    """Refuse a network with parameters on the meta device that nothing puts there only between its passes.

    Raises:
        CheckpointError: It names the first one, or the first that gets its shape from the first pass, or that is spread
            over processes.
    """
    spread = next((key for key, parameter in network.named_parameters() if hasattr(parameter, "full_tensor")), None)
    if spread is not None:
        came, advice = f"{spread}, which is spread over processes", "load its full state dict into one of its own"
        raise CheckpointError(name, "a network in the memory of one process", came, advice)
    lazy = next((key for key, parameter in network.named_parameters() if is_lazy(parameter)), None)
    if lazy is not None:
        came = f"{lazy}, which has no shape yet"
        raise CheckpointError(name, "a network with weights", came, "run it once on a batch")
    offloaded = any(hasattr(module, "_hf_hook") for module in network.modules())
    absent = [key for key, parameter in network.named_parameters() if parameter.is_meta and not offloaded]
    if absent:
        came = f"{absent[0]}{' and others' if absent[1:] else ''} on the meta device"
        raise CheckpointError(name, "a network with weights", came, "load them")


def _discovered(
    part: nn.Module, given: Callable[[int], Mapping[str, Any]] | None, name: str, *, alone: bool
) -> Discovery:
    """Find the layout of a live network, in single precision on the CPU where it is in half precision or elsewhere.

    Half precision would hide it in rounding. A network whose code asks for a format of its own runs in that one alone.

    Args:
        part: The network, or its half.
        given: What makes its inputs; None for random ones by the names of its arguments.
        name: What a message calls it.
        alone: Whether it is a decoder without its encoder.

    Raises:
        LayoutNotFoundError: See `discover_in_network`.
    """
    single: Any = part
    halved = any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in part.parameters())
    if halved or any(parameter.device.type != "cpu" for parameter in part.parameters()):
        single = without_hooks(in_single_precision(part, values=False)).cpu()

    def discovered(subject: nn.Module) -> Discovery:
        # What a former call found need not hold here, and would stay as long as the block below.
        turn_states(subject)
        hide_cross_attentions(subject)
        with evaluating(subject), noting_written_buffers(subject, part):
            found_with = random_inputs(subject) if given is None else given
            decoder = alone and not isinstance(subject, nn.TransformerDecoder)
            discovery = discover_in_network(subject, found_with, name, decoder=decoder)
        if subject is not part:
            run_like(part, subject)
        return discovery

    try:
        return discovered(single)
    except LayoutNotFoundError:
        if not halved or next(part.parameters()).device.type != "cpu":
            raise
        try:
            return discovered(part)
        except LayoutNotFoundError:
            pass
        raise


def live_checkpoint(
    network: nn.Module,
    origin: Origin,
    half: str | None = None,
    inputs: Any | None = None,
    adapter: str | Path | None = None,
    allow_pickle: bool = False,
) -> Checkpoint:
    """Return the checkpoint of a live network: what is read is its weights as they are when they are read."""
    name = origin.name
    _, part = half_of(network, half, name)
    _check_can_be_watched(part, name)
    example = isinstance(inputs, Tensor | tuple | Mapping)
    given = None if inputs is None else checked_inputs(inputs_like(inputs, part) if example else inputs)
    check_no_virtual_tokens(part, name)
    if adapter is not None:
        place = as_path(adapter, "adapter")
        part = with_adapter(part, place, allow_pickle)
        origin.name = f"{name} with {place.resolve().name}"
    if remedies := remedies_in(part):
        origin.name += f" with {remedies[0][1].words}"
    first = next(part.parameters(), None)
    if first is None:
        buffers = [key for key, _ in part.named_buffers()]
        named = f"{buffers[0]}{' and others' if buffers[1:] else ''}" if buffers else ""
        came = f"buffers alone ({named})" if buffers else "neither parameters nor buffers"
        advice = "make each weight an nn.Parameter; requires_grad=False keeps it as it is"
        raise CheckpointError(name, "weights that are parameters", came, advice)
    _check_in_memory(part, name)
    settings: Any = getattr(part, "config", None)
    if hasattr(settings, "to_dict"):
        check_settings(settings.to_dict(), f"{name}: config")
    for label, adapted in dict(getattr(part, "peft_config", None) or {}).items():
        check_settings(vars(adapted), f"{name}: peft_config {label!r}")
    for key, tensor in part.named_parameters():
        if not tensor.is_meta:  # what is not in memory is refused where it is read
            check_finite_weights(tensor.detach(), f"{name}: {key}")
    discovery = _discovered(part, given, name, alone=half == "decoder")
    config = getattr(part, "config", None)
    made = random_inputs(part) if given is None else given
    ckpt = Checkpoint(origin, Network(part, config, first.dtype, first.device, None, inputs=made), discovery)
    with weights_of_evaluation(part):
        fused = {
            block: any(map(fused_otherwise, submodule(part, block).modules())) for block in set(ckpt.layout.blocks)
        }
    ckpt.fused_otherwise = [number for number, block in enumerate(ckpt.layout.blocks, 1) if fused[block]]
    return ckpt
