"""Solution 3: attention looks up the row of the previous category, and skip and bias select the current one."""

from __future__ import annotations

import torch

from tokendynamics.attention import Attention
from tokendynamics.circuits.hand_built.blocks import on_categories, on_positions, shift
from tokendynamics.circuits.hand_built.selection import SelectionForm, selecting, selection
from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer
from tokendynamics.circuits.pair_task import PairTask
from tokendynamics.numerics.signatures import typed_arguments

_NAMES = {"exact": "solution 3", "printed": "solution 3 as printed (right for targets ≥ 0)"}


@typed_arguments
def solution_3(
    task: PairTask, form: SelectionForm = "exact", K: float | None = None, causal: bool = False
) -> OneLayerTransformer:
    """Attention fetches row X_{i−1} of the functional, the feed-forward part selects its entry X_i, `logical` 2.3.

    ``k^t q = D_{−1}`` on positions, ``v = A_2^T/K`` on categories; the one-hot category of the skip connection selects
    (2.27). B is the identity.

    Args:
        task: Any N, M and real q_true.
        form: "exact" for any sign, with C = 1 on categories only, which corrects `logical` (2.27); "printed": bias −1
            and C = K everywhere, whose outputs are ``max(q_true, 0)``.
        K: At least ``max(max q_true, 0) + c``, ``c = max(0, −min q_true)``; None for one that is enough.
        causal: Whether attention is masked; the outputs are the same.

    Returns:
        A transformer with one head of linear attention and N + M hidden units.

    Raises:
        ArgumentValueError: An unknown form, or a K that is too small (the least one is printed).

    >>> from tokendynamics.circuits.pair_task import PairTask
    >>> task = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4)
    >>> solution_3(task)([1, 2, 2, 1]).tolist()
    [0.0, -2.0, 4.0, 3.0]
    """
    selected = selection(task.q_true, form, K)
    key_query = on_positions(task, shift(task.positions))
    v = on_categories(task, task.q_true.mT * selected.shrink)
    attention = Attention(key_query.mT, v, causal=causal, weights="linear")
    read = torch.ones(task.width, dtype=torch.float64)
    if form == "exact":
        read[task.categories :] = 0.0
    return selecting(task, attention, selected, read, _NAMES[form])
