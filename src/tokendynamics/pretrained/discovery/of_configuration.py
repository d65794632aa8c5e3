"""The layout of a configuration's network, found on a small random copy of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained.discovery._blocks import block_list
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.discovery._discover import Discovery, discover
from tokendynamics.pretrained.discovery._small_copy import (
    fill_randomly,
    layer_kinds,
    random_inputs,
    same_kinds,
    small_config,
)
from tokendynamics.pretrained.network import empty_network, fill_buffers, half_of
from tokendynamics.pretrained.other_libraries import refusing


def discover_in(config: Any, network: nn.Module, half: str | None, origin: str) -> Discovery:
    """Find the layout of the network that a configuration describes.

    Args:
        config: The transformers configuration.
        network: The empty network of it, or its half.
        half: Which half, of a network that has two.
        origin: The checkpoint in a message.

    Raises:
        LayoutNotFoundError: It has no list of blocks, or reads something unusual.
    """
    own: Any = getattr(network, "config", config)
    name = block_list(network)
    blocks = list(network.get_submodule(name).children()) if name else []
    kinds = layer_kinds(own, blocks)
    copy, chosen = _small_copy(config, own, blocks, name, sorted(set(kinds)), half, origin)
    filled = _filled(copy)
    with refusing(lambda words: LayoutNotFoundError(expected(origin, "a network whose small copy runs", words))):
        found = discover(filled, random_inputs(filled), found_on="a small random copy", decoder=half == "decoder")
    if chosen is None:
        return found
    if found.layout.blocks != tuple(f"{name}.{number}" for number in range(len(chosen))):
        came = f"calls of {', '.join(found.layout.blocks[:4])}"
        wanted = f"a network whose blocks are {name}.0, {name}.1 and so on, each of which runs once"
        raise LayoutNotFoundError(expected(origin, wanted, came, "load the network and pass it itself"))
    names, places = tuple(f"{name}.{number}" for number in range(len(blocks))), [chosen.index(kind) for kind in kinds]
    layout = found.layout.with_blocks(names, tuple(places))
    return Discovery(layout, tuple(found.seen[place] for place in places), found.dim)


def _filled(copy: nn.Module) -> nn.Module:
    """Give an empty small copy random weights, and 1 for what it reads from a file besides (running variances)."""
    filled = fill_randomly(copy)
    kept = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in filled.named_modules()
        for name, _ in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    }
    fill_buffers(filled, lambda name: torch.device("cpu"), kept)
    for name in kept:
        buffer = filled.get_buffer(name)
        if buffer.is_floating_point():
            buffer.nan_to_num_(nan=1.0)
    return filled


def _small_copy(
    config: Any, own: Any, blocks: Sequence[nn.Module], name: str, first: Sequence[int], half: str | None, origin: str
) -> tuple[nn.Module, Sequence[int] | None]:
    """Return a small empty copy that has a block of each kind, and which blocks of the network its own are.

    Where kinds follow from a period or a list of numbers in the configuration, single layers cannot be chosen: then
    the copy has the first layers up to the last new kind, or all. A network whose blocks run again and again (ALBERT)
    has fewer blocks than layers, whatever their number: its copy has all layers, and None for which they are.
    """
    choices = [first, range(first[-1] + 1), range(len(blocks))] if first else []
    if len(blocks) == 1:
        choices = [[0, 0], [0]]  # with one layer, a block that runs again and again would look like one that does not
    problem = "its blocks are of other kinds there"
    for chosen in choices:
        try:
            copy = _empty_copy(config, chosen, len(blocks), half, origin)
            copies = list(copy.get_submodule(name).children())
        except (CheckpointError, AttributeError) as error:
            problem = str(error)
            continue
        if len(copies) != len(chosen):
            break
        if same_kinds(copies, [blocks[layer] for layer in chosen]):
            return copy, chosen
    else:
        if choices:
            wanted = "a network whose small copy has the same kinds of blocks"
            raise LayoutNotFoundError(expected(origin, wanted, problem, "load the network and pass it itself"))
    depth = int(own.num_hidden_layers)
    return _empty_copy(config, range(depth), depth, half, origin), None


def _empty_copy(config: Any, layers: Sequence[int], depth: int, half: str | None, origin: str) -> nn.Module:
    def refusal(words: str) -> CheckpointError:
        return CheckpointError(expected(origin, "a configuration of which a small copy can be made", words))

    with refusing(refusal):  # some settings follow from others and cannot be set
        small = small_config(config, layers, depth)
    # Batched products of experts exist in few types; one expert after the other exists in all.
    small._experts_implementation_internal = "eager"
    return half_of(empty_network(small), half, origin)[1]
