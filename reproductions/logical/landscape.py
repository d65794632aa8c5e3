"""`logical` section 3: which zeros the gradients have, and where descent ends."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure

from reproductions.drawing import footnote, stacked_shares
from reproductions.logical.gradients import gradients_3_1, section_3_3, stationary_3_1
from reproductions.record import Quantity, Record, Relation, measured, timed
from tokendynamics import plots
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.circuits.landscape._basins import Basins, Scale, find_basins
from tokendynamics.circuits.landscape._categories_only import CategoriesOnly
from tokendynamics.circuits.landscape._landscape import Landscape
from tokendynamics.circuits.landscape._positions_only import PositionsOnly
from tokendynamics.circuits.landscape._softmax_positions import SoftmaxPositions, Stall, stall
from tokendynamics.circuits.landscape.positions_families import loss_at_infinity, zero_column_sums
from tokendynamics.provenance._progress import Progress, reporting, tracked

CATEGORIES, POSITIONS = 5, 6
DEPTHS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
LINEAR, SMALL, SOFTMAX, SEEN = "3.1", "3.1, small starts", "3.2, softmax", "3.3"
FRACTION = (0.15, 0.45)
"""Between these lies the share of starts that go to infinity, by independent code."""

_INFINITY = (
    "from sΔ < 0 (s the column sums of q, Δ as in (3.23)) the loss falls to T/M while v grows without bound: no zero "
    "of the gradient is there to be found"
)
_BOUNDARY = (
    "where v = p 1^T and no receiver attends to the token before it, all derivatives by the weights of a column are "
    "equal; 3.2 excludes only points with all categories told apart"
)


@timed
def reproduce(
    *, starts: int = 300, depths: Sequence[float] = DEPTHS, seed: int = 3, progress: bool | Progress = False
) -> Record:
    """Check every claim of section 3 on exact landscapes of five categories and six positions.

    Args:
        starts: Random starts of quasi-Newton descents in each landscape; 300 take some minutes.
        depths: How far below the others the logits of the previous tokens start, for the stall.
        seed: Of points and starts.
        progress: Of the descents and the waiting times.
    """
    linear = PositionsOnly([1 / CATEGORIES] * CATEGORIES, POSITIONS)
    softmax = SoftmaxPositions(linear.law, POSITIONS)
    categories = CategoriesOnly(random_functional(CATEGORIES, seed), None, POSITIONS)
    runs: tuple[tuple[str, Landscape, Scale], ...] = (
        (LINEAR, linear, 1.0),
        (SMALL, linear, "fan-in"),
        (SOFTMAX, softmax, 1.0),
        (SEEN, categories, 1.0),
    )
    with reporting(progress) as report:
        found = {
            name: find_basins(place, starts, seed=seed, scale=scale)
            for name, place, scale in tracked(runs, report, f"{starts} descents each")
        }
        stalls = [stall(softmax, depth) for depth in tracked(depths, report, "waiting times")]
    quantities = (
        *gradients_3_1(linear, seed),
        *stationary_3_1(linear, seed),
        *_infinity(linear, found[LINEAR]),
        measured("3.1, small starts: share that goes to infinity", found[SMALL].share("at infinity").fraction),
        *_softmax(softmax, stalls, found[SOFTMAX]),
        *section_3_3(categories, seed),
        measured("3.3: starts that are not solved", _unsolved(found[SEEN])),
    )
    return Record(
        paper="logical",
        figure="Section 3",
        statement="Zeros of the gradient: (3.6)–(3.18) miss a factor −2, which moves no zero; but there are zeros that "
        "are not degenerate (columns of q that sum to zero, and rows of v that do), a valley to infinity that catches "
        "part of all descents, and with softmax a wait that grows like e^{2s}.",
        quantities=quantities,
        invented=f"{CATEGORIES} equally likely categories and {POSITIONS} positions, a standard normal q_true in 3.3, "
        f"{starts} standard normal starts in each landscape, or uniform ones within ±1/√fan-in (seed {seed})",
        seed=seed,
        results={"found": found, "stalls": stalls, "linear": linear, "softmax": softmax},
    )


def draw(record: Record) -> Figure:
    """Final losses in 3.1, what the starts of each landscape end in, and the wait under softmax."""
    found: dict[str, Basins] = record.results["found"]
    linear: PositionsOnly = record.results["linear"]
    titles = ["3.1: losses at the end", "ends of random starts", "3.2: waiting times"]
    figure, (left, middle, right) = plots.panels(3, width=plots.DOUBLE, height=2.8, titles=titles)
    losses = np.sort([run.loss for run in found[LINEAR].runs]) / (POSITIONS - 1)
    saddle = zero_column_sums(linear).loss_per_column
    references = {"1": 1.0, "C: T": linear.gini, "B": saddle, "T/M": loss_at_infinity(linear)}
    ranks = np.arange(1.0, len(losses) + 1)
    plots.over_time(ranks, losses, "loss per token", references=references, time_label="start, by loss", axes=left)
    # Each start is a run of its own: nothing lies between two of them.
    left.lines[0].set(linestyle="none", marker="o", markersize=2.0)
    left.set_xlim(0.0, len(losses) + 1.0)
    left.set_ylim(-0.03, 1.06)
    stacked_shares(middle, {name: _parts(basin) for name, basin in found.items()}, legend=True)
    middle.set_xlabel("share of starts")
    stalls: list[Stall] = record.results["stalls"]
    depths = np.array([entry.depth for entry in stalls])
    times = np.stack([[entry.time for entry in stalls], _leading(record.results["softmax"], depths)])
    names = ["gradient flow", "limit of large s"]
    plots.over_time(depths, times, "time until it leaves", log="values", names=names, time_label="depth s", axes=right)
    return footnote(
        figure,
        record,
        "Depth s: the logits of the previous tokens start at −s, all others at 0, with the best v for them; the "
        "limit is (M−1)² exp(2s) / (4TM). ",
    )


def _infinity(linear: PositionsOnly, found: Basins) -> list[Quantity]:
    share = found.share("at infinity")
    limits = [
        run.classification.limit / (POSITIONS - 1)
        for run in found.runs
        if run.classification is not None and run.kind == "at infinity"
    ]
    farthest = max((abs(limit - loss_at_infinity(linear)) for limit in limits), default=math.nan)
    name = "3.1: share of starts that go to infinity"
    interval = f"95 % interval {share.low:.2f} to {share.high:.2f} of {len(found.runs)} starts"
    bounds: tuple[tuple[str, float, Relation], ...] = (("least", FRACTION[0], "≥"), ("most", FRACTION[1], "≤"))
    return [
        Quantity(f"{name} (“only degenerate points”)", 0.0, share.fraction, 0.0, reason=_INFINITY),
        *(
            Quantity(
                f"{name}, at {word}",
                bound,
                share.fraction,
                0.0,
                relation,
                "simulation",
                unsettled=interval if share.low < bound < share.high else "",
            )
            for word, bound, relation in bounds
        ),
        Quantity(
            "3.1: loss per token there less T/M, largest",
            0.0,
            farthest,
            1e-3,
            "≤",
            "theory",
            unsettled="" if limits else "no start went there",
        ),
        measured("3.1: starts that end at a saddle or are undecided", _parts(found)["saddle or undecided"]),
    ]


def _softmax(softmax: SoftmaxPositions, stalls: Sequence[Stall], found: Basins) -> list[Quantity]:
    weights = torch.full((POSITIONS, POSITIONS), 1.0 / (POSITIONS - 1), dtype=torch.float64)
    weights.diagonal(1).zero_()
    v = softmax.law[:, None].expand(CATEGORIES, CATEGORIES).clone()
    gradient = softmax.linear.gradient(weights, v)
    uneven = (gradient.attention - gradient.attention.mean(dim=0)).norm() + gradient.v.norm()
    last, first = stalls[-1], stalls[0]
    slope = math.log(last.time / stalls[-2].time) / (last.depth - stalls[-2].depth)
    leading = float(_leading(softmax, np.array([last.depth]))[0])
    stationary = float(uneven < 1e-12)
    return [
        Quantity(
            "3.2: stationary points besides the solution, weights on the simplex",
            0.0,
            stationary,
            0.0,
            reason=_BOUNDARY,
        ),
        Quantity("3.2: slope of log(waiting time) over depth at the end", 2.0, slope, 0.05, source="theory"),
        Quantity("3.2: last waiting time over (M−1)² e^{2s}/(4TM)", 1.0, last.time / leading, 0.05, source="theory"),
        measured(f"3.2: waiting time at s = {last.depth:g} over that at s = {first.depth:g}", last.time / first.time),
        Quantity("3.2: share of quasi-Newton starts that are not solved", 0.0, _unsolved(found), 0.0),
    ]


def _leading(softmax: SoftmaxPositions, depths: np.ndarray) -> np.ndarray:
    """The time that is left to leading order for large depths, see `stall`."""
    return (POSITIONS - 1) ** 2 * np.exp(2 * depths) / (4 * softmax.gini * POSITIONS)


def _unsolved(found: Basins) -> float:
    return 1.0 - found.share("global minimum").fraction


def _parts(found: Basins) -> dict[str, float]:
    """Shares of the ends, in four parts that add up to 1."""
    solved, infinite = (found.share(kind).fraction for kind in ("global minimum", "at infinity"))
    local = found.share("local minimum").fraction
    parts = {"solved": solved, "to infinity": infinite, "local minimum": local}
    return parts | {"saddle or undecided": max(0.0, 1.0 - sum(parts.values()))}
