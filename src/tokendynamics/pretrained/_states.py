"""The residual state of every token after each part of each block, from one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokendynamics.pretrained._other_libraries import silenced
from tokendynamics.pretrained.adapters._adapter import Sites


@dataclass(frozen=True)
class SiteStates:
    """States of one prompt's tokens, in the network's dtype.

    Attributes:
        attention: Index l: the state of block l after its attention part (for post-norm blocks after the norm
            behind it). Index 0: NaN, since no attention stands before the first block.
        feed_forward: Index 0: the input of the first block (embeddings with positions; after BERT's embedding
            norm). Index l: the output of block l, before the final norm, also for the last block.
        final_norm: The last state after the final norm; None if the architecture has none.
    """

    attention: Float[Tensor, "depth token dim"]
    feed_forward: Float[Tensor, "depth token dim"]
    final_norm: Float[Tensor, "token dim"] | None


def collect_states(network: nn.Module, sites: Sites, ids: Tensor) -> SiteStates:
    """Run the network once and keep the state at each site.

    The tensors that the blocks hand on are kept as they are and joined after the pass: copying them meanwhile would
    push the weights out of the cache.

    Args:
        network: A filled base model.
        sites: Where to look.
        ids: Token ids (1, token).
    """
    blocks = list(network.get_submodule(sites.blocks).children())
    attention: list[Tensor] = []
    feed_forward: list[Tensor] = []
    final: list[Tensor] = []
    watch = _input_of if sites.attention_side == "input" else _output_of
    with ExitStack() as hooks, torch.inference_mode(), silenced():
        hooks.enter_context(_input_of(blocks[0], feed_forward.append))
        for block in blocks:
            hooks.enter_context(watch(block.get_submodule(sites.attention), attention.append))
            hooks.enter_context(_output_of(block, feed_forward.append))
        if sites.final_norm is not None:
            hooks.enter_context(_output_of(network.get_submodule(sites.final_norm), final.append))
        network(input_ids=ids.to(next(network.parameters()).device), use_cache=False)
    attention.insert(0, torch.full_like(attention[0], torch.nan))
    return SiteStates(_joined(attention), _joined(feed_forward), _joined(final)[0] if final else None)


def _joined(states: list[Tensor]) -> Tensor:
    """Join all in one tensor; the list is emptied, so that each state is in memory twice for a moment only."""
    joined = torch.stack(states)
    states.clear()
    return joined


@contextmanager
def _input_of(module: nn.Module, keep: Callable[[Tensor], Any]) -> Iterator[None]:
    def hook(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        del module
        keep((arguments[0] if arguments else named["hidden_states"])[0])

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _output_of(module: nn.Module, keep: Callable[[Tensor], Any]) -> Iterator[None]:
    def hook(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        del module, arguments
        # Attention modules return (state, weights), blocks a tensor; older versions wrapped blocks likewise.
        keep((output[0] if isinstance(output, tuple) else output)[0])

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
