"""Other libraries' solvers behind one call: (starts, horizon, rtol) to the states at the horizon."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from bench.flows.sphere_flow import SphereFlow
from tokendynamics.dynamics import simulate
from tokendynamics.spaces import Sphere

ATOL = 1e-2
"""The absolute tolerance of every solver, as a share of the relative one."""

Solver = Callable[[Tensor, float, float], Tensor]
"""From (starts (system, token, dim), horizon, rtol) to the states at the horizon."""


def ours(flow: SphereFlow) -> Solver:
    """The engine "batched"."""
    built = flow.ours()

    def solve(starts: Tensor, horizon: float, rtol: float) -> Tensor:
        return simulate(built, starts, [0.0, horizon], rtol=rtol, atol=ATOL * rtol, engine="batched").tensor[:, -1]

    return solve


def scipy(flow: SphereFlow) -> Solver:
    """DOP853, one system after the other."""

    def solve(starts: Tensor, horizon: float, rtol: float) -> Tensor:
        velocity, options = flow.numpy(starts.shape[1]), {"method": "DOP853", "rtol": rtol, "atol": ATOL * rtol}
        ends = [solve_ivp(velocity, (0.0, horizon), start.numpy().ravel(), **options).y[:, -1] for start in starts]
        return _on_sphere(torch.from_numpy(np.stack(ends)).view_as(starts))

    return solve


def torchdiffeq(flow: SphereFlow) -> Solver:
    """dopri5, one step for all systems."""
    odeint = import_module("torchdiffeq").odeint

    def solve(starts: Tensor, horizon: float, rtol: float) -> Tensor:
        times = torch.tensor([0.0, horizon], dtype=starts.dtype)
        with torch.inference_mode():
            velocity = flow.torch(starts.shape[1])
            return _on_sphere(odeint(velocity, starts, times, rtol=rtol, atol=ATOL * rtol, method="dopri5")[-1])

    return solve


def torchode(flow: SphereFlow) -> Solver:
    """Dopri5 with its PI controller, a step for every system."""
    to = import_module("torchode")

    def solve(starts: Tensor, horizon: float, rtol: float) -> Tensor:
        term = to.ODETerm(flow.torch(starts.shape[1]), with_stats=False)
        controller = to.PIDController(ATOL * rtol, rtol, pcoeff=0.2, icoeff=0.5, dcoeff=0.0, term=term)
        solver = to.AutoDiffAdjoint(to.Dopri5(term=term), controller)
        times = torch.tensor([0.0, horizon], dtype=starts.dtype).expand(len(starts), 2)
        with torch.inference_mode():
            ends = solver.solve(to.InitialValueProblem(y0=starts.flatten(1), t_eval=times)).ys[:, -1]
        return _on_sphere(ends.view_as(starts))

    return solve


def diffrax(flow: SphereFlow, method: str = "Tsit5") -> Solver:
    """Compiled (not counted), `vmap` over the systems: a step for every system, all run until the last has ended."""
    jax, dfx = import_module("jax"), import_module("diffrax")
    jax.config.update("jax_enable_x64", True)
    term, solver = dfx.ODETerm(flow.jax()), getattr(dfx, method)()

    def one(start: Any, horizon: float, rtol: float) -> Any:
        controller = dfx.PIDController(rtol=rtol, atol=ATOL * rtol)
        run = dfx.diffeqsolve(
            term, solver, 0.0, horizon, None, start, stepsize_controller=controller, max_steps=1_000_000,
            saveat=dfx.SaveAt(t1=True), adjoint=dfx.ForwardMode(), throw=False,
        )  # fmt: skip
        return run.ys[-1]

    compiled = jax.jit(jax.vmap(one, in_axes=(0, None, None)))

    def solve(starts: Tensor, horizon: float, rtol: float) -> Tensor:
        ends = compiled(starts.numpy(), horizon, rtol)
        return _on_sphere(torch.from_numpy(np.asarray(ends).copy()))

    return solve


def where_installed(name: str, flow: SphereFlow, **options: str) -> Solver | None:
    """The solver of the optional package `name`, or None without the package."""
    return _OPTIONAL[name](flow, **options) if find_spec(name) else None


def _on_sphere(states: Tensor) -> Tensor:
    # What drifts off the sphere is no error of the solution: the field is that of the projection.
    return Sphere().project(states)


_OPTIONAL: dict[str, Callable[..., Solver]] = {"torchdiffeq": torchdiffeq, "torchode": torchode, "diffrax": diffrax}
