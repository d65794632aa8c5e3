"""Solution 2: attention computes the functional of all pairs, and skip and bias select the adjacent one."""

from __future__ import annotations

import torch

from tokendynamics.attention import Attention
from tokendynamics.circuits.hand_built.blocks import on_categories, on_positions, shift
from tokendynamics.circuits.hand_built.selection import SelectionForm, selecting, selection
from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer
from tokendynamics.circuits.pair_task import PairTask
from tokendynamics.numerics.signatures import typed_arguments

_NAMES = {"exact": "solution 2", "printed": "solution 2 as printed (right for targets ≥ 0)"}


@typed_arguments
def solution_2(
    task: PairTask, form: SelectionForm = "exact", K: float | None = None, causal: bool = False
) -> OneLayerTransformer:
    """The logits are the functional of each pair, the logic is in attention, `logical` 2.2.

    ``k^t q = A_2 = q_true`` on categories (2.16), (2.17); ``v = S/K`` moves what sender j says to position j + 1; there
    the one-hot position of the skip connection selects the diagonal (2.21). B is the identity.

    Args:
        task: Any N, M and real q_true.
        form: "exact" for any sign: ``Y = K·C·ReLU(X + ATT/K − (1 − c/K)) − c`` with ``c = max(0, −min q_true)`` and
            C = 1 on positions only, which corrects `logical` (2.21). "printed": bias −1 and C = K everywhere, whose
            outputs are ``max(q_true, 0)``.
        K: At least ``max(max q_true, 0) + c``; None for one that is enough. See `selection`.
        causal: Whether attention is masked; the outputs are the same.

    Returns:
        A transformer with one head of linear attention and N + M hidden units.

    Raises:
        ArgumentValueError: An unknown form, or a K that is too small (the least one is printed).

    >>> from tokendynamics.circuits.pair_task import PairTask
    >>> task = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4)
    >>> solution_2(task)([1, 2, 2, 1]).tolist()
    [0.0, -2.0, 4.0, 3.0]
    >>> solution_2(task, form="printed", K=8.0)([1, 2, 2, 1]).tolist()
    [0.0, 0.0, 4.0, 3.0]
    """
    selected = selection(task.q_true, form, K)
    v = on_positions(task, shift(task.positions).mT * selected.shrink)
    attention = Attention(on_categories(task, task.q_true).mT, v, causal=causal, weights="linear")
    read = torch.ones(task.width, dtype=torch.float64)
    if form == "exact":
        read[: task.categories] = 0.0
    return selecting(task, attention, selected, read, _NAMES[form])
