"""How precise a run is by its own account: what its solver may have got wrong."""

from __future__ import annotations

import numpy as np
import torch

from tokendynamics.dynamics import Trajectory

UNKNOWN = 1e-6
"""Of runs without step control, whose error nobody estimated: what the default tolerances would allow."""
LARGEST = 1e-2
"""A change of 1 % of the natural scale is never taken for the integrator's error, however loose the run."""
_SAFETY = 100
_PER_STEP = 10
_UNCOUNTED = 1000


def step_controlled(trajectory: Trajectory) -> bool:
    """Tell whether the run's steps followed its tolerances, and these are recorded."""
    return trajectory.engine in ("batched", "stiff") and {"rtol", "atol"} <= set(trajectory.parameters)


def integration_tolerance(trajectory: Trajectory) -> float:
    """Return what of a quantity, relative to its natural scale of 1, counts as the integrator's error.

    A hundred times the tolerances of the run, rtol + atol; at most `LARGEST`, and at least a hundred roundings of the
    dtype in which the states are stored. `UNKNOWN` for a run without step control.
    """
    allowed = UNKNOWN
    if step_controlled(trajectory):
        allowed = _SAFETY * (float(trajectory.parameters["rtol"]) + float(trajectory.parameters["atol"]))
    return max(min(allowed, LARGEST), 100 * torch.finfo(trajectory.tensor.dtype).eps)


def largest_error(trajectory: Trajectory) -> np.ndarray:
    """Return the relative error beyond which no run of so many steps at these tolerances can have erred, (…,).

    Every accepted step errs by about rtol |x| + atol; ten times the sum of all is out of reach. Infinite without step
    control.
    """
    systems = tuple(trajectory.tensor.shape[:-3])
    if not step_controlled(trajectory):
        return np.full(systems, np.inf)
    steps = np.asarray(trajectory.counts.get("accepted", _UNCOUNTED))
    norms = torch.linalg.vector_norm(trajectory.tensor.detach().double().cpu(), dim=-1).amax(dim=-1).numpy()
    smallest = np.where(np.asarray(trajectory.reached), norms, np.inf).min(axis=-1)
    relative = float(trajectory.parameters["atol"]) / np.maximum(smallest, np.finfo(float).tiny)
    each = float(trajectory.parameters["rtol"]) + relative
    return np.broadcast_to(_PER_STEP * np.maximum(steps, 1) * each, systems)
