"""A point of a landscape as the user passes it, checked and laid out for computing."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.circuits.landscape.landscape import Landscape
from tokendynamics.circuits.pair_task.laws import category_law
from tokendynamics.numerics.arguments import ArrayLike, as_tensor
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, expected


def checked_point(landscape: Landscape, q: ArrayLike, v: ArrayLike) -> tuple[Tensor, Tensor]:
    """Both parts of a point in float64, with the same leading axes.

    Raises:
        ArgumentTypeError: Something that is no array of real floating-point numbers.
        ArgumentValueError: A NaN or infinity, a wrong shape, or leading axes that do not fit together.
    """
    checked_q = _checked(q, "q", landscape.q_shape, landscape.name)
    checked_v = _checked(v, "v", landscape.v_shape, landscape.name)
    try:
        lead = torch.broadcast_shapes(checked_q.shape[:-2], checked_v.shape[:-2])
    except RuntimeError as error:
        wanted = f"leading axes that fit those of q, shape {tuple(checked_q.shape)}"
        raise ArgumentValueError(expected("v", wanted, f"shape {tuple(checked_v.shape)}")) from error
    return checked_q.expand(*lead, *landscape.q_shape), checked_v.expand(*lead, *landscape.v_shape)


def one_point(landscape: Landscape, q: ArrayLike, v: ArrayLike) -> tuple[Tensor, Tensor]:
    """As `checked_point`, for what is computed of one point only: leading axes are refused."""
    checked_q, checked_v = checked_point(landscape, q, v)
    if checked_q.ndim > 2:
        came = f"leading axes {tuple(checked_q.shape[:-2])}"
        raise ArgumentValueError(expected("q, v", "one point, without leading axes", came))
    return checked_q, checked_v


def checked_positions(positions: int) -> int:
    """The number of positions M, at least two: the first column has no previous token and is not counted.

    Raises:
        ArgumentTypeError: Not an integer.
        ArgumentValueError: Fewer than two.
    """
    if isinstance(positions, bool) or not isinstance(positions, int):
        raise ArgumentTypeError(expected("positions", "an integer", repr(positions)))
    if positions < 2:
        advice = "the first position has no previous token"
        raise ArgumentValueError(expected("positions", "at least 2", positions, advice))
    return positions


def law_of_categories(law: ArrayLike) -> Tensor:
    """Probabilities of the categories, as many as are given, shape (N,); see `category_law`.

    Raises:
        ArgumentValueError: Not one axis, a probability that is not positive, or a sum that is not one.
    """
    probabilities = as_tensor(law, "law", ndim_at_least=1, axes="(N,)")
    return category_law(probabilities, probabilities.shape[-1])


def flatten(q: Tensor, v: Tensor) -> Tensor:
    """One vector for a point: q row by row, then v row by row; shape (…, n)."""
    return torch.cat([q.flatten(-2), v.flatten(-2)], dim=-1)


def unflatten(landscape: Landscape, point: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse of `flatten`."""
    entries = landscape.q_shape[0] * landscape.q_shape[1]
    lead = point.shape[:-1]
    return point[..., :entries].reshape(*lead, *landscape.q_shape), point[..., entries:].reshape(
        *lead, *landscape.v_shape
    )


def _checked(value: ArrayLike, argument: str, shape: tuple[int, int], name: str) -> Tensor:
    tensor = as_tensor(value, argument, ndim_at_least=2).double()
    if tuple(tensor.shape[-2:]) != shape:
        wanted = f"shape (…, {shape[0]}, {shape[1]}) for the landscape {name!r}"
        raise ArgumentValueError(expected(argument, wanted, f"shape {tuple(tensor.shape)}"))
    return tensor
