"""SciPy's implicit solvers for the field of one system: LSODA with the whole Jacobian, BDF with products of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from scipy.integrate import BDF, LSODA, OdeSolver
from scipy.sparse import csc_matrix
from scipy.sparse.linalg import LinearOperator, gmres
from torch import Tensor

from tokendynamics.dynamics.field import Field
from tokendynamics.dynamics.jacobian import jacobian, jacobian_vector

LARGEST_DENSE = 1024
"""Up to this many numbers of state (token · dim) the Jacobian is formed and factorised."""

_SMALLEST_RTOL = 1e-13
_GMRES_RTOL, _GMRES_RESTART, _GMRES_RESTARTS = 1e-3, 40, 5


class StuckError(ArithmeticError):
    """The solver cannot go on. A field that is not finite is such a case: LSODA can loop without end on such values."""


@dataclasses.dataclass
class Equations:
    """The field of one system as functions of a flat array, which count how often they are called.

    Attributes:
        field: Of one system, in float64 on the CPU.
        shape: (token, dim).
        counts: Calls so far.
    """

    field: Field
    shape: tuple[int, int]
    counts: dict[str, int] = dataclasses.field(default_factory=lambda: {"right_hand_sides": 0, "jacobians": 0})

    def velocity(self, t: float, y: np.ndarray) -> np.ndarray:
        """Return the field, from differences where ov is a multiple of the identity: slow motion is then exact.

        Raises:
            StuckError: A velocity that is not finite.
        """
        self.counts["right_hand_sides"] += 1
        x, slow = self.states(y), self.field.has_differences
        velocity = self.field.velocity_from_differences(x, t) if slow else self.field.velocity(x, t)
        flat = velocity.reshape(-1).numpy()
        if not np.isfinite(flat).all():
            raise StuckError
        return flat

    def jacobian(self, t: float, y: np.ndarray) -> np.ndarray:
        """Return the dense derivative, (token · dim, token · dim)."""
        self.counts["jacobians"] += 1
        return jacobian(self.field, self.states(y), t).reshape(y.size, y.size).numpy()

    def jacobian_operator(self, t: float, y: np.ndarray) -> LinearOperator:
        """Return the derivative as products with directions."""
        self.counts["jacobians"] += 1
        x = self.states(y.copy())

        def product(direction: np.ndarray) -> np.ndarray:
            return jacobian_vector(self.field, x, t, self.states(direction)).reshape(-1).numpy()

        return LinearOperator((y.size, y.size), matvec=product, dtype=np.float64)  # pyright: ignore[reportCallIssue]

    def states(self, y: np.ndarray) -> Tensor:
        """Return (1, token, dim)."""
        return torch.from_numpy(np.ascontiguousarray(y)).view(1, *self.shape)


def solver_for(
    equations: Equations, y: np.ndarray, start: float, end: float, rtol: float, atol: np.ndarray
) -> OdeSolver:
    """Return a solver from `start` to `end`: LSODA for small systems, BDF with GMRES beyond `LARGEST_DENSE`.

    LSODA takes Adams methods up to order 12 where nothing is stiff and backward differences where something is.
    """
    rtol = max(rtol, _SMALLEST_RTOL)
    if y.size > LARGEST_DENSE:
        return KrylovBDF(equations.velocity, start, y, end, equations.jacobian_operator, rtol=rtol, atol=atol)
    return LSODA(equations.velocity, start, y, end, rtol=rtol, atol=cast(Any, atol), jac=equations.jacobian)


class KrylovBDF(BDF):
    """SciPy's backward differences with Newton's linear equations solved by GMRES: no matrix is ever formed.

    Tokens in clusters make ``1 − c J`` a multiple of the identity plus little, on which GMRES takes a few products.
    """

    def __init__(
        self,
        fun: Callable[[float, np.ndarray], np.ndarray],
        t0: float,
        y0: np.ndarray,
        t_bound: float,
        operator: Callable[[float, np.ndarray], LinearOperator],
        *,
        rtol: float,
        atol: np.ndarray,
    ) -> None:
        super().__init__(fun, t0, y0, t_bound, rtol=rtol, atol=cast(Any, atol), jac=csc_matrix((y0.size, y0.size)))
        # These four are all that BDF asks of its linear algebra: J = jac(t, y), solve_lu(lu(I − c J), b).
        self.jac, self.J = operator, operator(t0, y0)
        self.I = LinearOperator(self.J.shape, matvec=lambda vector: vector, dtype=np.float64)  # pyright: ignore[reportCallIssue]
        self.lu = lambda matrix: matrix
        self.solve_lu = _solved


def _solved(matrix: LinearOperator, right: np.ndarray) -> np.ndarray:
    options = {"restart": _GMRES_RESTART, "maxiter": _GMRES_RESTARTS}
    return gmres(matrix, right, rtol=_GMRES_RTOL, atol=0.0, **options)[0]
