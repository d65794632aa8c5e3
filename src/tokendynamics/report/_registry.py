"""The registry of pages: each module of a page enters the function that makes it, by the class of its result."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from tokendynamics.numerics import ArgumentTypeError
from tokendynamics.numerics.errors import expected, shown


@singledispatch
def page_of(result: Any) -> str:
    """Return the page of a result as HTML; functions for classes of results are registered in the modules of pages.

    Raises:
        ArgumentTypeError: There is no page for results of this class.
    """
    raise ArgumentTypeError(expected("result", "a result that has a page", shown(result)))
