"""What every loss landscape of two matrices, attention (the paper's q) and value map v, can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from tokendynamics.circuits._task import category_law
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_tensor


@dataclass(frozen=True)
class Gradient:
    """True derivatives of a loss (−2 times those that `logical` prints in (3.6)–(3.18)).

    Attributes:
        attention: ∂loss/∂q, shape (…, *attention_shape).
        v: ∂loss/∂v, shape (…, *v_shape).
    """

    attention: Tensor
    v: Tensor


@runtime_checkable
class LossAndGradient(Protocol):
    """A landscape that computes what loss and gradient share only once; a descent then takes half as long."""

    def loss_and_gradient(self, attention: ArrayLike, v: ArrayLike) -> tuple[Tensor, Gradient]:
        """Return the same as `loss` and `gradient` of a `Landscape`."""
        ...


@runtime_checkable
class Landscape(Protocol):
    """An expected squared error as a function of attention (the paper's q) and value map v, without sampling.

    All methods take attention of shape (…, *attention_shape) and v of shape (…, *v_shape), and broadcast over leading
    axes.
    """

    @property
    def name(self) -> str:
        """A short name for tables and messages."""
        ...

    @property
    def attention_shape(self) -> tuple[int, int]:
        """Shape of one attention matrix."""
        ...

    @property
    def v_shape(self) -> tuple[int, int]:
        """Shape of one v."""
        ...

    @property
    def law(self) -> Tensor:
        """Probabilities of the categories, shape (N,)."""
        ...

    def loss(self, attention: ArrayLike, v: ArrayLike) -> Tensor:
        """Return the expected squared error, summed over the columns i = 2..M; shape (…,)."""
        ...

    def gradient(self, attention: ArrayLike, v: ArrayLike) -> Gradient:
        """Return the derivatives of `loss`."""
        ...

    def hessian(self, attention: ArrayLike, v: ArrayLike) -> Tensor:
        """Return the second derivatives over the flattened (q, v), each row by row: shape (…, n, n)."""
        ...


@dataclass(frozen=True)
class StationaryPoint:
    """A member of a family of stationary points.

    Attributes:
        family: The letter of the family, such as ``"B"``.
        text: What its members have in common, in a few words.
        attention: Attention, float64, of the landscape's `attention_shape`.
        v: Value map, float64, of its `v_shape`.
        loss: The predicted loss, summed over the columns i = 2..M.
        loss_per_column: `loss` divided by M − 1.

    >>> from tokendynamics.circuits.landscape import PositionsOnly, positions_only
    >>> point = positions_only.zero_column_sums(PositionsOnly([0.5, 0.3, 0.2], positions=4))
    >>> point.attention.shape, point.v.shape
    (torch.Size([4, 4]), torch.Size([3, 3]))
    """

    family: str
    text: str
    attention: Tensor
    v: Tensor
    loss: float
    loss_per_column: float


def checked_point(landscape: Landscape, attention: ArrayLike, v: ArrayLike) -> tuple[Tensor, Tensor]:
    """Return both parts of a point in float64, with the same leading axes.

    Raises:
        ArgumentTypeError: Something that is no array of real floating-point numbers.
        ArgumentValueError: A NaN or infinity, a wrong shape, or leading axes that do not fit together.
    """
    checked_attention = _checked(attention, "attention", landscape.attention_shape, landscape.name)
    checked_v = _checked(v, "v", landscape.v_shape, landscape.name)
    try:
        lead = np.broadcast_shapes(checked_attention.shape[:-2], checked_v.shape[:-2])
    except ValueError as error:
        wanted = f"leading axes that fit those of attention, shape {tuple(checked_attention.shape)}"
        raise ArgumentValueError("v", wanted, f"shape {tuple(checked_v.shape)}") from error
    return checked_attention.expand(*lead, *landscape.attention_shape), checked_v.expand(*lead, *landscape.v_shape)


def one_point(landscape: Landscape, attention: ArrayLike, v: ArrayLike) -> tuple[Tensor, Tensor]:
    """Check as `checked_point` does, for what is computed of one point only: leading axes are refused."""
    checked_attention, checked_v = checked_point(landscape, attention, v)
    if checked_attention.ndim > 2:
        came = f"leading axes {tuple(checked_attention.shape[:-2])}"
        raise ArgumentValueError("attention, v", "one point, without leading axes", came)
    return checked_attention, checked_v


def checked_positions(positions: int) -> int:
    """Return the number of positions M, at least two: the first column has no previous token and is not counted.

    Raises:
        ArgumentTypeError: Not an integer.
        ArgumentValueError: Fewer than two.
    """
    if isinstance(positions, bool) or not isinstance(positions, int):
        raise ArgumentTypeError("positions", "an integer", repr(positions))
    if positions < 2:
        raise ArgumentValueError("positions", "at least 2", positions, "the first position has no previous token")
    return positions


def law_of_categories(law: ArrayLike) -> Tensor:
    """Return probabilities of the categories, as many as are given, shape (N,); see `category_law`.

    Raises:
        ArgumentValueError: Not one axis, a probability that is not positive, or a sum that is not one.
    """
    probabilities = as_tensor(law, "law", ndim_at_least=1, axes="(N,)")
    return category_law(probabilities, probabilities.shape[-1])


def flatten(attention: Tensor, v: Tensor) -> Tensor:
    """Return one vector for a point: q row by row, then v row by row; shape (…, n)."""
    return torch.cat([attention.flatten(-2), v.flatten(-2)], dim=-1)


def unflatten(landscape: Landscape, point: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inverse of `flatten`."""
    entries = landscape.attention_shape[0] * landscape.attention_shape[1]
    lead = point.shape[:-1]
    return point[..., :entries].reshape(*lead, *landscape.attention_shape), point[..., entries:].reshape(
        *lead, *landscape.v_shape
    )


def _checked(value: ArrayLike, argument: str, shape: tuple[int, int], name: str) -> Tensor:
    tensor = as_tensor(value, argument, ndim_at_least=2).double()
    if tuple(tensor.shape[-2:]) != shape:
        wanted = f"shape (…, {shape[0]}, {shape[1]}) for the landscape {name!r}"
        raise ArgumentValueError(argument, wanted, f"shape {tuple(tensor.shape)}")
    return tensor
