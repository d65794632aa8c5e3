"""Sums over all pairs of many tokens, in blocks of rows: memory is linear in the number of tokens."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

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
