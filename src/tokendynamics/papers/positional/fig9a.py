"""`positional` Figure 9a: rotary positions and V = −I, said to converge; generic starts do not."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from tokendynamics import plots
from tokendynamics.papers.drawing import footnote
from tokendynamics.papers.positional.flows import largest_norms, matrix, query_key_flow, run_free
from tokendynamics.papers.record import Quantity, Record, timed

Q = ((-1.18765511, 0.8975229), (-0.7793589, 0.79105257))
K = ((-1.97520362, -1.98198651), (2.24167927, 2.93460903))
QBAR = ((1.04027991, -0.12991073), (-1.32542484, 1.08074871))
KBAR = ((-1.00477795, -0.48804888), (-0.42151108, 0.02556926))
VALUE = -1.0
CONVERGING = ((-1.8179, -0.9847), (-0.1142, 1.7413), (0.089, 0.8957), (-1.8633, -1.2389))
GROWING = ((0.4278, -0.5708), (2.6545, -1.6085), (0.6617, -0.1434), (-0.3545, 1.0664))
HORIZON, GROWING_HORIZON = 100.0, 20.0

_GENERIC = "generic starts do not converge: the claim holds for some starts only, and both kinds are drawn"


@timed
def reproduce() -> Record:
    """One start of each kind."""
    flow = query_key_flow(matrix(Q), matrix(K), VALUE, (matrix(QBAR), matrix(KBAR)))
    converging = run_free(flow, CONVERGING, np.linspace(0, HORIZON, 401))
    growing = run_free(flow, GROWING, np.linspace(0, GROWING_HORIZON, 401))
    shrinks, grows = largest_norms(converging), largest_norms(growing)
    quantities = (
        Quantity("converging start: largest norm at t = 10", 0.531684706, float(shrinks[40]), 1e-8, source="simulation"),
        Quantity("converging start: largest norm at t = 100", 0.295796879, float(shrinks[-1]), 1e-8, source="simulation"),
        Quantity("converging start: largest norm, last of first", 0.0, float(shrinks[-1] / shrinks[0]), 0.2, "≤"),
        Quantity("other start: largest norm at t = 5", 4.792697688, float(grows[100]), 1e-7, source="simulation"),
        Quantity("other start: highest largest norm after t = 2 over that at 0", 1.0, float(grows[40:].max() / grows[0]), 0.0, "≤", reason=_GENERIC),
    )  # fmt: skip
    return Record(
        paper="positional",
        figure="Figure 9a",
        statement="The paper shows tokens that go to zero. Some starts do (left); others keep growing and turning (right).",
        quantities=quantities,
        invented="both starts (chosen among normal draws, one of each kind), and the horizons",
        seed=None,
        results={"converging": converging, "growing": growing},
    )


def draw(record: Record) -> Figure:
    """A start that converges and one that does not: tokens above, norms below."""
    titles = ["a start that converges", "a start that does not", "", ""]
    figure, panels = plots.panels(2, 2, width=plots.DOUBLE, height=5.4, titles=titles)
    for column, name in enumerate(("converging", "growing")):
        run = record.results[name]
        plots.phase_plane(run, axes=panels[column])
        plots.norms(run.times, run.tensor, axes=panels[column + 2])
    return footnote(figure, f"Printed for convergence, which holds for some starts only. Invented: {record.invented}.")
