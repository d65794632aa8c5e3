"""Solutions 2 and 3 are one computation in two places: a statement that is checked, not quoted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tokendynamics.circuits.constructions.selection import Selection
from tokendynamics.circuits.constructions.solutions import solution_2, solution_3
from tokendynamics.circuits.task import PairTask
from tokendynamics.circuits.transformer import shift
from tokendynamics.numerics.signatures import typed_arguments

_RELATIVE = 1e-15


@dataclass(frozen=True, eq=False)
class Equivalence:
    """`logical` 2.3.1 on given sequences.

    Attributes:
        second: Outputs of `solution_2`, (…, token).
        third: Outputs of `solution_3`, (…, token).
        second_diagonal: ``diag(S X_C^T A_2 X_C)``, (…, token), `logical` (2.29).
        third_diagonal: ``diag(X_C^T A_2^T X_C D_{−1})``, (…, token), `logical` (2.30).
        tolerance: 1e-15·K: outputs are sums of terms of size K.
    """

    second: Tensor
    third: Tensor
    second_diagonal: Tensor
    third_diagonal: Tensor
    tolerance: float

    @property
    def largest_difference(self) -> float:
        """Between the outputs of the two transformers, and between the two diagonals."""
        outputs = (self.second - self.third).abs().max()
        diagonals = (self.second_diagonal - self.third_diagonal).abs().max()
        return float(torch.maximum(outputs, diagonals))

    @property
    def holds(self) -> bool:
        """Whether the largest difference is within the tolerance."""
        return self.largest_difference <= self.tolerance


@typed_arguments
def check_equivalence(task: PairTask, x: Any, K: float | None = None) -> Equivalence:
    """Run solutions 2 and 3 side by side and compare them, `logical` 2.3.1, (2.29)–(2.32).

    Args:
        task: Any N, M and real q_true.
        x: Sequences (…, token) of categories 1..N.
        K: Of both; None for one that is enough. See `Selection.of`.

    Raises:
        ArgumentTypeError: `x` is not of integers.
        ArgumentValueError: A category outside 1..N, more than M tokens, or K too small (the least one is printed).

    >>> from tokendynamics.circuits.task import PairTask
    >>> result = check_equivalence(PairTask([[1.0, -2.0], [3.0, 4.0]], positions=4), [1, 2, 2, 1])
    >>> result.holds, result.largest_difference
    (True, 0.0)
    """
    sequences = task.checked(x)
    chosen = Selection.of(task.q_true, "exact", K).K
    categories = task.embed(sequences)[..., : task.categories].mT
    step = shift(sequences.shape[-1])
    all_pairs = categories.mT @ task.q_true @ categories
    return Equivalence(
        second=solution_2(task, K=chosen)(sequences),
        third=solution_3(task, K=chosen)(sequences),
        second_diagonal=(step.mT @ all_pairs).diagonal(dim1=-2, dim2=-1),
        third_diagonal=(categories.mT @ task.q_true.mT @ categories @ step).diagonal(dim1=-2, dim2=-1),
        tolerance=_RELATIVE * chosen,
    )
