"""Layouts that were found before: `tests/pretrained` finds each anew, others test what is done with them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from hashlib import blake2b
from itertools import chain
from typing import Any

import torch
from torch import nn

from tokendynamics.pretrained.discovery import random_weights
from tokendynamics.pretrained.discovery._discover import Discovery

FOUND: dict[tuple[Any, ...], Discovery] = {}
_find = random_weights.discover
_MOST = 2_000_000
"""Numbers of a network beyond which they are not compared."""


def discover(
    network: nn.Module,
    inputs: Callable[[int], Mapping[str, Any]],
    *,
    found_on: str,
    decoder: bool = False,
    again: bool = False,
) -> Discovery:
    """Return the layout that was found in a network with the same modules, settings and numbers."""
    of_ours = inputs.__module__ == "tokendynamics.pretrained.discovery._random_inputs"
    if not of_ours or not _is_as_transformers_made_it(network):
        return _find(network, inputs, found_on=found_on, decoder=decoder, again=again)
    digest = blake2b()
    for name, tensor in chain(network.named_parameters(), network.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy())
    config: Any = network.config
    key = (
        type(network),
        repr(network),
        config.to_json_string(use_diff=False),
        digest.digest(),
        found_on,
        decoder,
        again,
    )
    if key not in FOUND:
        FOUND[key] = copy.deepcopy(_find(network, inputs, found_on=found_on, decoder=decoder, again=again))
    return copy.deepcopy(FOUND[key])


def _is_as_transformers_made_it(network: nn.Module) -> bool:
    """Whether nothing acts on a small network but its modules: no hook, no function in place of another."""
    if not type(network).__module__.startswith("transformers.models.") or not hasattr(network, "config"):
        return False
    numbers = list(chain(network.parameters(), network.buffers()))
    plain = all(type(number) in (torch.Tensor, nn.Parameter) and number.device.type == "cpu" for number in numbers)
    hooked = any(
        module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module) for module in network.modules()
    )
    return plain and not hooked and sum(number.numel() for number in numbers) < _MOST
