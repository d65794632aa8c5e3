"""Exponential moving average of the weights, part of every checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import TrainerCallback

from tokendynamics.training._whole_network import whole_network

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
