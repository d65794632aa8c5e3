"""What every change of a forward pass needs: its arguments, and which states are those of the tokens that went in.

Networks may add tokens of their own inside: Longformer and Reformer fill a prompt up to whole windows behind its end,
CPM-Ant puts a learned prompt in front, and both cut off again what they give.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint as checkpointing

from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained.discovery._calls import Hooks
from tokendynamics.pretrained.discovery._maps import by_token
from tokendynamics.pretrained.discovery.layout import Layout
from tokendynamics.pretrained.network import copied, submodule
from tokendynamics.pretrained.packs import ids_in
from tokendynamics.words import plural

_ONE_STREAM = "blocks that pass on one state for each token"


@contextmanager
def activations_kept() -> Iterator[None]:
    """Let blocks under activation checkpointing keep their activations, in passes of this thread inside the block.

    They would otherwise run again in the backward pass, when the gates of the pass are gone.
    """
    module: Any = checkpointing
    names = ("CheckpointFunction", "_checkpoint_without_reentrant_generator")
    if not all(hasattr(module, name) for name in names):  # of another version of PyTorch: its own errors are passed on
        yield
        return
    thread, (former, former_steps) = get_ident(), [getattr(module, name) for name in names]

    class Kept:
        """Takes the place of the function that drops activations."""

        @staticmethod
        def apply(function: Any, preserve: bool, *arguments: Any) -> Any:
            """Run the function of the checkpoint as it stands."""
            kept = get_ident() == thread
            return function(*arguments) if kept else former.apply(function, preserve, *arguments)

    def steps(*arguments: Any, **named: Any) -> Iterator[None]:
        if get_ident() == thread:
            yield
        else:
            yield from former_steps(*arguments, **named)

    try:
        vars(module).update(zip(names, (Kept, steps), strict=True))
        yield
    finally:
        vars(module).update(zip(names, (former, former_steps), strict=True))


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
        self._first = layout.first_token
        # A model with a head gives logits, which cannot be compared with states; its base model gives states.
        base = getattr(network, "base_model", network)
        self._keep("output", base if isinstance(base, nn.Module) else network)
        self._keep("last", submodule(network, layout.end if self._first is None else layout.last))

    def _keep(self, name: str, module: nn.Module) -> None:
        def hook(module: nn.Module, positional: Any, output: Any) -> None:
            del positional
            if get_ident() != self._thread:
                return
            # A tensor, or the first of a tuple or of transformers' outputs.
            first = output
            if not isinstance(output, Tensor):
                several = output if isinstance(output, tuple) else getattr(output, "values", tuple)()
                first = next(iter(several), None)
            self._kept.pop(name, None)
            if isinstance(first, Tensor):
                self._kept[name] = by_token(module, first)

        self.callback(module.register_forward_hook(hook).remove)

    def places(self, arguments: Mapping[str, Any]) -> slice:
        """Return which places of the states are the tokens that went in, after the pass.

        Args:
            arguments: Of the pass.

        Returns:
            All places where the network gives as many as it has inside, or reads no token ids.
        """
        ids, given, last = ids_in(arguments), self._kept.get("output"), self._kept.get("last")
        if ids is None or last is None or last.ndim != 3 or last.shape[1] <= ids.shape[1]:
            return slice(None)
        tokens, places = ids.shape[1], last.shape[1]
        if self._first is not None:
            return slice(self._first, self._first + tokens)
        if given is None or given.ndim < 3 or given.shape[1] != tokens:
            return slice(None)
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
        raise CheckpointError(name, _ONE_STREAM, f"{layout.streams} streams of states", advice)


class InsideBlocks(Hooks):
    """Tells during a pass whether a block runs; always, where all attentions of the network stand in blocks.

    Attributes:
        now: Whether one does.
    """

    def __init__(self, network: nn.Module, layout: Layout) -> None:
        super().__init__()
        self._network, self._layout = network, layout
        self.now = not layout.outside

    def _prepare(self) -> None:
        if self._layout.outside:
            for name, layer in dict(zip(self._layout.blocks, self._layout.layers, strict=True)).items():
                block = submodule(self._network, name)
                self.before_block(block, layer.sites, partial(self._set, True))
                self.after_block(block, layer.sites, partial(self._set, False))

    def _set(self, now: bool, states: Tensor) -> None:
        del states
        self.now = now


def blocks_beside(network: nn.Module, layout: Layout) -> dict[str, nn.Module]:
    """Return the modules of a block's class that stand in the same list and are no blocks: they did not run.

    A network may run them all the same for another input, where it ends a pass early for some.

    Args:
        network: The one that the layout is of.
        layout: Of it.
    """
    known = {submodule(network, name) for name in layout.blocks}
    beside: dict[str, nn.Module] = {}
    for name in dict.fromkeys(layout.blocks):
        around, _, _ = name.rpartition(".")
        if around.endswith("}"):  # of lists beside each other all members ran
            continue
        kind = type(network.get_submodule(name))
        for other, module in network.get_submodule(around).named_children():
            if type(module) is kind and module not in known and any(True for _ in module.children()):
                beside[f"{around}.{other}" if around else other] = module
    return beside


def check_ran(ran: Sequence[str], layout: Layout, name: str, *, ended: bool = True) -> None:
    """Refuse a pass through other blocks than those that ran where the layout was found.

    Args:
        ran: Names of the blocks that ran, in their order.
        layout: Of the network.
        name: What a message calls it.
        ended: Whether the pass has ended, so that no more blocks run.

    Raises:
        CheckpointError: They are others.
    """
    if tuple(ran) != layout.blocks:
        several = ", ".join(ran[:4]) + (", …" if ran[4:] else "")
        wanted = f"a pass through {plural(len(layout.blocks), 'block')}, as where its layout was found"
        count = len(ran) if ended else f"at least {len(ran)}"
        advice = "switch off what ends a pass early, skips blocks or runs them again for some inputs"
        raise CheckpointError(name, wanted, f"one through {count} ({several})", advice)


def check_by_token(states: Tensor) -> None:
    """Refuse states that are not (input, token, feature): of several streams in one tensor, or of a grid of places.

    Raises:
        CheckpointError: They are none.
    """
    if states.ndim != 3:
        advice = "td.audit reads its weights, where they are found"
        raise CheckpointError("states", _ONE_STREAM, f"states of shape {tuple(states.shape)}", advice)


def arguments_for(network: nn.Module, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of the arguments of a forward pass where the network is; real numbers in its dtype."""
    first = next(parameter for parameter in network.parameters() if not parameter.is_meta)
    return copied({name: on_device_of(value, first) for name, value in arguments.items()})


def on_device_of(value: Any, like: Tensor) -> Any:
    """Return an argument of a forward pass where a tensor is; real numbers in its dtype."""
    if not isinstance(value, Tensor):
        return value
    return value.to(device=like.device, dtype=like.dtype) if value.is_floating_point() else value.to(like.device)


def by_prompt(states: Tensor, prompts: int) -> Tensor:
    """Return states as (prompt, token, dim); some blocks work on the tokens of all prompts in one row."""
    return states if states.ndim > 2 else states.reshape(prompts, -1, states.shape[-1])
