"""The number of groups that tokens form at a given angle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from tokendynamics.numerics._arguments import ArrayLike, as_states, like
from tokendynamics.numerics._errors import ArgumentValueError, expected
from tokendynamics.numerics._signatures import typed_arguments
from tokendynamics.observables._directions import unit_rows
from tokendynamics.observables._distances import angles


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
    linked = angles(unit_rows(states.double())) <= angle
    return like(_component_counts(linked), x)


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
