"""One `simulate` for every flow: the caller says what, and it chooses how."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention.schedules.conversion import has_function
from tokendynamics.dynamics._deviations import Deviations
from tokendynamics.dynamics._field import Field
from tokendynamics.dynamics._flow import Flow, check_exponentials
from tokendynamics.dynamics._noise import Draws, Noise
from tokendynamics.dynamics._trajectory import Trajectory
from tokendynamics.dynamics.engines.problem import Outcome, Problem, recorded
from tokendynamics.dynamics.engines.table import ENGINES, OPTIONS, suited
from tokendynamics.dynamics.engines.tableau import TABLEAUS
from tokendynamics.dynamics.events import AtRest, Event, Status
from tokendynamics.dynamics.options import (
    budget,
    check_steps,
    checked_events,
    read_times,
    split_events,
    steady_events,
    stops,
    with_guards,
)
from tokendynamics.dynamics.rescaled import Frame, check_rescaled, longest_step, rescaled
from tokendynamics.dynamics.span import SpanReduction
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_device, as_not_negative, as_positive, as_tensor, like
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.manifest import versions
from tokendynamics.provenance.progress import Progress, reporting
from tokendynamics.spaces.retraction import inner


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a simulation: what was done so far is kept.

    Attributes:
        trajectory: Every system's states up to where its run was, with status "interrupted" for the unfinished.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        super().__init__("the simulation was interrupted; its trajectory so far is in .trajectory")
        self.trajectory = trajectory


_DTYPES = {"float64": torch.float64, "float32": torch.float32}


@dataclass(frozen=True)
class Start:
    """Checked states and what was known of them before.

    Attributes:
        states: (…, token, dim).
        original: In whose type states are handed out.
        before: The run that continues; None where it begins.
    """

    states: Tensor
    original: Any
    before: Trajectory | None

    @property
    def leading(self) -> tuple[int, ...]:
        """The axes of systems."""
        return tuple(self.states.shape[:-2])

    def projected(self, flow: Flow, field: Field) -> Tensor:
        """Return the start on the space, (system, token, dim); states of an earlier run are on it and stay the same.

        Args:
            flow: The flow.
            field: That of the flow, with its systems along one axis.
        """
        flat = self.states.reshape(-1, *self.states.shape[-2:])
        rounding = 8 * torch.finfo(flat.dtype).eps
        if self.before is not None and flow.space.defect(self.states.detach()) <= rounding:
            return flat
        return field.exactly_projected(flat)

    def moments(self, times: ArrayLike) -> tuple[tuple[float, ...], int]:
        """Return times from the start on, and how many at the front were not asked for.

        Raises:
            ArgumentValueError: Times that do not increase, or lie before the end of the run that continues.
        """
        if self.before is None:
            return read_times(times), 0
        end, asked = float(self.before.times[-1]), read_times(times, at_least=1)
        if asked[0] < end:
            raise ArgumentValueError("times", f"times from {end:.17g} on, where the trajectory ends", asked[0])
        if asked[0] > end:
            return (end, *asked), 1
        return (read_times(times), 0) if len(asked) < 2 else (asked, 0)

    @property
    def deviations(self) -> Deviations | None:
        """What a run of layers knew of its last states below their rounding; None where it was another run."""
        before = self.before and self.before.deviations
        if before is None or before.shape.dtype != self.states.dtype or before.shape.device != self.states.device:
            return None
        return before.reshaped(math.prod(self.leading)).at(-1)

    def draws(self, noise: Noise | None) -> Draws | None:
        """Return the numbers of the noise, which go on where those of the run before ended."""
        if noise is None:
            return None
        none = np.zeros(math.prod(self.leading), dtype=np.int64)
        taken = none if self.before is None else self.before.counts.get("drawn", none)
        return Draws.of(noise, np.asarray(taken).reshape(-1))

    def _deviations_of_all(self, part: Outcome, blank: Outcome) -> Deviations | None:
        """Return deviations over time, those that ended before at their end."""
        moving, times = self.moving, blank.states.shape[1]
        if part.deviations is None or moving is None:
            return None
        held = self.deviations or Deviations.of(blank.states[:, 0])
        every = held.over_time([held] * (times - 1))
        for name in ("center", "shape", "exponent"):
            getattr(every, name)[moving] = getattr(part.deviations, name)
        return every

    @property
    def moving(self) -> Tensor | None:
        """Indices of the systems that go on; None if all do. Those that ended keep their end."""
        if self.before is None:
            return None
        on = torch.as_tensor(np.asarray(self.before.status).reshape(-1) == str(Status.HORIZON))
        return None if bool(on.all()) else on.nonzero().squeeze(-1)

    def merged(self, part: Outcome | None, blank: Outcome) -> Outcome:
        """Return the outcome of all systems from that of the moving ones."""
        moving, before = self.moving, self.before
        if moving is None or before is None:
            raise AssertionError
        blank.status = [Status(str(word)) for word in np.asarray(before.status).reshape(-1)]
        blank.end_times = torch.as_tensor(np.array(before.end_times, dtype=np.float64).reshape(-1))
        if part is None:
            return blank
        # Gradients pass: nothing else holds these states.
        blank.states[moving] = part.states
        blank.end_times[moving] = part.end_times
        for place, status in zip(moving.tolist(), part.status, strict=True):
            blank.status[place] = status
        for name, count in part.counts.items():
            blank.counts.setdefault(name, torch.zeros(len(blank.status), dtype=torch.int64))[moving] = count
        blank.crossings = [(number, int(moving[i]), time, state) for number, i, time, state in part.crossings]
        blank.deviations = self._deviations_of_all(part, blank)
        blank.notes, blank.interrupted, blank.longest_step = part.notes, part.interrupted, part.longest_step
        return blank


def read_start(
    flow: Flow, x0: ArrayLike | Trajectory, device: str | torch.device | None, dtype: torch.dtype | str | None
) -> Start:
    """Return the states in the precision and place asked for.

    Raises:
        ArgumentTypeError: Not a flow, or another precision.
        ArgumentValueError: States that do not fit, a zero token on a sphere, or a device that is not there.
    """
    if not isinstance(flow, Flow):
        raise ArgumentTypeError("flow", "a Flow", type(flow).__name__)
    before = x0 if isinstance(x0, Trajectory) else None
    given = x0.tensor[..., -1, :, :] if isinstance(x0, Trajectory) else x0
    states = flow.fitting(given, "x0")
    states = states.to(dtype=_precision(dtype), device=None if device is None else as_device(device, "device"))
    flow.geometry.check(states, "x0")
    flow.check_frozen(states, "x0")
    return Start(states, x0.states if isinstance(x0, Trajectory) else x0, before)


def _precision(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype in _DTYPES.values()):
        return dtype
    wanted = "'float64' or 'float32', or torch.float64 or torch.float32"
    if not isinstance(dtype, str):
        raise ArgumentTypeError("dtype", wanted, shown(dtype))
    if dtype not in _DTYPES:
        raise ArgumentValueError("dtype", wanted, shown(dtype))
    return _DTYPES[dtype]


def begun(flow: Flow, x0: ArrayLike | Trajectory, times: ArrayLike, jumps: ArrayLike) -> Flow:
    """Return the flow with its jumps declared and the shapes of its functions of time known from the first time.

    Raises:
        ArgumentValueError: Jumps of a flow without functions of time, or a function whose matrices do not fit.
    """
    if not isinstance(flow, Flow):
        return flow  # refused by name where the start is read
    declared = as_tensor(jumps, "jumps").reshape(-1).tolist() if np.size(np.asarray(jumps, dtype=object)) else []
    if declared:
        if not any(map(has_function, flow.attention.schedules)):
            wanted = "none where no matrix is a function of time; schedules know their own jumps"
            raise ArgumentValueError("jumps", wanted, declared)
        flow = flow.with_jumps(declared)
    if flow.attention.shape_is_known:
        return flow
    first = float(x0.times[-1]) if isinstance(x0, Trajectory) else read_times(times, at_least=1)[0]
    return flow.beginning(first)


def _begun(
    flow: Flow,
    x0: ArrayLike | Trajectory,
    times: ArrayLike,
    jumps: ArrayLike,
    device: str | torch.device | None,
    dtype: torch.dtype | str | None,
    frame: Frame,
) -> tuple[Flow, Start, tuple[tuple[float, ...], int]]:
    flow = begun(flow, x0, times, jumps)
    start = read_start(flow, x0, device, dtype)
    check_frame(frame, flow, start.before)
    return flow, start, start.moments(times)


def check_frame(frame: Frame, flow: Flow, before: Trajectory | None) -> None:
    """Refuse a frame that does not exist, that the flow does not have, or in which the run before was not.

    Raises:
        ArgumentValueError: Which it is.
    """
    if frame not in ("tokens", "rescaled"):
        raise ArgumentValueError("frame", "'tokens' or 'rescaled'", repr(frame))
    if before is not None and before.frame != frame:
        raise ArgumentValueError("frame", f"{before.frame!r}, that of the trajectory", repr(frame))
    if frame == "rescaled":
        check_rescaled(flow)


Engine = Literal["auto", "batched", "compiled", "stiff", "hardmax", "layers", "fixed", "sde"]
Method = Literal["dopri5", "bosh3", "dop853", "rk4", "heun", "euler"]


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
    method: Method | None = None,
    step: float | None = None,
    tau: float | None = None,
    residual: float | None = None,
    max_step: float | None = None,
    jumps: ArrayLike = (),
    frame: Frame = "tokens",
    noise: Noise | None = None,
) -> Trajectory:
    """Run a flow from `x0` and return the states at `times`; engines and endings: `help(tokendynamics.dynamics)`.

    Args:
        flow: The flow.
        x0: Start (*system, token, dim) at `times[0]`, projected onto the space; or a trajectory, which continues.
        times: Increasing output times, at least two; after a trajectory one or more, none before its end.
        rtol: Relative tolerance per step where steps are controlled, 1e-8 if None, at least ten rounding units.
        atol: Absolute tolerance per step, 1e-10 if None: of each number in free space, of each token elsewhere.
        engine: "batched", "compiled", "stiff", "hardmax", "layers", "fixed", "sde"; "auto" takes what suits.
        events: From `tokendynamics.dynamics.events`; a system ends at its first one, unless it is to be recorded.
        max_steps: Attempted steps (layers, fixed steps) for each system, 30,000 if None.
        device: Such as "cuda"; that of `x0` if None.
        dtype: "float64" or "float32", or torch's; that of `x0` if None.
        progress: True for a progress bar, or a function, called with the share done (0 to 1), 1.0 and "simulating".
        method: "dopri5" or "dop853", by rtol if None; "bosh3" for kinks; with `step` also "rk4", "heun", "euler".
        step: A fixed step instead of step control: gradients then flow through the simulation.
        tau: Step of one layer of engine "layers", 1 if None.
        residual: Factor of the state itself in such a layer, 1 if None; 0 without residual connection: see `Flow.step`.
        max_step: The longest step under step control. What a function of time does within a step may be missed.
        jumps: Times at which functions of time may jump: steps end there.
        frame: "rescaled" for ``z = exp(−t Σ_h ov_h) x``, in which free flows that diverge have a limit: see that help.
        noise: Brownian motion of each token beside the flow, with a `step`: `tokendynamics.Noise`.

    Raises:
        ArgumentTypeError, ArgumentValueError: Shapes or options that do not fit, numbers that are not finite or real.
        Interrupted: Ctrl-C; it holds the trajectory so far.

    >>> import tokendynamics as td
    >>> run = td.simulate(td.Flow(td.Attention([[1.0]], [[-1.0]]), td.Free()), [[1.0]], [0.0, 1.0])  # e^(−t)
    >>> f"{run.states[-1][0][0]:.8f}", str(run.status)
    ('0.36787944', 'reached the horizon')
    """
    given = {name: value for name, value in locals().items() if name in OPTIONS and value is not None}
    flow, start, (moments, skipped) = _begun(flow, x0, times, jumps, device, dtype, frame)
    with reporting(progress) as report:
        asked = _problem(flow, start, moments, given, events, max_steps, report, frame)
        chosen, problem, outcome = _outcome(suited(engine, asked, given), start, split_events(events)[0], max_steps)
    return _trajectory(flow, start, problem, outcome, chosen, skipped, frame)


def _problem(
    flow: Flow,
    start: Start,
    moments: tuple[float, ...],
    given: Mapping[str, Any],
    events: Sequence[Event],
    max_steps: int | None,
    report: Progress,
    frame: Frame,
) -> Problem:
    """Return what an engine is given, from the times, events and options that the caller gave."""
    check_exponentials(flow, start.states, moments[0])
    method = given.get("method", "dopri5")
    if method not in TABLEAUS:
        raise ArgumentValueError("method", f"one of {', '.join(TABLEAUS)}", repr(method))
    dtype = start.states.dtype
    ending, noted = split_events(checked_events(events, start.states))
    ending = steady_events(ending, flow, frame)
    field = flow.field(start.states).flattened()
    atol = as_positive(given.get("atol", 1e-10), "atol")
    return Problem(
        field=rescaled(field) if frame == "rescaled" else field,
        start=start.projected(flow, field),
        times=moments,
        rtol=max(as_positive(given.get("rtol", 1e-8), "rtol"), 10 * torch.finfo(dtype).eps),
        atol=atol,
        events=with_guards(ending, flow, dtype, atol),
        recorded=noted,
        max_steps=budget(max_steps),
        tableau=TABLEAUS[method],
        step=as_positive(given["step"], "step") if "step" in given else None,
        tau=as_positive(given.get("tau", 1.0), "tau"),
        residual=as_not_negative(given.get("residual", 1.0), "residual"),
        deviations=start.deviations,
        progress=report,
        max_step=as_positive(given["max_step"], "max_step") if "max_step" in given else None,
        stops=stops(moments, budget(max_steps)) if field.is_sampled else (),
        draws=start.draws(given.get("noise")),
    )


def _outcome(
    chosen: tuple[str, Problem], start: Start, ending: Sequence[Event], max_steps: int | None
) -> tuple[str, Problem, Outcome]:
    engine, problem = chosen
    check_steps(engine, problem.times, problem.step, max_steps)
    # Some of the systems may have ended in the run before.
    moving = start.moving
    if moving is None:
        outcome = _run(engine, problem)
    else:
        part = None
        if len(moving):
            part = _run(
                engine,
                replace(
                    problem,
                    field=problem.field.select(moving),
                    start=problem.start[moving],
                    deviations=problem.deviations and problem.deviations.select(moving),
                    draws=problem.draws and problem.draws.select(moving),
                ),
            )
        outcome = start.merged(part, Outcome.blank(problem))
    # Retractions move what stays on its ray by the last digit.
    outcome.states = problem.field.unmoved(outcome.states, problem.start.unsqueeze(1))
    if ENGINES[engine].controls_error and (warning := warning_of_small_states(problem, outcome)) is not None:
        outcome.notes.append(warning)
    outcome.notes += [*notes_on_time(engine, problem, outcome, ending), *problem.notes]
    problem.report(1.0)
    return engine, problem, outcome


def _parameters(problem: Problem, start: Start) -> dict[str, Any]:
    """Return what a trajectory records of its run."""
    names = ("rtol", "atol", "max_steps", "tau", "residual", "step", "max_step")
    used: dict[str, Any] = {name: getattr(problem, name) for name in names}
    return used | {
        "method": problem.tableau.name,
        "device": str(start.states.device),
        "events": [repr(event) for event in (*problem.events, *problem.recorded)],
    }


def _run(engine: str, problem: Problem) -> Outcome:
    chosen = ENGINES[engine]
    if problem.field.relative and engine in ("batched", "compiled"):
        problem = replace(problem, max_step=longest_step(problem.field, problem.max_step))
    reduction = SpanReduction.of(problem) if chosen.controls_error else None
    if reduction is None or chosen.refusal(reduction.problem) is not None:
        return chosen.run(problem)
    return reduction.lifted(chosen.run(reduction.problem))


def _trajectory(
    flow: Flow, start: Start, problem: Problem, outcome: Outcome, engine: str, skipped: int, frame: Frame
) -> Trajectory:
    """Return the trajectory, or raise it within `Interrupted`."""
    leading, times = start.leading, np.array(problem.times)[skipped:]
    end_times = outcome.end_times.numpy().reshape(leading)
    states = outcome.states[:, skipped:]
    tensor = states.reshape(*leading, *states.shape[1:])
    deviations = outcome.deviations
    if deviations is not None:
        parts = (getattr(deviations, name)[:, skipped:] for name in ("center", "shape", "exponent"))
        deviations = Deviations(*parts).reshaped(*leading)
    trajectory = Trajectory(
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
        parameters=_parameters(problem, start) | versions(*ENGINES[engine].libraries),
        recorded=recorded(problem.recorded, outcome, leading),
        deviations=deviations,
        frame=frame,
        noise=problem.draws and problem.draws.noise,
    )
    if outcome.interrupted:
        raise Interrupted(trajectory)
    return trajectory


_LOOKS, _SYSTEMS = 8, 1000
"""Output times and systems at which the spacing of floats is compared with the motion."""

_FINE = 1e-3
"""Spacings below this share of rtol are not looked at."""

NEAR_ATOL = 100.0
"""Tokens of a norm up to this many times atol may lose a hundredth of themselves at every step."""


def warning_of_small_states(problem: Problem, outcome: Outcome) -> str | None:
    """Say what holds of tokens near atol at an output time; None where there are none.

    On a sphere or ellipsoid tokens have norm 1 in the metric in which errors are measured. A token at zero exactly has
    nothing to lose, and with absolute positions it is token and position together that move.
    """
    if problem.field.geometry.quadratic:
        return None
    # Norms that do not underflow, infinite for zero tokens.
    x = problem.field.attention.with_positions(outcome.states.detach())
    largest = x.abs().amax(dim=-1)
    norms = largest * (x / largest.unsqueeze(-1)).norm(dim=-1)
    smallest = torch.where(largest > 0, norms, torch.inf).flatten(start_dim=1).amin(dim=-1)
    near = smallest <= NEAR_ATOL * problem.atol
    if not bool(near.any()):
        return None
    least = float(smallest.min())
    return (
        f"warning: {int(near.sum())} of {len(near)} systems have tokens of a norm down to {least:.3g}, near atol = "
        f"{problem.atol:.3g}, which is all that controls them: their digits may be wrong; "
        f"for these take an atol of {max(least * problem.rtol, torch.finfo(torch.float64).tiny):.0e} or less"
    )


def notes_on_time(engine: str, problem: Problem, outcome: Outcome, events: Sequence[Event]) -> list[str]:
    """Say what may have been missed between steps, which events did not apply, and where floats are too coarse."""
    notes: list[str] = []
    if any(isinstance(event, AtRest) and event not in problem.events for event in events):
        why = "circuits depend on time"
        if problem.field.relative:
            why = "rescaled logits keep their proportions only for constant qk and positive multiples of the identity"
        notes.append(f"AtRest ended no run: {why}, so rest at one moment is not an equilibrium")
    if engine == "layers":
        return notes
    if problem.field.is_sampled and problem.max_step is None:
        size = f"the longest was {outcome.longest_step:.3g}; " if outcome.longest_step else ""
        notes.append(
            "functions of time are evaluated only at the times that steps need: a pulse or a jump shorter "
            f"than a step may have been missed ({size}max_step= or jumps= bounds them)"
        )
    if (coarse := _coarse_times(problem, outcome)) is not None:
        notes.append(coarse)
    return notes


def _coarse_times(problem: Problem, outcome: Outcome) -> str | None:
    """Say where tokens move by more than the tolerances between two neighbouring floats of the time."""
    if math.ulp(max(-problem.times[0], problem.times[-1])) < _FINE * problem.rtol:
        return None
    times = np.array(problem.times)
    spacing = np.spacing(np.abs(times))
    looks = np.unique(np.linspace(0, len(times) - 1, min(len(times), _LOOKS)).round().astype(int))
    systems = torch.from_numpy(np.unique(np.linspace(0, len(problem.start) - 1, _SYSTEMS).round().astype(int)))
    field = problem.field.select(systems)
    largest, where = 0.0, 0
    for index in looks.tolist():
        x = outcome.states[systems.to(outcome.states.device), index].detach()
        change = float(spacing[index]) * field.within(*_around(times, index)).velocity(x, float(times[index])).detach()
        if field.geometry.quadratic:
            size = inner(change, change, field.geometry.metric).sqrt() / (problem.atol + problem.rtol)
        else:
            size = (change / (problem.atol + problem.rtol * x.abs())).abs()
        moving = outcome.end_times[systems] >= float(times[index])
        size = size.flatten(start_dim=1).amax(dim=-1).cpu()[moving].nan_to_num(0.0, 0.0)
        if len(size) and float(size.max()) > largest:
            largest, where = float(size.max()), index
    if largest <= 1:
        return None
    return (
        f"warning: the spacing of floats at t = {times[where]:.6g} is {spacing[where]:.2g}, in which tokens move by "
        f"{largest:.2g} times what the tolerances allow: times, and what depends on them, are no more exact than that; "
        "let the run begin near t = 0"
    )


def _around(times: np.ndarray, index: int) -> tuple[float, float]:
    last = max(index, 1)
    return float(times[last - 1]), float(times[last])
