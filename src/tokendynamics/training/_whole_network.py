"""A network with whole weights, also where they are spread over several processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn


def whole_network(model: Any) -> nn.Module:
    """Return the network without what distributes it.

    Where its weights are sharded (FSDP) it is a new one, into which they are gathered: then every process must call
    this, and what is done to the network is not done to the model.
    """
    network = _unwrapped(model)
    if not is_sharded(network):
        return network
    with torch.random.fork_rng(devices=[]):
        whole = cast(nn.Module, type(network)(cast(Any, network).config))  # of the class from which FSDP's is derived
    whole.load_state_dict(whole_state(network))
    return whole.to(next(network.parameters()).device).train(network.training)


def whole_state(model: Any) -> dict[str, Tensor]:
    """Return the weights by name; where they are sharded every process must call this."""
    network = _unwrapped(model)
    if not is_sharded(network):
        return network.state_dict()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    _resharded(network)
    found = get_model_state_dict(network, options=StateDictOptions(full_state_dict=True))
    return cast("dict[str, Tensor]", found)


def load_whole_state(model: Any, state: Mapping[str, Tensor]) -> None:
    """Set the weights to those that `whole_state` returned; where they are sharded every process must call this."""
    network = _unwrapped(model)
    if not is_sharded(network):
        network.load_state_dict(state)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    _resharded(network)
    set_model_state_dict(network, dict(state), options=StateDictOptions(full_state_dict=True))


def is_sharded(model: nn.Module) -> bool:
    """Whether a process has only its part of the weights."""
    return any(hasattr(parameter, "to_local") for parameter in model.parameters())


def _resharded(network: nn.Module) -> None:
    """Give up the weights that a forward pass has gathered for a backward pass which did not follow."""
    for module in network.modules():
        getattr(module, "reshard", lambda: None)()


def _unwrapped(model: Any) -> nn.Module:
    from accelerate.utils import extract_model_from_parallel

    return cast(nn.Module, extract_model_from_parallel(model))
