"""All transformers set by hand, by name: the solutions with softmax, without any logic, and two heads that share it.

With softmax, solutions 1 and 3 are exact in the limit of sharp attention, 2 is right up to about 1/√M.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from tokendynamics.attention import Attention
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import OneLayerTransformer, on_categories, on_positions, shift
from tokendynamics.circuits.constructions.solutions import (
    Selection,
    bias_and_output,
    recognisers,
    selecting,
    solution_1,
    solution_2,
    solution_3,
)
from tokendynamics.circuits.functionals import pair_numbers
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_number
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments

_SHARPEST = math.log(sys.float_info.max)

# Column means that were made equal differ by rounding.
_EQUAL = 1e-9
_NEVER_EXACT = (
    "This construction is never exact: softmax divides by a sum over the text, which is near its expectation only in "
    "long texts. The error decreases as one over the square root of the number of tokens."
)
_SHORTER = "Outputs on texts of fewer than M tokens are too large, by the factor M over their length."


@typed_arguments
def softmax_solution_1(task: PairTask, sharpness: float = 40.0, causal: bool = False) -> OneLayerTransformer:
    """Return `solution_1` ("rows") with softmax attention, ``qk = β S``, v doubled; corrects `logical` (2.12).

    With n senders the previous token gets the weight ``e^β/(e^β + n − 1)``, so for i ≥ 2 the error decays like
    ``(n − 1) e^{−β}``. Token 1 has no previous one and attends to all alike: Y_1 means nothing.

    Args:
        task: Any N, M and real q_true.
        sharpness: β ≥ 0.
        causal: Whether attention is masked; then n = i.

    Raises:
        ArgumentValueError: A sharpness that is negative or not finite, or whose exponential overflows.

    >>> from tokendynamics.circuits import PairTask
    >>> task = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4)
    >>> [round(y, 12) for y in softmax_solution_1(task)([1, 2, 2, 1]).tolist()[1:]]
    [-2.0, 4.0, 3.0]
    """
    v = on_categories(task, 2.0 * torch.eye(task.categories, dtype=torch.float64))
    bias, C = bias_and_output(task.q_true, "rows")
    attention = _attending_to_previous(task, v, sharpness, causal)
    return OneLayerTransformer(attention, recognisers(task), bias, C, task, name="solution 1 with softmax")


@typed_arguments
def softmax_solution_3(
    task: PairTask, sharpness: float = 40.0, K: float | None = None, causal: bool = False
) -> OneLayerTransformer:
    """Return `solution_3` with softmax attention, ``qk = β S``; corrects `logical` (2.27).

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

    >>> from tokendynamics.circuits import PairTask
    >>> task = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4)
    >>> [round(y, 12) for y in softmax_solution_3(task)([1, 2, 2, 1]).tolist()[1:]]
    [-2.0, 4.0, 3.0]
    """
    selected = Selection.of(task.q_true, "exact", K)
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
    return Attention(on_positions(task, sharpness * shift(task.positions).mT), v, causal=causal, weights="softmax")


@typed_arguments
def softmax_solution_2(task: PairTask, causal: bool = False) -> OneLayerTransformer:
    """Return `solution_2` with softmax attention and ``qk = ln q_true^T`` on categories, `logical` section 4.

    The exponential undoes the logarithm, and the softmax divides by the sum over the n senders, so that

        Y_i = n m q_true[X_{i−1}, X_i] / Σ_j q_true[X_j, X_i],   m = Σ_a p_a q_true[a, b], the same for every b:

    the sum is n m up to the luck of the text, and the error, over the standard deviation of q_true, is about 1/√n
    where q_true varies little (0.32, 0.14 and 0.07 at M = 10, 50, 200). It does not vanish for any weights. Y_1 is 0.

    Args:
        task: q_true positive, with equal column means under the law; `equal_column_means` makes them so.
        causal: Whether attention is masked; then n = i, so that early tokens are far off. Else n = M, and texts of
            fewer tokens have outputs that are too large by the factor M over their length.

    Returns:
        A transformer with one head of softmax attention and N + M hidden units.

    Raises:
        ArgumentValueError: A q_true that is not positive, whose logarithm no logit can be, or column means that differ.

    >>> from tokendynamics.circuits.functionals import positive_functional
    >>> from tokendynamics.circuits import PairTask
    >>> task = PairTask(positive_functional(4, seed=0), positions=200)
    >>> x = task.sample(100, seed=0)
    >>> error = (softmax_solution_2(task)(x) - task.targets(x))[:, 1:].square().mean().sqrt()
    >>> f"{float(error) / task.variance**0.5:.2f}"
    '0.07'
    """
    mean = _column_mean(task)
    senders = torch.full((task.positions,), float(task.positions), dtype=torch.float64)
    if causal:
        senders = torch.arange(1, task.positions + 1, dtype=torch.float64)
    attention = Attention(
        on_categories(task, task.q_true.log()).mT,
        on_positions(task, shift(task.positions).mT),
        causal=causal,
        weights="softmax",
    )
    # A weight is at most 1: where the one-hot position is 0, the bias of −1 keeps the unit silent.
    C = torch.cat([torch.zeros(task.categories, dtype=torch.float64), mean * senders])
    identity, bias = torch.eye(task.width, dtype=torch.float64), torch.full_like(C, -1.0)
    note = _NEVER_EXACT if causal else f"{_NEVER_EXACT} {_SHORTER}"
    return OneLayerTransformer(attention, identity, bias, C, task, name="solution 2 with softmax", note=note)


def _column_mean(task: PairTask) -> Tensor:
    """Return the mean that all columns have."""
    lowest = int(task.q_true.argmin())
    if float(task.q_true.flatten()[lowest]) <= 0.0:
        previous, current = divmod(lowest, task.categories)
        came = f"{float(task.q_true.min()):g} for the pair ({previous + 1}, {current + 1})"
        advice = "positive_functional draws some, and a constant that is added changes the task by that constant only"
        raise ArgumentValueError(expected("q_true", "positive numbers, whose logarithm is the logit", came, advice))
    means = task.law @ task.q_true
    if float(means.max() - means.min()) > _EQUAL * float(means.max()):
        came = f"means from {float(means.min()):g} to {float(means.max()):g}"
        advice = "equal_column_means(q_true, law) scales the columns"
        raise ArgumentValueError(expected("q_true", "columns of one mean under the law", came, advice))
    return means.mean()


@typed_arguments
def linear_solution(task: PairTask, base: float = 10.0, causal: bool = False) -> OneLayerTransformer:
    """Return `linear_case` for a task that is `pair_numbers` of that base.

    Raises:
        ArgumentValueError: The task asks for another functional.

    >>> from tokendynamics.circuits.functionals import pair_numbers
    >>> from tokendynamics.circuits import PairTask
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

    >>> from tokendynamics.circuits import PairTask
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
