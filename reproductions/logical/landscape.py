"""`logical` section 3: which zeros the gradients have, and where descent ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from reproductions.drawing import footnote, stacked_shares
from reproductions.published import published
from reproductions.record import Record, timed
from tokendynamics import figures
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.circuits.landscape import CategoriesOnly, PositionsOnly, SoftmaxPositions, classify, find_basins
from tokendynamics.circuits.landscape.basins import Basins, Scale
from tokendynamics.circuits.landscape.categories_only import mean_predictor, zero_loss, zero_row_sums
from tokendynamics.circuits.landscape.landscape import Landscape, StationaryPoint
from tokendynamics.circuits.landscape.positions_only import families, loss_at_infinity, zero_column_sums
from tokendynamics.circuits.landscape.softmax_positions import Stall, stall
from tokendynamics.numerics.arguments import generator
from tokendynamics.provenance.progress import Progress, reporting, tracked

CATEGORIES, POSITIONS = 5, 6
PRINTED = published("logical", "landscape")
DEPTHS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
LINEAR, SMALL, SOFTMAX, SEEN = "3.1", "3.1, small starts", "3.2, softmax", "3.3"

_DIAGONAL = 0.7
"""v_ii / v_{i,i−1} of the solution that is tried in 3.3."""


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
        basins = {
            name: find_basins(place, starts, seed=seed, scale=scale)
            for name, place, scale in tracked(runs, report, f"{starts} descents each")
        }
        stalls = [stall(softmax, depth) for depth in tracked(depths, report, "waiting times")]
    computed, unsettled = _infinity(linear, basins[LINEAR])
    computed |= {
        **gradients_3_1(linear, seed),
        **stationary_3_1(linear, seed),
        "small": basins[SMALL].share("at infinity").fraction,
        **_softmax(softmax, stalls, basins[SOFTMAX]),
        **section_3_3(categories, seed),
        "unsolved_3_3": _unsolved(basins[SEEN]),
    }
    ends: dict[str, Any] = {"first": stalls[0].depth, "deepest": stalls[-1].depth}
    return PRINTED.record(
        PRINTED.quantities(computed, unsettled, **ends),
        {"found": basins, "stalls": stalls, "linear": linear, "softmax": softmax},
        seed=seed,
        categories=CATEGORIES,
        positions=POSITIONS,
        starts=starts,
    )


def draw(record: Record) -> Figure:
    """Draw final losses in 3.1, what the starts of each landscape end in, and the wait under softmax."""
    basins: dict[str, Basins] = record.results["found"]
    linear: PositionsOnly = record.results["linear"]
    titles = ["3.1: losses at the end", "ends of random starts", "3.2: waiting times"]
    figure, (left, middle, right) = figures.panels(3, width=figures.DOUBLE, height=2.8, titles=titles)
    losses = np.sort([run.loss for run in basins[LINEAR].runs]) / (POSITIONS - 1)
    saddle = zero_column_sums(linear).loss_per_column
    references = {"1": 1.0, "C: T": linear.gini, "B": saddle, "T/M": loss_at_infinity(linear)}
    ranks = np.arange(1.0, len(losses) + 1)
    figures.over_time(ranks, losses, "loss per token", references=references, time_label="start, by loss", axes=left)
    # Each start is a run of its own: nothing lies between two of them.
    left.lines[0].set(linestyle="none", marker="o", markersize=2.0)
    left.set_xlim(0.0, len(losses) + 1.0)
    left.set_ylim(-0.03, 1.06)
    stacked_shares(middle, {name: _parts(basin) for name, basin in basins.items()}, legend=True)
    middle.set_xlabel("share of starts")
    stalls: list[Stall] = record.results["stalls"]
    depths = np.array([entry.depth for entry in stalls])
    times = np.stack([[entry.time for entry in stalls], _leading(record.results["softmax"], depths)])
    names = ["gradient flow", "limit of large s"]
    figures.over_time(
        depths, times, "time until it leaves", log="values", names=names, time_label="depth s", axes=right
    )
    return footnote(
        figure,
        record,
        "Depth s: the logits of the previous tokens start at −s, all others at 0, with the best v for them; the "
        "limit is (M−1)² exp(2s) / (4TM).",
    )


def by_attention(q: Tensor, v: Tensor) -> Tensor:
    """(3.7) and (3.8): ∂E[SSE]/∂q_ji for equally likely categories, (M, M); the first column has no target.

    Args:
        q: (M, M), [sender j, receiver i].
        v: (N, N).
    """
    count = v.shape[0]
    trace, others = v.trace() / count, v.sum() / count**2
    of_sums, of_squares = (v.T @ v).sum() / count**2, (v.T @ v).trace() / count
    linear = torch.full_like(q, float(others))
    linear.diagonal(1).fill_(float(trace))
    printed = linear - of_sums * q.sum(dim=0) - q * (of_squares - of_sums)
    printed[:, 0] = 0.0
    return printed


def by_values(q: Tensor, v: Tensor) -> Tensor:
    """(3.18) summed over i = 2 … M: ∂E[SSE]/∂v_kl for equally likely categories, (N, N)."""
    count = v.shape[0]
    sums, squares, previous = q.sum(dim=0)[1:], q.square().sum(dim=0)[1:], q.diagonal(1)
    row_sums = v.sum(dim=1, keepdim=True)
    identity = torch.eye(count, dtype=q.dtype)
    linear = sums.sum() / count**2 + previous.sum() * (identity / count - 1 / count**2)
    return linear - sums.square().sum() * row_sums / count**2 - squares.sum() * (v / count - row_sums / count**2)


def by_positions(q_true: Tensor, q: Tensor, v: Tensor) -> Tensor:
    """(3.37) for the rows i = 2 … M, (M, M): what is printed is E[(Ŷ_i − Y_i) q(X_s, X_i)] = 2 ∂E[SSE]/∂v_is.

    The expectation is over all N^M texts of equally likely categories, one by one.

    Args:
        q_true: (N, N), [previous, current].
        q: (N, N), [category of the sender, of the receiver].
        v: (M, M), [receiver, sender].
    """
    positions, categories = v.shape[0], q.shape[0]
    texts = torch.cartesian_prod(*[torch.arange(categories)] * positions)
    pairs = q[texts[:, None, :], texts[:, :, None]]  # (text, receiver i, sender s)
    predicted = (v * pairs).sum(dim=-1)
    errors = predicted[:, 1:] - q_true[texts[:, :-1], texts[:, 1:]]
    printed = torch.zeros_like(v)
    printed[1:] = (errors[:, :, None] * pairs[:, 1:]).mean(dim=0) / 2
    return printed


def true_over_printed(landscape: Landscape, q: Tensor, v: Tensor, printed: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the true over the printed derivatives by "q" or "v", without entries that have no influence."""
    gradient = landscape.gradient(q, v)
    true = {"q": gradient.attention, "v": gradient.v}
    return {name: true[name][values != 0] / values[values != 0] for name, values in printed.items()}


def gradients_3_1(landscape: PositionsOnly, seed: int) -> dict[str, float]:
    """Return the true derivatives over the printed ones, at a random point."""
    draws = generator(seed)
    q = torch.randn(landscape.attention_shape, generator=draws, dtype=torch.float64)
    v = torch.randn(landscape.v_shape, generator=draws, dtype=torch.float64)
    quotients = true_over_printed(landscape, q, v, {"q": by_attention(q, v), "v": by_values(q, v)})
    return {**_quotients("by_attention", quotients["q"], -2), **_quotients("by_values", quotients["v"], -2)}


def _quotients(name: str, values: Tensor, factor: int) -> dict[str, float]:
    """Return the median of quotients, and the one that is farthest from a factor."""
    return {name: float(values.median()), f"{name}_far": float(values[(values - factor).abs().argmax()])}


def stationary_3_1(landscape: PositionsOnly, seed: int) -> dict[str, Any]:
    """Return what is found at the six families: gradients, losses, and which of them are saddles."""
    points = families(landscape, seed)
    kinds = {point.family: classify(landscape, point.attention, point.v) for point in points}
    besides = [point for point in points if point.family != "A"]
    second = next(point for point in points if point.family == "B")
    return {
        "families": sum(float(point.attention.norm() * point.v.norm()) > 0 for point in besides),
        "slope": max(_slope(landscape, point) for point in points),
        "losses": max(abs(float(landscape.loss(point.attention, point.v)) - point.loss) for point in points),
        "saddles": sum(kinds[point.family].kind == "strict saddle" for point in besides),
        "loss_B": second.loss_per_column,
        "curvature_B": kinds["B"].lowest_curvature,
    }


def _slope(landscape: Landscape, point: StationaryPoint) -> float:
    slope = landscape.gradient(point.attention, point.v)
    return float(slope.attention.norm() + slope.v.norm())


def section_3_3(landscape: CategoriesOnly, seed: int) -> dict[str, Any]:
    """Return what is compared of 3.3.

    Args:
        landscape: Uniform categories, attention over all positions.
        seed: Of random points.
    """
    return {**_gradient(seed), **_solutions(landscape), **_spurious(landscape), **_branch(landscape)}


def _gradient(seed: int) -> dict[str, float]:
    """Hold (3.37) against an enumeration of all texts of 3 categories and 4 positions."""
    small = CategoriesOnly(random_functional(3, seed), None, 4)
    draws = generator(seed)
    q = torch.randn(small.attention_shape, generator=draws, dtype=torch.float64)
    v = torch.randn(small.v_shape, generator=draws, dtype=torch.float64)
    return _quotients("rows", true_over_printed(small, q, v, {"v": by_positions(small.q_true, q, v)})["v"], 4)


def _solutions(landscape: CategoriesOnly) -> dict[str, Any]:
    """Try the family with v_ii ≠ 0, with the sign of a(t) in (3.71) and with that of the line before it."""
    point = zero_loss(landscape, diagonal=_DIAGONAL)
    a = point.attention - landscape.q_true
    printed = -_DIAGONAL / (1 + _DIAGONAL) * landscape.q_true.diagonal()
    return {
        "family": (a[0] + _DIAGONAL * point.attention.diagonal()).abs().max(),
        "a": (a - printed).abs().max(),
        "solved": point.loss,
        "turned": landscape.loss(landscape.q_true - a, point.v),
    }


def _spurious(landscape: CategoriesOnly) -> dict[str, Any]:
    """Return what is found at stationary points that are no solutions and not all zero."""
    points = [*zero_row_sums(landscape), mean_predictor(landscape)]
    saddles = [classify(landscape, point.attention, point.v).kind == "strict saddle" for point in points]
    return {
        "zeros": len(points),
        "slope_zeros": max(_slope(landscape, point) for point in points),
        "saddles_zeros": sum(saddles) / len(saddles),
        "least": min(point.loss_per_column for point in points),
    }


def _branch(landscape: CategoriesOnly) -> dict[str, float]:
    """(3.58) and (3.59): on the branch Σ_{j≠i} v_ij = 0 the others are −Δv over a count."""
    row = torch.full((landscape.positions - 1,), -1.0 / (landscape.positions - 1), dtype=torch.float64)
    row[0] += 1.0
    count = 1.0 / -float(row[-1])
    return {"branch_N": count, "branch_M": count}


def _infinity(linear: PositionsOnly, basins: Basins) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what is compared of the starts that go to infinity, and which of it these starts cannot tell."""
    share = basins.share("at infinity")
    limits = [
        run.classification.limit / (POSITIONS - 1)
        for run in basins.runs
        if run.classification is not None and run.kind == "at infinity"
    ]
    computed = {
        "infinity": share.fraction,
        "infinity_least": share.fraction,
        "infinity_most": share.fraction,
        "farthest": max((abs(limit - loss_at_infinity(linear)) for limit in limits), default=math.nan),
        "undecided": _parts(basins)["saddle or undecided"],
    }
    interval = f"95 % interval {share.low:.2f} to {share.high:.2f} of {len(basins.runs)} starts"
    bounds = {"infinity_least": "at_least", "infinity_most": "at_most"}
    unsettled = {key: interval for key, side in bounds.items() if share.low < PRINTED["rows"][key][side] < share.high}
    return computed, unsettled if limits else unsettled | {"farthest": "no start went there"}


def _softmax(softmax: SoftmaxPositions, stalls: Sequence[Stall], basins: Basins) -> dict[str, float]:
    weights = torch.full((POSITIONS, POSITIONS), 1.0 / (POSITIONS - 1), dtype=torch.float64)
    weights.diagonal(1).zero_()
    v = softmax.law[:, None].expand(CATEGORIES, CATEGORIES).clone()
    gradient = softmax.linear.gradient(weights, v)
    uneven = (gradient.attention - gradient.attention.mean(dim=0)).norm() + gradient.v.norm()
    last = stalls[-1]
    return {
        "stationary": float(uneven < 1e-12),
        "slope_wait": math.log(last.time / stalls[-2].time) / (last.depth - stalls[-2].depth),
        "wait": last.time / float(_leading(softmax, np.array([last.depth]))[0]),
        "ratio": last.time / stalls[0].time,
        "unsolved": _unsolved(basins),
    }


def _leading(softmax: SoftmaxPositions, depths: np.ndarray) -> np.ndarray:
    """Return the time that is left to leading order for large depths, see `stall`."""
    return (POSITIONS - 1) ** 2 * np.exp(2 * depths) / (4 * softmax.gini * POSITIONS)


def _unsolved(basins: Basins) -> float:
    return 1.0 - basins.share("global minimum").fraction


def _parts(basins: Basins) -> dict[str, float]:
    """Shares of the ends, in four parts that add up to 1."""
    solved, infinite = (basins.share(kind).fraction for kind in ("global minimum", "at infinity"))
    local = basins.share("local minimum").fraction
    parts = {"solved": solved, "to infinity": infinite, "local minimum": local}
    return parts | {"saddle or undecided": max(0.0, 1.0 - sum(parts.values()))}
