"""`positional` Figure 9a: rotary positions and V = −I, said to converge; most starts do not."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from reproductions.drawing import footnote, framed, without_legend
from reproductions.positional.flows import largest_norms, matrix, query_key_flow, run_free
from reproductions.record import Quantity, Record, timed
from tokendynamics import plots
from tokendynamics.dynamics import Flow, Status, simulate
from tokendynamics.dynamics.events import NormAbove
from tokendynamics.spaces import Free

Q = ((-1.18765511, 0.8975229), (-0.7793589, 0.79105257))
K = ((-1.97520362, -1.98198651), (2.24167927, 2.93460903))
QBAR = ((1.04027991, -0.12991073), (-1.32542484, 1.08074871))
KBAR = ((-1.00477795, -0.48804888), (-0.42151108, 0.02556926))
VALUE = -1.0

CONVERGING = ((1.5558, 2.2597), (2.0956, 0.2142), (1.3701, 0.8451), (-1.0390, 0.7534))
TURNING = ((-1.8179, -0.9847), (-0.1142, 1.7413), (0.089, 0.8957), (-1.8633, -1.2389))
"""Shrinks until t ≈ 150, as if it went to zero, and then leaves."""

GROWING = ((0.4278, -0.5708), (2.6545, -1.6085), (0.6617, -0.1434), (-0.3545, 1.0664))
HORIZON, LONG = 400.0, 1e4

_BOUND, _STEPS = 10.0, 3000
_DRAWN = {"converging": LONG, "turning": HORIZON, "growing": 20.0}
_TURNS = "it shrinks for long and then leaves: confirmed at other tolerances and by another integrator"
_GENERIC = "most starts leave: the claim holds for some starts only"


@timed
def reproduce(*, draws: int = 24, seed: int = 9) -> Record:
    """Measure one start of each kind, and the share of random starts that leave.

    Args:
        draws: Random starts of four standard normal tokens, to t = 400.
        seed: Of the random starts.
    """
    flow = query_key_flow(matrix(Q), matrix(K), VALUE, (matrix(QBAR), matrix(KBAR)))
    shared = np.concatenate([np.linspace(0, 20, 401), np.linspace(20, HORIZON, 381)[1:]])
    converging = run_free(flow, CONVERGING, np.union1d(shared, np.geomspace(HORIZON, LONG, 61)), engine="stiff")
    turning, growing = (run_free(flow, start, shared, engine="stiff") for start in (TURNING, GROWING))
    falls, turns, grows = (largest_norms(run) for run in (converging, turning, growing))
    left = leaving(flow, draws, seed)

    def at(norms: np.ndarray, time: float) -> float:
        return float(norms[np.searchsorted(shared, time - 1e-9)])

    turned, grown = at(turns, 400) / at(turns, 150), at(grows, 400) / at(grows, 0)
    quantities = (
        Quantity(
            "converging start: largest norm, t = 1e4 over t = 0", 0.0, float(falls[-1] / falls[0]), 0.01, "≤", "reading"
        ),
        Quantity("turning start: largest norm at t = 10", 0.531684706, at(turns, 10), 1e-7, source="simulation"),
        Quantity("turning start: largest norm at t = 100", 0.295796879, at(turns, 100), 1e-7, source="simulation"),
        Quantity("turning start: largest norm, t = 400 over 150", 1.0, turned, 0.0, "≤", "reading", _TURNS),
        Quantity("growing start: largest norm at t = 5", 4.792697688, at(grows, 5), 1e-6, source="simulation"),
        Quantity("growing start: largest norm, t = 400 over 0", 1.0, grown, 0.0, "≤", "reading", _GENERIC),
        Quantity(
            "share of random starts whose largest norm passes 10 by t = 400", 0.0, left, 0.0, "=", "reading", _GENERIC
        ),
    )
    return Record(
        paper="positional",
        figure="Figure 9a",
        statement="The paper shows tokens that go to zero. Some starts do; others seem to, or leave at once.",
        quantities=quantities,
        invented=f"all starts (one of each kind, found among normal draws, and {draws} more with seed {seed}), and the "
        "horizons",
        seed=seed,
        results={"converging": converging, "turning": turning, "growing": growing},
    )


def leaving(flow: Flow, draws: int, seed: int) -> float:
    """Return the share of standard normal starts of four tokens whose largest norm passes 10 by t = 400."""
    start = Free().sample(4, 2, (draws,), seed=seed)
    events = [NormAbove(_BOUND)]
    run = simulate(flow, start, [0.0, HORIZON], rtol=1e-6, atol=1e-9, engine="batched", max_steps=_STEPS, events=events)
    return float((run.status == Status.DIVERGED.value).mean())


def draw(record: Record) -> Figure:
    """Draw a start that converges, one that only seems to, and one that grows: tokens above, norms below."""
    names = ("converging", "turning", "growing")
    figure, panels = plots.panels(3, 2, width=plots.DOUBLE, height=4.9, titles=[*names, "", "", ""])
    for column, name in enumerate(names):
        run = record.results[name]
        plots.phase_plane(run.tensor[run.times <= _DRAWN[name]], axes=panels[column])
        framed(panels[column])
        plots.norms(run.times[1:], run.tensor[1:], log="both", axes=panels[column + 3])
        if column:
            without_legend(panels[column + 3])
    low, high = panels[3].get_ylim()
    panels[3].set_ylim(low / 4, high)  # room for the legend
    limits = ", ".join(f"{limit:g}" for limit in _DRAWN.values())
    return footnote(
        figure,
        "The paper shows this flow as converging. The upper row is drawn to t = "
        f"{limits}, in the middle with scales of their own for the axes. Invented: {record.invented}.",
    )
