"""`asymptotic` Figure 1: a gradient flow on an ellipsoid (Theorem 3.2)."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure

from reproductions.drawing import footnote
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures, observables
from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.spaces import Ellipsoid

PRINTED = published("asymptotic", "fig1")
TOKENS, HORIZON, PRINTED_HORIZON = 10, 200.0, 10.0
CONSENSUS = PRINTED["rows"]["end"]["equals"]
"""V of (10) where all ten tokens are one: −50e."""


@timed
def reproduce(*, seed: int = 1) -> Record:
    """Run ten tokens on the ellipsoid of the printed P, to t = 200 (the paper draws t ≤ 10)."""
    qk = PRINTED.matrix("P")
    space = Ellipsoid(qk)
    flow = Flow(Attention(qk, torch.eye(3, dtype=torch.float64)), space)
    times = np.concatenate([np.linspace(0, PRINTED_HORIZON, 201), np.linspace(PRINTED_HORIZON, HORIZON, 191)[1:]])
    run = simulate(flow, space.sample(TOKENS, 3, seed=seed), times, rtol=1e-10, atol=1e-12, engine="batched")
    potential = observables.potential(run.tensor, qk).numpy()
    computed = {
        "end": potential[-1],
        "rise": np.diff(potential).max(),
        "diameter": observables.diameter(run.tensor[-1]),
        "top": potential[0],
        "twice_top": 2 * potential[0],
        "limit": 2 * CONSENSUS,
    }
    return PRINTED.record(PRINTED.quantities(computed), {"run": run, "potential": potential}, seed=seed)


def draw(record: Record) -> Figure:
    """Draw the tokens, and V beside 2V, which is what the printed axis shows."""
    run, potential = record.results["run"], record.results["potential"]
    figure, (left, right) = figures.panels(
        2, width=figures.DOUBLE, height=3.2, titles=["tokens on the ellipsoid of P", "potential of (10)"]
    )
    figures.tokens(run, axes=left)
    shown = run.times <= PRINTED_HORIZON
    figures.over_time(
        run.times[shown],
        np.stack([potential, 2 * potential])[:, shown],
        "potential",
        names=["V as in (10)", "2V as on the printed axis"],
        references={"−50e": CONSENSUS, "−100e": 2 * CONSENSUS},
        axes=right,
    )
    limit = f"its limit −50e is compared at t = {HORIZON:g}, where the paths end too."
    return footnote(figure, record, f"The potential is drawn to t = {PRINTED_HORIZON:g} as in the paper; {limit}")
