"""What every loss landscape of two matrices, attention `q` and value map `v`, can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from tokendynamics.numerics.arguments import ArrayLike


@dataclass(frozen=True)
class Gradient:
    """True derivatives of a loss (−2 times those that `logical` prints in (3.6)–(3.18)).

    Attributes:
        q: ∂loss/∂q, shape (…, *q_shape).
        v: ∂loss/∂v, shape (…, *v_shape).
    """

    q: Tensor
    v: Tensor


@runtime_checkable
class LossAndGradient(Protocol):
    """A landscape that computes what loss and gradient share only once; a descent then takes half as long."""

    def loss_and_gradient(self, q: ArrayLike, v: ArrayLike) -> tuple[Tensor, Gradient]:
        """The same as `loss` and `gradient` of a `Landscape`."""
        ...


@runtime_checkable
class Landscape(Protocol):
    """An expected squared error as a function of attention `q` and value map `v`, without sampling.

    All methods take q of shape (…, *q_shape) and v of shape (…, *v_shape) and broadcast over leading axes.
    """

    @property
    def name(self) -> str:
        """A short name for tables and messages."""
        ...

    @property
    def q_shape(self) -> tuple[int, int]:
        """Shape of one q."""
        ...

    @property
    def v_shape(self) -> tuple[int, int]:
        """Shape of one v."""
        ...

    @property
    def law(self) -> Tensor:
        """Probabilities of the categories, shape (N,)."""
        ...

    def loss(self, q: ArrayLike, v: ArrayLike) -> Tensor:
        """The expected squared error, summed over the columns i = 2..M; shape (…,)."""
        ...

    def gradient(self, q: ArrayLike, v: ArrayLike) -> Gradient:
        """The derivatives of `loss`."""
        ...

    def hessian(self, q: ArrayLike, v: ArrayLike) -> Tensor:
        """The second derivatives over the flattened (q, v), each row by row: shape (…, n, n)."""
        ...
