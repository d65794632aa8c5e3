"""What becomes of tokens of a free flow: zero, as a power of time, infinity, a nonzero equilibrium, or undecided."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems._conditions import flow_of_run
from tokendynamics.theorems._free_flow import states_with_positions
from tokendynamics.theorems._result import Condition

EXPONENT = -0.5
"""Near zero the field is cubic in the tokens once their mean has died out, so they shrink like t^(−1/2)."""
WIDTH = 0.05
"""Largest difference of the measured slope from `EXPONENT`."""
_SETTLED = 0.02
_DECADE = 10.0
_FEWEST = 3


def log_log_slope(times: np.ndarray, values: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Fit the slope of log values against log times over the counted entries; NaN below three of them.

    Args:
        times: (time,).
        values: Positive, (…, time).
        counted: Which entries count, (…, time); times among them are positive.

    >>> times = np.array([1.0, 10.0, 100.0])
    >>> round(float(log_log_slope(times, times**-0.5, times > 0)), 12)
    -0.5
    """
    tiny = np.finfo(float).tiny
    counts = counted.sum(axis=-1)
    weight = counted / np.maximum(counts, 1)[..., None]
    x, y = np.log(np.maximum(times, tiny)), np.log(np.maximum(values, tiny))
    deviation = x - (weight * x).sum(axis=-1, keepdims=True)
    spread = (weight * deviation**2).sum(axis=-1)
    slope = (weight * deviation * y).sum(axis=-1) / np.where(spread > 0, spread, 1.0)
    return np.where((counts >= _FEWEST) & (spread > 0), slope, np.nan)


def slope_condition(states: Tensor, trajectory: Trajectory, stiffness: np.ndarray) -> Condition:
    """Require that the largest norm shrink like t^(−1/2) over the last decade of the run.

    It holds where the slope of log max_l |x_l| against log t is −0.5 ± 0.05. On the way there the slope can stay for
    decades between 0 (small tokens, or a direction in which they hardly differ) and −0.5 κ (a direction that dies
    out first), κ (`stiffness`) the ratio of the extreme eigenvalues of ov. It fails where the slopes of the last two
    decades agree outside that range. Otherwise the run was too short to tell.
    """
    times, reached = np.asarray(trajectory.times, dtype=float), np.asarray(trajectory.reached)
    norms = torch.linalg.vector_norm(states, dim=-1).amax(dim=-1).numpy()
    elapsed = times - times[0]
    end = np.where(reached, elapsed, 0.0).max(axis=-1, keepdims=True)
    usable = reached & (elapsed > 0)
    last = log_log_slope(elapsed, norms, usable & (elapsed >= end / _DECADE))
    before = usable & (elapsed >= end / _DECADE**2) & (elapsed <= end / _DECADE)
    settled = np.abs(last - log_log_slope(elapsed, norms, before)) <= _SETTLED
    margin = WIDTH - np.abs(last - EXPONENT)
    unreachable = (last < EXPONENT * stiffness - WIDTH) | (last > WIDTH)
    outcome = np.where(margin >= 0, "holds", np.where(settled & unreachable, "fails", "undecided"))
    first = np.where(outcome == "fails", end[..., 0] + times[0], np.nan)
    text = "slope of log max|x_l| against log t over the last decade, distance from −0.5"
    return Condition(text, outcome, np.where(np.isnan(margin), -np.inf, margin), WIDTH, first)


_GROWN = math.log(1e3)
_VANISHED = math.log(1e-6)
_AT_REST = 1e-3
_DECAYING = -0.25


def log_norms(states: Tensor) -> Tensor:
    """Return log max_l |x_l| for states (…, token, dim), without the squares that overflow; −inf at zero.

    >>> log_norms(torch.tensor([[3e200, 4e200]], dtype=torch.float64)).sub(200 * math.log(10)).exp().round().item()
    5.0
    """
    largest = states.abs().amax(dim=(-2, -1))
    unit = states / torch.where(largest > 0, largest, 1.0)[..., None, None]
    return largest.log() + torch.linalg.vector_norm(unit, dim=-1).amax(dim=-1).clamp_min(1.0).log()


def outcomes_of(trajectory: Trajectory) -> np.ndarray:
    """Classify the end of every system of a run of a free flow that is constant in time.

    With n(t) the largest norm of a token (of x + p with absolute positions) and T the time at which the run ended:

    - "diverged": log n has risen by log 1000 above both its start and the scale ‖qk‖^(−1/2) at which logits
      are of order 1, and has risen in the last quarter of the run. Nothing needs to overflow.
    - "nonzero equilibrium": T max|ẋ_l| ≤ 1e-3 n: nothing would move by as much as 0.1 % in another T.
    - "zero": log n falls against log t at a slope of −0.25 or less, over the last decade of the run and at its end
      (t^(−1/2) has −0.5, exponentials fall ever faster); or n is below a millionth of start and scale.
    - "undecided" otherwise: a longer run may tell.

    Save times evenly in log t, ten a decade, say.

    Source: `positional` Remark 3.5, whose two classes (zero, infinity) are one too few.

    Returns:
        Array of str, of the shape of the systems.

    >>> from tokendynamics.attention import Attention
    >>> from tokendynamics.dynamics import simulate
    >>> from tokendynamics.spaces import Free
    >>> grows = Flow(Attention([[1.0]], [[1.0]]), Free())
    >>> str(outcomes_of(simulate(grows, [[1.0], [2.0]], np.linspace(0.0, 12.0, 13))))
    'diverged'
    """
    states, flow = states_with_positions(trajectory), flow_of_run(trajectory)
    logs = log_norms(states).numpy()
    end_times = np.asarray(trajectory.end_times - trajectory.times[0], dtype=float)
    scale = _log_scale(flow).expand(states.shape[:-3]).numpy()
    diverged = _diverged(logs, scale, trajectory, end_times)
    last = torch.where(torch.as_tensor(diverged)[..., None, None], 0.0, states[..., -1, :, :])
    speed, slope = _end_motion(flow, float(trajectory.times[-1]), last)
    resting = end_times * speed <= _AT_REST
    zero = _decaying(logs, trajectory, end_times) & (end_times * slope <= _DECAYING)
    zero = zero | (logs[..., -1] <= np.minimum(logs[..., 0], scale) + _VANISHED)
    choices = [diverged, zero, resting]
    return np.select(choices, ["diverged", "zero", "nonzero equilibrium"], "undecided")


def _log_scale(flow: Flow) -> Tensor:
    qk = flow.attention.qk.matrix_at(0.0).detach().double().cpu()
    size = torch.linalg.matrix_norm(qk, 2).amax(dim=-1)
    return torch.where(size > 0, -0.5 * size.log(), -torch.inf)


def _diverged(logs: np.ndarray, scale: np.ndarray, trajectory: Trajectory, end_times: np.ndarray) -> np.ndarray:
    elapsed = np.asarray(trajectory.times, dtype=float) - float(trajectory.times[0])
    earlier = (elapsed <= 0.75 * end_times[..., None]).sum(axis=-1) - 1
    before = np.take_along_axis(logs, np.maximum(earlier, 0)[..., None], axis=-1)[..., 0]
    risen = logs[..., -1] - np.maximum(logs[..., 0], scale)
    return np.asarray((risen >= _GROWN) & (logs[..., -1] > before))


def _decaying(logs: np.ndarray, trajectory: Trajectory, end_times: np.ndarray) -> np.ndarray:
    elapsed = np.asarray(trajectory.times, dtype=float) - float(trajectory.times[0])
    counted = np.asarray(trajectory.reached) & (elapsed > 0) & (elapsed >= end_times[..., None] / 10)
    # Norms relative to their own start: any size can be exponentiated.
    start = np.where(np.isfinite(logs[..., :1]), logs[..., :1], 0.0)
    slope = log_log_slope(elapsed, np.exp(np.minimum(logs - start, 600.0)), counted)
    return np.asarray(slope <= _DECAYING)


def _end_motion(flow: Flow, time: float, last: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """max|ẋ_l| and d/dt |x_l| of the longest token, both relative to the largest norm, for placed states."""
    x = last - flow.attention.with_positions(torch.zeros_like(last))
    velocity = flow.velocity(x, time)
    lengths = torch.linalg.vector_norm(last, dim=-1)
    largest, index = lengths.clamp_min(torch.finfo(last.dtype).tiny).max(dim=-1)
    speed = torch.linalg.vector_norm(velocity, dim=-1).amax(dim=-1) / largest
    stretch = ((last * velocity).sum(dim=-1) / lengths.clamp_min(torch.finfo(last.dtype).tiny) ** 2).nan_to_num()
    return speed.numpy(), stretch.gather(-1, index.unsqueeze(-1)).squeeze(-1).numpy()
