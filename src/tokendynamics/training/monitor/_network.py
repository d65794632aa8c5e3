"""The training around a monitor: the network in it, passes that leave nothing behind, and where numbers go."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from tokendynamics.pretrained.network import evaluating


def unwrapped(model: nn.Module) -> nn.Module:
    """Return a model without what distributes, compiles or adapts it; its weights are the very ones that are trained.

    Args:
        model: As the training loop has it.
    """
    inside: Any = model
    while inside is not None:  # a compiled module has no truth value
        model = inside
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inside = model.module
        elif hasattr(model, "get_base_model"):  # of PEFT, whose adapters stand in the model's own modules
            inside = cast(Any, model).get_base_model()
        else:
            inside = dict(model.named_children()).get("_orig_mod")  # of torch.compile
    return model


def base_of(model: nn.Module) -> nn.Module:
    """Return the part of a model of transformers that has the states: a language head costs much and says nothing here.

    Args:
        model: From `unwrapped`; one that does not come from transformers is returned as it is.
    """
    inner = getattr(model, "base_model", None)
    return inner if isinstance(inner, nn.Module) and hasattr(inner, "main_input_name") else model


def why_not_alone(network: nn.Module) -> str:
    """Say why one process cannot run the network by itself; empty where it can.

    A pass that waits for processes which do not take part in it would hold the training up for ever.

    Args:
        network: As the training loop has it.
    """
    if any(hasattr(parameter, "ds_id") for parameter in network.parameters()):  # of DeepSpeed, stage 3
        return "its weights are spread over several processes"
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return ""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import DTensor

    sharded = any(isinstance(module, FullyShardedDataParallel) for module in network.modules())
    if sharded or any(isinstance(parameter, DTensor) for parameter in network.parameters()):
        return "its weights are spread over several processes"
    return ""


def measures_here() -> bool:
    """Tell whether this is the process that measures: the first one, where there are several."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not distributed or torch.distributed.get_rank() == 0


@contextmanager
def draws_kept(devices: Iterable[torch.device | int] | None = None) -> Iterator[None]:
    """Leave the random number generators of Python, NumPy and PyTorch as they were.

    Args:
        devices: GPUs whose generators are kept, too; all by default.
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # others draw from the old one
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count()) if devices is None else devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def undisturbed(network: nn.Module) -> Iterator[None]:
    """Give a network in evaluation mode; modes and all random numbers go on afterwards as if nothing had been.

    Passes inside are in the weights' own format, without autocast.

    Args:
        network: It, and nothing else, may run inside the block.
    """
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    devices = [device] if device.type == "cuda" else []
    with draws_kept(devices), torch.autocast(device.type, enabled=False), evaluating(network):
        yield


class WithoutInferenceMode(nn.Module):
    """A network whose passes compute no gradients, and whose tensors may be trained with all the same.

    What a module keeps of a pass in inference mode (a mask, a table of positions) could never be a part of a backward
    pass again.

    Args:
        network: It is held, and not changed.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, **arguments: Any) -> Any:
        """Run the network.

        Args:
            arguments: Of its forward pass, by name.
        """
        with torch.inference_mode(mode=False), torch.no_grad():
            # Arguments that were moved in inference mode are copied out of it, so that they may be kept.
            kept = {
                name: value.clone() if isinstance(value, torch.Tensor) and value.is_inference() else value
                for name, value in arguments.items()
            }
            return self.network(**kept)


def loggers() -> list[Any]:
    """Return the callbacks of transformers that hand numbers to TensorBoard and the like, of the Trainer that calls.

    A callback is handed everything but its neighbours, and they are who writes: they are those of the list that is
    being gone through, some calls further out. Empty where none is.
    """
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
    from transformers.trainer_callback import CallbackHandler

    known = tuple(INTEGRATION_TO_CALLBACK.values())
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, CallbackHandler):
            return [callback for callback in caller.callbacks if isinstance(callback, known)]
        frame = frame.f_back
    return []
