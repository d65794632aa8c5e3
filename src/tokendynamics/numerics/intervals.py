"""Intervals: how well a number that came from few draws is known."""

from __future__ import annotations

import math

from tokendynamics.numerics.errors import ArgumentValueError, expected

_NORMAL_95 = 1.959963984540054


def wilson(count: int, total: int) -> tuple[float, float]:
    """The 95 % Wilson interval of a probability of which `count` of `total` independent trials are known.

    The probabilities p with ``|count/total − p| ≤ z √(p(1 − p)/total)``, z = 1.96: it stays within 0..1 and does not
    shrink to a point at 0 or `total` (E. B. Wilson, 1927).

    Args:
        count: Successes, 0..total.
        total: Trials, at least 1.

    Raises:
        ArgumentValueError: No trials, or a count outside 0..total.

    >>> tuple(round(end, 4) for end in wilson(0, 10))
    (0.0, 0.2775)
    """
    if total < 1:
        raise ArgumentValueError(expected("total", "at least one trial", total))
    if not 0 <= count <= total:
        raise ArgumentValueError(expected("count", f"0..{total}", count))
    share, weight = count / total, _NORMAL_95**2 / total
    middle = (share + weight / 2) / (1 + weight)
    half = math.sqrt(weight * (share * (1 - share) + weight / 4)) / (1 + weight)
    return max(0.0, middle - half), min(1.0, middle + half)
