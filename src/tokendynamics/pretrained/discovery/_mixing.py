"""Whether a block lets tokens act on each other, found by changing one token of what it reads."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from tokendynamics.pretrained.discovery._calls import ModuleCall, with_state
from tokendynamics.pretrained.discovery._outputs import states_given

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
    try:
        with torch.no_grad():
            same, first, last = (_output(block, x, token) for token in (None, 0, -1))
    except Exception:  # what a block of the user's own raises when it runs outside its network
        return "all tokens"
    if _differ(last[:, :-1], same[:, :-1]):
        return "all tokens"
    return "earlier tokens" if _differ(first[:, 1:], same[:, 1:]) else "none"


def _output(block: ModuleCall, x: Tensor, token: int | None) -> Tensor:
    state = x.clone()
    if token is not None:
        state[:, token] = state[:, token].roll(1, dims=-1) + x.std()
    positional, named = block.arguments
    given = next(each for each in (*positional, *named.values()) if isinstance(each, Tensor) and each.shape == x.shape)
    positional, named = with_state(state, given, positional, named)
    output = block.module(*positional, **named)
    states = states_given(output)
    if states is None:
        raise ValueError(type(output).__name__)
    return states


def _differ(one: Tensor, other: Tensor) -> bool:
    return not float((one - other).abs().max()) <= _CHANGED * float(other.abs().max())
