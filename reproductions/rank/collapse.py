"""`rank`: how far tokens are from all being equal, by layer, with and without residual connection."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure

from reproductions.drawing import footnote
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures
from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.numerics.arguments import generator
from tokendynamics.spaces import Free
from tokendynamics.theorems import certify

PRINTED = published("rank", "collapse")
TOKENS, DIM, HEADS = 8, 6, 2


@timed
def reproduce(*, systems: int = 40, layers: int = 8, seed: int = 3) -> Record:
    """Run layers with and without residual connection from the same starts, and compare with both bounds."""
    random = generator(seed)
    qk, ov = torch.randn(2, systems, HEADS, DIM, DIM, dtype=torch.float64, generator=random) / DIM**0.5
    ov = ov / (2 * torch.linalg.matrix_norm(ov, 2).sum(dim=-1)[:, None, None, None])
    start = torch.randn(systems, TOKENS, DIM, dtype=torch.float64, generator=random)
    flow = Flow(Attention(qk, ov), Free())
    runs = {
        name: simulate(flow, start, range(layers + 1), engine="layers", residual=residual)
        for name, residual in (("without residual", 0.0), ("with residual", 1.0))
    }
    logs = {name: run.log_residual for name, run in runs.items()}
    bare, kept = logs.values()
    excess = {
        name: condition.tolerance - float(condition.margin.min())
        for (name, run), statement in zip(runs.items(), ("rank-collapse", "rank-skip"), strict=True)
        for condition in certify(run, [statement])[0].conditions[:1]
    }
    quantities = PRINTED.quantities(
        {
            "ratio": float(np.median(bare[:, -1] / bare[:, -2])),
            "bound": excess["without residual"],
            "last": float(bare[:, -1].max()),
            "kept": float((kept[:, -1] - kept[:, 0]).min()),
            "floor": excess["with residual"],
        }
    )
    sizes = {"systems": systems, "tokens": TOKENS, "dim": DIM, "heads": HEADS}
    return PRINTED.record(quantities, {"logs": logs}, seed=seed, **sizes)


def draw(record: Record) -> Figure:
    """Draw minus the log residual by layer, the median over systems, on a logarithmic axis."""
    logs = record.results["logs"]
    fallen = [np.median(values[:, :1] - values, axis=0)[1:] for values in logs.values()]
    layers = np.arange(1, len(fallen[0]) + 1)
    figure = figures.over_time(
        layers,
        np.abs(fallen),
        "|change of the log residual|",
        names=list(logs),
        time_label="layer",
        log="values",
        width=figures.SINGLE,
    )
    return footnote(figure, record, "A straight line is a doubly exponential fall.")
