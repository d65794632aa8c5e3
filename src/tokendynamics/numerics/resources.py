"""Memory and threads: what does not fit is refused before it is allocated; threads are a setting of a task."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from numbers import Integral

import psutil
import torch

from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, MemoryLimitError, shown


def installed_memory() -> int:
    """Return the bytes of main memory of this machine.

    >>> installed_memory() > 2**28
    True
    """
    return psutil.virtual_memory().total


def free_memory() -> int:
    """Return the bytes that programs can still take without swapping.

    >>> 0 < free_memory() <= installed_memory()
    True
    """
    return psutil.virtual_memory().available


def usable_processors() -> int:
    """Return how many processors this process may run on, at least 1.

    Systems without affinity of processes (macOS, Windows) let it run on all.

    >>> usable_processors() >= 1
    True
    """
    affinity = getattr(os, "sched_getaffinity", None)
    return (len(affinity(0)) if affinity else os.cpu_count()) or 1


def open_files_limit() -> float:
    """Return how many files this process may have open, infinity where the system has no such limit.

    >>> open_files_limit() > 8
    True
    """
    try:
        import resource
    except ImportError:  # Windows
        return math.inf
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit


def check_fits(needed: int, argument: str, advice: str = "") -> None:
    """Refuse what needs more memory than is free, before any of it is taken.

    Args:
        needed: Bytes that are needed at least.
        argument: What needs them, for the message.
        advice: What to do instead.

    Raises:
        MemoryLimitError: More than is free; both sizes are printed.
    """
    installed, free = installed_memory(), free_memory()
    if needed > free:
        least = f"{in_bytes(installed)} of memory of this machine"
        wanted = (
            f"what fits into the {least}"
            if needed > installed
            else f"what fits into the {in_bytes(free)} free of the {least}"
        )
        raise MemoryLimitError(argument, wanted, f"{in_bytes(needed)} needed at least", advice)


def give_back() -> None:
    """Give freed memory back to the system where it takes it: a heap keeps its largest pieces many times over."""
    if sys.platform == "linux":  # elsewhere the C library has no such function, or cannot be asked for by None
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)


def in_bytes(count: int) -> str:
    """Put a number of bytes in words.

    >>> in_bytes(3 * 2**30), in_bytes(2**70), in_bytes(100)
    ('3.0 GiB', '1.1e+12 GiB', '9.3e-08 GiB')
    """
    size = count / 2**30 if count < 2**1000 else float("inf")
    return f"{size:.1f} GiB" if 0.1 <= size < 1e6 else f"{size:.1e} GiB"


_MOST_THREADS = 1024
"""Beyond what a machine can start, OpenMP ends the process without a word that Python could catch."""


@contextmanager
def limited_threads(count: int | None) -> Iterator[int]:
    """Run the body with `count` PyTorch threads and restore the former number afterwards.

    None leaves the number as it is, and the number in force is given. Two are often slower than one on small models.

    Raises:
        ArgumentTypeError, ArgumentValueError: No whole number from 1 to 1024.

    >>> with limited_threads(1) as threads:
    ...     threads
    1
    """
    if count is not None:
        if isinstance(count, bool) or not isinstance(count, Integral):
            raise ArgumentTypeError("threads", "an integer of at least 1", shown(count))
        if not 1 <= count <= _MOST_THREADS:
            raise ArgumentValueError("threads", "at least 1" if count < 1 else f"at most {_MOST_THREADS}", shown(count))
    former = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(former)
