"""How likely each category is."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.numerics.arguments import ArrayLike, as_tensor
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.signatures import typed_arguments

_SUM_TOLERANCE = 1e-9


@typed_arguments
def category_law(law: ArrayLike | str | None, categories: int) -> Tensor:
    """Probabilities of the categories 1..N of independent tokens.

    Args:
        law: None or "uniform"; "zipf" (∝ 1/rank, as word frequencies are); or N positive numbers that sum to one.
        categories: N.

    Returns:
        Shape (N,), float64, scaled to sum to one to the last digit.

    Raises:
        ArgumentValueError: A wrong number of probabilities, one that is not positive, or a sum that is not one.

    >>> category_law("zipf", 2).tolist()
    [0.6666666666666666, 0.3333333333333333]
    """
    if law is None or isinstance(law, str):
        return _named("uniform" if law is None else law, categories)
    probabilities = as_tensor(law, "law").double()
    if probabilities.shape != (categories,):
        wanted = f"{categories} probabilities, one for each category"
        raise ArgumentValueError(expected("law", wanted, f"shape {tuple(probabilities.shape)}"))
    if not bool((probabilities > 0).all()):
        lowest = int(probabilities.argmin())
        came = f"{float(probabilities[lowest]):g} for category {lowest + 1}"
        advice = "leave categories that never occur out of the task"
        raise ArgumentValueError(expected("law", "positive probabilities", came, advice))
    total = float(probabilities.sum())
    if abs(total - 1.0) > _SUM_TOLERANCE:
        advice = f"divide by {total:.12g}"
        raise ArgumentValueError(expected("law", "probabilities that sum to 1", f"a sum of {total:.12g}", advice))
    # What sums to one up to rounding is left alone, so that a law that was written down is read back unchanged.
    return probabilities if abs(total - 1.0) <= categories * torch.finfo(torch.float64).eps else probabilities / total


def _named(name: str, categories: int) -> Tensor:
    ranks = torch.arange(1, categories + 1, dtype=torch.float64)
    weights = {"uniform": torch.ones_like(ranks), "zipf": 1.0 / ranks}
    if name not in weights:
        raise ArgumentValueError(expected("law", "'uniform', 'zipf' or probabilities", repr(name)))
    return weights[name] / weights[name].sum()
