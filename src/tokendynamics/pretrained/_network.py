"""Builds a base model without allocating it, and fills it tensor by tensor: never twice the memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tokendynamics.numerics._errors import ArgumentValueError, CheckpointError, expected
from tokendynamics.numerics._resources import check_fits
from tokendynamics.pretrained._other_libraries import refusing, silenced
from tokendynamics.pretrained.adapters._adapter import Adapter

_BY_NAME = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def dtype_of(name: str | torch.dtype) -> torch.dtype:
    """Return the torch dtype called `name`.

    >>> dtype_of("bfloat16")
    torch.bfloat16

    Raises:
        ArgumentValueError: Any other name.
    """
    if name in _BY_NAME.values():
        return name  # pyright: ignore[reportReturnType]
    try:
        return _BY_NAME[str(name)]
    except KeyError:
        raise ArgumentValueError(expected("dtype", " or ".join(_BY_NAME), repr(str(name)))) from None


def at_least_single(tensor: torch.Tensor) -> torch.Tensor:
    """Return half-precision values as float32 (no linear algebra exists below it), others as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def empty_network(config: Any, adapter: Adapter, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return the base model (no output head) on torch's meta device, which stores shapes and no values.

    Raises:
        CheckpointError: The configuration describes no network that can be built.
    """
    from transformers import AutoModel

    # The model classes raise whatever an impossible size leads to.
    with refusing(_not_built), silenced(), torch.device("meta"):
        return AutoModel.from_config(
            config, attn_implementation="sdpa", dtype=dtype, trust_remote_code=False, **adapter.options
        )


def _not_built(words: str) -> CheckpointError:
    came = f"one that cannot be built ({words})"
    return CheckpointError(expected("config.json", "the configuration of a network", came))


def shapes_of(network: nn.Module) -> Mapping[str, tuple[int, ...]]:
    """Return the shape of every parameter by name."""
    return {name: tuple(parameter.shape) for name, parameter in network.named_parameters()}


def fill(network: nn.Module, read: Callable[[str], Tensor], dtype: torch.dtype, device: torch.device) -> nn.Module:
    """Give every parameter of an empty network its values, one at a time, and return it ready to run.

    The tables that a network computes (of positions, rotations and masks) count as well: a context of a million
    tokens may ask for a table of its square.

    Raises:
        MemoryLimitError: More than there is memory for.
    """
    check_fits(_bytes_of(network), "the network", "audit(…) reads one layer at a time")
    for name in list(shapes_of(network)):
        owner, _, leaf = name.rpartition(".")
        values = read(name).to(device=device, dtype=dtype)
        network.get_submodule(owner).register_parameter(leaf, nn.Parameter(values, requires_grad=False))
    _fill_buffers(network, device)
    return network.eval()


def _bytes_of(network: nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in (*network.parameters(), *network.buffers()))


def _fill_buffers(network: Any, device: torch.device) -> None:
    """Compute the tables that no file stores (rotary frequencies, position ids) as transformers itself does."""
    for module in network.modules():
        empty = {name: buffer for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta}
        for name, buffer in empty.items():
            persistent = name not in module._non_persistent_buffers_set
            module.register_buffer(name, torch.empty_like(buffer, device=device), persistent=persistent)
        if empty:
            network._init_weights(module)
