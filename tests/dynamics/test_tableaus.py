"""Order conditions of every Runge–Kutta method, one for each rooted tree, in exact fractions.

A tree with branches τ_1, …, τ_k has ``Φ_i(τ) = Π_j Σ_l a_il Φ_l(τ_j)`` and ``γ(τ) = |τ| Π_j γ(τ_j)``. Weights are of
order p if and only if ``Σ_i b_i Φ_i(τ) = 1/γ(τ)`` for all trees of at most p nodes; a continuous extension, if and only
if ``Σ_i b_i(θ) Φ_i(τ) = θ^|τ|/γ(τ)`` for all θ (Hairer, Nørsett and Wanner, Solving Ordinary Differential Equations I,
II.2 and II.6).
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from tokendynamics.dynamics.engines.tableau import TABLEAUS, Tableau

Tree = tuple["Tree", ...]
Row = tuple[Fraction, ...]

EXTENSIONS = {"dopri5": 4, "bosh3": 3, "dop853": 7}
"""Orders of the continuous extensions."""
EMBEDDED = {"dopri5": 4, "bosh3": 2, "dop853": 5}
"""Orders of the weights that estimate the error."""
SHARES = [Fraction(number, 11) for number in range(12)]
"""As many as determine a polynomial of degree 11, more than any extension has."""
ROUNDING = Fraction(1, 10**24)
"""What thirty published digits, times coefficients of some hundreds, leave of a condition."""


@cache
def trees(nodes: int) -> frozenset[Tree]:
    """Return all rooted trees of so many nodes, each as the sorted trees of its branches."""
    if nodes == 1:
        return frozenset({()})
    return frozenset(
        tuple(sorted((*tree, branch)))
        for size in range(1, nodes)
        for branch in trees(size)
        for tree in trees(nodes - size)
    )


@cache
def size(tree: Tree) -> int:
    return 1 + sum(map(size, tree))


@cache
def density(tree: Tree) -> int:
    return size(tree) * math.prod(map(density, tree))


@cache
def rows(name: str) -> tuple[Row, ...]:
    """Return all rows of a, those of the extension last."""
    return TABLEAUS[name].stages + TABLEAUS[name].extra_stages


@cache
def elementary(name: str, tree: Tree) -> Row:
    """Return Φ_i of a tree for all stages."""
    inner = [
        tuple(
            sum((a * phi for a, phi in zip(row, elementary(name, branch), strict=False)), Fraction(0))
            for row in rows(name)
        )
        for branch in tree
    ]
    return tuple(math.prod(factors, start=Fraction(1)) for factors in zip(*inner, strict=True)) or (Fraction(1),) * len(
        rows(name)
    )


def quadrature(name: str, weights: Row, tree: Tree) -> Fraction:
    return sum((b * phi for b, phi in zip(weights, elementary(name, tree), strict=False)), Fraction(0))


def order(name: str, weights: Row, share: Fraction = Fraction(1), most: int = 9) -> int:
    """Return the largest p for which all trees of at most p nodes meet their condition."""
    for nodes in range(1, most + 1):
        for tree in trees(nodes):
            if abs(quadrature(name, weights, tree) - share**nodes / density(tree)) > ROUNDING:
                return nodes - 1
    return most


def weights_at(method: Tableau, share: Fraction) -> Row:
    """Return the weights b_i(θ) of the continuous extension."""
    values: list[Fraction] = []
    for row in method.extension:
        total = Fraction(0)
        for place, coefficient in reversed(list(enumerate(row))):
            total = coefficient + (1 - share if place % 2 == 0 else share) * total
        values.append(share * total)
    return tuple(values)


def test_there_are_as_many_trees_as_known() -> None:
    assert [len(trees(nodes)) for nodes in range(1, 10)] == [1, 1, 2, 4, 9, 20, 48, 115, 286]


@pytest.mark.parametrize("name", TABLEAUS)
def test_nodes_are_the_sums_of_their_rows(name: str) -> None:
    method = TABLEAUS[name]
    for node, row in zip((*method.nodes, *method.extra_nodes), rows(name), strict=True):
        assert abs(node - sum(row)) <= ROUNDING


@pytest.mark.parametrize("name", TABLEAUS)
def test_the_solution_is_of_the_stated_order_and_of_no_higher_one(name: str) -> None:
    assert order(name, TABLEAUS[name].weights) == TABLEAUS[name].order


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_error_estimate_is_the_difference_to_a_lower_order(name: str) -> None:
    method = TABLEAUS[name]
    lower = tuple(b - e for b, e in zip(method.weights, method.error, strict=True))
    assert order(name, lower) == EMBEDDED[name]
    assert abs(sum(method.error)) <= ROUNDING


def test_the_second_estimate_of_dop853_is_the_difference_to_order_3() -> None:
    method = TABLEAUS["dop853"]
    lower = tuple(b - c for b, c in zip(method.weights, method.coarse, strict=True))
    assert order("dop853", lower) == 3


@pytest.mark.parametrize("name", EXTENSIONS)
def test_the_continuous_extension_is_of_its_order_everywhere(name: str) -> None:
    orders = [order(name, weights_at(TABLEAUS[name], share), share, EXTENSIONS[name] + 1) for share in SHARES[1:-1]]
    assert min(orders) == EXTENSIONS[name]


@pytest.mark.parametrize("name", EXTENSIONS)
def test_the_continuous_extension_meets_states_and_slopes_at_both_ends(name: str) -> None:
    """Also from one step to the next: dy/dθ is h k of the first stage at 0 and of the last at 1."""
    method, count = TABLEAUS[name], len(TABLEAUS[name].stages)
    assert weights_at(method, Fraction(0)) == (0,) * len(rows(name))
    assert weights_at(method, Fraction(1))[:count] == method.weights
    assert not any(weights_at(method, Fraction(1))[count:])
    step = Fraction(1, 10**12)
    for end, stage in ((Fraction(0), 0), (Fraction(1), count - 1)):
        inside = end + (step if end == 0 else -step)
        pairs = zip(weights_at(method, end), weights_at(method, inside), strict=True)
        slopes = [float((after - before) / (inside - end)) for before, after in pairs]
        np.testing.assert_allclose(slopes, np.arange(len(slopes)) == stage, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", EMBEDDED)
def test_pairs_are_first_same_as_last(name: str) -> None:
    method = TABLEAUS[name]
    assert method.stages[-1] == method.weights[:-1]
    assert method.weights[-1] == 0
    assert method.nodes[-1] == 1


@pytest.mark.long
@pytest.mark.parametrize("name", ["dopri5", "bosh3"])
def test_no_state_within_a_step_is_out_of_reach(name: str) -> None:
    """|y(θ) − y| ≤ reach · h max|k| from both ends, by which steps are skipped; little less would do."""
    method = TABLEAUS[name]
    weights = np.array([weights_at(method, Fraction(number, 2000)) for number in range(2001)], dtype=float)
    # Between two of them a weight changes by at most its steepest slope times half their distance.
    steepest = np.abs(np.diff(weights, axis=0)).sum(axis=1).max()
    largest = max(np.abs(weights).sum(axis=1).max(), np.abs(weights - weights[-1]).sum(axis=1).max())
    assert largest + steepest / 2 <= 1.01 * method.reach
    assert 0.99 * method.reach < largest <= method.reach


def test_where_extra_stages_are_not_known_nothing_is_out_of_reach() -> None:
    for method in TABLEAUS.values():
        assert math.isinf(method.reach) is not (method.error and not method.extra_stages)
