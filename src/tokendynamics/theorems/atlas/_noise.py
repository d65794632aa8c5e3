"""A statement of `noise`: exponential weights on the sphere, with Brownian motion of every token."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._closed_forms import predict_noise_transition
from tokendynamics.theorems._conditions import flow_of_run, undecided
from tokendynamics.theorems._statement import Statement, has_noise
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.words import number

_Numbers = np.ndarray | np.floating
_Choices = np.ndarray | np.bool_
"""Of each system; without an axis of systems NumPy makes numbers."""
_ROOM = 1.0
"""Of a mean of squares beside what is expected, in logarithms."""
_ORDERED = math.log(30.0)
"""With `_ROOM`: eleven times the square of the mean of independent tokens counts as order, less than four as none."""
_SAMPLES = 20
"""Relaxation times that the second half of a run has at least: by then the mean of squares over it is off by a factor
e with a probability below 1e-8."""
_SETTLED = 5.0
"""Logarithm of what is left of the start, beyond the fluctuations, when the second half begins."""
_COARSEST = 1.0
"""Times the step, the fastest rate at which tokens meet, ωc e^{β − offset}: with longer steps a run has another law."""
_LEAST = 50.0
"""Least ℓ (K/K_# − 1)²: fluctuations are then small beside what the nonlinearity makes of them."""


def _structure(flow: Flow) -> tuple[Hypothesis, ...]:
    return (
        measured.on_sphere(flow),
        measured.dim_at_least_two(flow),
        measured.weights_are(flow, "exponential"),
        measured.no_positions(flow),
        measured.full_mask(flow),
        measured.one_head(flow),
    )


@measured.given(measured.multiples_of_the_identity)
def _hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    return (
        measured.above("β is positive", measured.temperature(flow)[0], 0.0, "β"),
        measured.tokens_at_least(start, 2),
        measured.assumed("many tokens, long times", "the claim is about infinitely many tokens and their rest"),
    )


def _log_couplings(flow: Flow) -> tuple[Tensor, Tensor, Tensor]:
    """Return log K at σ = 1, log K_# and whether β ≤ β_*, each (*system,)."""
    beta = measured.temperature(flow)[0].clamp_min(0.0)
    coupling = measured.pull(flow).log() - flow.attention.offset
    transitions = [predict_noise_transition(one, flow.dim) for one in beta.reshape(-1).tolist()]
    continuous = beta <= transitions[0].tricritical_beta
    threshold = torch.tensor([one.log_coupling for one in transitions], dtype=torch.float64)
    return coupling, threshold.reshape(beta.shape), continuous


def _predict(flow: Flow, start: Tensor) -> Prediction:
    coupling, threshold, continuous = _log_couplings(flow)
    strength = ((coupling - threshold) / 2).exp().reshape(-1)
    least, most = float(strength.min()), float(strength.max())
    between = number(least, 4) if least == most else f"{number(least, 4)} to {number(most, 4)}"
    text = f"with noise of strength below {between} the uniform law is unstable and tokens gather around a direction"
    if bool(continuous.all()):
        above = "above it they spread uniformly, and the transition is continuous"
    elif not bool(continuous.any()):
        above = "above it the uniform law is stable, but up to some larger strength tokens that have gathered stay so"
    else:
        above = "above it the uniform law is stable, the only rest where β is at most β_*"
    return Prediction(f"{text}; {above}", limit="a direction, or the uniform law")


def _conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    """Hold the mean of ``ℓ |mean_i y_i|²`` over the second half of a run against that of independent tokens, 1."""
    systems, count = tuple(trajectory.tensor.shape[:-3]), trajectory.tensor.shape[-2]
    texts = (
        "below K_#: log of the mean |Σ y_i|²/ℓ of the second half, times 1 − K/K_#",
        "above K_#: log of 30 over the mean |Σ y_i|²/ℓ of the second half",
    )
    if not has_noise(trajectory) or trajectory.noise is None:
        return (replace(undecided(systems, texts[0]), reason="the run has no noise"),)
    if trajectory.tensor.shape[-1] < 2:
        return (replace(undecided(systems, texts[0]), reason="in dim 1 nothing moves"),)
    flow, variance = flow_of_run(trajectory), trajectory.noise.strength**2
    coupling, threshold, continuous = (one.expand(systems).numpy() for one in _log_couplings(flow))
    ratio = np.exp(np.minimum(coupling - math.log(variance) - threshold, math.log(1e6)))
    rate = (flow.dim - 1) / 2 * variance * np.abs(1 - ratio)
    mean = trajectory.tensor.detach().double().cpu().mean(dim=-2)
    times = np.asarray(trajectory.times, dtype=float) - float(trajectory.times[0])
    later = times >= times[-1] / 2
    square = count * mean.square().sum(dim=-1).numpy()[..., later].mean(axis=-1)
    samples = np.minimum(rate * times[-1] / 2, later.sum())
    usable = np.asarray(trajectory.reached)[..., -1] & (count * np.minimum(np.abs(1 - ratio), 1.0) ** 2 >= _LEAST)
    usable &= (samples >= _SAMPLES) & (rate * times[-1] / 2 >= math.log(count) / 2 + _SETTLED)
    with np.errstate(divide="ignore", invalid="ignore"):
        below, above = np.log(square * (1 - ratio)), _ORDERED - np.log(square)
    step = float(trajectory.parameters.get("step") or math.inf)
    fastest = np.exp(np.minimum(coupling + measured.temperature(flow)[0].expand(systems).numpy(), 700.0))
    usable &= step * fastest <= _COARSEST
    few = f"too few tokens, times or relaxation times, {_SAMPLES} of which half a run has to have, or steps too long"
    both = "below K_# and for β > β_* either may be found, by the start"
    apart = (ratio < 1) & ~continuous
    return (
        _judged(texts[0], below, (ratio < 1) & continuous, usable, few, trajectory),
        _judged(texts[1], above, ratio >= 1, usable, few, trajectory),
        *([_judged(texts[0], below, apart, np.zeros_like(apart), both, trajectory)] if apart.any() else []),
    )


def _judged(
    text: str, value: _Numbers, where: _Choices, usable: _Choices, reason: str, trajectory: Trajectory
) -> Condition:
    """Require a value of at most `_ROOM` at the systems in `where`; one of less than twice that is undecided."""
    outcome = np.where(value <= _ROOM, "holds", np.where(value <= 2 * _ROOM, "undecided", "fails"))
    outcome = np.where(where, np.where(usable, outcome, "undecided"), "holds")
    margin = np.where(where, np.nan_to_num(_ROOM - value, nan=0.0), np.inf)
    why = reason if bool((outcome == "undecided").any()) else ""
    first = np.where(outcome == "fails", float(trajectory.times[-1]), np.nan)
    return Condition(text, outcome, margin, _ROOM, first, pointwise=True, reason=why)


STATEMENTS = (
    Statement(
        name="noise-transition",
        title="With noise tokens gather on the sphere from a critical coupling on",
        equations="the abstract",
        structure=_structure,
        hypotheses=_hypotheses,
        predict=_predict,
        conditions=_conditions,
        subject="noise",
    ),
)
