"""Finds the tokens that hold most of the norm: attention sinks, and other massive activations.

Attention to a token that carries nothing is a way for a head to do nothing; networks grow such a token to a norm
hundreds of times the others', and every measure that weighs tokens by norm then sees that token alone.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from tokendynamics.numerics.errors import ArgumentValueError, expected

SINK_RATIO = 4.0
"""A token is a sink where its norm exceeds this many times the (lower) median of its prompt's tokens there."""

PERSISTENT_SHARE = 0.5
"""A token that is a sink in at least this share of the layers is left out at EVERY layer, so that curves over depth
compare the same tokens; one that is a sink in fewer layers is left out only in those."""


def find_sinks(token_norms: Float[Tensor, "*layer token"], ratio: float = SINK_RATIO) -> Bool[Tensor, "*layer token"]:
    """Tell where a token's norm exceeds `ratio` times the median norm of the tokens of its prompt.

    Args:
        token_norms: Shape (…, token).
        ratio: Dimensionless, above 1.

    Raises:
        ArgumentValueError: A ratio that is not above 1.

    >>> import torch
    >>> find_sinks(torch.tensor([900.0, 3.0, 2.0, 2.5])).tolist()
    [True, False, False, False]
    """
    if not 1 < ratio < float("inf"):
        raise ArgumentValueError(expected("sink_ratio", "a number above 1", ratio))
    return token_norms > ratio * token_norms.median(dim=-1, keepdim=True).values


def tokens_to_remove(sinks: Bool[Tensor, "layer token"]) -> Bool[Tensor, "layer token"]:
    """Return the tokens left out at each layer: its own sinks, and at every layer the persistent ones.

    >>> import torch
    >>> tokens_to_remove(torch.tensor([[False, False], [True, False], [True, True]])).tolist()
    [[True, False], [True, False], [True, True]]
    """
    persistent = sinks.double().mean(dim=0) >= PERSISTENT_SHARE
    return sinks | persistent
