"""Gradient descent with infinitely small steps, followed for a long time."""

from __future__ import annotations

import warnings

import numpy as np
from scipy.integrate import LSODA

from tokendynamics.circuits.landscape.basin_descent import Ending
from tokendynamics.circuits.landscape.basin_objective import NotFiniteError, Objective


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
