"""Theorem 3.2 of `asymptotic`: every trajectory of the gradient flow converges to an equilibrium."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Trajectory
from tokendynamics.observables import log_potential
from tokendynamics.theorems import _hypotheses as measured
from tokendynamics.theorems._conditions import flow_of_run, integration_tolerance, never_rises, tends_to_zero
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.result import Condition, Prediction
from tokendynamics.theorems.statements._asymptotic_3_1 import ENERGY, gradient_hypotheses, gradient_structure
from tokendynamics.words import exponential

AT_REST = 1e-6
"""The speed, relative to the largest there can be, that counts as rest."""


def _predict(flow: Flow, start: Tensor) -> Prediction:
    rate = flow.weight_factor
    text = (
        f"the energy {ENERGY} does not increase, and every trajectory converges to an equilibrium; from almost every "
        f"start to consensus, distances then shrinking like {exponential(-rate)}"
    )
    return Prediction(text, limit="an equilibrium; consensus from almost every start", rate=rate)


def _conditions(trajectory: Trajectory) -> tuple[Condition, ...]:
    states = trajectory.tensor.detach().double()
    qk = flow_of_run(trajectory).attention.qk.matrix_at(0.0)[..., 0, :, :].double()
    # V < 0 does not rise exactly when log(−V) does not fall; differences of the logarithm are relative ones.
    falling = -log_potential(states, qk.unsqueeze(-3))
    tolerance = integration_tolerance(trajectory)
    return (
        never_rises(falling, trajectory, tolerance, "relative rise of the energy V"),
        tends_to_zero(_last_speed(trajectory), AT_REST, "the speed tends to 0"),
    )


def _last_speed(trajectory: Trajectory) -> Tensor:
    """Return the largest speed at the end in units of the largest there can be, shape (…, 1)."""
    flow = flow_of_run(trajectory)
    last = trajectory.tensor[..., -1, :, :].detach().double()
    velocity = flow.velocity(last, float(np.asarray(trajectory.times)[-1]))
    metric = measured.metric_of(flow).to(last)
    speed = ((velocity @ metric) * velocity).sum(dim=-1).amax(dim=-1).clamp_min(0).sqrt()
    return torch.atleast_1d(speed.unsqueeze(-1)) / (flow.weight_factor * flow.heads)


STATEMENT = Statement(
    name="asymptotic-3.2",
    title="The gradient flow converges to an equilibrium",
    equations="(8), (10)",
    erratum=(
        "The axis printed in Fig. 1 shows 2V, without the factor ½ of (10). The remark that qk ≠ I is out of reach of "
        "the linearisation does not apply to M = qk: z = qk^{1/2} y turns the system into that with qk = M = I. "
        "M = qk is asked for where M = c · qk with any c > 0 suffices."
    ),
    structure=gradient_structure,
    hypotheses=gradient_hypotheses,
    predict=_predict,
    conditions=_conditions,
)
