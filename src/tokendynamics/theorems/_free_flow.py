"""What the statements of `positional` share: the free flow's hypotheses, and quantities along a trajectory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import AbsolutePositions, RotaryPositions, Schedule
from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import flow_of_run
from tokendynamics.theorems.result import Hypothesis


def free_softmax(flow: Flow) -> tuple[Hypothesis, ...]:
    """Suppose tokens in free space, moved by averages of tokens."""
    return (measured.in_free_space(flow), measured.weights_are_softmax(flow))


def of_constant_circuits(flow: Flow, presupposing: Callable[[Flow], tuple[Hypothesis, ...]]) -> tuple[Hypothesis, ...]:
    """Suppose circuits that do not depend on time, and what can be asked of them only then."""
    constancy = (measured.constant(flow.attention.qk, "qk"), measured.constant(flow.attention.ov, "ov"))
    varies = not all(one.anywhere for one in constancy)
    return constancy if varies else (*constancy, *presupposing(flow))


def absolute_positions(flow: Flow) -> Hypothesis:
    """Tell whether attention reads x + p."""
    return _positions_are(flow, AbsolutePositions, "absolute positions")


def rotary_positions(flow: Flow) -> Hypothesis:
    """Tell whether queries and keys are turned by their positions."""
    return _positions_are(flow, RotaryPositions, "rotary positions")


def head_matrix(schedule: Schedule) -> Tensor:
    """Return the matrix of the first head at t = 0, (*system, dim, dim), float64."""
    return schedule.matrix_at(0.0)[..., 0, :, :].detach().double().cpu()


def states_of(trajectory: Trajectory) -> Tensor:
    """Return the saved states, (*system, time, token, dim), float64."""
    return trajectory.tensor.detach().double().cpu()


def states_with_positions(trajectory: Trajectory) -> Tensor:
    """Return the saved states as attention reads them: x + p with absolute positions, x otherwise.

    Raises:
        ArgumentValueError: A run in the rescaled frame, whose states attention does not read.
    """
    if trajectory.frame == "rescaled":
        wanted = "a run in the frame 'tokens', whose states are x"
        raise ArgumentValueError(expected("trajectory", wanted, "one of rescaled tokens z"))
    return flow_of_run(trajectory).attention.with_positions(states_of(trajectory))


def at_times(trajectory: Trajectory, quantity: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Measure a quantity of states and velocities at every saved time, (*system, time).

    Args:
        trajectory: The run.
        quantity: From the states as attention reads them and the velocities, both (*system, token, dim), to
            (*system,). The velocity is that of the vector field at the saved state, not a difference of states.
    """
    states, times = states_of(trajectory), np.asarray(trajectory.times, dtype=float)
    flow = flow_of_run(trajectory)
    values = []
    for index, time in enumerate(times.tolist()):
        x = states[..., index, :, :]
        values.append(quantity(flow.attention.with_positions(x), flow.velocity(x, time)))
    return torch.stack(values, dim=-1)


def _positions_are(flow: Flow, kind: type, name: str) -> Hypothesis:
    positions = flow.attention.positions
    came = "there are none" if positions is None else f"the flow has {type(positions).__name__}"
    return measured.fact(name, isinstance(positions, kind), came)


def single_head_in_free_space(flow: Flow) -> tuple[Hypothesis, ...]:
    """Suppose the structure of the remarks: softmax in free space, no positions, full mask, one head."""
    return (
        *free_softmax(flow),
        measured.no_positions(flow),
        measured.full_mask(flow),
        measured.one_head(flow),
    )
