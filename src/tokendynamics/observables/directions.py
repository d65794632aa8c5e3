"""Unit rows of tokens, safe at any size, and sums over their pairs, for many tokens in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import first_system, first_token

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
    raise ArgumentValueError(argument, "tokens with a direction", came, "remove or mask that token")


def refuse_zero_systems(x: Float[Tensor, "*axes token dim"], argument: str) -> None:
    """Raise `ArgumentValueError` naming the first system whose tokens are all zero, if there is one."""
    zero = (x == 0).flatten(start_dim=-2).all(dim=-1)
    if not bool(zero.any()):
        return
    raise ArgumentValueError(argument, "at least one token that is not zero", f"only zeros{first_system(zero)}")


MANY = 512
"""Tokens beyond which no matrix of all pairs is kept, unless the states are as wide as they are many."""

_BLOCK_BYTES = 2**23


def are_many(tokens: int, dim: int) -> bool:
    """Tell whether a matrix of all pairs of tokens would be larger than the states themselves, and large."""
    return tokens > max(MANY, dim)


def mean_over_pairs(
    directions: Float64[Tensor, "site token dim"], keep: Bool[Tensor, "mask site token"]
) -> Float64[Tensor, "mask site"]:
    """Return the mean of u_i·u_j over the pairs i ≠ j of tokens that count; NaN where fewer than two do."""
    count = keep.sum(dim=-1)
    total = (keep.double().movedim(0, 1) @ directions).movedim(1, 0).square().sum(dim=-1)
    lengths = (directions.square().sum(dim=-1) * keep).sum(dim=-1)
    return (total - lengths) / torch.where(count > 1, count * (count - 1), torch.nan)


def with_reference(
    directions: Float64[Tensor, "site token dim"], reference: Tensor
) -> Float64[Tensor, "mask site token"]:
    """Return the cosine of every token with one token of its site, whose number is given for each mask."""
    sites = torch.arange(len(directions), device=directions.device)
    return torch.einsum("std,msd->mst", directions, directions[sites, reference])


def distance_sums(
    states: Float64[Tensor, "token dim"],
    size: Float64[Tensor, " token"],
    keep: Bool[Tensor, "mask token"],
    close: float,
) -> tuple[Float64[Tensor, " mask"], Float64[Tensor, " mask"]]:
    """Return Σ_ij |x_i − x_j| and Σ_ij |x_i − x_j|² over the tokens that count under each mask.

    Args:
        states: Of one site, scaled to sizes of at most 1.
        size: Their norms.
        keep: The tokens that count.
        close: Squared distances below this share of |x_i||x_j| are taken from differences: the others cancel.
    """
    weights, counted = keep.to(states), keep.any(dim=0)
    first, second = (torch.zeros(len(keep), dtype=states.dtype, device=states.device) for _ in range(2))
    for rows in _blocks(len(states)):
        product = size[rows, None] * size
        squared = (size[rows, None].square() + size.square() - 2 * (states[rows] @ states.mT)).clamp_(min=0)
        near = (squared < close * product) & counted[rows, None] & counted
        if bool(near.any()):
            i, j = near.nonzero(as_tuple=True)
            for some in torch.arange(len(i), device=i.device).split(max(1, _BLOCK_BYTES // (8 * states.shape[1]))):
                exact = (states[rows][i[some]] - states[j[some]]).square().sum(dim=-1)
                squared[i[some], j[some]] = exact
        second += ((squared @ weights.mT) * weights[:, rows].mT).sum(dim=0)
        first += ((squared.sqrt_() @ weights.mT) * weights[:, rows].mT).sum(dim=0)
    return first, second


def _blocks(tokens: int) -> Iterator[slice]:
    rows = max(1, _BLOCK_BYTES // (8 * tokens))
    for start in range(0, tokens, rows):
        yield slice(start, start + rows)
