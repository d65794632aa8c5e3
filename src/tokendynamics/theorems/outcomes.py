"""What becomes of tokens of a free flow: zero, as a power of time, infinity, a nonzero equilibrium, or undecided."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tokendynamics.attention import AbsolutePositions, RotaryPositions
from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.theorems._conditions import flow_of_run
from tokendynamics.theorems.contraction import states_with_positions
from tokendynamics.theorems.result import Condition

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
    text = "slope of log max|x_i| against log t over the last decade, distance from −0.5"
    return Condition(text, outcome, np.where(np.isnan(margin), -np.inf, margin), WIDTH, first)


_GROWN, _GROWING = math.log(50.0), math.log(2.0)
_VANISHED = math.log(1e-6)
_AT_REST = 1e-3
_DECAYING = -0.25
_LONG_ENOUGH = 100.0
_HUGE = 1e100
_UNIFORM = 0.01
_LONG = 100.0


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

    What is compared is the last third of the run, a factor of three in time. With n(t) the largest norm of a token
    (of x + p with absolute positions) and s = ‖qk‖^(−1/2) the scale at which logits are of order 1:

    - "diverged": n is 50 times the larger of s and its start or more, and has doubled at least in the last third;
    - "zero": n is below a millionth of s and of its start; or, where zero is the only point of rest
      (`rests_only_at_zero`: one head, ov invertible, and sym(qk) definite or a causal mask), every logit is below 0.01
      at the end, zero is stable, and both n and the largest distance from the mean token fell like t^(−1/4) or faster,
      t^(−1/2) being what theorem 3.4 has: in the last third, or from the largest value at T/300 … T/100 to that in the
      last third, of a run to 10^4/‖ov‖ at least. Without symmetry n falls in steps, between which it may rest for a
      decade. A fall may turn round that ends where attention is not yet uniform, or where zero is not stable
      (`_leaves_zero`), and one of the mean alone tells nothing of what is slower. With sym(qk) indefinite logits
      vanish on a cone at any
      norm, and tokens come to rest there: a fall like t^(−1/2) may end at a thousandth of its start, so that only a
      millionth counts;
    - "nonzero equilibrium": circuits are constant and no token moved by more than a thousandth of n in the last third,
      of a run to ‖ov‖ T (n/s)² ≥ 1 at least: where attention is uniform tokens move at the rate of the logits;
    - "undecided" otherwise, such as slower motion and rotation, or if nothing was saved in the last third. A run that
      ends before t = 100/‖ov‖ has "diverged" or is below a millionth, or is undecided: a longer one may tell. Of
      exponential weights ‖ov‖ is multiplied by their smallest sum over senders at the end, if that is below 1.

    Save times evenly in log t, ten a decade, say. The state in which a run ended stands at the first saved time that
    it did not reach.

    Source: `positional` Remark 3.5, whose two classes (zero, infinity) are one too few.

    Returns:
        Array of str, of the shape of the systems. A run with noise is refused.

    >>> from tokendynamics.attention import Attention
    >>> from tokendynamics.dynamics import simulate
    >>> from tokendynamics.spaces import Free
    >>> grows = Flow(Attention([[1.0]], [[1.0]]), Free())
    >>> str(outcomes_of(simulate(grows, [[1.0], [2.0]], np.linspace(0.0, 12.0, 13))))
    'diverged'
    """
    if trajectory.noise is not None and trajectory.noise.strength > 0:
        wanted = "a run without noise: with it no token comes to rest"
        raise ArgumentValueError("trajectory", wanted, f"one with {trajectory.noise}")
    return _classified(trajectory)


def _classified(trajectory: Trajectory) -> np.ndarray:
    states, flow = states_with_positions(trajectory), flow_of_run(trajectory)
    logs, scale, rate = log_norms(states).numpy(), *_scales(flow, states.shape[:-3])
    elapsed = np.asarray(trajectory.times, dtype=float) - float(trajectory.times[0])
    length = np.asarray(trajectory.end_times - float(trajectory.times[0]), dtype=float)
    last = np.asarray(np.minimum(np.searchsorted(elapsed, length), len(elapsed) - 1))
    third = np.asarray(np.minimum(np.searchsorted(elapsed, length / 3), last))
    start, before, end = logs[..., 0], _taken(logs, third), _taken(logs, last)
    seen = third < last
    with np.errstate(invalid="ignore"):  # −inf at zero; what has vanished needs no slope.
        rise = end - before
        diverged = seen & (end - np.maximum(start, scale) > _GROWN) & (rise > _GROWING)
        unit = np.where(np.isneginf(scale), start, scale)
        vanished = end <= np.minimum(start, unit) + _VANISHED
        ratio = np.where(seen, length, 1.0) / np.where(seen, elapsed[third], 1.0)
        decaying = in_steps = _may_vanish(trajectory, last)
        apart = log_norms(states - states.mean(dim=-2, keepdim=True)).numpy()
        for sizes in (logs, apart):
            gone = _taken(sizes, last) <= np.minimum(start, unit) + _VANISHED
            decaying = decaying & (gone | (_taken(sizes, last) - _taken(sizes, third) < _DECAYING * np.log(ratio)))
            late, early = (_largest(sizes, elapsed, length, part) for part in (1.0, _LONG))
            in_steps = in_steps & (gone | (late - early < _DECAYING * math.log(_LONG)))
    units = np.asarray(length * rate * _smallest_sum(trajectory, last))
    decided = seen & (units >= _LONG_ENOUGH)
    in_steps = in_steps & (units >= _LONG_ENOUGH * _LONG)
    # What stands still while circuits change may move again.
    resting = (
        (_largest_motion(states, third, last) < _AT_REST) & flow.constant & _long_for(flow, units, np.asarray(end))
    )
    choices = [diverged, vanished, decided & resting, decided & decaying, decided & in_steps]
    return np.select(choices, ["diverged", "zero", "nonzero equilibrium", "zero", "zero"], "undecided")


def _largest(logs: np.ndarray, elapsed: np.ndarray, length: np.ndarray, part: float) -> np.ndarray:
    """Return the largest log norm saved between a third of length/part and length/part; NaN if nothing was saved."""
    until = length[..., None] / part
    within = (elapsed >= until / 3) & (elapsed <= until)
    return np.where(within.any(axis=-1), np.where(within, logs, -np.inf).max(axis=-1), np.nan)


def _scales(flow: Flow, systems: torch.Size) -> tuple[np.ndarray, np.ndarray]:
    """Return log ‖qk‖^(−1/2) of the largest head, −inf for qk = 0, and the sum of ‖ov‖ over heads."""
    qk, ov = (circuit.matrix_at(0.0).detach().double().cpu() for circuit in (flow.attention.qk, flow.attention.ov))
    size = torch.linalg.matrix_norm(qk, 2).amax(dim=-1)
    scale = torch.where(size > 0, -0.5 * size.log(), -torch.inf)
    rate = abs(flow.weight_factor) * torch.linalg.matrix_norm(ov, 2).sum(dim=-1)
    return scale.expand(systems).numpy(), rate.expand(systems).numpy()


def _may_vanish(trajectory: Trajectory, last: np.ndarray) -> np.ndarray:
    """Tell whose attention is uniform at the end, and who rests only at zero and does not leave it."""
    flow, tokens = flow_of_run(trajectory), trajectory.tensor.shape[-2]
    bounded = _end_states(trajectory, last)
    uniform = np.asarray(flow.attention.logits(bounded).abs().amax(dim=(-3, -2, -1))) < _UNIFORM
    return np.asarray(uniform & rests_only_at_zero(flow, tokens) & ~_leaves_zero(flow))


def _long_for(flow: Flow, length: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Tell which runs are long, in units of 1/‖ov‖, for tokens of that log norm to move at the rate of their logits.

    Logits are at most c n², c the norms of qk and of a rotary term; hardmax weights do not depend on the size.
    """
    attention = flow.attention
    size = torch.linalg.matrix_norm(attention.qk.matrix_at(0.0).detach().double().cpu(), 2).amax(dim=-1)
    if isinstance(attention.positions, RotaryPositions):
        query, key = (attention.positions.query.matrix_at(0.0), attention.positions.key.matrix_at(0.0))
        terms = [torch.linalg.matrix_norm(part.detach().double().cpu(), 2) for part in (query, key)]
        size = abs(attention.positions.scale) * (size + (terms[0] * terms[1]).amax(dim=-1))
    depends = ((size > 0) & (attention.weights != "hardmax")).numpy()
    with np.errstate(divide="ignore", over="ignore"):
        logits = np.where(depends, np.log(size.numpy()), 0.0) + 2 * np.where(depends, end, 0.0)
    return np.asarray(length * np.exp(np.minimum(logits, 0.0)) >= 1)


def _smallest_sum(trajectory: Trajectory, last: np.ndarray) -> np.ndarray | float:
    """Return the smallest ``Σ_j w_ij`` at the end, at most 1: with exponential weights all motion has that factor."""
    attention = flow_of_run(trajectory).attention
    if attention.weights != "exponential":
        return 1.0
    sums = attention.pattern(_end_states(trajectory, last)).sum(dim=-1)
    return np.asarray(sums.nan_to_num(nan=1.0).clamp_max(1.0).amin(dim=(-2, -1)))


def _end_states(trajectory: Trajectory, last: np.ndarray) -> Tensor:
    """Return the states (…, token, dim) at the saved times `last`, so bounded that products of them stay finite."""
    at = torch.as_tensor(last)[..., None, None, None]
    states = trajectory.tensor.detach().double().cpu()
    end = states.gather(-3, at.expand(*states.shape[:-3], 1, *states.shape[-2:])).squeeze(-3)
    return end.nan_to_num(nan=_HUGE, posinf=_HUGE, neginf=-_HUGE).clamp(-_HUGE, _HUGE)


def _leaves_zero(flow: Flow) -> np.ndarray:
    """Tell where zero is not stable, or may not be, for tokens of one head that is constant.

    Near zero weights are even but for the logits, so that the mean token obeys x' = ov x: with softmax or exponential
    weights zero is stable only if every Re λ(ov) < 0. Under a causal mask this decides. Otherwise the second moment C
    of the deviations from the mean obeys ``C' = ov C qk^T C + C qk C ov^T``, and so does that of the tokens with
    linear weights. For a symmetric qk, and P ≻ 0 with ``P ov + ov^T P = −Q ≺ 0``, ``tr(P C)' = −tr(Q C qk C)``: the
    deviations die out where qk ≻ 0 and grow where qk ≺ 0; with linear weights the sign of ov counts as well.
    """
    attention = flow.attention
    qk, ov = (_matrix(circuit.matrix_at(0.0)) for circuit in (attention.qk, attention.ov))
    positive = torch.linalg.eigvalsh((qk + qk.mT) / 2)[..., 0] > 0
    if attention.weights == "linear":
        ov = torch.where(positive[..., None, None], ov, -ov)
    rounding = ov.shape[-1] * torch.finfo(ov.dtype).eps * torch.linalg.matrix_norm(ov)
    leaves = torch.linalg.eigvals(ov).real.amax(dim=-1) >= -rounding
    return np.asarray(leaves if attention.causal or attention.weights == "linear" else leaves | ~positive)


def _taken(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, index[..., None], axis=-1)[..., 0]


def _largest_motion(states: Tensor, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return max |x_l(t) − x_l(T)| for t from `first` to `last` = T, relative to the largest norm at T."""
    at = torch.as_tensor(last)[..., None, None, None].expand(*states.shape[:-3], 1, *states.shape[-2:])
    end = states.gather(-3, at)
    size = end.abs().amax(dim=(-2, -1), keepdim=True)
    size = torch.where(size > 0, size, 1.0)  # Relative to the end: any size has squares.
    distance = torch.linalg.vector_norm((states - end) / size, dim=-1).amax(dim=-1).numpy()
    largest = torch.linalg.vector_norm(end / size, dim=-1).amax(dim=(-2, -1)).numpy()
    index = np.arange(states.shape[-3])
    within = (index >= first[..., None]) & (index <= last[..., None])
    return np.asarray(np.where(within, distance, 0.0).max(axis=-1) / np.where(largest > 0, largest, 1.0))


def rests_only_at_zero(flow: Flow, tokens: int) -> np.ndarray:
    """Tell for which systems x = 0 (x + p = 0 with absolute positions) is proved to be the only equilibrium.

    One head with an invertible ov is at rest where every average ``Σ_j w_ij x_j`` vanishes.

    - Softmax or exponential weights under a causal mask: the first token averages itself alone, so it is zero, and
      with it the next.
    - Full mask, sym(qk) definite: at rest every x_i is a minimum of the convex function ``u ↦ Σ_j exp(u·qk x_j)``, so
      ``(x_i − x_k)·qk x_j = 0`` for all i, k, j and ``q_qk(x_i − x_k) = 0``: all tokens are equal, hence zero. Where
      sym(qk) is indefinite tokens on a line of its null cone, with mean zero, are at rest at any norm.
    - Linear weights, sym(qk) definite: ``S qk^T S = 0`` for the second moment S, so S = 0; under a causal mask the
      same holds token by token.
    - A rotary term of norm ε beside a definite qk, λ the smallest |eigenvalue| of sym(qk): near zero, at rest, the
      first order of ``Σ_j s_ij x_j`` is the same vector for all i and tokens have mean zero. Its product with
      ``qk^T x_i``, summed over i, is at least ``(λ (λ − ε) − (ℓ − 1) ε²/4) Σ_i |x_i|⁴`` and is zero, so that there is
      no rest near zero where the bracket is positive.

    Several heads can cancel each other; about other positions nothing is known, and with hardmax weights a token that
    attends to zero alone is at rest anywhere.

    Args:
        flow: A free flow; for circuits that vary in time nothing is proved, and the answer is no.
        tokens: The number of tokens ℓ.

    Returns:
        Booleans, (*system,).

    Source: `positional` B.5 for sym(qk) ≻ 0; the other cases are derived above.
    """
    attention = flow.attention
    positions, nothing = attention.positions, np.zeros(attention.system_shape, dtype=bool)
    if attention.heads != 1 or not attention.constant or attention.mask is not None or flow.frozen:
        return nothing
    if attention.weights == "hardmax":
        return nothing
    ov = _matrix(attention.ov.matrix_at(0.0))
    singular_values = torch.linalg.svdvals(ov)
    invertible = singular_values[..., -1] > _rounding(attention.ov.matrix_at(0.0)) * singular_values[..., 0]
    if positions is not None and not isinstance(positions, AbsolutePositions | RotaryPositions):
        return nothing
    if attention.causal and attention.weights != "linear":
        return np.asarray((invertible & torch.ones(attention.system_shape, dtype=torch.bool)).numpy())
    qk = _matrix(attention.qk.matrix_at(0.0))
    values = torch.linalg.eigvalsh((qk + qk.mT) / 2)
    rounding = _rounding(attention.qk.matrix_at(0.0)) * torch.linalg.matrix_norm(qk, 2)
    smallest = torch.maximum(values[..., 0], -values[..., -1])
    definite = smallest > rounding
    if isinstance(positions, RotaryPositions):
        if attention.causal or attention.weights == "linear":
            return nothing
        # A bound of the norm of Q̄ R K̄ᵀ relative to the logits of qk, over all rotations.
        norms = [torch.linalg.matrix_norm(_matrix(part.matrix_at(0.0)), 2) for part in (positions.query, positions.key)]
        term = norms[0] * norms[1]
        definite = definite & (positions.scale != 0) & (smallest * (smallest - term) > (tokens - 1) * term**2 / 4)
    return np.asarray((invertible & definite).expand(attention.system_shape).numpy())


def _matrix(matrices: Tensor) -> Tensor:
    """Return the matrix of the one head, (*system, dim, dim), float64."""
    return matrices[..., 0, :, :].detach().double().cpu()


def _rounding(matrices: Tensor) -> float:
    return matrices.shape[-1] * torch.finfo(matrices.dtype).eps
