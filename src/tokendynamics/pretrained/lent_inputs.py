"""The blocks of one network on the states of another: what each of them would make of the same inputs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained._checkpoint import Checkpoint
from tokendynamics.pretrained._own_tokens import OwnTokens
from tokendynamics.pretrained.network import evaluating, without_cache
from tokendynamics.pretrained.other_libraries import refusing, silenced
from tokendynamics.pretrained.packs import Pack
from tokendynamics.pretrained.states import StateWatch, run


def states_on_inputs_of(
    first: Checkpoint, other: Checkpoint, pack: Pack
) -> tuple[Float[Tensor, "layer prompt token dim"], Float[Tensor, "layer prompt token dim"]] | None:
    """Run the first network, and each block of the other one on what the same block of the first one is given.

    Args:
        first: The network that runs.
        other: Of the same depth and width; its blocks take the arguments that the first one's take.
        pack: What goes through the first one.

    Returns:
        The states after the attention of each block of `other` and after the block, index 0 for block 1; tokens that
        the first network adds by itself are left out, the padding of shorter prompts is not. None where its blocks
        cannot be run so: another number format, device or depth, a network whose blocks are read while they run, or
        blocks that take other arguments.
    """
    if first.streamed or other.streamed or first.architecture.layers != other.architecture.layers:
        return None
    if (first.dtype, first.device) != (other.dtype, other.device):
        return None
    blocks = dict(zip(first.layout.blocks, other.layout.blocks, strict=True))
    if any(first.model.get_submodule(one) is other.model.get_submodule(two) for one, two in blocks.items()):
        return None  # two variants of one network in memory: its blocks cannot be both at once

    def lend(block: nn.Module) -> Any:
        def hook(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
            del module
            block(*positional, **named)

        return hook

    try:
        with (
            ExitStack() as stack,
            refusing(lambda words: CheckpointError(expected("models", "blocks that run", words))),
        ):
            watch = stack.enter_context(StateWatch(other.model, other.layout))
            watch.watch_here()
            for network in (first.model, other.model):
                for manager in (evaluating(network), without_cache(network)):
                    stack.enter_context(manager)
            for manager in (silenced(), first.as_varied(), other.as_varied(), torch.inference_mode()):
                stack.enter_context(manager)
            for name, lent in blocks.items():
                hook = lend(other.model.get_submodule(lent))
                handle = first.model.get_submodule(name).register_forward_pre_hook(hook, with_kwargs=True)
                stack.callback(handle.remove)
            tokens = stack.enter_context(OwnTokens(first.model, first.layout))
            run(first.model, pack.arguments)
            own = tokens.places(pack.arguments)
            return torch.stack(watch.attention)[:, :, own], torch.stack(watch.feed_forward[1:])[:, :, own]
    except CheckpointError:
        return None
