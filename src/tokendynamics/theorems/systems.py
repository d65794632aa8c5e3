"""Naming some systems of a batch in a few words."""

from __future__ import annotations

import numpy as np

_NAMED = 5


def counted(where: np.ndarray) -> str:
    """Say how many systems, and which, where there are several: ``"1 of 50 systems: 17"``.

    >>> counted(np.array([False, True, True])), counted(np.array([True, False, False]))
    ('2 of 3 systems, not 0', '1 of 3 systems: 0')
    >>> counted(np.ones(7, dtype=bool)), counted(np.asarray(True))
    ('all 7 systems', '')
    """
    marked = np.asarray(where)
    if marked.size <= 1:
        return ""
    if marked.all():
        return f"all {marked.size} systems"
    # Whichever are fewer are named: those that are counted, or those that are not.
    few, word = (marked, ": ") if 2 * marked.sum() <= marked.size else (~marked, ", not ")
    indices = np.argwhere(few)[:_NAMED].tolist()
    names = [str(index[0]) if marked.ndim == 1 else str(tuple(index)) for index in indices]
    more = ", …" if few.sum() > _NAMED else ""
    return f"{int(marked.sum())} of {marked.size} systems" + (word + ", ".join(names) + more if names else "")
