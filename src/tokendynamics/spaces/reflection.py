"""Samples in a half space, from samples of a law that is symmetric under x → −x."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tokendynamics.numerics.arguments import ArrayLike, as_tensor
from tokendynamics.numerics.errors import ArgumentValueError, expected


def into_half_space(direction: ArrayLike, draw: Callable[[int], Tensor]) -> Tensor:
    """Draw tokens of the right dim and replace those with ``direction · x < 0`` by −x.

    Of a law symmetric under x → −x this gives the law conditioned on the half space. A token on the boundary (of
    probability zero) moves by nothing and stays there.
    """
    normal = as_tensor(direction, "direction").to(torch.float64)
    if normal.ndim != 1 or not bool((normal != 0).any()):
        raise ArgumentValueError(expected("direction", "a vector (dim,) that is not zero", f"{normal.tolist()}"))
    tokens = draw(len(normal))
    side = (tokens * normal).sum(dim=-1, keepdim=True)
    return torch.where(side < 0, -tokens, tokens)
