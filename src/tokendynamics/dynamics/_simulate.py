"""One `simulate` for every flow: the caller says what, and it chooses how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics._flow import Flow
from tokendynamics.dynamics._options import budget, check_steps, checked_events, split_events, with_overflow_guard
from tokendynamics.dynamics._span import SpanReduction
from tokendynamics.dynamics._start import Start, read_start
from tokendynamics.dynamics._trajectory import Trajectory, record, recorded
from tokendynamics.dynamics.engines._problem import Outcome, Problem
from tokendynamics.dynamics.engines._table import ENGINES, choose
from tokendynamics.dynamics.engines._tableau import TABLEAUS
from tokendynamics.dynamics.events import Event
from tokendynamics.numerics._arguments import ArrayLike, as_positive, like
from tokendynamics.numerics._errors import ArgumentValueError, expected
from tokendynamics.numerics._signatures import typed_arguments
from tokendynamics.provenance._progress import Progress, reporting


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a simulation: what was done so far is kept.

    Attributes:
        trajectory: Every system's states up to where its run was, with status "interrupted" for the unfinished.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        super().__init__("the simulation was interrupted; its trajectory so far is in .trajectory")
        self.trajectory = trajectory


NEAR = 100.0
"""Tokens of a norm up to this many times atol may lose a hundredth of themselves at every step."""


def warning_of_small_states(problem: Problem, outcome: Outcome) -> str | None:
    """Say what is to be said of tokens near atol at an output time; None where there are none.

    On a sphere or ellipsoid tokens have norm 1 in the metric in which errors are measured. A token at zero exactly has
    nothing to lose, and with absolute positions it is token and position together that move.
    """
    if problem.field.geometry.quadratic:
        return None
    smallest = _norms(problem.field.attention.placed(outcome.states.detach())).flatten(start_dim=1).amin(dim=-1)
    near = smallest <= NEAR * problem.atol
    if not bool(near.any()):
        return None
    least = float(smallest.min())
    return (
        f"warning: {int(near.sum())} of {len(near)} systems have tokens of a norm down to {least:.3g}, near atol = "
        f"{problem.atol:.3g}, which is all that controls them: their digits may be wrong; "
        f"for these take an atol of {max(least * problem.rtol, torch.finfo(torch.float64).tiny):.0e} or less"
    )


def _norms(x: Tensor) -> Tensor:
    """Return norms that do not underflow, infinite for zero tokens."""
    largest = x.abs().amax(dim=-1)
    norms = largest * (x / largest.unsqueeze(-1)).norm(dim=-1)
    return torch.where(largest > 0, norms, torch.inf)


Engine = Literal["auto", "batched", "stiff", "layers", "fixed"]


@typed_arguments
def simulate(
    flow: Flow,
    x0: ArrayLike | Trajectory,
    times: ArrayLike,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    engine: Engine = "auto",
    events: Sequence[Event] = (),
    max_steps: int | None = None,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    progress: bool | Progress = False,
    method: Literal["dopri5", "bosh3", "rk4", "euler"] | None = None,
    step: float | None = None,
    tau: float | None = None,
) -> Trajectory:
    """Run a flow from `x0` and return the states at `times`.

    Engines: ``"batched"`` (Dormand–Prince 5(4) in PyTorch, step control for each system by itself), ``"stiff"``
    (SciPy's LSODA with the analytic Jacobian, for long horizons), ``"layers"`` (the discrete model: `times` count
    layers of step `tau`), ``"fixed"`` (equal steps of `method`, differentiable). ``"auto"`` takes "fixed" if `step`
    is given, "stiff" for small systems over long horizons, and "batched" otherwise; the trajectory says which.

    A run goes on from a trajectory: systems that reached its end start there, and schedules go on at its time; systems
    that ended before keep their status, end time and last state and are not run. The new trajectory has `times` only.

    A system whose run cannot be completed does not raise: its status says why, and its states are held from there.
    In free space a system whose norm exceeds 1e100 (1e15 in float32) ends as "diverged".

    Args:
        flow: The flow.
        x0: Start (…, token, dim) at `times[0]`; projected onto a constrained space. Leading axes are systems; one start
            (token, dim) holds for all systems of matrices. Or a trajectory, which goes on from its last time.
        times: Increasing output times, at least two; any spacing, steps do not depend on it. After a trajectory: one or
            more, none before its end.
        rtol: Relative tolerance per step of "batched" and "stiff", 1e-8 if None; raised to ten units in the last place
            of the dtype if below that.
        atol: Absolute tolerance per step, 1e-10 if None, of each number in free space; on a sphere or ellipsoid of
            each token, in its own metric. In free space, where tokens come near it, the trajectory's notes warn.
        engine: See above.
        events: From `tokendynamics.dynamics.events`; a system ends at its first one; with ``then="record"`` the
            run goes on and the trajectory's `recorded` says when and where.
        max_steps: Attempted steps (layers, fixed steps) for each system, 30,000 if None.
        device: Such as "cuda"; that of `x0` if None.
        dtype: "float64" or "float32", or torch's; that of `x0` if None.
        progress: True for a progress bar, or a function, called with the share done (0 to 1), 1.0 and "simulating".
        method: Of "batched" and "fixed": "dopri5" if None; "bosh3" of order 3 for fields with kinks such as |sin|
            gates; with `step` also "rk4", "euler".
        step: A fixed step instead of step control: gradients then flow through the simulation.
        tau: Step of one layer of engine "layers", 1 if None.

    Raises:
        ArgumentTypeError: Integer or complex arrays.
        ArgumentValueError: Shapes that do not fit (both are printed), NaN, a zero token on a sphere, times that do not
            increase, an unknown engine or method, an option that the engine does not use.
        Interrupted: Ctrl-C; it holds the trajectory so far.

    >>> import torch
    >>> from tokendynamics.attention import Attention
    >>> from tokendynamics.spaces import Free
    >>> identity = torch.eye(1, dtype=torch.float64)
    >>> run = simulate(Flow(Attention(identity, -identity), Free()), [[1.0]], [0.0, 1.0])  # e^(−t)
    >>> f"{run.states[-1][0][0]:.8f}", str(run.status)
    ('0.36787944', 'reached the horizon')
    """
    start = read_start(flow, x0, device, dtype)
    moments, skipped = start.moments(times)
    if method is not None and method not in TABLEAUS:
        raise ArgumentValueError(expected("method", f"one of {', '.join(TABLEAUS)}", repr(method)))
    options = {"rtol": rtol, "atol": atol, "method": method, "step": step, "tau": tau}
    given = {name for name, value in options.items() if value is not None}
    ending, noted = split_events(checked_events(events, start.states))
    with reporting(progress) as report:
        problem = Problem(
            field=flow.field(start.states).flattened(),
            start=start.placed(flow),
            times=moments,
            rtol=max(_positive(rtol, "rtol", 1e-8), 10 * torch.finfo(start.states.dtype).eps),
            atol=_positive(atol, "atol", 1e-10),
            events=with_overflow_guard(ending, flow, start.states.dtype),
            recorded=noted,
            max_steps=budget(max_steps),
            tableau=TABLEAUS[method or "dopri5"],
            step=None if step is None else as_positive(step, "step"),
            tau=_positive(tau, "tau", 1.0),
            progress=report,
        )
        chosen = choose(engine, problem, given)
        check_steps(chosen, moments, problem.step, max_steps)
        outcome = _run_moving(chosen, problem, start)
        if ENGINES[chosen].controls_error and (warning := warning_of_small_states(problem, outcome)) is not None:
            outcome.notes.append(warning)
        problem.report(1.0)
    used = {
        "rtol": problem.rtol,
        "atol": problem.atol,
        "max_steps": problem.max_steps,
        "tau": problem.tau,
        "step": step,
    }
    used |= {"method": problem.tableau.name, "device": str(start.states.device)}
    used |= {"events": [repr(event) for event in (*problem.events, *problem.recorded)]}
    trajectory = _trajectory(flow, start, problem, outcome, chosen, record(used), skipped)
    if outcome.interrupted:
        raise Interrupted(trajectory)
    return trajectory


def _positive(value: float | None, argument: str, usual: float) -> float:
    return usual if value is None else as_positive(value, argument)


def _run_moving(engine: str, problem: Problem, start: Start) -> Outcome:
    """Return the outcome of all systems, of which some may have ended in the run before."""
    moving = start.moving
    if moving is None:
        return _run(engine, problem)
    part = None
    if len(moving):
        part = _run(engine, replace(problem, field=problem.field.select(moving), start=problem.start[moving]))
    return start.merged(part, Outcome.blank(problem))


def _run(engine: str, problem: Problem) -> Outcome:
    run = ENGINES[engine].run
    reduction = SpanReduction.of(problem) if ENGINES[engine].controls_error else None
    return run(problem) if reduction is None else reduction.lifted(run(reduction.problem))


def _trajectory(
    flow: Flow,
    start: Start,
    problem: Problem,
    outcome: Outcome,
    engine: str,
    parameters: dict[str, Any],
    skipped: int,
) -> Trajectory:
    leading, times = start.leading, np.array(problem.times)[skipped:]
    end_times = outcome.end_times.numpy().reshape(leading)
    states = outcome.states[:, skipped:]
    tensor = states.reshape(*leading, *states.shape[1:])
    return Trajectory(
        states=like(tensor, start.original),
        times=times,
        status=np.array([str(status) for status in outcome.status]).reshape(leading),
        reached=times <= end_times[..., None],
        end_times=end_times,
        tensor=tensor,
        flow=flow,
        engine=engine,
        counts={name: count.numpy().reshape(leading) for name, count in outcome.counts.items()},
        notes=tuple(outcome.notes),
        parameters=parameters,
        recorded=recorded(problem.recorded, outcome, leading),
    )
