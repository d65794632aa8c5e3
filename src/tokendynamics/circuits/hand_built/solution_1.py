"""Solution 1: attention copies the previous category, hidden units recognise the pair."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from tokendynamics.attention import Attention
from tokendynamics.circuits.hand_built.blocks import on_categories, on_positions, shift, to_scratch
from tokendynamics.circuits.hand_built.pair_order import by_pair, pair_order
from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer
from tokendynamics.circuits.pair_task import PairTask
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.signatures import typed_arguments

Form = Literal["rows", "uniform", "indicators", "printed"]

_NAMES = {
    "rows": "solution 1",
    "uniform": "solution 1, one bias for all rows",
    "indicators": "solution 1, previous category in a block of its own",
    "printed": "solution 1 as printed (wrong)",
}


@typed_arguments
def solution_1(task: PairTask, form: Form = "rows", causal: bool = False) -> OneLayerTransformer:
    """Attention adds twice the previous category to the current one; N² hidden units tell the pair, `logical` 2.1.

    With ``2e_a + e_b`` in the stream no single ReLU can indicate an off-diagonal pair (it is a convex combination of
    3e_a and 3e_b), so C = q_true as in (2.11) adds up several units. The other forms correct `logical` (2.11):

    * "rows": off-diagonal rows ``2e_a + e_b`` with bias −4, diagonal rows ``3e_a`` with bias −8, ``C_ab = q_ab``,
      ``C_aa = q_aa − 2 Σ_{b≠a} q_ab``;
    * "uniform": bias −4 everywhere, ``C_aa = (q_aa − 2 Σ_{b≠a} q_ab)/(9 − 4N)``, ``C_ab = q_ab − 2 C_aa``;
    * "indicators": the previous category goes to a block of its own (width 2N + M), rows ``e_a + e_b`` with bias −1,
      so each hidden unit is the indicator of its pair and C = q_true;
    * "printed": bias −4 and C = q_true. It is WRONG, and here to show how: (0, 5, 32, 70) for (0, 3, 10, 6).

    Args:
        task: Any N, M and real q_true.
        form: See above.
        causal: Whether attention is masked; the outputs are the same.

    Returns:
        A transformer with one head of linear attention whose hidden units stand in the order of `pair_order`.

    Raises:
        ArgumentValueError: An unknown form, or a q_true so large that sums over a row of it overflow.

    >>> from tokendynamics.circuits.pair_task import PairTask
    >>> task = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4)
    >>> solution_1(task)([1, 2, 2, 1]).tolist()
    [0.0, -2.0, 4.0, 3.0]
    >>> solution_1(task, form="printed")([1, 2, 2, 1]).tolist()
    [0.0, 0.0, 26.0, 11.0]
    """
    if form not in _NAMES:
        raise ArgumentValueError(expected("form", " or ".join(map(repr, _NAMES)), repr(form)))
    if form == "indicators":
        return _indicators(task, causal)
    key_query = on_positions(task, 2.0 * shift(task.positions))
    v = on_categories(task, torch.eye(task.categories, dtype=torch.float64))
    attention = Attention(key_query.mT, v, causal=causal, weights="linear")
    bias, C = readout(task.q_true, form)
    return OneLayerTransformer(attention, recognisers(task), bias, C, task, name=_NAMES[form])


def recognisers(task: PairTask) -> Tensor:
    """Rows ``2e_a + e_b`` (``3e_a`` for equal categories) and zeros on positions, `logical` (2.10), (N², N + M)."""
    previous, current = _one_hot_pairs(task.categories)
    return torch.nn.functional.pad(2.0 * previous + current, (0, task.positions))


def readout(functional: Tensor, form: Literal["rows", "uniform", "printed"]) -> tuple[Tensor, Tensor]:
    """The bias (N²,) and C (N²,) that go with `recognisers`; see `solution_1`.

    Raises:
        ArgumentValueError: A q_true so large that a C, which adds up a row of it, is not finite.
    """
    bias, weights = _bias_and_weights(functional, form)
    if not bool(weights.isfinite().all()):
        largest = float(functional.abs().max())
        wanted = "values whose sums over a row are finite"
        raise ArgumentValueError(expected("q_true", wanted, f"values up to {largest:g}", "scale q_true down"))
    return bias, by_pair(weights)


def _bias_and_weights(functional: Tensor, form: Literal["rows", "uniform", "printed"]) -> tuple[Tensor, Tensor]:
    """The bias (N²,), and C as a matrix (previous, current)."""
    categories = functional.shape[0]
    diagonal = functional.diagonal()
    bias = torch.full((categories**2,), -4.0, dtype=torch.float64)
    # A diagonal pair wakes all rows that begin with its category, each by 2.
    corrected = diagonal - 2.0 * (functional - torch.diag(diagonal)).sum(dim=1)
    if form == "printed":
        return bias, functional
    if form == "rows":
        bias[:categories] = -8.0
        return bias, functional - torch.diag(diagonal - corrected)
    # 9 − 4N is odd, so it is never zero.
    corrected = corrected / (9 - 4 * categories)
    pairs = functional - 2.0 * corrected[:, None]
    return bias, pairs.diagonal_scatter(corrected)


def _indicators(task: PairTask, causal: bool) -> OneLayerTransformer:
    categories = task.categories
    key_query = on_positions(task, shift(task.positions), scratch=categories)
    v = to_scratch(task, torch.eye(categories, dtype=torch.float64))
    previous, current = _one_hot_pairs(categories)
    B = torch.cat([current, torch.zeros(categories**2, task.positions, dtype=torch.float64), previous], dim=1)
    bias = -torch.ones(categories**2, dtype=torch.float64)
    attention = Attention(key_query.mT, v, causal=causal, weights="linear")
    return OneLayerTransformer(attention, B, bias, by_pair(task.q_true), task, name=_NAMES["indicators"])


def _one_hot_pairs(categories: int) -> tuple[Tensor, Tensor]:
    one_hot = torch.nn.functional.one_hot(pair_order(categories) - 1, categories).double()
    return one_hot[:, 0], one_hot[:, 1]
