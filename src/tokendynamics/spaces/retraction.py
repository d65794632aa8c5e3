"""Retraction onto y^T M y = 1 and the tangent part of vectors, on checked tensors."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.places import first_token


def inner(
    first: Float[Tensor, "*batch token dim"],
    second: Float[Tensor, "*batch token dim"],
    metric: Float[Tensor, "*system dim dim"] | None,
) -> Float[Tensor, "*batch token 1"]:
    """Return ``x_i^T M y_i`` for each token; the plain inner product where metric is None."""
    return (first * (second if metric is None else second @ metric)).sum(dim=-1, keepdim=True)


def retract(
    x: Float[Tensor, "*batch token dim"], metric: Float[Tensor, "*system dim dim"] | None, argument: str
) -> Float[Tensor, "*batch token dim"]:
    """Return ``x / |x|_M``, safe for tokens of any size.

    Raises:
        ArgumentValueError: A zero token; its index is printed.
    """
    refuse_zero(x, argument)
    return normalized(x, metric)


def refuse_zero(x: Float[Tensor, "*batch token dim"], argument: str) -> None:
    """Raise for a token that is zero.

    Raises:
        ArgumentValueError: A zero token; its index is printed.
    """
    zero = x.abs().amax(dim=-1) == 0
    if bool(zero.any()):
        came = f"a zero vector at {first_token(zero)}"
        advice = "zero has no direction and cannot be projected: remove or mask that token"
        raise ArgumentValueError(expected(argument, "tokens that are not zero", came, advice))


def normalized(
    x: Float[Tensor, "*batch token dim"], metric: Float[Tensor, "*system dim dim"] | None
) -> Float[Tensor, "*batch token dim"]:
    """Return ``x / |x|_M`` without the check: a zero token gives NaN."""
    scaled = x / x.abs().amax(dim=-1, keepdim=True)
    once = scaled / inner(scaled, scaled, metric).sqrt()
    # The second pass removes the rounding of the first: the constraint then holds to the last digit or two.
    return once * (1.5 - 0.5 * inner(once, once, metric))


def tangent_part(
    y: Float[Tensor, "*batch token dim"],
    vectors: Float[Tensor, "*batch token dim"],
    metric: Float[Tensor, "*system dim dim"] | None,
) -> Float[Tensor, "*batch token dim"]:
    """Return ``v − (y^T M v) y``."""
    return vectors - inner(y, vectors, metric) * y
