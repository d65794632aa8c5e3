"""`logical` 3.1 and 3.3 on exact landscapes: the printed derivatives beside the true ones, and the zeros they have."""

from __future__ import annotations

import torch
from torch import Tensor

from reproductions.record import Quantity, measured
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.circuits.landscape._categories_only import CategoriesOnly
from tokendynamics.circuits.landscape._classification import classify
from tokendynamics.circuits.landscape._landscape import Landscape
from tokendynamics.circuits.landscape._positions_only import PositionsOnly
from tokendynamics.circuits.landscape.categories_families import mean_predictor, zero_loss, zero_row_sums
from tokendynamics.circuits.landscape.positions_families import families
from tokendynamics.numerics._seeding import generator


def by_attention(q: Tensor, v: Tensor) -> Tensor:
    """(3.7) and (3.8): ∂E[SSE]/∂q_ji for equally likely categories, (M, M); the first column has no target.

    Args:
        q: (M, M), [sender j, receiver i].
        v: (N, N).
    """
    count = v.shape[0]
    own, others = v.trace() / count, v.sum() / count**2
    of_sums, of_squares = (v.T @ v).sum() / count**2, (v.T @ v).trace() / count
    linear = torch.full_like(q, float(others))
    linear.diagonal(1).fill_(float(own))
    printed = linear - of_sums * q.sum(dim=0) - q * (of_squares - of_sums)
    printed[:, 0] = 0.0
    return printed


def by_values(q: Tensor, v: Tensor) -> Tensor:
    """(3.18) summed over i = 2 … M: ∂E[SSE]/∂v_kl for equally likely categories, (N, N)."""
    count = v.shape[0]
    sums, squares, own = q.sum(dim=0)[1:], q.square().sum(dim=0)[1:], q.diagonal(1)
    row_sums = v.sum(dim=1, keepdim=True)
    identity = torch.eye(count, dtype=q.dtype)
    linear = sums.sum() / count**2 + own.sum() * (identity / count - 1 / count**2)
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
    """The quotients of the true and the printed derivatives by "q" or "v", entries without influence left out."""
    gradient = landscape.gradient(q, v)
    true = {"q": gradient.attention, "v": gradient.v}
    return {name: true[name][values != 0] / values[values != 0] for name, values in printed.items()}


_FACTOR = (
    "the derivative of a square has a factor 2 and the inner one a minus; both are missing, here and in (3.9)–(3.18), "
    "and no zero is moved"
)
_MISSED = (
    "B: columns of q that sum to zero, the case (3.33), of which no more is said: q = (e_{i−1} − 1/M)/Δ, "
    "v = Δ I + w 1^T with p·w = −Δ(|p|² + T/M); C and D: v sends the same for every category"
)


def gradients_3_1(landscape: PositionsOnly, seed: int) -> list[Quantity]:
    """The true derivatives over the printed ones, at a random point."""
    draws = generator(seed)
    q = torch.randn(landscape.attention_shape, generator=draws, dtype=torch.float64)
    v = torch.randn(landscape.v_shape, generator=draws, dtype=torch.float64)
    printed = {"q": by_attention(q, v), "v": by_values(q, v)}
    quotients = true_over_printed(landscape, q, v, printed)
    rows = []
    for name, equations in (("q", "(3.7), (3.8)"), ("v", "(3.18)")):
        values = quotients[name]
        farthest = float(values[(values + 2).abs().argmax()])
        text = f"{equations}: true over printed derivative"
        rows.append(Quantity(text, 1.0, float(values.median()), 1e-9, reason=_FACTOR))
        rows.append(Quantity(f"{text}, farthest from −2", -2.0, farthest, 1e-9, source="theory"))
    return rows


def stationary_3_1(landscape: PositionsOnly, seed: int) -> list[Quantity]:
    """The six families: zeros of the gradient, their losses, and which of them are saddles."""
    points = families(landscape, seed)
    kinds = {point.family: classify(landscape, point.attention, point.v) for point in points}
    gradients, losses = [], []
    for point in points:
        slope = landscape.gradient(point.attention, point.v)
        gradients.append(float(slope.attention.norm() + slope.v.norm()))
        losses.append(abs(float(landscape.loss(point.attention, point.v)) - point.loss))
    others = [point for point in points if point.family != "A" and float(point.attention.norm() * point.v.norm()) > 0]
    saddles = [kinds[point.family].kind == "strict saddle" for point in points if point.family != "A"]
    second = next(point for point in points if point.family == "B")
    return [
        Quantity(
            "3.1: families of zeros besides the solution with q ≠ 0 and v ≠ 0",
            0.0,
            float(len(others)),
            0.0,
            reason=_MISSED,
        ),
        Quantity("3.1: largest gradient at a member of the six families", 0.0, max(gradients), 1e-12, "≤", "theory"),
        Quantity("3.1: largest error of their losses", 0.0, max(losses), 1e-12, "≤", "theory"),
        Quantity(
            "3.1: strict saddles among the five besides the solution", 5.0, float(sum(saddles)), 0.0, source="theory"
        ),
        measured("3.1: loss per token of family B", second.loss_per_column),
        measured("3.1: lowest curvature of family B", kinds["B"].lowest_curvature),
    ]


_HALF = "the factor 2 of (3.37) is on the wrong side: the derivative of the squared error is twice the expectation"
_ROWS = "(3.54) divides by Σ_k v_ik, and 3.3.1 sets v_{i,i−1} = 1: points where one of them is zero are lost"
_SIGN = "the solution has q = q_true + a(t), as the text after (3.71) says; the equation before it has the other sign"
_SIZE = "a row of v has M entries, not N"
_DIAGONAL = 0.7
"""v_ii / v_{i,i−1} of the solution that is tried."""


def section_3_3(landscape: CategoriesOnly, seed: int) -> list[Quantity]:
    """All rows of 3.3.

    Args:
        landscape: Uniform categories, attention over all positions.
        seed: Of random points.
    """
    return [*_gradient(seed), *_solutions(landscape), *_spurious(landscape), *_branch(landscape)]


def _gradient(seed: int) -> list[Quantity]:
    """(3.37) by enumeration of all texts of 3 categories and 4 positions."""
    small = CategoriesOnly(random_functional(3, seed), None, 4)
    draws = generator(seed)
    q = torch.randn(small.attention_shape, generator=draws, dtype=torch.float64)
    v = torch.randn(small.v_shape, generator=draws, dtype=torch.float64)
    quotients = true_over_printed(small, q, v, {"v": by_positions(small.q_true, q, v)})["v"]
    farthest = float(quotients[(quotients - 4).abs().argmax()])
    return [
        Quantity("(3.37): true over printed derivative", 1.0, float(quotients.median()), 1e-9, reason=_HALF),
        Quantity("(3.37): true over printed, farthest from 4", 4.0, farthest, 1e-9, source="theory"),
    ]


def _solutions(landscape: CategoriesOnly) -> list[Quantity]:
    """The family with v_ii ≠ 0, with the sign of a(t) in (3.71) and with that of the line before it."""
    point = zero_loss(landscape, diagonal=_DIAGONAL)
    a = point.attention - landscape.q_true
    printed = -_DIAGONAL / (1 + _DIAGONAL) * landscape.q_true.diagonal()
    equation = (a[0] + _DIAGONAL * point.attention.diagonal()).abs().max()
    turned = float(landscape.loss(landscape.q_true - a, point.v))
    return [
        Quantity("(3.71): 0 = a(t) + v_ii q_tt, largest error", 0.0, float(equation), 1e-12),
        Quantity(
            "below (3.71): a(t) = −v_ii/(1 + v_ii) q_true(t,t), largest error",
            0.0,
            float((a - printed).abs().max()),
            1e-12,
        ),
        Quantity("3.3: loss with q = q_true + a, v_ii ≠ 0", 0.0, point.loss, 1e-12),
        Quantity("above (3.71): loss with q_true = a + q", 0.0, turned, 1e-12, reason=_SIGN),
    ]


def _spurious(landscape: CategoriesOnly) -> list[Quantity]:
    """Stationary points that are no solutions and not all zero."""
    points = [*zero_row_sums(landscape), mean_predictor(landscape)]
    slopes = [landscape.gradient(point.attention, point.v) for point in points]
    largest = max(float(slope.attention.norm() + slope.v.norm()) for slope in slopes)
    saddles = [classify(landscape, point.attention, point.v).kind == "strict saddle" for point in points]
    least = min(point.loss_per_column for point in points)
    return [
        Quantity("3.3: kinds of zeros besides the solutions and q = v = 0", 0.0, float(len(points)), 0.0, reason=_ROWS),
        Quantity("3.3: largest gradient at these", 0.0, largest, 1e-10, "≤", "theory"),
        Quantity("3.3: share of strict saddles among these", 1.0, sum(saddles) / len(saddles), 0.0, source="theory"),
        measured("3.3: least loss per token of these", least),
    ]


def _branch(landscape: CategoriesOnly) -> list[Quantity]:
    """(3.58) and (3.59): on the branch Σ_{j≠i} v_ij = 0 the others are −Δv over a count."""
    positions, categories = landscape.positions, len(landscape.law)
    row = torch.full((positions - 1,), -1.0 / (positions - 1), dtype=torch.float64)
    row[0] += 1.0
    count = 1.0 / -float(row[-1])
    name = "(3.59): −Δv / v_i1 where Σ_{j≠i} v_ij = 0"
    return [
        Quantity(f"{name}, N − 1 as printed", float(categories - 1), count, 1e-12, reason=_SIZE),
        Quantity(f"{name}, M − 1", float(positions - 1), count, 1e-12, source="theory"),
    ]
