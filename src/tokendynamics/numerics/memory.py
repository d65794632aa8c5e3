"""What does not fit into this machine is refused with its size before anything is allocated."""

from __future__ import annotations

import os

from tokendynamics.numerics.errors import MemoryLimitError, expected


def installed_memory() -> int:
    """Return the bytes of main memory of this machine; without a limit where the system does not tell.

    >>> installed_memory() > 2**28
    True
    """
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 2**63


def check_fits(needed: int, argument: str, advice: str = "") -> None:
    """Refuse what needs more memory than the machine has.

    Args:
        needed: Bytes that are needed at least.
        argument: What needs them, for the message.
        advice: What to do instead.

    Raises:
        MemoryLimitError: More than is installed; both sizes are printed.
    """
    installed = installed_memory()
    if needed > installed:
        wanted = f"what fits into the {in_bytes(installed)} of memory of this machine"
        raise MemoryLimitError(expected(argument, wanted, f"{in_bytes(needed)} needed at least", advice))


def in_bytes(count: int) -> str:
    """Put a number of bytes in words.

    >>> in_bytes(3 * 2**30), in_bytes(2**70), in_bytes(100)
    ('3.0 GiB', '1.1e+12 GiB', '9.3e-08 GiB')
    """
    size = count / 2**30 if count < 2**1000 else float("inf")
    return f"{size:.1f} GiB" if 0.1 <= size < 1e6 else f"{size:.1e} GiB"
