"""Descents on a landscape: quasi-Newton to wherever it leads, or with infinitely small steps for a long time."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.integrate import LSODA
from scipy.optimize import minimize
from torch import Tensor

from tokendynamics.circuits.landscape._continuation import continue_descent
from tokendynamics.circuits.landscape.landscape import Gradient, Landscape, LossAndGradient, flatten, unflatten

Status = Literal["converged", "budget spent", "stopped early", "not finite"]

_NO_LOSS = 1e-10

_HISTORY = 20
_LINE_SEARCH = 40
_LEAST_DECREASE = 1e-15
_NEWTON_STEPS = 60


class NotFiniteError(ArithmeticError):
    """The point, its loss or its slope is not finite any more; the message says which."""


class Objective:
    """Loss, gradient and Hessian of a landscape as functions of the flattened (q, v).

    Args:
        landscape: Any landscape.
        start: The flattened point that is kept until a better one is seen.

    Attributes:
        best: The point of least loss among those evaluated.
        best_loss: Its loss.
        evaluations: How often loss and gradient were computed.
        scale: The loss of no output (v = 0), or 1 where that is zero: losses are measured in it.
    """

    def __init__(self, landscape: Landscape, start: np.ndarray) -> None:
        self._landscape = landscape
        self.best = start.copy()
        self.best_loss = float("inf")
        self.evaluations = 0
        attention, v = self.unflatten(start)
        loss = float(landscape.loss(attention, torch.zeros_like(v)))
        self.scale = loss if np.isfinite(loss) and loss > 0.0 else 1.0

    def __call__(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Loss and gradient at a point; raises `NotFiniteError` instead of returning a NaN or infinity."""
        self.evaluations += 1
        if not np.isfinite(point).all():
            raise NotFiniteError("a step led to a point that is not finite")
        attention, v = self.unflatten(point)
        value, gradient = self._evaluated(attention, v)
        loss, slope = float(value), flatten(gradient.attention, gradient.v).numpy()
        if not (np.isfinite(loss) and np.isfinite(slope).all()):
            part = "gradient" if np.isfinite(loss) else "loss"
            raise NotFiniteError(f"the {part} is not finite at a point of norm {np.linalg.norm(point):.3g}")
        if loss < self.best_loss:
            self.best, self.best_loss = point.copy(), loss
        return loss, slope

    def _evaluated(self, attention: Tensor, v: Tensor) -> tuple[Tensor, Gradient]:
        if isinstance(self._landscape, LossAndGradient):
            return self._landscape.loss_and_gradient(attention, v)
        return self._landscape.loss(attention, v), self._landscape.gradient(attention, v)

    def hessian(self, point: np.ndarray) -> np.ndarray:
        """Return the second derivatives at a point; raises `NotFiniteError` where they are not finite."""
        matrix = self._landscape.hessian(*self.unflatten(point)).numpy()
        if not np.isfinite(matrix).all():
            raise NotFiniteError(f"the Hessian is not finite at a point of norm {np.linalg.norm(point):.3g}")
        return matrix

    def relative_gradient(self, point: np.ndarray, slope: np.ndarray) -> float:
        """Return ``|gradient| · max(|(q, v)|, 1)`` in units of the loss of no output."""
        return float(np.linalg.norm(slope)) * max(float(np.linalg.norm(point)), 1.0) / self.scale

    def arrived(self, point: np.ndarray, tolerance: float) -> bool:
        """Return whether the relative gradient is within `tolerance`, or hardly any loss is left."""
        loss, slope = self(point)
        return loss <= _NO_LOSS * self.scale or self.relative_gradient(point, slope) <= tolerance

    def unflatten(self, point: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the matrices q and v of a flattened point."""
        return unflatten(self._landscape, torch.from_numpy(point))


@dataclass(frozen=True)
class Ending:
    """Why a run ended, and with which point."""

    point: np.ndarray
    status: Status
    reason: str


def descend(landscape: Landscape, objective: Objective, start: np.ndarray, *, steps: int, tolerance: float) -> Ending:
    """Minimise from `start` by L-BFGS (scipy's L-BFGS-B, 20 pairs of history), and finish by Newton's method.

    L-BFGS comes to rest too early where curvatures differ by many orders of magnitude, as they do far out in a valley;
    `continue_descent` resolves them with the exact Hessian, to rest in the same valley.
    """
    try:
        found = minimize(
            objective, start, jac=True, method="L-BFGS-B", options=_options(objective, start, steps, tolerance)
        )
        point = np.asarray(found.x)
        if objective.arrived(point, tolerance):
            return Ending(point, "converged", "the gradient or the loss is below the tolerance")
        if found.nit >= steps:
            return Ending(point, "budget spent", f"{steps} steps are done")
        point = _finished(landscape, objective, point)
        if objective.arrived(point, tolerance):
            return Ending(point, "converged", "the gradient or the loss is below the tolerance, by Newton's method")
    except NotFiniteError as error:
        return Ending(objective.best, "not finite", str(error))
    return Ending(point, "stopped early", f"no step lowers the loss any more, after {found.nit} of L-BFGS")


def _options(objective: Objective, start: np.ndarray, steps: int, tolerance: float) -> dict[str, Any]:
    size = max(float(np.linalg.norm(start)), 1.0) * np.sqrt(start.size)
    gradient = tolerance * objective.scale / size
    decrease = {"ftol": _LEAST_DECREASE, "gtol": gradient}
    return decrease | {"maxiter": steps, "maxfun": 20 * steps, "maxcor": _HISTORY, "maxls": _LINE_SEARCH}


def _finished(landscape: Landscape, objective: Objective, point: np.ndarray) -> np.ndarray:
    further = continue_descent(landscape, *objective.unflatten(point), expansions=0, steps=_NEWTON_STEPS)
    return flatten(further.attention, further.v).numpy()


def flow(
    objective: Objective, start: np.ndarray, *, horizon: float, steps: int, tolerance: float, accuracy: float = 1e-7
) -> Ending:
    """Follow dθ/dt = −∇L from `start` to the time `horizon`, or until the gradient or the loss vanishes.

    LSODA of scipy with the Hessian as Jacobian: stiff where curvatures differ much, as they do here.

    Args:
        objective: The loss L.
        start: The flattened start.
        horizon: The last time.
        steps: The largest number of integration steps.
        tolerance: On the relative gradient.
        accuracy: Relative error allowed in a step; the absolute one is 100 times smaller.
    """

    def velocity(_: float, point: np.ndarray) -> np.ndarray:
        return -objective(point)[1]

    def jacobian(_: float, point: np.ndarray) -> np.ndarray:
        return -objective.hessian(point)

    point = start
    try:
        with warnings.catch_warnings():
            # LSODA says "failed" by its status too, which is reported below.
            warnings.simplefilter("ignore", UserWarning)
            solver = LSODA(velocity, 0.0, start, horizon, rtol=accuracy, atol=accuracy / 100, jac=jacobian)
            for _ in range(steps):
                message = solver.step()
                point = np.array(solver.y)
                if solver.status == "failed":
                    return Ending(point, "stopped early", f"the integration failed at time {solver.t:.4g}: {message}")
                if objective.arrived(point, tolerance):
                    reason = f"the gradient or the loss is below the tolerance at time {solver.t:.4g}"
                    return Ending(point, "converged", reason)
                if solver.status == "finished":
                    return Ending(point, "budget spent", f"the horizon, time {horizon:.4g}, is reached")
    except NotFiniteError as error:
        return Ending(objective.best, "not finite", str(error))
    return Ending(point, "budget spent", f"{steps} steps are done at time {solver.t:.4g} of {horizon:.4g}")
