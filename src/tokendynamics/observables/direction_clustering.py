"""Groups of tokens of similar direction: how many there are, which token is in which, and how clear they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_count, as_states
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.resources import check_fits
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables.directions import unit_rows

CLEAR = 0.5
"""Silhouette from which groups are groups: a token is half as far, or less, from its own as from the next. The best
division of 30 directions drawn at random reaches 0.9 in 2 dimensions, 0.7 in 3, 0.45 in 8 and 0.13 in 64: in few
dimensions no silhouette tells groups from chance."""


@dataclass(frozen=True, eq=False)
class DirectionClusters:
    """Groups of tokens.

    Attributes:
        member: Of each token the number of its group, the largest group first; integers, shape (token,).
        count: How many groups there are; 1 where none is clear.
        silhouette: Mean silhouette of the best division into two groups or more; NaN where all directions are one.
        silhouettes: Of each token, float64, shape (token,).

    >>> clusters = direction_clusters([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> clusters.count, clusters.member.tolist()
    (2, [0, 0, 1, 1])
    """

    member: np.ndarray
    count: int
    silhouette: float
    silhouettes: np.ndarray


@typed_arguments
def direction_clusters(x: ArrayLike, most: int = 8) -> DirectionClusters:
    """Group tokens by their directions, into as many groups as the mean silhouette is largest for.

    Average linkage on the distances 1 − cos (SciPy); the silhouette of a token is (b − a)/max(a, b), a its mean
    distance to the others of its group and b to those of the nearest other group, 0 for a group of one
    (P. Rousseeuw, 1987).
    Where the best division has a silhouette below `CLEAR`, there is one group.

    Args:
        x: States, (token, dim), at least three tokens; their norms do not matter.
        most: Groups at most.

    Raises:
        ArgumentValueError: Fewer than three tokens, other axes, or a token that is zero or not finite.
        MemoryLimitError: Tokens whose distances, of all pairs, are larger than the memory.

    >>> found = direction_clusters([[1.0, 0.0], [1.0, 0.1], [0.0, 2.0], [0.1, 2.0], [0.05, 1.0]])
    >>> found.count, found.member.tolist(), round(found.silhouette, 2)
    (2, [1, 1, 0, 0, 0], 1.0)
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import pdist, squareform

    states = as_states(x)
    if states.ndim != 2 or len(states) < 3:
        raise ArgumentValueError(
            expected("x", "(token, dim) with at least three tokens", f"shape {tuple(states.shape)}")
        )
    as_count(most, "most", 2)
    # The distances of all pairs, and those of each pair once, here and in SciPy.
    check_fits(16 * len(states) ** 2, "x", "pass fewer tokens")
    units = unit_rows(states.double()).cpu().numpy()
    of_pairs = pdist(units, "sqeuclidean") / 2  # 1 − cos, without cancellation
    distances, tree = squareform(of_pairs), linkage(of_pairs, method="average")
    best = (np.nan, np.zeros(len(units), dtype=int), np.full(len(units), np.nan))
    for count in range(2, min(most, len(units) - 1) + 1):
        member = fcluster(tree, count, criterion="maxclust") - 1
        if member.max() + 1 == count:
            silhouettes = _silhouettes(distances, member)
            if not best[0] >= silhouettes.mean():
                best = float(silhouettes.mean()), member, silhouettes
    value, member, silhouettes = best
    if not value >= CLEAR:
        return DirectionClusters(np.zeros(len(units), dtype=int), 1, value, silhouettes)
    order = np.argsort(-np.bincount(member), kind="stable")
    return DirectionClusters(np.argsort(order)[member], len(order), value, silhouettes)


def _silhouettes(distances: np.ndarray, member: np.ndarray) -> np.ndarray:
    groups = np.eye(member.max() + 1)[member]
    sizes = groups.sum(axis=0)
    sums = distances @ groups
    within = sums[np.arange(len(member)), member] / np.maximum(sizes[member] - 1, 1)
    others = np.where(groups > 0, np.inf, sums / sizes).min(axis=1)
    largest = np.maximum(within, others)
    silhouettes = np.divide(others - within, largest, out=np.zeros(len(member)), where=largest > 0)
    return np.where(sizes[member] > 1, silhouettes, 0.0)
