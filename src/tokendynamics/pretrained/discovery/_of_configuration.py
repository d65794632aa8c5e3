"""The layout of a configuration's network, found on a small random copy of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tokendynamics.pretrained._network import empty_network, fill_buffers, half_of
from tokendynamics.pretrained.discovery._discover import Discovery, discover
from tokendynamics.pretrained.discovery._small_copy import (
    block_list,
    fill_randomly,
    layer_kinds,
    random_inputs,
    small_config,
)


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
    depth = int(own.num_hidden_layers)
    name = block_list(network, depth)
    blocks = list(network.get_submodule(name).children()) if name else []
    kinds = layer_kinds(own, blocks) if blocks else [0] * depth
    first = sorted(set(kinds))
    small = small_config(config, first)
    # Batched products of experts exist in few types; one expert after the other exists in all.
    small._experts_implementation_internal = "eager"
    _, copy = half_of(empty_network(small), half, origin)
    filled = fill_randomly(copy)
    fill_buffers(filled, lambda name: torch.device("cpu"))
    found = discover(filled, random_inputs(filled), found_on="a small random copy")
    places = [first.index(kind) for kind in kinds]
    names = tuple(f"{name}.{number}" for number in range(depth)) if name else found.layout.blocks * depth
    layout = found.layout.with_blocks(names, tuple(places))
    return Discovery(layout, tuple(found.seen[place] for place in places), found.dim)
