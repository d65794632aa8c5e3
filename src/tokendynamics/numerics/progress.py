"""How long work reports itself: a function that wraps an iterable, chosen by the caller."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


@runtime_checkable
class Track(Protocol):
    """Wraps `items` and reports as they are consumed; a progress bar is one."""

    def __call__(self, items: Iterable[T], description: str, total: int) -> Iterable[T]:
        """Yield every item of `items`, of which there are `total`."""
        ...


def silent(items: Iterable[T], description: str, total: int) -> Iterable[T]:
    """The default: no report.

    >>> list(silent([1, 2], "counting", 2))
    [1, 2]
    """
    return items
