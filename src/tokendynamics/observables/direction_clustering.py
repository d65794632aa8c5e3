"""Groups of tokens of similar direction: how many there are at an angle, who is in which, and how clear they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_count, as_states, like
from tokendynamics.numerics.resources import check_fits
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables._distances import angles
from tokendynamics.observables.directions import unit_rows

_PAIRS = 2**20
"""Pairs of tokens that are compared at a time."""


@typed_arguments
def clusters(x: ArrayLike, angle: int | float) -> Any:
    """Return the number of clusters of token directions.

    Two tokens are linked when the angle between them, 2·atan2(|u − v|, |u + v|) of their unit rows, is at most
    `angle`; clusters are the connected components of that graph. This is single linkage: a chain of close
    tokens is ONE cluster however far its ends are apart, and the angle is not a diameter. Consensus in the
    sense of `asymptotic` (theorems 3.2 to 6.1) is one cluster at every positive angle; antipodal tokens are
    different clusters.

    Args:
        x: States of shape (…, token, dim); the norms of the tokens do not matter.
        angle: The linking angle in radians, from 0 to π.

    Returns:
        Counts of shape (…,), int64, from 1 to the number of tokens.

    Raises:
        ArgumentValueError: An angle outside [0, π], or a zero token (its index is printed).

    >>> clusters([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0]], angle=0.1)
    2
    """
    states = as_states(x)
    if not 0 <= angle <= math.pi:
        raise ArgumentValueError("angle", "radians from 0 to π", angle, "convert degrees first")
    unit, tokens = unit_rows(states.double()), states.shape[-2]
    systems = unit.reshape(-1, *states.shape[-2:])
    if tokens**2 > _PAIRS:
        counts = torch.tensor([_count_in_blocks(system, angle) for system in systems], device=unit.device)
    else:
        together = systems.split(max(1, _PAIRS // max(1, tokens**2)))
        counts = torch.cat([_component_counts(angles(some) <= angle) for some in together])
    return like(counts.reshape(states.shape[:-2]), x)


def _count_in_blocks(unit: Float64[Tensor, "token dim"], angle: float) -> int:
    """Count the components of many tokens, whose links are found some rows at a time."""
    tokens = len(unit)
    component = np.arange(tokens)
    count = tokens
    for start in range(0, tokens, rows := max(1, _PAIRS // tokens)):
        linked = angles(unit[start : start + rows], unit) <= angle
        left, right = np.nonzero(linked.cpu().numpy())
        pairs = np.unique(component[start + left] * count + component[right])  # int8 must not add up to 0
        edges = np.ones(len(pairs), dtype=np.int8), (pairs // count, pairs % count)
        count, merged = connected_components(coo_array(edges, shape=(count, count)), directed=False)
        component = merged[component]
        if count == 1:
            break
    return int(count)


def _component_counts(linked: Bool[Tensor, "*system token token"]) -> Int64[Tensor, "*system"]:
    # All systems form one graph of separate blocks, so that a batch costs one traversal.
    tokens = linked.shape[-1]
    flat = linked.reshape(-1, tokens, tokens).cpu().numpy()
    system, left, right = np.nonzero(flat)
    nodes = flat.shape[0] * tokens
    ones = np.ones(len(system), dtype=np.int8)
    graph = coo_array((ones, (system * tokens + left, system * tokens + right)), shape=(nodes, nodes))
    _, labels = connected_components(graph, directed=False)
    _, first_nodes = np.unique(labels, return_index=True)
    counts = np.bincount(first_nodes // tokens, minlength=flat.shape[0])
    return torch.as_tensor(counts, dtype=torch.int64, device=linked.device).reshape(linked.shape[:-2])


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
        raise ArgumentValueError("x", "(token, dim) with at least three tokens", f"shape {tuple(states.shape)}")
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
