"""Finds what tells a network the order of its tokens, so that it can be taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tokendynamics.pretrained.discovery._calls import EndedError, Hooks, Pass
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.network import copied, submodule, without_cache
from tokendynamics.pretrained.other_libraries import silenced
from tokendynamics.pretrained.packs import ids_in

_AXES = 3
"""Of states: input, token, feature."""

_INPUTS = 8
"""Of one random input two tokens side by side may be the same."""


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
    network: nn.Module,
    inputs: Callable[[int], Mapping[str, Any]],
    positions: str,
    blocks: tuple[str, ...],
    first: str,
    recorded: Pass,
) -> tuple[PositionalPart, ...]:
    """Return what tells a network the order of its tokens; empty where it was not found.

    Args:
        network: In evaluation mode.
        inputs: Makes the arguments of a forward pass for a given number of inputs.
        positions: What the layout calls it.
        blocks: Names of its blocks.
        first: The module that reads what it is embedded as.
        recorded: A pass of two inputs.
    """
    if positions in ("learned", "absolute"):
        return tuple(PositionalPart(name, "table") for name in _tables(network, inputs, blocks, first))
    does: Literal["rotation", "bias"] = "rotation" if positions == "rotary" else "bias"
    known = positions in ("rotary", "relative bias")
    givers = _innermost(recorded.rotations if does == "rotation" else recorded.tables) if known else []
    around = {name: next((block for block in blocks if name.startswith(f"{block}.")), None) for name in givers}
    names = (name if block is None else "*" + name.removeprefix(block) for name, block in around.items())
    return tuple(PositionalPart(name, does) for name in dict.fromkeys(names))


def _innermost(names: Sequence[str]) -> list[str]:
    """Return the modules without those that hold one which ended before.

    >>> _innermost(["rotary.inner", "rotary", "other"])
    ['rotary.inner', 'other']
    """
    kept: list[str] = []
    for name in names:
        if not any(inner.startswith(f"{name}.") for inner in kept):
            kept.append(name)
    return kept


def _tables(
    network: nn.Module, inputs: Callable[[int], Mapping[str, Any]], blocks: tuple[str, ...], first: str
) -> Iterator[str]:
    """Yield the tensors without which the same token has the same embedding everywhere, and others have another."""
    some = dict(inputs(_INPUTS))
    alike = with_one_token(inputs(1))
    # Names of layers whose parts stand in several lists are no beginnings of names of tensors.
    layers = [submodule(network, block) for block in dict.fromkeys(blocks)]
    inside = {id(tensor) for layer in layers for tensor in (*layer.parameters(), *layer.buffers())}
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if id(tensor) in inside or tensor.ndim < 2 or not tensor.is_floating_point():
            continue
        with zeroed([tensor]):
            same = embedded(network, first, alike)
            other = embedded(network, first, some) if same is not None and _two_equal(same) else None
        if other is not None and not _two_equal(other):
            yield name


def with_one_token(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with the first number of each tensor everywhere in it, so that all tokens are alike."""
    return {
        name: torch.full_like(value, value.flatten()[0].item()) if isinstance(value, Tensor) else value
        for name, value in inputs.items()
    }


def _two_equal(states: Tensor) -> bool:
    """Compare two tokens in the middle: the first may be one of no input, and convolutions see where an input ends."""
    middle = states.shape[-2] // 2
    return float((states[..., middle, :] - states[..., middle - 1, :]).abs().max()) == 0.0


def embedded(network: nn.Module, first: str, inputs: Mapping[str, Any]) -> Tensor | None:
    """Return what the first block reads, and run no further; None where it does not read states."""
    read: list[Tensor] = []

    def stop(states: Tensor) -> None:
        read.append(states)
        raise EndedError

    with Hooks() as hooks, torch.no_grad(), silenced(), without_cache(network), suppress(EndedError):
        hooks.before(submodule(network, first), stop)
        network(**copied(inputs))
    return read[0] if read else None


def first_token(network: nn.Module, first: str, inputs: Mapping[str, Any]) -> int | None:
    """Return where the first token of an input stands among what the first block reads.

    Args:
        network: Whose own tokens may stand before or behind those of the input.
        first: Name of the module that reads the states first.
        inputs: Arguments of the forward pass.

    Returns:
        None where the network adds no tokens, reads no token ids, or one id changes other places than one.

    Raises:
        LayoutNotFoundError: The network puts tokens of its own among those of the input, or changes their order.
    """
    ids = ids_in(inputs)
    states = None if ids is None else embedded(network, first, inputs)
    if ids is None or states is None or states.ndim != _AXES or not 1 < ids.shape[1] < states.shape[1]:
        return None
    least, count = int(ids.min()), int(ids.max() - ids.min()) + 1
    places = []
    for end in (0, -1):
        changed = ids.clone()
        changed[:, end] = least + (ids[:, end] - least + 1) % count
        other = embedded(network, first, {name: changed if value is ids else value for name, value in inputs.items()})
        if other is None or other.shape != states.shape:
            return None
        places.append(torch.nonzero((other - states).abs().amax(dim=(0, 2)) > 0)[:, 0].tolist())
    start, last = places
    if len(start) != 1 or len(last) != 1:
        return None
    if last[0] - start[0] != ids.shape[1] - 1:
        wanted = "the tokens of an input side by side and in order in its blocks"
        came = f"the first of {ids.shape[1]} at place {start[0] + 1} and the last at place {last[0] + 1}"
        raise LayoutNotFoundError(type(network).__name__, wanted, came, "put its own tokens before or behind the input")
    return start[0]


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
