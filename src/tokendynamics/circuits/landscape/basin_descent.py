"""One quasi-Newton descent to wherever it leads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from tokendynamics.circuits.landscape.basin_objective import NotFiniteError, Objective
from tokendynamics.circuits.landscape.basin_run import Status
from tokendynamics.circuits.landscape.continuation import continue_descent
from tokendynamics.circuits.landscape.landscape import Landscape
from tokendynamics.circuits.landscape.points import flatten

_HISTORY = 20
_LINE_SEARCH = 40
_LEAST_DECREASE = 1e-15
_NEWTON_STEPS = 60


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

    Args:
        landscape: What is minimised.
        objective: The same as functions of the flattened point.
        start: The flattened start.
        steps: The largest number of steps of L-BFGS.
        tolerance: On the relative gradient.
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
    return flatten(further.q, further.v).numpy()
