"""Typed errors: each names the argument, what was expected, what came, and what to do.

Every error the library raises on purpose derives from `TokenDynamicsError`, so that a caller (the command
line among them) can tell a refused input from a defect.
"""

from __future__ import annotations


class TokenDynamicsError(Exception):
    """Base class of every deliberate error."""


class ArgumentTypeError(TokenDynamicsError, TypeError):
    """An argument has a type or dtype that cannot be used."""


class ArgumentValueError(TokenDynamicsError, ValueError):
    """An argument has the right type and an impossible value or shape."""


class CheckpointError(TokenDynamicsError, ValueError):
    """A model cannot be found, read or trusted; the message says which file or tensor and what to do."""


def expected(argument: str, wanted: str, came: object, advice: str = "") -> str:
    """One line in the house form ``argument: expected …, got …; advice``.

    >>> expected("x", "at least one token", "shape (0, 3)", "pass a non-empty prompt")
    'x: expected at least one token, got shape (0, 3); pass a non-empty prompt'
    """
    return f"{argument}: expected {wanted}, got {came}" + (f"; {advice}" if advice else "")
