"""Wendel's probability that uniformly drawn tokens share a half space."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, expected
from tokendynamics.numerics.signatures import typed_arguments


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
