"""The number of threads as a setting of a piece of work, not of the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tokendynamics.numerics.arguments import as_count
from tokendynamics.numerics.errors import ArgumentValueError, expected

_MOST_THREADS = 1024
"""Beyond what a machine can start, OpenMP ends the process without a word that Python could catch."""


@contextmanager
def limited_threads(count: int | None) -> Iterator[int]:
    """Run the body with `count` PyTorch threads and restore the former number afterwards.

    Args:
        count: At least 1, or None to leave the number as it is. Two are often slower than one on small models.

    Yields:
        The number in force.

    Raises:
        ArgumentTypeError: No whole number.
        ArgumentValueError: A count below 1, or above 1024.

    >>> with limited_threads(1) as threads:
    ...     threads
    1
    """
    if count is not None and as_count(count, "threads") > _MOST_THREADS:
        raise ArgumentValueError(expected("threads", f"at most {_MOST_THREADS}", count))
    former = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(former)
