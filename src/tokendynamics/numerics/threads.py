"""The number of threads as a setting of a piece of work, not of the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tokendynamics.numerics.errors import ArgumentValueError, expected


@contextmanager
def limited_threads(count: int | None) -> Iterator[int]:
    """Run the body with `count` PyTorch threads and restore the former number afterwards.

    Args:
        count: At least 1, or None to leave the number as it is. Two are often slower than one on small models.

    Yields:
        The number in force.

    Raises:
        ArgumentValueError: A count below 1.

    >>> with limited_threads(1) as threads:
    ...     threads
    1
    """
    if count is not None and count < 1:
        raise ArgumentValueError(expected("threads", "at least 1", count))
    former = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(former)
