"""How many directions tokens occupy: effective and stable rank, and the distance to a constant matrix."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_states, like
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables import directions as directions


@typed_arguments
def effective_rank(x: ArrayLike, unit_rows: bool = False, *, exponent: int | float = 2) -> Any:
    """Return exp of the entropy of the normalised singular values of X.

    exp(−Σ_i p_i log p_i) with p_i = σ_i^k / Σ_j σ_j^k: 1 for a matrix of rank one, n for n equal singular
    values. `exponent` k = 2 weighs directions by their energy and is the default; k = 1 weighs them by
    amplitude, the definition of Roy and Vetterli (2007), and is always the larger of the two.

    A single token of large norm (an attention sink) drives the raw value to 1 while the other tokens may still
    point anywhere: compare `unit_rows`. Used beside the consensus measure `asymptotic` (25).

    Args:
        x: States of shape (…, token, dim).
        unit_rows: Whether every token is first divided by its norm.
        exponent: The power k of the singular values, above 0.

    Returns:
        Shape (…,), dimensionless, from 1 to min(token, dim).

    Raises:
        ArgumentValueError: All tokens zero; a zero token where `unit_rows`; an exponent that is not positive.

    >>> effective_rank([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    2.0
    >>> x = [[3.0, 0.0], [0.0, 1.0]]
    >>> f"{effective_rank(x):.4f} {effective_rank(x, exponent=1):.4f} {effective_rank(x, unit_rows=True):.4f}"
    '1.3841 1.7548 2.0000'
    """
    states = as_states(x)
    if not (math.isfinite(exponent) and exponent > 0):
        raise ArgumentValueError(expected("exponent", "a positive number", exponent))
    ratios = _singular_ratios(_prepared(states, unit_rows))
    return like(exp_entropy(ratios.pow(exponent)).to(states.dtype), x)


@typed_arguments
def stable_rank(x: ArrayLike, unit_rows: bool = False) -> Any:
    """Return the stable rank ‖X‖_F²/‖X‖_2² = Σ_i σ_i²/σ_1².

    It never exceeds the rank, and small singular values hardly move it. Not a quantity of the three papers;
    it stands beside `effective_rank`.

    Args:
        x: States of shape (…, token, dim).
        unit_rows: Whether every token is first divided by its norm.

    Returns:
        Shape (…,), dimensionless, from 1 to min(token, dim).

    Raises:
        ArgumentValueError: All tokens zero; a zero token where `unit_rows`.

    >>> stable_rank([[2.0, 0.0], [0.0, 1.0]])
    1.25
    """
    states = as_states(x)
    ratios = _singular_ratios(_prepared(states, unit_rows))
    return like(ratios.square().sum(dim=-1).to(states.dtype), x)


def rank_one_distance(x: ArrayLike) -> Any:
    """Return the relative distance of X to the nearest matrix with equal rows, ‖X − 1 x̄^T‖_F/‖X‖_F.

    x̄ is the mean token. 0 when all tokens coincide, 1 when their mean is zero: rank collapse in the sense of
    the literature on oversmoothing. Differences are taken before squares, so that coincident tokens give
    exactly 0 and a collapse to 1e-12 still shows.

    Args:
        x: States of shape (…, token, dim).

    Returns:
        Shape (…,), dimensionless, in [0, 1].

    Raises:
        ArgumentValueError: All tokens zero.

    >>> rank_one_distance([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    0.0
    >>> rank_one_distance([[1.0, 2.0], [-1.0, -2.0]])
    1.0
    """
    states = as_states(x)
    scaled = _prepared(states, unit_rows=False)
    from_first = scaled - scaled[..., :1, :]
    spread = directions.lengths((from_first - from_first.mean(dim=-2, keepdim=True)).flatten(start_dim=-2))
    result = spread / torch.linalg.matrix_norm(scaled)
    return like(result.to(states.dtype), x)


def exp_entropy(weights: Float[Tensor, "*system index"]) -> Float[Tensor, "*system"]:
    """Return exp(−Σ p log p) of non-negative weights, normalised here."""
    shares = weights / weights.sum(dim=-1, keepdim=True)
    return torch.special.entr(shares).sum(dim=-1).exp()


def _prepared(states: Float[Tensor, "*system token dim"], unit_rows: bool) -> Float[Tensor, "*system token dim"]:
    x = states.double()
    if unit_rows:
        return directions.unit_rows(x)
    directions.refuse_zero_systems(x, "x")
    return x / directions.scale_of(x.flatten(start_dim=-2)).unsqueeze(-1)


def _singular_ratios(x: Float[Tensor, "*system token dim"]) -> Float[Tensor, "*system index"]:
    values = torch.linalg.svdvals(x)
    return values / values[..., :1]
