"""`positional` Figure 9a: rotary positions and V = −I, said to converge; most starts do not."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from reproductions.drawing import footnote, without_legend
from reproductions.positional.flows import draw_tokens, largest_norms, rotary_flow, run_free
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures
from tokendynamics.dynamics import Flow, Status, simulate
from tokendynamics.dynamics.events import NormAbove
from tokendynamics.spaces import Free

PRINTED = published("positional", "fig9a")
KINDS = ("converging", "turning", "growing")
"""Starts that go to zero; that shrink until t ≈ 150, as if they went to zero, and then leave; that leave at once."""
HORIZON, LONG = 400.0, 1e4

_BOUND, _STEPS = 10.0, 3000
_DRAWN = dict(zip(KINDS, (LONG, HORIZON, 20.0), strict=True))


@timed
def reproduce(*, draws: int = 24, seed: int = 9) -> Record:
    """Measure one start of each kind, and the share of random starts that leave.

    Args:
        draws: Random starts of four standard normal tokens, to t = 400.
        seed: Of the random starts.
    """
    flow = rotary_flow(PRINTED)
    shared = np.concatenate([np.linspace(0, 20, 401), np.linspace(20, HORIZON, 381)[1:]])
    longer = np.union1d(shared, np.geomspace(HORIZON, LONG, 61))
    runs = {
        kind: run_free(flow, PRINTED[kind.upper()], longer if kind == "converging" else shared, engine="stiff")
        for kind in KINDS
    }
    falls, turns, grows = (largest_norms(run) for run in runs.values())

    def at(norms: np.ndarray, time: float) -> float:
        return float(norms[np.searchsorted(shared, time - 1e-9)])

    computed = {
        "converging": falls[-1] / falls[0],
        "turning_10": at(turns, 10),
        "turning_100": at(turns, 100),
        "turned": at(turns, 400) / at(turns, 150),
        "growing_5": at(grows, 5),
        "grown": at(grows, 400) / at(grows, 0),
        "left": leaving(flow, draws, seed),
    }
    return PRINTED.record(PRINTED.quantities(computed), runs, seed=seed, draws=draws)


def leaving(flow: Flow, draws: int, seed: int) -> float:
    """Return the share of standard normal starts of four tokens whose largest norm passes 10 by t = 400."""
    start = Free().sample(4, 2, (draws,), seed=seed)
    events = [NormAbove(_BOUND)]
    run = simulate(flow, start, [0.0, HORIZON], rtol=1e-6, atol=1e-9, engine="batched", max_steps=_STEPS, events=events)
    return float((run.status == Status.DIVERGED.value).mean())


def draw(record: Record) -> Figure:
    """Draw a start that converges, one that only seems to, and one that grows: tokens above, norms below."""
    figure, panels = figures.panels(3, 2, width=figures.DOUBLE, height=4.9, titles=[*KINDS, "", "", ""])
    for column, name in enumerate(KINDS):
        run = record.results[name]
        draw_tokens(panels[column], run.tensor[run.times <= _DRAWN[name]])
        figures.norms(run.times[1:], run.tensor[1:], log="both", axes=panels[column + 3])
        if column:
            without_legend(panels[column + 3])
    low, high = panels[3].get_ylim()
    panels[3].set_ylim(low / 4, high)  # room for the legend
    limits = ", ".join(f"{limit:g}" for limit in _DRAWN.values())
    return footnote(
        figure,
        record,
        "The paper shows this flow as converging. The upper row is drawn to t = "
        f"{limits}, in the middle with scales of their own for the axes.",
    )
