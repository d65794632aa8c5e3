"""How far tokens agree in direction: the consensus measure E, the mean cosine, the agreement with the first."""

from __future__ import annotations

import operator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_states, as_tensor, check_finite, like
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables.directions import unit_rows


@typed_arguments
def consensus(x: ArrayLike, reference: int = 0, signed: bool = False) -> Any:
    """Return the consensus measure E: 0 when all tokens point along the reference token.

    E = 1 − (1/ℓ) Σ_i |cos(x_r, x_i)|, where i runs over ALL ℓ tokens, the reference r among them. Identical
    tokens give 0 and orthogonal ones 1 − 1/ℓ. Source: `asymptotic` (25), whose printed sum starts at 0 and is
    meant to start at 1; its reference is the first token.

    The absolute value counts a token at the antipode as agreeing. `signed` drops it, and E then runs up to 2.
    Each term 1 − |cos| is computed as min(|u − v|², |u + v|²)/2 of unit rows, so identical tokens give exactly
    0 and tokens 1e-10 radians apart a value near 5e-21 with the right leading digits.

    Args:
        x: States of shape (…, token, dim); the norms of the tokens do not matter.
        reference: Index of the reference token; negative counts from the end (−1 is the last token).
        signed: Whether opposite directions count as disagreeing.

    Returns:
        Shape (…,), dimensionless, in [0, 1 − 1/ℓ], or in [0, 2 − 2/ℓ] if `signed`.

    Raises:
        ArgumentValueError: No such reference token, or a zero token (its index is printed).

    >>> consensus([[1.0, 0.0], [0.0, 2.0]])
    0.5
    >>> x = [[1.0, 0.0], [-3.0, 0.0]]
    >>> consensus(x), consensus(x, signed=True)
    (0.0, 1.0)
    """
    states = as_states(x)
    tokens, index = states.shape[-2], operator.index(reference)
    if not -tokens <= index < tokens:
        wanted = f"a token index from {-tokens} to {tokens - 1}"
        raise ArgumentValueError(expected("reference", wanted, index))
    result = _consensus(unit_rows(states.double()), index, signed)
    return like(result.to(states.dtype), x)


def mean_pair_cosine(x: ArrayLike) -> Any:
    """Return the mean cosine over the ordered pairs of different tokens.

    (1/(ℓ(ℓ−1))) Σ_{i≠j} cos(x_i, x_j): 1 for identical directions, 0 for orthogonal ones, −1/(ℓ−1) for the
    vertices of a regular simplex (the lowest possible). Signed, and without a preferred token, where
    `consensus` (`asymptotic` (25)) has a reference and an absolute value.

    Computed as 1 − Σ_i |u_i − ū|²/(ℓ − 1) over unit rows u, which is exactly 1 for identical tokens.

    Args:
        x: States of shape (…, token, dim); the norms of the tokens do not matter.

    Returns:
        Shape (…,), dimensionless, in [−1/(ℓ−1), 1].

    Raises:
        ArgumentValueError: Fewer than two tokens, or a zero token (its index is printed).

    >>> mean_pair_cosine([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    -0.333333...
    """
    states = as_states(x)
    if states.shape[-2] < 2:
        came = f"shape {tuple(states.shape)}"
        raise ArgumentValueError(expected("x", "at least two tokens for a measure over pairs", came))
    unit = unit_rows(states.double())
    # Measured from the first token, identical tokens stay identical through the rounding of their mean.
    from_first = unit - unit[..., :1, :]
    scatter = (from_first - from_first.mean(dim=-2, keepdim=True)).square().sum(dim=(-2, -1))
    result = 1 - scatter / (unit.shape[-2] - 1)
    return like(result.to(states.dtype), x)


def agreement_with_first(x: ArrayLike) -> Any:
    """Return a_i = y_1·y_i, the inner product of every token with the first one.

    Source: `asymptotic`, proof of theorem 5.1, where tokens have length 1 and a_i → 1 for every i. Lengths are
    not divided out; `direction_deficit` of the first token gives 1 − a_i without cancellation on the sphere.

    Args:
        x: States of shape (…, token, dim).

    Returns:
        Shape (…, token), in the squared units of `x`; the first entry is |y_1|².

    Raises:
        ArgumentValueError: Values that overflow.

    >>> agreement_with_first([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]])
    [1.0, 0.6, -1.0]
    """
    states = as_states(x)
    wide = states.double()
    result = (wide * wide[..., :1, :]).sum(dim=-1)
    check_finite(result, "x_1·x_i")
    return like(result.to(states.dtype), x)


def first_token_function(agreement: ArrayLike) -> Any:
    """Return 2/3 − a + a³/3, computed as (1 − a)²(2 + a)/3.

    Source: `asymptotic` (17), the Lyapunov function of theorem 5.1 on [−1, 1]: 4/3 at the antipode, falling to 0
    at a = 1. The factors keep it at or above 0 for a ≥ −2, also where a exceeds 1 by rounding; the printed sum
    gives −5.6e-17 at a = 1.

    Args:
        agreement: a, of any shape, such as `agreement_with_first` gives.

    Returns:
        The shape of `agreement`, dimensionless.

    Raises:
        ArgumentTypeError, ArgumentValueError: See `tokendynamics.numerics.arguments.as_tensor`.

    >>> first_token_function([1.0, 0.5, 0.0, -1.0])
    [0.0, 0.208333..., 0.666666..., 1.333333...]
    """
    values = as_tensor(agreement, "agreement")
    a = values.double()
    return like(((1 - a).square() * (2 + a) / 3).to(values.dtype), agreement)


def _consensus(unit: Float[Tensor, "*system token dim"], index: int, signed: bool) -> Float[Tensor, "*system"]:
    chosen = unit[..., index, :].unsqueeze(-2)
    disagreement = (unit - chosen).square().sum(dim=-1) / 2
    if not signed:
        disagreement = torch.minimum(disagreement, (unit + chosen).square().sum(dim=-1) / 2)
    return disagreement.mean(dim=-1)
