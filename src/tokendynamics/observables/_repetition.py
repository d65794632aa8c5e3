"""How repetitive a sequence of tokens is: what a collapsed network writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence, Sized
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import check_open
from tokendynamics.numerics.errors import shown


@dataclass(frozen=True)
class Repetition:
    """Four measures of one sequence.

    Attributes:
        distinct_1: Different tokens over all tokens; 1 if none comes twice.
        distinct_2: The same of pairs of neighbours; NaN for one token.
        entropy: Of the distribution of the tokens, in nats; 0 if they are all the same.
        longest_run: The longest stretch of one token.

    >>> repetition([1, 2, 1, 2]).distinct_1
    0.5
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
        ArgumentTypeError: No sequence, or an entry that cannot be counted, such as a list.
        ArgumentValueError: None.

    >>> repetition("the the the end".split())
    Repetition(distinct_1=0.5, distinct_2=0.666..., entropy=0.562..., longest_run=3)
    """
    check_open(tokens, "tokens")
    if isinstance(tokens, bytes | set | dict) or not (isinstance(tokens, Iterable) and isinstance(tokens, Sized)):
        raise ArgumentTypeError("tokens", "a sequence of token ids or words", shown(tokens))
    try:
        tokens = [entry.item() if isinstance(entry, np.generic | Tensor) else entry for entry in tokens]
        hash(tuple(tokens))
    except (TypeError, RuntimeError, ValueError) as error:
        raise ArgumentTypeError("tokens", "a sequence of token ids or words", shown(tokens)) from error
    if len(tokens) == 0:
        raise ArgumentValueError("tokens", "at least one", "none")
    counts = np.array(list(Counter(tokens).values())) / len(tokens)
    pairs = list(pairwise(tokens))
    return Repetition(
        distinct_1=len(counts) / len(tokens),
        distinct_2=len(set(pairs)) / len(pairs) if pairs else float("nan"),
        entropy=float(-(counts * np.log(counts)).sum()) + 0.0,
        longest_run=max(len(list(run)) for _, run in groupby(tokens)),
    )
