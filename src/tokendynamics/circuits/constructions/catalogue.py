"""The case without any logic, two heads that share the work, and all transformers set by hand, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch

from tokendynamics.attention import Attention
from tokendynamics.circuits.constructions.selection import Selection
from tokendynamics.circuits.constructions.softmax_solutions import (
    softmax_solution_1,
    softmax_solution_2,
    softmax_solution_3,
)
from tokendynamics.circuits.constructions.solutions import solution_1, solution_2, solution_3
from tokendynamics.circuits.functionals import pair_numbers
from tokendynamics.circuits.task import PairTask
from tokendynamics.circuits.transformer import OneLayerTransformer, on_categories, on_positions, shift
from tokendynamics.numerics.arguments import as_number
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.signatures import typed_arguments


@typed_arguments
def linear_solution(task: PairTask, base: float = 10.0, causal: bool = False) -> OneLayerTransformer:
    """Return `linear_case` for a task that is `pair_numbers` of that base.

    Raises:
        ArgumentValueError: The task asks for another functional.

    >>> from tokendynamics.circuits.functionals import pair_numbers
    >>> from tokendynamics.circuits.task import PairTask
    >>> linear_solution(PairTask(pair_numbers(3), positions=2))([3, 1]).tolist()
    [3.0, 31.0]
    """
    numbers = pair_numbers(task.categories, base)
    difference = float((task.q_true - numbers).abs().max())
    if difference > 0.0:
        wanted = f"pair_numbers({task.categories}, base={base:g}), which is linear in the two categories"
        advice = "take a solution for any functional, such as solution-1"
        raise ArgumentValueError(expected("q_true", wanted, f"values that differ by up to {difference:g}", advice))
    return linear_case(task.categories, task.positions, base, causal)


@typed_arguments
def linear_case(categories: int, positions: int, base: float = 10.0, causal: bool = False) -> OneLayerTransformer:
    """Compute ``Y_i = base·X_{i−1} + X_i`` without ReLU or B, `logical` (2.13): attention adds, the readout is linear.

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
    qk = on_positions(task, base * shift(positions).mT)
    v = on_categories(task, torch.eye(categories, dtype=torch.float64))
    C = torch.zeros(task.width, dtype=torch.float64)
    C[:categories] = torch.arange(1, categories + 1, dtype=torch.float64)
    return OneLayerTransformer(
        Attention(qk, v, causal=causal, weights="linear"),
        torch.eye(task.width, dtype=torch.float64),
        torch.zeros(task.width, dtype=torch.float64),
        C,
        task,
        activation="identity",
        name="linear case",
    )


@typed_arguments
def mixture(task: PairTask, attention_share: float = 0.5, causal: bool = False) -> OneLayerTransformer:
    """Compute one share of q_true as `solution_2` does and the rest as `solution_3` does, side by side.

    Head 1 has ``qk = share·q_true^T`` on categories and writes on positions; head 2 has ``qk = S`` and writes
    ``(1 − share)·q_true^T`` on categories. Each has its own K and c, since they use different features.

    Args:
        task: Any N, M and real q_true.
        attention_share: The part that attention decides, from 0 to 1.
        causal: Whether attention is masked; the outputs are the same.

    Returns:
        A transformer with two heads of linear attention and N + M hidden units, exact for any sign.

    Raises:
        ArgumentValueError: A share outside 0..1.

    >>> from tokendynamics.circuits.task import PairTask
    >>> task = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4)
    >>> mixture(task)([1, 2, 2, 1]).tolist()
    [0.0, -2.0, 4.0, 3.0]
    """
    if not 0.0 <= as_number(attention_share, "attention_share") <= 1.0:
        raise ArgumentValueError(expected("attention_share", "a number from 0 to 1", attention_share))
    decided, looked_up = attention_share * task.q_true, (1.0 - attention_share) * task.q_true
    positions, categories = Selection.of(decided, "exact"), Selection.of(looked_up, "exact")
    step = shift(task.positions).mT
    qk = torch.stack([on_categories(task, decided), on_positions(task, step.mT)]).mT
    v = torch.stack(
        [on_positions(task, step * positions.shrink), on_categories(task, looked_up.mT * categories.shrink)]
    )
    per_category = torch.ones(task.categories, dtype=torch.float64)
    per_position = torch.ones(task.positions, dtype=torch.float64)
    return OneLayerTransformer(
        Attention(qk, v, causal=causal, weights="linear"),
        torch.eye(task.width, dtype=torch.float64),
        torch.cat([categories.bias * per_category, positions.bias * per_position]),
        torch.cat([categories.K * per_category, positions.K * per_position]),
        task,
        offset=positions.offset + categories.offset,
        name=f"mixture, {attention_share:.0%} in attention",
    )


HAND_BUILT: Mapping[str, Callable[..., OneLayerTransformer]] = MappingProxyType(
    {
        "solution-1": solution_1,
        "solution-1-uniform": partial(solution_1, form="uniform"),
        "solution-1-indicators": partial(solution_1, form="indicators"),
        "solution-1-printed": partial(solution_1, form="printed"),
        "solution-2": solution_2,
        "solution-2-printed": partial(solution_2, form="printed"),
        "solution-3": solution_3,
        "solution-3-printed": partial(solution_3, form="printed"),
        "linear": linear_solution,
        "softmax-1": softmax_solution_1,
        "softmax-2": softmax_solution_2,
        "softmax-3": softmax_solution_3,
        "mixture": mixture,
    }
)
"""Name → constructor of a `PairTask` and options."""
