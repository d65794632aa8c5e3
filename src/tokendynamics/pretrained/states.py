"""The residual state of every token after each part of each block, from one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokendynamics.pretrained.adapters.adapter import Sites
from tokendynamics.pretrained.quiet import quiet


@dataclass(frozen=True)
class SiteStates:
    """States of one prompt's tokens, in the network's dtype.

    Attributes:
        attention: State of each block after its attention part (for post-norm blocks after the norm behind it).
        feed_forward: Index 0: the input of the first block (embeddings with positions; after BERT's embedding
            norm). Index l: the output of block l, before the final norm, also for the last block.
        final_norm: The last state after the final norm; None if the architecture has none.
    """

    attention: Float[Tensor, "layers token dim"]
    feed_forward: Float[Tensor, "depth token dim"]
    final_norm: Float[Tensor, "token dim"] | None


def collect_states(network: nn.Module, sites: Sites, ids: Tensor, dim: int) -> SiteStates:
    """Run the network once and copy the state at each site, once, into two arrays.

    Args:
        network: A filled base model.
        sites: Where to look.
        ids: Token ids (1, token).
        dim: Width of the residual state.
    """
    blocks = list(network.get_submodule(sites.blocks).children())
    depth, parameter = len(blocks), next(network.parameters())
    states = torch.empty(2 * depth + 2, ids.shape[-1], dim, dtype=parameter.dtype, device=parameter.device)
    attention, feed_forward, final = states[:depth], states[depth:-1], states[-1]
    watch = _input_of if sites.attention_side == "input" else _output_of
    with ExitStack() as hooks, torch.inference_mode(), quiet():
        hooks.enter_context(_input_of(blocks[0], feed_forward[0].copy_))
        for index, block in enumerate(blocks):
            hooks.enter_context(watch(block.get_submodule(sites.attention), attention[index].copy_))
            hooks.enter_context(_output_of(block, feed_forward[index + 1].copy_))
        if sites.final_norm is not None:
            hooks.enter_context(_output_of(network.get_submodule(sites.final_norm), final.copy_))
        network(input_ids=ids.to(parameter.device), use_cache=False)
    return SiteStates(attention, feed_forward, final if sites.final_norm is not None else None)


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
