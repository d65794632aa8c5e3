"""The parts of certificates: monotone quantities, bounds, limits, how they add up, and how precise a run is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike
from tokendynamics.theorems.result import Certificate, Condition, Outcome, counted
from tokendynamics.words import number

UNCONTROLLED_TOLERANCE = 1e-6
"""Of runs without step control, whose error nobody estimated: what the default tolerances would allow."""
LARGEST_TOLERANCE = 1e-2
"""A change of 1 % of the natural scale is never taken for the integrator's error, however loose the run."""
_SAFETY = 100
_PER_STEP = 10
_UNCOUNTED = 1000


def step_controlled(trajectory: Trajectory) -> bool:
    """Tell whether the run's steps followed its tolerances, and these are recorded."""
    return trajectory.engine in ("batched", "compiled", "stiff") and {"rtol", "atol"} <= set(trajectory.parameters)


def integration_tolerance(trajectory: Trajectory) -> float:
    """Return what of a quantity, relative to its natural scale of 1, counts as the integrator's error.

    A hundred times the tolerances of the run, rtol + atol; at most `LARGEST_TOLERANCE`, and at least a hundred
    roundings of the dtype in which the states are stored. `UNCONTROLLED_TOLERANCE` for a run without step control.
    """
    allowed = UNCONTROLLED_TOLERANCE
    if step_controlled(trajectory):
        allowed = _SAFETY * (float(trajectory.parameters["rtol"]) + float(trajectory.parameters["atol"]))
    return max(min(allowed, LARGEST_TOLERANCE), 100 * torch.finfo(trajectory.tensor.dtype).eps)


def largest_error(trajectory: Trajectory) -> np.ndarray:
    """Return the relative error beyond which no run of that many steps at these tolerances can have erred, (…,).

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
    of_one_step = float(trajectory.parameters["rtol"]) + relative
    return np.broadcast_to(_PER_STEP * np.maximum(steps, 1) * of_one_step, systems)


LIMIT = 1e-3
"""A limit counts as reached when the quantity is below this, relative to its natural scale."""
_WORST_FIRST: tuple[Outcome, ...] = ("fails", "undecided", "holds")


def flow_of_run(trajectory: Trajectory) -> Flow:
    """Return the flow of a trajectory.

    Raises:
        ArgumentValueError: It was opened from a file that could not keep its flow.
    """
    if trajectory.flow is None:
        came = "one opened from a file, which keeps no function of time, space or positions of your own"
        raise ArgumentValueError("trajectory", "one that knows its flow", came, "simulate it again")
    return trajectory.flow


def approximates_its_flow(trajectory: Trajectory) -> bool:
    """Tell whether the run is one of the flow, or of layers that are steps of it: with residual factor 1."""
    return trajectory.engine != "layers" or float(trajectory.parameters.get("residual", 1.0)) == 1.0


def layers_only(
    trajectory: Trajectory, text: str, objection: Callable[[float, float], str | None], *, deviations: bool = True
) -> tuple[Condition] | None:
    """Return the one undecided condition of a run that a statement on layers does not speak of; None if it does.

    Args:
        trajectory: The run.
        text: What is required.
        objection: Says, of residual factor and tau, why layers with these are not those meant; None if they are.
        deviations: Whether the statement needs what the run knows of tokens below their rounding.
    """
    reason: str | None = None
    if trajectory.engine != "layers":
        reason = f"the run is one of the engine {trajectory.engine}, and the statement speaks of layers"
    elif deviations and trajectory.deviations is None:
        reason = "the run does not have the deviations of its tokens"
    else:
        reason = objection(*(float(trajectory.parameters.get(name, 1.0)) for name in ("residual", "tau")))
    if reason is None:
        return None
    return (replace(undecided(tuple(trajectory.tensor.shape[:-3]), text), reason=reason),)


def deviations_of(trajectory: Trajectory) -> Any:
    """Return the deviations of a run that `layers_only` asked for them."""
    if trajectory.deviations is None:
        raise AssertionError
    return trajectory.deviations


def log_tolerance(trajectory: Trajectory) -> float:
    """Return the relative error of logarithms of distances of layers that counts as rounding."""
    return 1e6 * torch.finfo(trajectory.tensor.dtype).eps


def flow_steps(trajectory: Trajectory) -> Tensor:
    """Return the flow's time between saved states, (time − 1,), float64: layers of step τ count as τ."""
    tau = float(trajectory.parameters.get("tau", 1.0)) if trajectory.engine == "layers" else 1.0
    return tau * torch.as_tensor(np.asarray(trajectory.times, dtype=float)).diff()


def beyond_rounding(error: Tensor, condition: Tensor, tolerance: float) -> Tensor:
    """Scale down the error (…, time) of an identity where a condition number (…) makes rounding exceed the tolerance.

    Rounding alone makes an error of about eps · condition; where four times that is above the tolerance, the error
    is counted in those units, so that an exact identity does not fail for an ill-conditioned matrix.
    """
    unavoidable = 4 * torch.finfo(torch.float64).eps * condition / tolerance
    return error / unavoidable.clamp_min(1.0).unsqueeze(-1)


def never_above(
    excess: ArrayLike, trajectory: Trajectory, tolerance: float, text: str, *, pointwise: bool = False
) -> Condition:
    """Require a quantity not above 0: it fails at the first time at which it exceeds the tolerance.

    Args:
        excess: Shape (…, time).
        trajectory: The run; saved times that it did not reach do not count.
        tolerance: The excess that counts as rounding.
        text: What is required.
        pointwise: See `Condition`.
    """
    seen = np.where(np.asarray(trajectory.reached), _as_array(excess), -np.inf)
    # A NaN is no proof of anything: it counts as a violation.
    violated = ~(seen <= tolerance)
    failed = violated.any(axis=-1)
    first = np.where(failed, np.asarray(trajectory.times)[violated.argmax(axis=-1)], np.nan)
    outcome = np.where(failed, "fails", "holds")
    margin = np.nan_to_num(tolerance - seen.max(axis=-1), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    return Condition(text, outcome, np.asarray(margin), tolerance, first, pointwise=pointwise)


def never_rises(values: ArrayLike, trajectory: Trajectory, tolerance: float, text: str) -> Condition:
    """Require that a quantity not rise: it fails above its lowest value so far by more than the tolerance.

    Args:
        values: Shape (…, time).
        trajectory: The run; saved times that it did not reach do not count.
        tolerance: The rise that counts as the integrator's error.
        text: What is required.
    """
    array = _as_array(values)
    return never_above(array - np.minimum.accumulate(array, axis=-1), trajectory, tolerance, text)


def tends_to_zero(values: ArrayLike, threshold: float, text: str) -> Condition:
    """Require the limit 0 of a quantity ≥ 0: it holds if below the threshold at the end, else undecided.

    A finite run cannot refute a limit, so this never fails; the margin tells how far the run came. It is −∞ where the
    quantity is no number, as where growth that is divided by growth overflows.

    Args:
        values: Shape (…, time); the last entry is that of the last state reached.
        threshold: The value at which the limit counts as reached.
        text: What is required.
    """
    last = _as_array(values)[..., -1]
    last = np.where(np.isnan(last), np.inf, last)
    outcome = np.where(last <= threshold, "holds", "undecided")
    return Condition(text, outcome, np.asarray(threshold - last), threshold, np.full(last.shape, np.nan))


def undecided(shape: tuple[int, ...], text: str, where: np.ndarray | None = None) -> Condition:
    """Return a condition that cannot be evaluated (at the systems in `where`, otherwise everywhere)."""
    chosen = np.ones(shape, dtype=bool) if where is None else np.asarray(where)
    outcome = np.where(chosen, "undecided", "holds")
    return Condition(text, outcome, np.zeros(shape), 0.0, np.full(shape, np.nan))


def of_another_size(trajectory: Trajectory, wanted: str, fits: bool) -> tuple[Condition, ...]:
    """Return an undecided condition where a run of that many tokens and features cannot be judged; nothing if it fits.

    For statements that are asked by name of any run.
    """
    *systems, _, tokens, dim = trajectory.tensor.shape
    text = f"it is about {wanted}, not about {tokens} tokens in dim {dim}"
    return () if fits else (undecided(tuple(systems), text),)


def except_where(condition: Condition, lost: np.ndarray, reason: str) -> Condition:
    """Return the condition, undecided at the systems in `lost`, at which it means nothing."""
    where = np.broadcast_to(lost, condition.outcome.shape)
    if not where.any():
        return condition
    return replace(
        condition,
        outcome=np.where(where, "undecided", condition.outcome),
        margin=np.where(where, 0.0, condition.margin),
        first_failure=np.where(where, np.nan, condition.first_failure),
        reason=reason,
    )


def combine(statement: str, conditions: tuple[Condition, ...]) -> Certificate:
    """Add conditions up to a certificate: the worst outcome of any condition at any system decides."""
    stacked = np.stack(np.broadcast_arrays(*[condition.outcome for condition in conditions]))
    outcomes = np.full(stacked.shape[1:], "holds", dtype=stacked.dtype)
    for word in ("undecided", "fails", "does not apply"):
        outcomes = np.where((stacked == word).any(axis=0), word, outcomes)
    outcome: Outcome = next(word for word in _WORST_FIRST if word == "holds" or (outcomes == word).any())
    # Margins of different conditions compare in units of their tolerances.
    deciding = min(conditions, key=lambda condition: _margin(condition, outcome) / (condition.tolerance or 1.0))
    failures = [condition.first_failure[~np.isnan(condition.first_failure)] for condition in conditions]
    times = np.concatenate(failures)
    first = float(times.min()) if times.size else None
    margin = _margin(deciding, outcome)
    return Certificate(
        statement=statement,
        outcome=outcome,
        margin=margin,
        tolerance=deciding.tolerance,
        first_failure=first,
        text=_sentence(deciding, outcome, margin, first, outcomes),
        outcomes=outcomes,
        margins=deciding.margin,
        conditions=conditions,
    )


def _as_array(values: ArrayLike) -> np.ndarray:
    plain = values.detach().cpu() if isinstance(values, torch.Tensor) else values
    return np.asarray(plain, dtype=np.float64)


def _margin(condition: Condition, outcome: Outcome) -> float:
    """Return the lowest margin among the systems with that outcome."""
    chosen = condition.margin[condition.outcome == outcome]
    return float(chosen.min()) if chosen.size else float("inf")


def _sentence(condition: Condition, outcome: Outcome, margin: float, first: float | None, outcomes: np.ndarray) -> str:
    if outcomes.size == 1:
        share = ""
    else:
        words, counts = np.unique(outcomes, return_counts=True)
        others = [f"{count} {word}" for word, count in zip(words, counts, strict=True) if word != outcome]
        here = counted(np.asarray(outcomes == outcome))
        share = f" ({here}{'; ' if others else ''}{', '.join(others)})"
    value, limit = condition.tolerance - margin, condition.tolerance
    reason = f" ({condition.reason})" if condition.reason else ""
    if limit == 0 and outcome != "fails":
        # Nothing was compared: the text says it all.
        return f"{condition.text}{share}{reason}"
    numbers = {
        "holds": f"{number(value)}, at most {number(limit)} allowed",
        "fails": f"{number(value)}, at most {number(limit)} allowed, first at t = {first}",
        "undecided": f"{number(value)} when the run ended, {number(limit)} needed; a longer run may decide",
    }[outcome]
    if outcome == "undecided" and condition.reason:
        numbers = f"{number(value)}, at most {number(limit)} allowed"
    return f"{condition.text}: {numbers}{share}{reason if outcome != 'holds' else ''}"
