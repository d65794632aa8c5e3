"""`asymptotic` Figure 3: two time-varying heads on the sphere, tokens in a hemisphere (Theorem 4.1)."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure

from reproductions.asymptotic.fig2 import two_heads
from reproductions.drawing import footnote
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures, observables
from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.spaces import Sphere

PRINTED = published("asymptotic", "fig3")
V = (1.0, 0.0, 0.0)
"""The printed direction of the hemisphere."""

TOKENS, HORIZON = 10, 40.0


@timed
def reproduce(*, seed: int = 3) -> Record:
    """Run ten tokens with y·v > 0 under the two printed heads, to t = 40."""
    identity = torch.eye(3, dtype=torch.float64)
    flow = Flow(Attention(two_heads(), torch.stack([identity, identity])), Sphere())
    start = Sphere().sample_hemisphere(TOKENS, V, seed=seed)
    times = np.linspace(0, HORIZON, 801)
    run = simulate(flow, start, times, rtol=1e-10, atol=1e-12, engine="batched")
    diameter = observables.diameter(run.tensor, geometry="sphere").numpy()
    lyapunov = observables.hemisphere_function(run.tensor, V).numpy()
    computed = {
        "diameter_6": diameter[times == 6.0][0],
        "diameter_40": diameter[-1],
        "rise": np.diff(lyapunov).max(),
        "limit": lyapunov[-1],
        "smallest": run.tensor[..., 0].min(),
    }
    results = {"run": run, "diameter": diameter, "lyapunov": lyapunov}
    return PRINTED.record(PRINTED.quantities(computed), results, seed=seed)


def draw(record: Record) -> Figure:
    """Draw the tokens, (13), and the diameter on a logarithmic axis."""
    run = record.results["run"]
    titles = ["tokens on the sphere", "Lyapunov function (13)", "diameter"]
    figure, (left, middle, right) = figures.panels(3, width=figures.DOUBLE, height=2.4, titles=titles)
    figures.tokens(run, axes=left)
    shown = run.times <= 10
    figures.over_time(run.times[shown], record.results["lyapunov"][shown], "max (1 − v·y)", axes=middle)
    figures.over_time(run.times, record.results["diameter"], "largest angle (rad)", log="values", axes=right)
    return footnote(figure, record, "Diameters below 1e-11 are the error of the integration.")
