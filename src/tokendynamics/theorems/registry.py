"""Every statement that is known, and what names one."""

from __future__ import annotations

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.theorems._statement import Statement
from tokendynamics.theorems.atlas import ATLAS
from tokendynamics.theorems.statements import STATEMENTS

__all__ = ["KNOWN", "named"]

KNOWN: tuple[Statement, ...] = (*STATEMENTS, *ATLAS)
"""Those of the three papers, then those of the atlas."""


def named(name: str | Statement) -> Statement:
    """Return the statement of a name; a statement is returned as it is.

    Raises:
        ArgumentValueError: No statement has that name; the known ones are printed.
    """
    if isinstance(name, Statement):
        return name
    statements = {statement.name: statement for statement in KNOWN}
    if name not in statements:
        raise ArgumentValueError(expected("statements", f"names among {', '.join(statements)}", repr(name)))
    return statements[name]
