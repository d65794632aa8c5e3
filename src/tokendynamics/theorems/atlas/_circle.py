"""Statements of `circle`: exponential weights with qk = βI on the circle."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import diameter
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import (
    LIMIT,
    flow_of_run,
    integration_tolerance,
    never_above,
    never_rises,
    of_another_size,
    tends_to_zero,
)
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.result import Condition, Hypothesis, Prediction
from tokendynamics.words import exponential, number

LOWEST, THRESHOLD = -0.16, -2 / 3
"""From `LOWEST` on tokens meet from almost every start; below `THRESHOLD` three of them need not."""


def _structure(flow: Flow) -> tuple[Hypothesis, ...]:
    return (
        measured.on_sphere(flow),
        measured.fact("dim 2", flow.dim == 2, f"dim is {flow.dim}"),
        measured.weights_are(flow, "exponential"),
        measured.no_positions(flow),
        measured.full_mask(flow),
        measured.one_head(flow),
    )


def _speed(flow: Flow) -> Tensor:
    """Return what multiplies e^{β cos} sin in the angles, times the number of tokens, (*system,)."""
    return measured.pull(flow) * math.exp(-flow.attention.offset)


# --- one point -------------------------------------------------------------------------------------------------------


@measured.given(measured.multiples_of_the_identity)
def _meeting_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    text = "almost every start ends in one point; whether this one is among them cannot be read off it"
    above = measured.temperature(flow)[0] - LOWEST
    # Of β as it is written: −0.16 itself is allowed.
    enough = measured.at_most(f"β at least {number(LOWEST)}", -above, 1e-12, f"{number(LOWEST)} − β")
    return (enough, measured.assumed("generic start", text))


def _predict_meeting(flow: Flow, start: Tensor) -> Prediction:
    # Near one point every difference decays at ω c e^{β − offset}.
    rate = float((_speed(flow) * measured.temperature(flow)[0].exp()).min())
    text = f"from almost every start tokens end in one point, distances shrinking like {exponential(-rate)} in the end"
    return Prediction(text, limit="one point", rate=rate)


def _meeting_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    states = trajectory.tensor.detach().double()
    beta = measured.temperature(flow_of_run(trajectory))[0][..., None, None, None]
    cosines = states @ states.mT
    # (e^{β cos} − 1)/β, which is cos for β → 0: the mean over all pairs rises along the flow.
    zero = beta.abs() < measured.LIMIT_AT_ZERO
    safe = torch.where(zero, 1.0, beta)
    energy = torch.where(zero, cosines, torch.expm1(safe * cosines) / safe).mean(dim=(-2, -1))
    largest = torch.where(zero, 1.0, torch.expm1(safe) / safe)[..., 0, 0]
    tolerance = integration_tolerance(trajectory)
    return (
        never_rises(-energy / largest, trajectory, tolerance, "fall of the energy relative to that of one point"),
        tends_to_zero(diameter(states), LIMIT, "the diameter tends to 0"),
    )


# --- three tokens that do not meet -----------------------------------------------------------------------------------


def deviation(states: Tensor) -> Tensor:
    """Return how far three tokens (…, 3, 2) are from equal distances on the circle.

    Their angles in order, less 0, 2π/3 and 4π/3, less the mean of that: the length of these three numbers, (…,).
    """
    angles = torch.atan2(states[..., 1], states[..., 0]).remainder(2 * math.pi).sort(dim=-1).values
    apart = angles - torch.arange(3.0, dtype=torch.float64) * 2 * math.pi / 3
    return torch.linalg.vector_norm(apart - apart.mean(dim=-1, keepdim=True), dim=-1)


def decay(beta: Tensor) -> Tensor:
    """Return the rate e^{−β/2}(−1/2 − 3β/4) at which small deviations fall, of a speed 1; negative where they grow."""
    return (-beta / 2).exp() * (-0.5 - 0.75 * beta)


def _bend(beta: Tensor) -> Tensor:
    """Return a bound of the second derivative of e^{β cos θ} sin θ."""
    return beta.abs().exp() * (1 + 3 * beta.abs() + beta**2)


def _apart_hypotheses(flow: Flow, start: Tensor) -> tuple[Hypothesis, ...]:
    three = measured.fact("three tokens", start.shape[-2] == 3, measured.there_are(start.shape[-2]))
    circuits = measured.multiples_of_the_identity(flow, start)
    if three.holds is False or not all(one.anywhere for one in circuits):
        return (three, *circuits)
    beta = measured.temperature(flow)[0]
    below = measured.above("β below −2/3", THRESHOLD - beta, 0.0, "−2/3 − β")
    room = decay(beta) / _bend(beta) - deviation(flow.space.project(start))
    near = measured.above("tokens nearly equally far apart", room, 0.0, "what is left of the basin at the start")
    return (three, *circuits, below, near) if below.anywhere else (three, *circuits, below)


def _guaranteed(flow: Flow, start: Tensor) -> Tensor:
    """Return the rate at which deviations fall at least, (…,): |δ|' ≤ −r |δ| + K |δ|², and |δ| never grows."""
    beta = measured.temperature(flow)[0]
    return _speed(flow) * (decay(beta) - _bend(beta) * deviation(flow.space.project(start)))


def _predict_apart(flow: Flow, start: Tensor) -> Prediction:
    rate = float((_speed(flow) * decay(measured.temperature(flow)[0])).min())
    least = float(_guaranteed(flow, start).min())
    text = (
        "the three tokens do not meet: they tend to equal distances on the circle, deviations shrinking like "
        f"{exponential(-rate)} in the end and at least like {exponential(-least)} from the start on"
    )
    return Prediction(text, limit="three equidistant tokens", rate=rate)


def _apart_conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    if unfit := of_another_size(trajectory, "three tokens on the circle", trajectory.tensor.shape[-2:] == (3, 2)):
        return unfit
    flow, states = flow_of_run(trajectory), trajectory.tensor.detach().double()
    gap = deviation(states)
    rate = _guaranteed(flow, states[..., 0, :, :]).clamp_min(0.0).unsqueeze(-1)
    elapsed = torch.from_numpy(np.asarray(trajectory.times) - float(trajectory.times[0]))
    allowed = gap[..., :1] * (-rate * elapsed).exp()
    text = "deviation from equal distances beyond what a fall at the guaranteed rate leaves"
    tolerance = integration_tolerance(trajectory)
    return (
        never_above(gap - allowed, trajectory, tolerance, text),
        tends_to_zero(gap, LIMIT, "the deviation from equal distances tends to 0"),
    )


STATEMENTS = (
    Statement(
        name="circle-synchronization",
        title="On the circle tokens meet from almost every start unless they repel each other clearly",
        equations="abstract",
        structure=_structure,
        hypotheses=_meeting_hypotheses,
        predict=_predict_meeting,
        conditions=_meeting_conditions,
    ),
    Statement(
        name="circle-threshold",
        title="Three tokens at equal distances stay apart where β < −2/3",
        equations="abstract",
        structure=_structure,
        hypotheses=_apart_hypotheses,
        predict=_predict_apart,
        conditions=_apart_conditions,
    ),
)
