"""Lyapunov functions of a half space, v·y_i, 1 − v·y_i and its largest, and Wendel's probability that there is one."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

import torch
from jaxtyping import Float64
from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_states, check_finite, like
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables._fitting import fitting_metric, fitting_vector

UNIT_WITHIN = 64
"""Vectors whose squared length is 1 up to this many units of rounding, of the precision they came in, count as
unit vectors: integrators that hold the constraint to 1e-14 stay within."""


def coordinate_along(x: ArrayLike, direction: ArrayLike) -> Any:
    """Return n·x_i for every token.

    Source: `positional` theorem 3.6, where n is an eigenvector of its V (of ov^T) with eigenvalue λ > 0 and
    e^{−λt} n·x_l(t) stays between the smallest and the largest n·x_i(0).

    Args:
        x: States of shape (…, token, dim).
        direction: n, (dim,) or (…, dim) broadcasting against the systems of `x`, of any length.

    Returns:
        Shape (…, token), in the units of `x` times those of n.

    Raises:
        ArgumentValueError: Shapes that do not fit, or values that overflow.

    >>> coordinate_along([[1.0, 2.0], [3.0, -1.0]], [1.0, 2.0])
    [5.0, 1.0]
    """
    states = as_states(x)
    result = (states.double() * fitting_vector(states, direction, "direction")).sum(dim=-1)
    check_finite(result, "direction·x_i")
    return like(result.to(states.dtype), x)


def direction_deficit(x: ArrayLike, direction: ArrayLike, metric: ArrayLike | None = None) -> Any:
    """Return 1 − v·y_i for every token, or 1 − v^T M y_i with a metric M.

    Source: `asymptotic` theorem 6.1, where v is the top eigenvector of ov. Where v and y_i have length 1 (in M),
    it is computed as |y_i − v|²/2, which equals it and keeps its leading digits down to 1e-32; elsewhere (on an
    ellipsoid without its metric, or with another v) as the formula says.

    Args:
        x: States of shape (…, token, dim).
        direction: v, (dim,) or (…, dim) broadcasting against the systems of `x`; used as it is, not normalised.
        metric: M, symmetric positive definite, (dim, dim) or (…, dim, dim); None means the identity.

    Returns:
        Shape (…, token), dimensionless; from 0 to 2 where all lengths are 1, and of any sign otherwise.

    Raises:
        ArgumentValueError: Shapes that do not fit, a metric that is not symmetric positive definite, or values
            that overflow.

    >>> direction_deficit([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], [0.0, 1.0])
    [1.0, 0.0, 2.0]
    >>> direction_deficit([[1.0, 1e-12]], [1.0, 0.0])
    [5e-25]
    """
    states = as_states(x)
    return like(_deficit(states, direction, metric).to(states.dtype), x)


def hemisphere_function(x: ArrayLike, direction: ArrayLike, metric: ArrayLike | None = None) -> Any:
    """Return max_i (1 − v·y_i), or its twin max_i (1 − v^T M y_i) with a metric M.

    Below 1 exactly when all tokens lie in the open half space of v (of M v for the twin). Source: `asymptotic`
    (13), non-increasing under the hypotheses of theorem 4.1. It tends to 1 − v·y* at the consensus y*, which is
    not 0 in general and is below 0 where v·y* > 1, possible on an ellipsoid. `hemisphere` finds the deepest v.

    Args:
        x: States of shape (…, token, dim).
        direction: v, (dim,) or (…, dim) broadcasting against the systems of `x`; used as it is, not normalised.
        metric: M, symmetric positive definite, (dim, dim) or (…, dim, dim); None means the identity.

    Returns:
        Shape (…,), dimensionless; see `direction_deficit` for its precision.

    Raises:
        ArgumentValueError: See `direction_deficit`.

    >>> hemisphere_function([[1.0, 0.0], [0.6, 0.8]], [1.0, 0.0])
    0.4...
    """
    states = as_states(x)
    return like(_deficit(states, direction, metric).amax(dim=-1).to(states.dtype), x)


def _deficit(states: Tensor, direction: ArrayLike, metric: ArrayLike | None) -> Float64[Tensor, "*broadcast token"]:
    y, v = states.double(), fitting_vector(states, direction, "direction")
    form = None if metric is None else fitting_metric(states, metric)
    plain = 1 - _product(y, v, form)
    check_finite(plain, "1 − direction·x_i")
    within = UNIT_WITHIN * torch.finfo(states.dtype).eps
    unit = _is_unit(y, form, within) & _is_unit(v, form, within)
    gap = y - v
    return torch.where(unit, _product(gap, gap, form) / 2, plain)


def _is_unit(y: Tensor, form: Tensor | None, within: float) -> Tensor:
    return (_product(y, y, form) - 1).abs() <= within


def _product(left: Tensor, right: Tensor, form: Tensor | None) -> Float64[Tensor, "*broadcast token"]:
    return (left * (right if form is None else right @ form)).sum(dim=-1)


@typed_arguments
def wendel_probability(tokens: SupportsIndex, dim: SupportsIndex, *, formula: str = "corrected") -> float:
    """Return the probability that tokens drawn uniformly on a sphere lie in one open half space.

    2^{−(ℓ−1)} Σ_{μ=0}^{dim−1} C(ℓ−1, μ) for ℓ tokens in R^dim (Wendel 1962): 1 exactly when ℓ ≤ dim, and 1/2 for
    ℓ = 2·dim. It holds for every law symmetric about 0 under which tokens are in general position, such as the
    uniform law on an ellipsoid. Source: `asymptotic` remark 4.2, whose dim is n + 1 and whose printed upper limit
    n − 1 = dim − 2 is one too low; ``"printed"`` evaluates it as it stands, for comparison.

    The sum is an integer computed exactly, and the answer its quotient rounded once.

    Args:
        tokens: ℓ, at least 1.
        dim: The dimension of the tokens, at least 1.
        formula: ``"corrected"`` or ``"printed"``.

    Returns:
        The probability, from 0 (reached by underflow, and by ``"printed"`` with dim = 1) to 1.

    Raises:
        ArgumentTypeError: A number of tokens or a dimension that is no integer.
        ArgumentValueError: One below 1, or another formula.

    >>> wendel_probability(10, 3), wendel_probability(10, 3, formula="printed")
    (0.08984375, 0.01953125)
    """
    count, size = _positive(tokens, "tokens"), _positive(dim, "dim")
    if formula not in ("corrected", "printed"):
        raise ArgumentValueError(expected("formula", "'corrected' or 'printed'", repr(formula)))
    draws, terms = count - 1, min(size if formula == "corrected" else size - 1, count)
    favourable = _sum_of_binomials(draws, terms)
    if favourable.bit_length() < draws - 1100:  # below every float64: the power of two need not be built
        return 0.0
    return favourable / 2**draws


def _sum_of_binomials(n: int, terms: int) -> int:
    """Return Σ_{μ < terms} C(n, μ), by whichever end of the row is shorter."""
    if 2 * terms > n + 1:
        return 2**n - _sum_of_binomials(n, n + 1 - terms)
    total, binomial = 0, 1
    for mu in range(terms):
        total += binomial
        binomial = binomial * (n - mu) // (mu + 1)
    return total


def _positive(value: SupportsIndex, argument: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(expected(argument, "an integer", repr(value))) from None
    if number < 1:
        raise ArgumentValueError(expected(argument, "at least 1", number))
    return number
