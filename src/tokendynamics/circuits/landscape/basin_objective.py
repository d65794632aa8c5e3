"""A landscape as scipy wants it: one vector in, numbers out, and nothing but finite ones."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tokendynamics.circuits.landscape.landscape import Gradient, Landscape, LossAndGradient
from tokendynamics.circuits.landscape.points import flatten, unflatten

_NO_LOSS = 1e-10


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
        q, v = self.unflatten(start)
        loss = float(landscape.loss(q, torch.zeros_like(v)))
        self.scale = loss if np.isfinite(loss) and loss > 0.0 else 1.0

    def __call__(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """Loss and gradient at a point; raises `NotFiniteError` instead of returning a NaN or infinity."""
        self.evaluations += 1
        if not np.isfinite(point).all():
            raise NotFiniteError("a step led to a point that is not finite")
        q, v = self.unflatten(point)
        value, gradient = self._evaluated(q, v)
        loss, slope = float(value), flatten(gradient.q, gradient.v).numpy()
        if not (np.isfinite(loss) and np.isfinite(slope).all()):
            part = "gradient" if np.isfinite(loss) else "loss"
            raise NotFiniteError(f"the {part} is not finite at a point of norm {np.linalg.norm(point):.3g}")
        if loss < self.best_loss:
            self.best, self.best_loss = point.copy(), loss
        return loss, slope

    def _evaluated(self, q: Tensor, v: Tensor) -> tuple[Tensor, Gradient]:
        if isinstance(self._landscape, LossAndGradient):
            return self._landscape.loss_and_gradient(q, v)
        return self._landscape.loss(q, v), self._landscape.gradient(q, v)

    def hessian(self, point: np.ndarray) -> np.ndarray:
        """The second derivatives at a point; raises `NotFiniteError` where they are not finite."""
        matrix = self._landscape.hessian(*self.unflatten(point)).numpy()
        if not np.isfinite(matrix).all():
            raise NotFiniteError(f"the Hessian is not finite at a point of norm {np.linalg.norm(point):.3g}")
        return matrix

    def relative_gradient(self, point: np.ndarray, slope: np.ndarray) -> float:
        """``|gradient| · max(|(q, v)|, 1)`` in units of the loss of no output."""
        return float(np.linalg.norm(slope)) * max(float(np.linalg.norm(point)), 1.0) / self.scale

    def arrived(self, point: np.ndarray, tolerance: float) -> bool:
        """Whether the relative gradient is within `tolerance`, or hardly any loss is left."""
        loss, slope = self(point)
        return loss <= _NO_LOSS * self.scale or self.relative_gradient(point, slope) <= tolerance

    def unflatten(self, point: np.ndarray) -> tuple[Tensor, Tensor]:
        """The matrices q and v of a flattened point."""
        return unflatten(self._landscape, torch.from_numpy(point))
