"""Other libraries' solvers behind one call: (starts, horizon, rtol) to the states at the horizon."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from bench.flows.sphere_flow import SphereFlow
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.dynamics.simulation import Engine
from tokendynamics.spaces import Sphere

ATOL = 1e-2
"""The absolute tolerance of every solver, as a share of the relative one."""


@dataclass(frozen=True)
class Solved:
    """What a solver found.

    Attributes:
        states: At the horizon, (system, token, dim).
        right_hand_sides: Of a system, in the mean; of solvers that step systems together, those of each.
    """

    states: Tensor
    right_hand_sides: float


Solver = Callable[[Tensor, float, float], Solved]
"""From (starts (system, token, dim), horizon, rtol) to what was found at the horizon."""


def ours(
    flow: SphereFlow | Flow, engine: Engine = "batched", method: Literal["dopri5", "dop853"] | None = None
) -> Solver:
    """An engine of this library, with the method that its tolerance asks for where none is named."""
    built = flow if isinstance(flow, Flow) else flow.ours()

    def solve(starts: Tensor, horizon: float, rtol: float) -> Solved:
        run = simulate(built, starts, [0.0, horizon], rtol=rtol, atol=ATOL * rtol, engine=engine, method=method)
        return Solved(run.tensor[:, -1], float(run.counts["right_hand_sides"].mean()))

    return solve


def scipy(flow: SphereFlow, method: str = "DOP853") -> Solver:
    """One system after the other."""

    def solve(starts: Tensor, horizon: float, rtol: float) -> Solved:
        velocity, options = flow.numpy(starts.shape[1]), {"method": method, "rtol": rtol, "atol": ATOL * rtol}
        runs = [solve_ivp(velocity, (0.0, horizon), start.numpy().ravel(), **options) for start in starts]
        ends = torch.from_numpy(np.stack([run.y[:, -1] for run in runs])).view_as(starts)
        return Solved(_on_sphere(ends), statistics.mean(run.nfev for run in runs))

    return solve


def torchdiffeq(flow: SphereFlow) -> Solver:
    """dopri5, one step for all systems."""
    odeint = import_module("torchdiffeq").odeint

    def solve(starts: Tensor, horizon: float, rtol: float) -> Solved:
        times = torch.tensor([0.0, horizon], dtype=starts.dtype)
        with torch.inference_mode():
            velocity = _Counted(flow.torch(starts.shape[1]))
            ends = odeint(velocity, starts, times, rtol=rtol, atol=ATOL * rtol, method="dopri5")[-1]
        return Solved(_on_sphere(ends), velocity.calls)

    return solve


def torchode(flow: SphereFlow) -> Solver:
    """Dopri5 with its PI controller, a step for every system, all evaluated until the last has ended."""
    to = import_module("torchode")

    def solve(starts: Tensor, horizon: float, rtol: float) -> Solved:
        velocity = _Counted(flow.torch(starts.shape[1]))
        term = to.ODETerm(velocity, with_stats=False)
        controller = to.PIDController(ATOL * rtol, rtol, pcoeff=0.2, icoeff=0.5, dcoeff=0.0, term=term)
        solver = to.AutoDiffAdjoint(to.Dopri5(term=term), controller)
        times = torch.tensor([0.0, horizon], dtype=starts.dtype).expand(len(starts), 2)
        with torch.inference_mode():
            ends = solver.solve(to.InitialValueProblem(y0=starts.flatten(1), t_eval=times)).ys[:, -1]
        return Solved(_on_sphere(ends.view_as(starts)), velocity.calls)

    return solve


def diffrax(flow: SphereFlow, method: str = "Tsit5") -> Solver:
    """Compiled when first called, `vmap` over systems: a step for every system, all run until the last has ended."""
    jax, dfx = import_module("jax"), import_module("diffrax")
    jax.config.update("jax_enable_x64", True)
    term, solver = dfx.ODETerm(flow.jax()), getattr(dfx, method)()

    def one(start: Any, horizon: float, rtol: float) -> Any:
        controller = dfx.PIDController(rtol=rtol, atol=ATOL * rtol)
        run = dfx.diffeqsolve(
            term, solver, 0.0, horizon, None, start, stepsize_controller=controller, max_steps=1_000_000,
            saveat=dfx.SaveAt(t1=True), adjoint=dfx.ForwardMode(), throw=False,
        )  # fmt: skip
        return run.ys[-1], run.stats["num_steps"]

    compiled = jax.jit(jax.vmap(one, in_axes=(0, None, None)))

    def solve(starts: Tensor, horizon: float, rtol: float) -> Solved:
        ends, steps = compiled(starts.numpy(), horizon, rtol)
        # Of implicit methods nobody counts them. The first stage of a step is the last one of the step before.
        stages = solver.tableau.num_stages - 1 if isinstance(solver, dfx.AbstractERK) else math.nan
        calls = stages * float(np.asarray(steps).mean())
        return Solved(_on_sphere(torch.from_numpy(np.asarray(ends).copy())), calls)

    return solve


class _Counted:
    """A right-hand side and how often it was called."""

    def __init__(self, velocity: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.velocity, self.calls = velocity, 0

    def __call__(self, t: Tensor, states: Tensor) -> Tensor:
        self.calls += 1
        return self.velocity(t, states)


def where_installed(name: str, flow: SphereFlow, **options: str) -> Callable[[], Solver] | None:
    """What makes the solver of the optional package `name`, or None without the package."""
    return partial(_OPTIONAL[name], flow, **options) if find_spec(name) else None


def _on_sphere(states: Tensor) -> Tensor:
    # What drifts off the sphere is no error of the solution: the field is that of the projection.
    return Sphere().project(states)


_OPTIONAL: dict[str, Callable[..., Solver]] = {"torchdiffeq": torchdiffeq, "torchode": torchode, "diffrax": diffrax}
