"""Solutions 1 and 3 with softmax attention: exact in the limit of sharp attention."""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor

from tokendynamics.attention import Attention
from tokendynamics.circuits.hand_built.blocks import on_categories, on_positions, shift
from tokendynamics.circuits.hand_built.selection import selecting, selection
from tokendynamics.circuits.hand_built.solution_1 import readout, recognisers
from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer
from tokendynamics.circuits.pair_task import PairTask
from tokendynamics.numerics.arguments import as_number
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.signatures import typed_arguments

_SHARPEST = math.log(sys.float_info.max)


@typed_arguments
def softmax_solution_1(task: PairTask, sharpness: float = 40.0, causal: bool = False) -> OneLayerTransformer:
    """`solution_1` (form "rows") with softmax attention, ``k^t q = β D_{−1}``, v doubled; corrects `logical` (2.12).

    With n senders the previous token gets the weight ``e^β/(e^β + n − 1)``, so for i ≥ 2 the error decays like
    ``(n − 1) e^{−β}``. Token 1 has no previous one and attends to all alike: Y_1 means nothing.

    Args:
        task: Any N, M and real q_true.
        sharpness: β ≥ 0.
        causal: Whether attention is masked; then n = i.

    Raises:
        ArgumentValueError: A sharpness that is negative or not finite, or whose exponential overflows.

    >>> from tokendynamics.circuits.pair_task import PairTask
    >>> task = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4)
    >>> [round(y, 12) for y in softmax_solution_1(task)([1, 2, 2, 1]).tolist()[1:]]
    [-2.0, 4.0, 3.0]
    """
    v = on_categories(task, 2.0 * torch.eye(task.categories, dtype=torch.float64))
    bias, C = readout(task.q_true, "rows")
    attention = _attending_to_previous(task, v, sharpness, causal)
    return OneLayerTransformer(attention, recognisers(task), bias, C, task, name="solution 1 with softmax")


@typed_arguments
def softmax_solution_3(
    task: PairTask, sharpness: float = 40.0, K: float | None = None, causal: bool = False
) -> OneLayerTransformer:
    """`solution_3` with softmax attention, ``k^t q = β D_{−1}``; corrects `logical` (2.27).

    ``Y_i = Σ_j w_ij q_true[X_j, X_i]`` exactly: a mean over the senders j, of which j = i − 1 has the weight
    ``e^β/(e^β + n − 1)``. So for i ≥ 2 the error is below ``(n − 1) e^{−β} (max q_true − min q_true)``; Y_1 is the
    mean over all.

    Args:
        task: Any N, M and real q_true.
        sharpness: β ≥ 0.
        K: As in `solution_3`.
        causal: Whether attention is masked; then n = i.

    Raises:
        ArgumentValueError: A sharpness that is negative or not finite, or whose exponential overflows; K too small.

    >>> from tokendynamics.circuits.pair_task import PairTask
    >>> task = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4)
    >>> [round(y, 12) for y in softmax_solution_3(task)([1, 2, 2, 1]).tolist()[1:]]
    [-2.0, 4.0, 3.0]
    """
    selected = selection(task.q_true, "exact", K)
    v = on_categories(task, task.q_true.mT * selected.shrink)
    read = torch.ones(task.width, dtype=torch.float64)
    read[task.categories :] = 0.0
    attention = _attending_to_previous(task, v, sharpness, causal)
    return selecting(task, attention, selected, read, "solution 3 with softmax")


def _attending_to_previous(task: PairTask, v: Tensor, sharpness: float, causal: bool) -> Attention:
    if not 0.0 <= as_number(sharpness, "sharpness") <= _SHARPEST:
        wanted = f"a number from 0 to {_SHARPEST:.5f}, beyond which its exponential overflows"
        advice = "at 40 softmax attention is sharp to the last digit"
        raise ArgumentValueError(expected("sharpness", wanted, sharpness, advice))
    return Attention(on_positions(task, sharpness * shift(task.positions)).mT, v, causal=causal, weights="softmax")
