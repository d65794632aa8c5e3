"""What every change of a forward pass needs: its arguments, and which states are those of the tokens that went in.

Networks may add tokens of their own inside: Longformer and Reformer fill a prompt up to whole windows behind its end,
CPM-Ant puts a learned prompt in front, and both cut off again what they give.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained.discovery.layout import Layout
from tokendynamics.pretrained.network import copied

_ONE_STREAM = "blocks that pass on one state for each token"


class OwnTokens(ExitStack):
    """Compares what a network gives with its last states, for a ``with`` block around one pass in this thread.

    Args:
        network: The one that the layout is of.
        layout: Of it.
    """

    def __init__(self, network: nn.Module, layout: Layout) -> None:
        super().__init__()
        self._thread = get_ident()
        self._kept: dict[str, Tensor] = {}
        # A model with a head gives logits, which cannot be compared with states; its base model gives states.
        base = getattr(network, "base_model", network)
        self._keep("output", base if isinstance(base, nn.Module) else network)
        self._keep("last", network.get_submodule(layout.end))

    def _keep(self, name: str, module: nn.Module) -> None:
        def hook(module: nn.Module, positional: Any, output: Any) -> None:
            del module, positional
            if get_ident() != self._thread:
                return
            # A tensor, or the first of a tuple or of transformers' outputs.
            first = output
            if not isinstance(output, Tensor):
                several = output if isinstance(output, tuple) else getattr(output, "values", tuple)()
                first = next(iter(several), None)
            self._kept.pop(name, None)
            if isinstance(first, Tensor):
                self._kept[name] = first

        self.callback(module.register_forward_hook(hook).remove)

    def places(self, arguments: Mapping[str, Any]) -> slice:
        """Return which places of the states are the tokens that went in, after the pass.

        Args:
            arguments: Of the pass.

        Returns:
            All places where the network gives as many as it has inside, or reads no token ids.
        """
        ids, given, last = arguments.get("input_ids"), self._kept.get("output"), self._kept.get("last")
        if not isinstance(ids, Tensor) or ids.ndim != 2 or given is None or given.ndim < 3:
            return slice(None)
        if last is None or last.ndim != 3 or given.shape[1] != ids.shape[1] or last.shape[1] <= ids.shape[1]:
            return slice(None)
        tokens, places = ids.shape[1], last.shape[1]
        if given.shape == (len(last), tokens, last.shape[-1]):
            for start in (0, places - tokens):
                if torch.equal(given.to(last), last[:, start : start + tokens]):
                    return slice(start, start + tokens)
        return slice(0, tokens)


def check_one_stream(layout: Layout, name: str) -> None:
    """Refuse to put states into a network whose blocks read several tensors of them.

    Args:
        layout: Of it.
        name: What a message calls it.

    Raises:
        CheckpointError: They do.
    """
    if layout.streams > 1:
        advice = "td.trace follows those that the network calls its hidden states"
        raise CheckpointError(expected(name, _ONE_STREAM, f"{layout.streams} streams of states", advice))


def check_by_token(states: Tensor) -> None:
    """Refuse states that are not (input, token, feature): of several streams in one tensor, or of a grid of places.

    Raises:
        CheckpointError: They are none.
    """
    if states.ndim != 3:
        advice = "td.audit reads its weights, where they are found"
        raise CheckpointError(expected("states", _ONE_STREAM, f"states of shape {tuple(states.shape)}", advice))


def arguments_for(network: nn.Module, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of the arguments of a forward pass where the network is; real numbers in its dtype."""
    first = next(parameter for parameter in network.parameters() if not parameter.is_meta)
    return copied({name: moved(value, first) for name, value in arguments.items()})


def moved(value: Any, like: Tensor) -> Any:
    """Return an argument of a forward pass where a tensor is; real numbers in its dtype."""
    if not isinstance(value, Tensor):
        return value
    return value.to(device=like.device, dtype=like.dtype) if value.is_floating_point() else value.to(like.device)


def by_prompt(states: Tensor, prompts: int) -> Tensor:
    """Return states as (prompt, token, dim); some blocks work on the tokens of all prompts in one row."""
    return states if states.ndim > 2 else states.reshape(prompts, -1, states.shape[-1])
