"""Builds a base model without allocating it, and fills it tensor by tensor: never twice the memory."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import get_ident
from typing import Any, cast

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._pytree import tree_leaves

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.numerics.errors import shown
from tokendynamics.pretrained._raw_projections import raw_projection
from tokendynamics.pretrained._torch_attention import apart, run_like
from tokendynamics.pretrained.discovery._fused_attention import uncompiled
from tokendynamics.pretrained.other_libraries import refusing, silenced

_BY_NAME = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}

_HALVES: Mapping[str, tuple[str, ...]] = {
    "encoder": ("encoder",),
    "decoder": ("decoder",),
    "text": ("text_model", "language_model"),
    "vision": ("vision_model", "vision_tower", "visual"),
}
"""What the halves of a network are called inside it."""


def dtype_of(name: str | torch.dtype) -> torch.dtype:
    """Return the torch dtype called `name`.

    >>> dtype_of("bfloat16")
    torch.bfloat16

    Raises:
        ArgumentTypeError, ArgumentValueError: Neither a text nor a dtype; any other name.
    """
    if not isinstance(name, str | torch.dtype):
        raise ArgumentTypeError("dtype", " or ".join(_BY_NAME), shown(name))
    dtype = name if isinstance(name, torch.dtype) else _BY_NAME.get(name)
    if dtype is None or dtype not in _BY_NAME.values():
        raise ArgumentValueError("dtype", " or ".join(_BY_NAME), shown(str(name)))
    return dtype


def at_least_single(tensor: torch.Tensor) -> torch.Tensor:
    """Return half-precision values as float32 (no linear algebra exists below it), others as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def persistent_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that a file of this module holds, by name: running variances, or the codes of a packed weight.

    >>> list(persistent_buffers(nn.Sequential(nn.BatchNorm1d(2))))
    ['0.running_mean', '0.running_var', '0.num_batches_tracked']
    """
    return {
        f"{prefix}.{label}" if prefix else label: buffer
        for prefix, inner in module.named_modules()
        for label, buffer in inner.named_buffers(recurse=False)
        if label not in inner._non_persistent_buffers_set
    }


def weight_is_a_method(module: nn.Module) -> bool:
    """Whether a module gives its weight by a method, as PyTorch's quantised ones do.

    A child of that name, as a parametrised module has among its parametrisations, does not count.
    """
    return inspect.ismethod(getattr(module, "weight", None))


def empty_network(config: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Return the base model (no output head) on torch's meta device, which stores shapes and no values.

    Args:
        config: Its configuration.
        dtype: Number format of its parameters, but of those that its class keeps in float32. Tables that no file stores
            have the format in which transformers computes them: frequencies of rotations are in float32.

    Raises:
        CheckpointError: The configuration describes no network that can be built.
    """
    from transformers import MODEL_MAPPING, AutoModel

    kind = MODEL_MAPPING.get(type(config), None)
    takes = () if not isinstance(kind, type) else inspect.signature(kind).parameters
    # A pooler is left out: it reads the last state and feeds nothing, and many checkpoints do not have it.
    options: dict[str, Any] = {"add_pooling_layer": False} if "add_pooling_layer" in takes else {}
    options["attn_implementation"] = "sdpa" if getattr(kind, "_supports_sdpa", False) else "eager"

    def refusal(words: str) -> CheckpointError:
        came = f"one that cannot be built ({words})"
        return CheckpointError("config.json", "the configuration of a network", came)

    # The model classes raise whatever an impossible size leads to, and some draw values for what then is thrown away.
    with refusing(refusal), silenced(), torch.random.fork_rng(devices=[]), torch.device("meta"):
        network: Any = AutoModel.from_config(config, dtype=dtype, trust_remote_code=False, **options)
        _keep_in_single_precision(network, dtype)
    return network


def _keep_in_single_precision(network: Any, dtype: torch.dtype) -> None:
    """Give what `from_pretrained` keeps in float32 that format: a class names it for float16 alone or for any half."""
    kept = [*(network._keep_in_fp32_modules_strict or ())] if dtype in (torch.float16, torch.bfloat16) else []
    kept += [*(network._keep_in_fp32_modules or ())] if dtype == torch.float16 else []
    patterns = [re.compile(name.replace("*", ".*")) for name in kept]
    for name, tensor in (*network.named_parameters(), *persistent_buffers(network).items()):
        if any(pattern.search(name) for pattern in patterns):
            tensor.data = tensor.data.float()


def half_of(network: nn.Module, half: str | None, origin: str) -> tuple[str, nn.Module]:
    """Return the half of a network that was asked for, with its name; the network itself, named "", if it has none.

    Raises:
        ArgumentValueError: It has halves and none was named, or not this one.
    """
    inside, has = "", _halves(network)
    # What a network with a head, or with an adapter, is wrapped around, from the outside in.
    names: dict[nn.Module, str] = {module: name for name, module in network.named_modules()}
    seen, base = [""], getattr(network, "base_model", None)
    while not has and isinstance(base, nn.Module) and names.get(base, "") not in seen:
        seen.append(names[base])
        inside, has = f"{names[base]}.", _halves(base)
        base = getattr(base, "base_model", None)
    two = ("encoder" in has and "decoder" in has) or ("text" in has and "vision" in has)
    if half is None and not two:
        return "", network
    if half is None or half not in has or not two:
        wanted = " or ".join(map(repr, has)) if two else "None"
        came = f"{shown(half)} for {origin}, which has {'two halves' if two else 'no halves that run alone'}"
        raise ArgumentValueError("half", wanted, came, "name the one to use" if two else "leave it out")
    name, inner = has[half]
    return f"{inside}{name}", inner


def has_two_stacks(network: nn.Module) -> bool:
    """Return whether a network is an encoder and a decoder."""
    return {"encoder", "decoder"} <= _halves(network).keys()


def _halves(network: nn.Module) -> dict[str, tuple[str, nn.Module]]:
    """Return the halves of a network by name."""
    known = {name: getattr(network, name, None) for names in _HALVES.values() for name in names}
    inner = {
        name: module
        for name, module in known.items()
        if isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder)
        or (isinstance(module, nn.Module) and hasattr(module, "main_input_name"))
    }
    first = {half: next((name for name in names if name in inner), "") for half, names in _HALVES.items()}
    return {half: (name, inner[name]) for half, name in first.items() if name}


_BESIDE = re.compile(r"(?:(.+)\.)?\{(.+)\}\.(\d+)(?:\.(.+))?")
"""Owner of lists beside each other, their names, the number of a layer, and the name of a module in it."""


def submodule(network: nn.Module, name: str) -> nn.Module:
    """Return a module by its name, or a layer whose parts stand in lists beside each other, which runs nowhere.

    Of a list that is several times as long as the shortest, the layer has that many members.

    >>> lists = nn.ModuleDict({"a": nn.ModuleList([nn.ReLU(), nn.Tanh()]), "norms": nn.ModuleList([nn.ReLU()] * 4)})
    >>> submodule(lists, "{a,norms}.1.a"), submodule(lists, "{a,norms}.1.norms.1")
    (Tanh(), ReLU())
    """
    named = _BESIDE.fullmatch(name)
    if named is None:
        projection = raw_projection(network, name)
        return network.get_submodule(name) if projection is None else projection
    owner, names, place, inner = named.groups()
    lists: dict[str, Any] = {one: network.get_submodule(f"{owner}.{one}" if owner else one) for one in names.split(",")}
    layer, layers = nn.Module(), min(map(len, lists.values()))
    for one, members in lists.items():
        count = len(members) // layers
        several = members[int(place) * count :][:count]
        layer.add_module(one, several[0] if count == 1 else several)
    return submodule(layer, inner or "")


@contextmanager
def without_cache(network: nn.Module) -> Iterator[None]:
    """Let a network's forward passes inside the block keep no keys and values for later tokens."""
    configs: dict[int, Any] = {
        id(module.config): module.config for module in network.modules() if hasattr(module, "config")
    }
    former = [(config, config.use_cache) for config in configs.values() if hasattr(config, "use_cache")]
    try:
        for config, _ in former:
            config.use_cache = False
        yield
    finally:
        for config, was in former:
            config.use_cache = was


def copied(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of a forward pass with copies of their tensors, into which a network may write."""
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}


def tensors_given(output: Any) -> list[torch.Tensor]:
    """Return the tensors in what a network gave, in their order: in a tuple, a list, a mapping or an object.

    >>> tensors_given({"loss": None, "logits": torch.ones(2)})
    [tensor([1., 1.])]
    """
    if not isinstance(output, torch.Tensor | Mapping | tuple | list):
        output = getattr(output, "__dict__", output)
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def deep_copied(module: nn.Module, shared: Mapping[int, Any] | None = None) -> Any:
    """Return a deep copy of a module, also of one that holds tensors of its last pass, with their gradients' graph.

    Args:
        module: Any.
        shared: What stands for other objects in the copy, by their identity.
    """
    memo = dict(shared or {})
    for inner in module.modules():
        held = {name: value for name, value in vars(inner).items() if not name.startswith("_")}
        memo |= {id(tensor): tensor.detach() for tensor in tensors_given(held) if not tensor.is_leaf}
    return copy.deepcopy(module, memo)


@contextmanager
def ids_checked(network: nn.Module, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Refuse token ids beyond a table of a custom network, whose vocabulary nothing states, in passes inside the block.

    Args:
        network: It.
        arguments: Of its forward pass, by name.

    Raises:
        ArgumentValueError: It names the argument, the ids and the table.
    """

    def check(name: str, table: nn.Module, given: tuple[Any, ...]) -> None:
        ids, rows = (given or (None,))[0], int(cast("nn.Embedding", table).num_embeddings)
        if not isinstance(ids, torch.Tensor) or ids.is_meta or not ids.numel() or ids.is_floating_point():
            return
        least, largest = int(ids.min()), int(ids.max())
        if least < 0 or largest >= rows:
            tensors = {key: value for key, value in arguments.items() if isinstance(value, torch.Tensor)}
            same = [key for key, value in tensors.items() if value.shape == ids.shape and bool((value == ids).all())]
            wanted = f"ids from 0 to {rows - 1}, as its table {name} has {rows} rows"
            raise ArgumentValueError(same[0] if same else name, wanted, f"ids from {least} to {largest}")

    with ExitStack() as hooks:
        for name, module in network.named_modules() if getattr(network, "config", None) is None else ():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                hooks.callback(module.register_forward_pre_hook(partial(check, name)).remove)
        yield


@contextmanager
def weights_of_evaluation(network: nn.Module) -> Iterator[None]:
    """Let computed weights be those that the next pass in evaluation uses, while they are read inside the block.

    Parametrizations may compute others in training, and change the network when they are read: spectral norms iterate,
    quantizers observe. Weights of `torch.nn.utils.weight_norm`, `spectral_norm` and `prune` are those of the last pass,
    which may have been one with other values.

    >>> from torch.nn.utils.parametrizations import spectral_norm
    >>> projection = spectral_norm(nn.Linear(3, 2))
    >>> with weights_of_evaluation(projection):
    ...     torch.equal(projection.weight, projection.weight), projection.training
    (True, False)
    >>> projection.training
    True
    """
    with _in_evaluation(network):
        for module in network.modules():
            for hook in module._forward_pre_hooks.values():
                if isinstance(hook, WeightNorm | SpectralNorm | BasePruningMethod):
                    with torch.no_grad():
                        hook(module, ())
        yield


@contextmanager
def _in_evaluation(network: nn.Module) -> Iterator[None]:
    former = [module for module in network.modules() if module.training]
    try:
        if former:
            network.eval()
        yield
    finally:
        for module in former:
            module.training = True


@contextmanager
def without_autocast() -> Iterator[None]:
    """Let passes of this thread inside the block leave numbers in their formats where a network asks for autocast.

    Its rounding would hide which module gives which column.
    """
    kind: Any = torch.autocast
    former, thread = kind.__enter__, get_ident()

    def enter(context: Any) -> Any:
        entered = former(context)
        if get_ident() == thread:
            torch.set_autocast_enabled(context.device, False)
        return entered

    try:
        kind.__enter__ = enter
        yield
    finally:
        kind.__enter__ = former


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Switch a network to evaluation inside the block, `uncompiled`, its attentions `apart`; modes come back after."""
    with _in_evaluation(network), uncompiled(), apart(network):
        yield


@contextmanager
def quietly(network: nn.Module) -> Iterator[None]:
    """Let a network's passes inside the block be in evaluation mode, keep no cache, and print nothing."""
    with evaluating(network), without_cache(network), silenced():
        yield


def copied_without_values(network: nn.Module, inside: tuple[str, ...] = ("",)) -> nn.Module:
    """Return a copy whose parameters are empty, or those whose names begin so."""
    named = network.named_parameters(remove_duplicate=False)
    chosen = {id(parameter): parameter for name, parameter in named if name.startswith(inside)}
    empty = {key: nn.Parameter(torch.empty_like(parameter, device="meta"), False) for key, parameter in chosen.items()}
    copied = deep_copied(network, empty)
    run_like(copied, network)
    return copied
