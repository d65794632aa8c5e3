"""How repetitive a sequence of tokens is: what a collapsed network writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

from tokendynamics.numerics._errors import ArgumentValueError, expected


@dataclass(frozen=True)
class Repetition:
    """Four measures of one sequence.

    Attributes:
        distinct_1: Different tokens over all tokens; 1 if none comes twice.
        distinct_2: The same of pairs of neighbours; NaN for one token.
        entropy: Of the distribution of the tokens, in nats; 0 if they are all the same.
        longest_run: The longest stretch of one token.
    """

    distinct_1: float
    distinct_2: float
    entropy: float
    longest_run: int


def repetition(tokens: Sequence[Hashable]) -> Repetition:
    """Measure how repetitive a sequence is.

    Args:
        tokens: Token ids or words, at least one.

    Raises:
        ArgumentValueError: None.

    >>> repetition("the the the end".split())
    Repetition(distinct_1=0.5, distinct_2=0.666..., entropy=0.562..., longest_run=3)
    """
    if len(tokens) == 0:
        raise ArgumentValueError(expected("tokens", "at least one", "none"))
    counts = np.array(list(Counter(tokens).values())) / len(tokens)
    pairs = list(pairwise(tokens))
    return Repetition(
        distinct_1=len(counts) / len(tokens),
        distinct_2=len(set(pairs)) / len(pairs) if pairs else float("nan"),
        entropy=float(-(counts * np.log(counts)).sum()) + 0.0,
        longest_run=max(len(list(run)) for _, run in groupby(tokens)),
    )
