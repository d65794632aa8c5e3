"""Two heads that share the work: one decides in attention, the other leaves it to the feed-forward part."""

from __future__ import annotations

import torch

from tokendynamics.attention import Attention
from tokendynamics.circuits.hand_built.blocks import on_categories, on_positions, shift
from tokendynamics.circuits.hand_built.selection import selection
from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer
from tokendynamics.circuits.pair_task import PairTask
from tokendynamics.numerics.arguments import as_number
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.signatures import typed_arguments


@typed_arguments
def mixture(task: PairTask, attention_share: float = 0.5, causal: bool = False) -> OneLayerTransformer:
    """`solution_2` computes one share of q_true and `solution_3` the rest, side by side in one transformer.

    Head 1 has ``k^t q = share·q_true`` on categories and writes on positions; head 2 has ``k^t q = D_{−1}`` and writes
    ``(1 − share)·q_true^T`` on categories. Each has its own K and c, since they use different features.

    Args:
        task: Any N, M and real q_true.
        attention_share: The part that attention decides, from 0 to 1.
        causal: Whether attention is masked; the outputs are the same.

    Returns:
        A transformer with two heads of linear attention and N + M hidden units, exact for any sign.

    Raises:
        ArgumentValueError: A share outside 0..1.

    >>> from tokendynamics.circuits.pair_task import PairTask
    >>> task = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4)
    >>> mixture(task)([1, 2, 2, 1]).tolist()
    [0.0, -2.0, 4.0, 3.0]
    """
    if not 0.0 <= as_number(attention_share, "attention_share") <= 1.0:
        raise ArgumentValueError(expected("attention_share", "a number from 0 to 1", attention_share))
    decided, looked_up = attention_share * task.q_true, (1.0 - attention_share) * task.q_true
    positions, categories = selection(decided, "exact"), selection(looked_up, "exact")
    step = shift(task.positions)
    key_query = torch.stack([on_categories(task, decided), on_positions(task, step)])
    v = torch.stack(
        [on_positions(task, step.mT * positions.shrink), on_categories(task, looked_up.mT * categories.shrink)]
    )
    per_category = torch.ones(task.categories, dtype=torch.float64)
    per_position = torch.ones(task.positions, dtype=torch.float64)
    return OneLayerTransformer(
        Attention(key_query.mT, v, causal=causal, weights="linear"),
        torch.eye(task.width, dtype=torch.float64),
        torch.cat([categories.bias * per_category, positions.bias * per_position]),
        torch.cat([categories.K * per_category, positions.K * per_position]),
        task,
        offset=positions.offset + categories.offset,
        name=f"mixture, {attention_share:.0%} in attention",
    )
