"""`asymptotic` Figure 1: a gradient flow on an ellipsoid (Theorem 3.2)."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.figure import Figure

from reproductions.drawing import footnote
from reproductions.record import Quantity, Record, timed
from tokendynamics import observables, plots
from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.spaces import Ellipsoid

P = ((0.9432, 0.0587, -0.1813), (0.0587, 0.8450, -0.1013), (-0.1813, -0.1013, 0.5519))
TOKENS, HORIZON, PRINTED_HORIZON = 10, 200.0, 10.0
PRINTED_AXIS = (-280.0, -120.0)
CONSENSUS = -TOKENS * TOKENS / 2 * math.e
"""V of (10) where all ten tokens are one: −50e."""

_HALF = "the printed axis shows 2V, without the factor 1/2 of (10)"


@timed
def reproduce(*, seed: int = 1) -> Record:
    """Run ten tokens on the ellipsoid of the printed P, to t = 200 (the paper draws t ≤ 10)."""
    qk = torch.tensor(P, dtype=torch.float64)
    space = Ellipsoid(qk)
    flow = Flow(Attention(qk, torch.eye(3, dtype=torch.float64)), space)
    times = np.concatenate([np.linspace(0, PRINTED_HORIZON, 201), np.linspace(PRINTED_HORIZON, HORIZON, 191)[1:]])
    run = simulate(flow, space.sample(TOKENS, 3, seed=seed), times, rtol=1e-10, atol=1e-12, engine="batched")
    potential = observables.potential(run.tensor, qk).numpy()
    quantities = (
        Quantity("V at t = 200, −50e", CONSENSUS, float(potential[-1]), 1e-3, source="theory"),
        Quantity("largest rise of V between saved times", 0.0, float(np.diff(potential).max()), 1e-9, "≤", "theory"),
        Quantity("diameter at t = 200", 0.0, float(observables.diameter(run.tensor[-1])), 1e-2, "≤", "reading"),
        Quantity(
            "V at t = 0, at or below the top of the printed axis",
            PRINTED_AXIS[1],
            float(potential[0]),
            0.0,
            "≤",
            "reading",
            _HALF,
        ),
        Quantity(
            "2V at t = 0, at or below the top of the printed axis",
            PRINTED_AXIS[1],
            2 * float(potential[0]),
            0.0,
            "≤",
            "reading",
        ),
        Quantity(
            "limit of 2V, at or above the foot of the printed axis", PRINTED_AXIS[0], 2 * CONSENSUS, 0.0, "≥", "reading"
        ),
    )
    return Record(
        paper="asymptotic",
        figure="Figure 1",
        statement="One head with value matrix I on the ellipsoid of P: a gradient flow of V, (10), to consensus.",
        quantities=quantities,
        invented=f"the ten initial tokens (uniform for the metric P, seed {seed})",
        seed=seed,
        results={"run": run, "potential": potential},
    )


def draw(record: Record) -> Figure:
    """Draw the tokens, and V beside 2V, which is what the printed axis shows."""
    run, potential = record.results["run"], record.results["potential"]
    figure, (left, right) = plots.panels(
        2, width=plots.DOUBLE, height=3.2, titles=["tokens on the ellipsoid of P", "potential of (10)"]
    )
    plots.tokens(run, axes=left)
    shown = run.times <= PRINTED_HORIZON
    plots.over_time(
        run.times[shown],
        np.stack([potential, 2 * potential])[:, shown],
        "potential",
        names=["V as in (10)", "2V as on the printed axis"],
        references={"−50e": CONSENSUS, "−100e": 2 * CONSENSUS},
        axes=right,
    )
    return footnote(
        figure,
        f"The potential is drawn to t = {PRINTED_HORIZON:g} as in the paper; its limit −50e is compared at "
        f"t = {HORIZON:g}, where the paths end too. Invented: {record.invented}.",
    )
