"""The number of groups that tokens form at a given angle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_states, like
from tokendynamics.numerics.errors import expected
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
        raise ArgumentValueError(expected("angle", "radians from 0 to π", angle, "convert degrees first"))
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
