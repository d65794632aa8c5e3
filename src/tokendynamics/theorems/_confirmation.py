"""Before "fails" is said: the same systems run again, tighter. What shrinks with the tolerance is the integrator's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Interrupted, Trajectory, simulate
from tokendynamics.numerics import TokenDynamicsError
from tokendynamics.spaces import Ellipsoid
from tokendynamics.theorems._conditions import largest_error, step_controlled
from tokendynamics.theorems.result import Condition


def flow_of_systems(flow: Flow, where: np.ndarray) -> Flow:
    """Return the flow of the systems in `where`, (…,), as one axis; itself where all share its matrices."""
    index, metric = torch.as_tensor(np.flatnonzero(where)), flow.geometry.metric
    own_metric = metric is not None and metric.ndim > 2
    if not (flow.attention.system_shape or own_metric):
        return flow
    space = Ellipsoid(metric.flatten(0, -3)[index]) if metric is not None and own_metric else flow.space
    return Flow(flow.attention.flattened().select(index), space, projection=flow.projection)


def states_of_systems(states: Tensor, where: np.ndarray, axes: int = 2) -> Tensor:
    """Return the states of the systems in `where`: (…, *axes) as (system, *axes)."""
    return states.reshape(-1, *states.shape[states.ndim - axes :])[torch.as_tensor(np.flatnonzero(where))]


def run_of_systems(trajectory: Trajectory, where: np.ndarray) -> Trajectory:
    """Return the runs of the systems in `where`, (…,), along one axis; itself where these are all."""
    if bool(np.all(where)):
        return trajectory
    chosen = np.flatnonzero(where)
    tensor = states_of_systems(trajectory.tensor, where, axes=3)
    return replace(
        trajectory,
        states=tensor,
        tensor=tensor,
        status=np.asarray(trajectory.status).reshape(-1)[chosen],
        reached=np.asarray(trajectory.reached).reshape(-1, len(trajectory.times))[chosen],
        end_times=np.asarray(trajectory.end_times).reshape(-1)[chosen],
        counts={name: np.asarray(count).reshape(-1)[chosen] for name, count in trajectory.counts.items()},
        flow=None if trajectory.flow is None else flow_of_systems(trajectory.flow, where),
    )


_TIGHTER = 1e-2
_TIGHTEST = 1e-12
_USUAL = 1e-8
_MORE_STEPS = 10
_FEWEST_STEPS, _MOST_STEPS = 2_000, 30_000
_SHRUNK = 0.25


@dataclass(frozen=True)
class Repeat:
    """A tighter run of some systems.

    Attributes:
        trajectory: The run, its systems along one axis.
        words: Which tolerance it had.
    """

    trajectory: Trajectory
    words: str


def confirmed(
    conditions: tuple[Condition, ...],
    trajectory: Trajectory,
    evaluate: Callable[[Trajectory], tuple[Condition, ...]],
) -> tuple[Condition, ...]:
    """Return the conditions, with "fails" left where a tighter run of the same flow and start fails as well.

    Elsewhere the word becomes "undecided", with the reason; save where the violation is larger than any error of a run
    with these tolerances (`largest_error`): then the states are not those of the flow, and the failure stands. What
    is measured at the saved states without regard to how they came about (`pointwise`) is left unchanged.
    """
    doubted = [np.asarray((one.outcome == "fails") & (not one.pointwise)) for one in conditions]
    where = np.asarray(np.logical_or.reduce(np.broadcast_arrays(*doubted)))
    if not where.any():
        return conditions
    repeat = _repeated(trajectory, where)
    if isinstance(repeat, str):
        return tuple(
            _doubting(one, chosen, f"could not be run again tighter: {repeat}") if chosen.any() else one
            for one, chosen in zip(conditions, doubted, strict=True)
        )
    again = evaluate(repeat.trajectory)
    return tuple(
        _compared(one, chosen, where, trajectory, repeat, again[index] if index < len(again) else None)
        if chosen.any()
        else one
        for index, (one, chosen) in enumerate(zip(conditions, doubted, strict=True))
    )


def _compared(
    first: Condition,
    chosen: np.ndarray,
    where: np.ndarray,
    trajectory: Trajectory,
    repeat: Repeat,
    second: Condition | None,
) -> Condition:
    """One condition of both runs: where the failure persists, where it is out of reach of any error, and the rest."""
    again, reached = np.full(where.shape, False), np.full(where.shape, False)
    before = first.tolerance - first.margin
    reached[where] = repeat.trajectory.end_times.reshape(-1) >= _flow_times(
        trajectory, np.nan_to_num(first.first_failure[where])
    )
    if second is not None:
        after = np.broadcast_to(second.tolerance - second.margin, repeat.trajectory.end_times.shape).reshape(-1)
        kept = ~(after <= _SHRUNK * before[where]) | (after > largest_error(repeat.trajectory).reshape(-1))
        again[where] = (second.outcome == "fails").reshape(-1) & kept
    foreign = chosen & reached & ~again & ~(before <= largest_error(trajectory)) & (first.tolerance > 0)
    standing = np.asarray(chosen & (again | foreign))
    if bool((standing == chosen).all()):
        beyond = "no error of a run with these tolerances is as large: the states are not those of the flow"
        return replace(first, reason=beyond if foreign.any() else f"so does a run with {repeat.words}")
    lost = np.asarray(chosen & ~standing)
    early = "" if reached[lost].all() else ", as far as that came"
    return _doubting(first, lost, f"a run with {repeat.words} does not show it{early}")


def _doubting(condition: Condition, where: np.ndarray, reason: str) -> Condition:
    return replace(
        condition,
        outcome=np.where(where, "undecided", condition.outcome),
        first_failure=np.where(where, np.nan, condition.first_failure),
        reason=reason,
    )


def _flow_times(trajectory: Trajectory, times: np.ndarray) -> np.ndarray:
    """Return times in units of the flow's: layers of step τ count each as τ."""
    first = float(trajectory.times[0])
    tau = float(trajectory.parameters.get("tau", 1.0)) if trajectory.engine == "layers" else 1.0
    return first + tau * (np.asarray(times, dtype=float) - first)


def _repeated(trajectory: Trajectory, where: np.ndarray) -> Repeat | str:
    """Run the systems in `where` again with a hundredth of the tolerances, in float64; or say why not."""
    if trajectory.flow is None:
        return "its flow is not known"
    part = run_of_systems(trajectory, where)
    reached = np.asarray(part.reached).reshape(-1, len(part.times))
    until = int(np.flatnonzero(reached.any(axis=0)).max(initial=0)) + 1
    if until < 2:
        return "it ended at its start"
    controlled = step_controlled(trajectory)
    given = trajectory.parameters if controlled else {"rtol": _USUAL, "atol": _USUAL}
    rtol, atol = (max(_TIGHTER * float(given[name]), _TIGHTEST) for name in ("rtol", "atol"))
    steps = np.asarray(part.counts.get("accepted", 0)).max(initial=0)
    start = states_of_systems(trajectory.tensor[..., 0, :, :].detach().double(), where)
    try:
        with torch.no_grad():
            run = simulate(
                flow_of_systems(trajectory.flow, where),
                start,
                _flow_times(part, part.times)[:until],
                rtol=rtol,
                atol=atol,
                engine="stiff" if trajectory.engine == "stiff" else "auto",
                max_steps=int(np.clip(_MORE_STEPS * steps, _FEWEST_STEPS, _MOST_STEPS)),
            )
    except TokenDynamicsError as error:
        return str(error)
    except Interrupted:
        return "interrupted"
    # Later states than the run itself reached are none of its business.
    counted = run.reached & reached[:, :until]
    return Repeat(replace(run, reached=counted), f"rtol {rtol:.3g}")
