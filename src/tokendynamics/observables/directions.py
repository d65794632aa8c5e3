"""Lengths and unit rows that neither overflow nor underflow, and the refusal of zero vectors."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import first_system, first_token
from tokendynamics.numerics.errors import expected

# Sums of squares of numbers in this range stay clear of both ends of float64.
SMALLEST_SAFE, LARGEST_SAFE = 1e-140, 1e140


def scale_of(x: Float[Tensor, "*axes dim"]) -> Float[Tensor, "*axes 1"]:
    """Return the largest entry in size along the last axis, and 1 where all are zero: a safe divisor."""
    largest = x.abs().amax(dim=-1, keepdim=True)
    return torch.where(largest == 0, torch.ones_like(largest), largest)


def lengths(x: Float[Tensor, "*axes dim"]) -> Float[Tensor, "*axes"]:
    """Return |x| along the last axis; tokens of norm 1e-300 or 1e300 are as exact as any other.

    >>> lengths(torch.tensor([[3e300, 4e300], [3e-300, 4e-300], [0.0, 0.0]], dtype=torch.float64)).tolist()
    [5e+300, 5e-300, 0.0]
    """
    direct = torch.linalg.vector_norm(x, dim=-1)
    if bool(((direct > SMALLEST_SAFE) & (direct < LARGEST_SAFE)).all()):
        return direct
    scale = scale_of(x)
    return torch.linalg.vector_norm(x / scale, dim=-1) * scale.squeeze(-1)


def unit_rows(x: Float[Tensor, "*axes token dim"], argument: str = "x") -> Float[Tensor, "*axes token dim"]:
    """Return x_i/|x_i|.

    Raises:
        ArgumentValueError: A token is zero; the index of the first one is printed.
    """
    direct = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    if bool(((direct > SMALLEST_SAFE) & (direct < LARGEST_SAFE)).all()):
        return x / direct
    refuse_zero_tokens((x == 0).all(dim=-1), argument)
    scaled = x / scale_of(x)
    return scaled / torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)


def refuse_zero_tokens(zero: Bool[Tensor, "*axes token"], argument: str) -> None:
    """Raise `ArgumentValueError` naming the first token marked in `zero`, if there is one."""
    if not bool(zero.any()):
        return
    came = f"a zero vector at {first_token(zero)}"
    raise ArgumentValueError(expected(argument, "tokens with a direction", came, "remove or mask that token"))


def refuse_zero_systems(x: Float[Tensor, "*axes token dim"], argument: str) -> None:
    """Raise `ArgumentValueError` naming the first system whose tokens are all zero, if there is one."""
    zero = (x == 0).flatten(start_dim=-2).all(dim=-1)
    if not bool(zero.any()):
        return
    came = f"only zeros{first_system(zero)}"
    raise ArgumentValueError(expected(argument, "at least one token that is not zero", came))
