"""Finds what tells a network the order of its tokens, so that it can be taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tokendynamics.pretrained.discovery._calls import Hooks
from tokendynamics.pretrained.network import copied, without_cache
from tokendynamics.pretrained.other_libraries import silenced

_CONSTANT = 1e-3
"""Largest relative spread of cos² + sin² over a table of angles; half precision rounds them to this."""


@dataclass(frozen=True)
class PositionalPart:
    """One thing that tells a network where a token stands.

    Attributes:
        name: A module ("rotation", "bias") or a tensor ("table") of the network; ``*`` stands for every block.
        does: "rotation": a module that gives cosines and sines; "table": values that are added to the embeddings;
            "bias": a module that gives what is added to the logits.
    """

    name: str
    does: Literal["rotation", "table", "bias"]


def positional_parts(
    network: nn.Module, inputs: Callable[[int], Mapping[str, Any]], positions: str, blocks: tuple[str, ...], first: str
) -> tuple[PositionalPart, ...]:
    """Return what tells a network the order of its tokens; empty where it was not found.

    Args:
        network: In evaluation mode.
        inputs: Makes the arguments of a forward pass for a given number of inputs.
        positions: What the layout calls it.
        blocks: Names of its blocks.
        first: The module that reads what it is embedded as.
    """
    if positions in ("learned", "absolute"):
        return tuple(PositionalPart(name, "table") for name in _tables(network, inputs, blocks, first))
    does: Literal["rotation", "bias"] = "rotation" if positions == "rotary" else "bias"
    known = positions in ("rotary", "relative bias")
    givers = _giving(network, inputs, _is_rotation if does == "rotation" else _is_table) if known else []
    around = {name: next((block for block in blocks if name.startswith(f"{block}.")), None) for name in givers}
    names = (name if block is None else "*" + name.removeprefix(block) for name, block in around.items())
    return tuple(PositionalPart(name, does) for name in dict.fromkeys(names))


def rotations_in(network: nn.Module, inputs: Callable[[int], Mapping[str, Any]]) -> list[str]:
    """Return the names of the modules that give cosines and sines of positions."""
    return _giving(network, inputs, _is_rotation)


def _is_rotation(module: nn.Module, given: Any, output: Any) -> bool:
    del module, given
    if not isinstance(output, tuple | list) or len(output) != 2:
        return False
    one, other = output
    if not all(isinstance(entry, Tensor) and entry.is_floating_point() for entry in output) or one.shape != other.shape:
        return False
    radius = one.double().square() + other.double().square()
    return bool(radius.max() > 0 and radius.max() - radius.min() <= _CONSTANT * radius.max())


def _is_table(module: nn.Module, given: Any, output: Any) -> bool:
    """Say whether a module reads a table at whole numbers that are no token ids: those have one axis of inputs."""
    del output
    return isinstance(module, nn.Embedding) and bool(given) and isinstance(given[0], Tensor) and given[0].shape[0] > 2


def _giving(
    network: nn.Module, inputs: Callable[[int], Mapping[str, Any]], wanted: Callable[[nn.Module, Any, Any], bool]
) -> list[str]:
    """Return the innermost modules whose output is what is wanted."""
    names: list[str] = []
    with ExitStack() as stack, torch.no_grad(), silenced(), without_cache(network):
        for name, module in network.named_modules():

            def hook(module: nn.Module, given: Any, output: Any, name: str = name) -> None:
                if wanted(module, given, output) and not any(inner.startswith(f"{name}.") for inner in names):
                    names.append(name)

            stack.callback(module.register_forward_hook(hook).remove)
        network(**inputs(2))
    return names


def _tables(
    network: nn.Module, inputs: Callable[[int], Mapping[str, Any]], blocks: tuple[str, ...], first: str
) -> Iterator[str]:
    """Yield the tensors without which the same token has the same embedding everywhere, and others have another."""
    some = dict(inputs(1))
    alike = with_one_token(some)
    tensors = [*network.named_parameters(), *network.named_buffers()]
    for name, tensor in tensors:
        inside = any(name.startswith(f"{block}.") for block in blocks)
        if inside or tensor.ndim < 2 or not tensor.is_floating_point():
            continue
        with zeroed([tensor]):
            same, other = (_embedded(network, first, ids) for ids in (alike, some))
        if _two_equal(same) and not _two_equal(other):
            yield name


def with_one_token(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with the first number of each tensor everywhere in it, so that all tokens are alike."""
    return {
        name: torch.full_like(value, value.flatten()[0].item()) if isinstance(value, Tensor) else value
        for name, value in inputs.items()
    }


def _two_equal(states: Tensor) -> bool:
    """Compare two tokens in the middle: the first may be one of no input, and convolutions see where an input ends."""
    middle = states.shape[1] // 2
    return float((states[:, middle] - states[:, middle - 1]).abs().max()) == 0.0


class _EnoughError(Exception):
    """The first block has been reached."""


def _embedded(network: nn.Module, first: str, inputs: Mapping[str, Any]) -> Tensor:
    """Return what the first block reads, and run no further."""
    read: list[Tensor] = []

    def stop(states: Tensor) -> None:
        read.append(states)
        raise _EnoughError

    with Hooks() as hooks, torch.no_grad(), silenced(), without_cache(network), suppress(_EnoughError):
        hooks.before(network.get_submodule(first), stop)
        network(**copied(inputs))
    return read[0]


@contextmanager
def zeroed(tensors: list[Tensor]) -> Iterator[None]:
    """Let tensors be zero inside the block; what they were comes back as it was, the same memory."""
    former = [tensor.data for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.data = torch.zeros_like(tensor)
        yield
    finally:
        for tensor, was in zip(tensors, former, strict=True):
            tensor.data = was
