"""`logical` 3.3 on an exact landscape: the family of solutions, and stationary points with zero row sums."""

from __future__ import annotations

import torch

from tokendynamics.circuits.functionals import random_functional
from tokendynamics.circuits.landscape.categories_families import mean_predictor, zero_loss, zero_row_sums
from tokendynamics.circuits.landscape.categories_only import CategoriesOnly
from tokendynamics.circuits.landscape.classification import classify
from tokendynamics.numerics.seeding import generator
from tokendynamics.papers.logical.printed_gradients import by_positions, true_over_printed
from tokendynamics.papers.record import Quantity, measured

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
