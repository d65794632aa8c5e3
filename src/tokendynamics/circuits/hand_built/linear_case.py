"""The case without any logic: the number that two adjacent digits form."""

from __future__ import annotations

import torch

from tokendynamics.attention import Attention
from tokendynamics.circuits.hand_built.blocks import on_categories, on_positions, shift
from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer
from tokendynamics.circuits.pair_task import PairTask, pair_numbers
from tokendynamics.numerics.signatures import typed_arguments


@typed_arguments
def linear_case(categories: int, positions: int, base: float = 10.0, causal: bool = False) -> OneLayerTransformer:
    """``Y_i = base·X_{i−1} + X_i`` without ReLU or B, `logical` (2.13): attention adds, the readout is linear.

    The first token has no previous one, so ``Y_1 = X_1`` and not 0.

    Args:
        categories: N.
        positions: M.
        base: 10 in the paper.
        causal: Whether attention is masked; the outputs are the same.

    Returns:
        A transformer with the identity as activation; its task is `pair_numbers`.

    Raises:
        ArgumentValueError: No category or no position, or a base that is not finite.

    >>> linear_case(categories=4, positions=4)([1, 3, 2, 2]).tolist()
    [1.0, 13.0, 32.0, 22.0]
    """
    task = PairTask(pair_numbers(categories, base), positions)
    key_query = on_positions(task, base * shift(positions))
    v = on_categories(task, torch.eye(categories, dtype=torch.float64))
    C = torch.zeros(task.width, dtype=torch.float64)
    C[:categories] = torch.arange(1, categories + 1, dtype=torch.float64)
    return OneLayerTransformer(
        Attention(key_query.mT, v, causal=causal, weights="linear"),
        torch.eye(task.width, dtype=torch.float64),
        torch.zeros(task.width, dtype=torch.float64),
        C,
        task,
        activation="identity",
        name="linear case",
    )
