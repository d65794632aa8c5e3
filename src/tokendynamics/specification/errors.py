"""What is wrong in a file, in one line: the file, the line number, the key, and the nearest valid name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from tokendynamics.numerics.errors import ArgumentValueError


class SpecificationError(ArgumentValueError):
    """A specification file cannot be used; the message names the file, the line and the key."""


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """The nearest of the `valid` names, and all of them where there are few.

    >>> did_you_mean("speed", ["seed", "law"])
    "did you mean 'seed'? (valid: law, seed)"
    >>> did_you_mean("xyz", ["seed", "law"])
    'valid: law, seed'
    """
    names = sorted(valid)
    by_lower_case = {valid_name.lower(): valid_name for valid_name in names}
    near = get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.4)
    listed = f"valid: {', '.join(names)}"
    return f"did you mean {by_lower_case[near[0]]!r}? ({listed})" if near else listed
