"""The residual state of every token after each part of each block, from one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokendynamics.pretrained._network import without_cache
from tokendynamics.pretrained._other_libraries import silenced
from tokendynamics.pretrained.discovery._calls import state_of
from tokendynamics.pretrained.discovery._layout import Layout
from tokendynamics.pretrained.discovery._residual import Residual


@dataclass(frozen=True)
class SiteStates:
    """States of one prompt's tokens, in the network's dtype.

    Attributes:
        attention: Index l: the state of block l after its attention part (for post-norm blocks after the norm
            behind it). Index 0: NaN, since no attention stands before the first block; NaN also where a block's
            sum was not found.
        feed_forward: Index 0: the input of the first block (embeddings with positions; after BERT's embedding
            norm). Index l: the output of block l, before the final norm, also for the last block.
        final_norm: The last state after the final norm; None if the architecture has none.
    """

    attention: Float[Tensor, "depth token dim"]
    feed_forward: Float[Tensor, "depth token dim"]
    final_norm: Float[Tensor, "token dim"] | None


def collect_states(network: nn.Module, layout: Layout, inputs: Mapping[str, Tensor]) -> SiteStates:
    """Run the network once and keep the state at each site.

    The tensors that the blocks hand on are kept as they are and joined after the pass: copying them meanwhile would
    push the weights out of the cache.

    Args:
        network: Ready to run.
        layout: Where its states are.
        inputs: Arguments of its forward pass, for one input.
    """
    with StateWatch(network, layout) as watch, silenced(), without_cache(network):
        return watch.run(network, inputs)


def run(network: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    """Run a network once, without gradients and without a cache for later tokens."""
    with silenced(), without_cache(network):
        _run(network, inputs)


def _run(network: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    first = next(each for each in network.parameters() if not each.is_meta)
    with torch.inference_mode():
        network(**{name: _moved(value, first) for name, value in inputs.items()})


def _moved(value: Any, like: Tensor) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.to(device=like.device, dtype=like.dtype) if value.is_floating_point() else value.to(like.device)


def _joined(states: list[Tensor]) -> Tensor:
    """Join all in one tensor, on the device of the first; the list is emptied, since each state is in memory twice."""
    joined = torch.stack([state.to(states[0].device) for state in states])
    states.clear()
    return joined


class StateWatch(ExitStack):
    """Hooks on the blocks and sites of a network; a block that runs several times is hooked once.

    Several may watch one network, each its own pass in its own thread.
    """

    def __init__(self, network: nn.Module, layout: Layout) -> None:
        super().__init__()
        self.attention: list[Tensor] = []
        self.feed_forward: list[Tensor] = []
        self.final: list[Tensor] = []
        self._x: Tensor | None = None
        self._thread = 0
        for name, layer in dict(zip(layout.blocks, layout.layers, strict=True)).items():
            block = network.get_submodule(name)
            self._before(block, self._enter)
            if layer.residual is not None:
                self._site(block, layer.residual)
            self._after(block, self._leave)
        if layout.final_norm is not None:
            self._after(network.get_submodule(layout.final_norm[0]), self.final.append)

    def run(self, network: nn.Module, inputs: Mapping[str, Tensor]) -> SiteStates:
        """Run the network once in the present thread, and return the states that this pass goes through."""
        self._thread = get_ident()
        _run(network, inputs)
        attention = [torch.full_like(self.feed_forward[0], torch.nan), *self.attention]
        final = self.final[-1].clone() if self.final else None
        return SiteStates(_joined(attention), _joined(self.feed_forward), final)

    def _enter(self, x: Tensor) -> None:
        self._x = x
        if not self.feed_forward:
            self.feed_forward.append(x)

    def _leave(self, y: Tensor) -> None:
        self.feed_forward.append(y)
        if len(self.attention) < len(self.feed_forward) - 1:
            self.attention.append(torch.full_like(y, torch.nan))

    def _site(self, block: nn.Module, residual: Residual) -> None:
        name, side = residual.after_attention
        module, factor = block.get_submodule(name), residual.attention_factor

        def keep(state: Tensor) -> None:
            if len(self.attention) < len(self.feed_forward):
                self.attention.append(state)

        def add(part: Tensor) -> None:
            if self._x is not None:
                # Of a network on several devices the input may still be on that of the block before.
                keep(self._x.to(part.device) + (part if factor == 1.0 else factor * part))

        if side == "input":
            self._before(module, keep)
        else:
            self._after(module, keep if side == "output" else add)

    def _before(self, module: nn.Module, keep: Callable[[Tensor], None]) -> None:
        def hook(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            del module
            states = state_of(positional, named)
            if states is not None and get_ident() == self._thread:
                keep(_first_input(states))

        self.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def _after(self, module: nn.Module, keep: Callable[[Tensor], None]) -> None:
        def hook(module: nn.Module, positional: Any, output: Any) -> None:
            del module, positional
            # Attention modules return (state, weights), blocks a tensor; older versions wrapped blocks likewise.
            if get_ident() == self._thread:
                keep(_first_input(output[0] if isinstance(output, tuple) else output))

        self.callback(module.register_forward_hook(hook).remove)


def _first_input(states: Tensor) -> Tensor:
    return states[0] if states.ndim > 2 else states
