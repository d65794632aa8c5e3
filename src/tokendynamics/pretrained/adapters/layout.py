"""Reshaping of stored projection matrices into one factor per head, without a copy."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def input_heads(weight: Float[Tensor, "head_d dim"], heads: int) -> Float[Tensor, "{heads} dim d_head"]:
    """Split a linear layer's weight (out, in), whose outputs are the heads side by side.

    >>> import torch
    >>> input_heads(torch.zeros(6, 4), heads=2).shape
    torch.Size([2, 4, 3])
    """
    return weight.unflatten(0, (heads, -1)).transpose(1, 2)


def output_heads(weight: Float[Tensor, "dim head_d"], heads: int) -> Float[Tensor, "{heads} d_head dim"]:
    """Split a linear layer's weight (out, in), whose inputs are the heads side by side.

    >>> import torch
    >>> output_heads(torch.zeros(4, 6), heads=2).shape
    torch.Size([2, 3, 4])
    """
    return weight.T.unflatten(0, (heads, -1))
