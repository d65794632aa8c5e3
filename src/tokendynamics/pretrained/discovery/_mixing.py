"""Whether tokens act on each other in a block or in a network, found by changing one token of what it reads."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained.discovery._calls import Hooks, ModuleCall, states_given, with_state
from tokendynamics.pretrained.network import quietly
from tokendynamics.pretrained.other_libraries import refusing

Mixing: TypeAlias = Literal["none", "earlier tokens", "all tokens"]
"""Which other tokens act on a token inside a block."""

_CHANGED = 1e-5
"""Smallest change of a token's output, relative to the largest entry, that counts: more than float32 rounds."""


def mixing_of(block: ModuleCall) -> Mixing:
    """Return which other tokens act on a token inside a block; "all tokens" where the block cannot be run by itself.

    Args:
        block: Its call, which is repeated with its first and with its last token changed.
    """
    x = block.x
    if x is None or x.ndim != 3 or x.shape[1] < 2:
        return "all tokens"

    def output(token: int | None) -> Tensor:
        state = x.clone()
        if token is not None:
            state[:, token] = state[:, token].roll(1, dims=-1) + x.std()
        positional, named = block.arguments
        tensors = (argument for argument in (*positional, *named.values()) if isinstance(argument, Tensor))
        positional, named = with_state(
            state, next(tensor for tensor in tensors if tensor.shape == x.shape), positional, named
        )
        given = block.module(*positional, **named)
        states = states_given(given)
        if states is None:
            raise ValueError(type(given).__name__)
        return states

    try:
        with torch.no_grad():
            same, first, last = (output(token) for token in (None, 0, -1))
    except Exception:  # what a block of the user's own raises when it runs outside its network
        return "all tokens"
    if _differ(last[:, :-1], same[:, :-1]):
        return "all tokens"
    return "earlier tokens" if _differ(first[:, 1:], same[:, 1:]) else "none"


def _differ(one: Tensor, other: Tensor) -> bool:
    return not float((one - other).abs().max()) <= _CHANGED * float(other.abs().max())


_TOKENS = 8


def ignores_later_tokens(network: nn.Module, vocabulary: int, last_block: str, name: str) -> bool:
    """Tell whether the states of all tokens but the last stay the same when the last token is another one.

    Args:
        network: Ready to run; it reads token ids.
        vocabulary: Number of its token ids.
        last_block: Name of the module whose output is compared.
        name: What a message calls it.

    Raises:
        CheckpointError: It does not run.
    """
    states: list[Tensor] = []

    first = torch.randint(0, vocabulary, (1, _TOKENS), generator=torch.Generator().manual_seed(1))
    second = first.clone()
    second[0, -1] = (first[0, -1] + 1) % vocabulary
    device = next(network.parameters()).device
    with Hooks() as hooks, quietly(network), torch.no_grad():
        hooks.after(network.get_submodule(last_block), lambda given: states.append(given.detach().clone()))
        with refusing(lambda words: CheckpointError(expected(name, "a network that runs", words))):
            for ids in (first, second):
                network(input_ids=ids.to(device))
    # A block that runs again (shared weights) leaves one state for each of its runs: the last one counts.
    before, after = states[len(states) // 2 - 1], states[-1]
    before, after = (of_pass.reshape(-1, of_pass.shape[-1])[: _TOKENS - 1].double() for of_pass in (before, after))
    scale = float(before.abs().max())
    return float((after - before).abs().max()) <= 100 * torch.finfo(states[0].dtype).eps * scale
