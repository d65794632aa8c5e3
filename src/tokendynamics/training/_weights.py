"""Weights of a network in training: whole, also where several processes have parts, and their moving average."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import TrainerCallback


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
    weights = get_model_state_dict(network, options=StateDictOptions(full_state_dict=True))
    return cast("dict[str, Tensor]", weights)


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


_FILE = "averaged.safetensors"


class AveragedWeights(TrainerCallback):
    """``θ̄ ← decay θ̄ + (1 − decay) θ`` after every step of the optimiser, from the weights after the first on.

    Where the weights are sharded every process has the whole average.

    Args:
        decay: Between 0 and 1.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self._averaged: AveragedModel | None = None

    @property
    def network(self) -> Any:
        """The network with the averaged weights; None before the first step."""
        return None if self._averaged is None else self._averaged.module

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Take the weights of this step in."""
        model = whole_network(given["model"])
        if self._averaged is None:
            self._averaged = _average_of(model, self.decay)
        self._averaged.update_parameters(model)

    def save(self, folder: Path) -> None:
        """Write the average and the number of steps in it into a checkpoint."""
        from safetensors.torch import save_file

        if self._averaged is not None:
            # A copy each: tensors of one memory (tied embeddings) are refused.
            state = {name: value.detach().clone().contiguous() for name, value in self._averaged.state_dict().items()}
            save_file(state, folder / _FILE)

    def load(self, folder: Path, model: nn.Module) -> None:
        """Go on with the average that a checkpoint has."""
        from safetensors.torch import load_file

        if (folder / _FILE).is_file():
            self._averaged = _average_of(whole_network(model), self.decay)
            self._averaged.load_state_dict(load_file(folder / _FILE))


def _average_of(model: nn.Module, decay: float) -> AveragedModel:
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    with torch.no_grad():
        for parameter in averaged.parameters():
            parameter.requires_grad_(False)
    return averaged.eval()
