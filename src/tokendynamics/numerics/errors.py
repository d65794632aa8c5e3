"""Typed errors: each names the argument, what was expected, what came, and what to do.

Every error the library raises on purpose derives from `TokenDynamicsError`, so that a caller (the command
line among them) can tell a refused input from a defect.
"""

from __future__ import annotations

from tokendynamics.numerics.printable import printable, shortened

_LONGEST = 200
"""Characters of one part of a message: a value of a million digits says no more than its ends."""


class TokenDynamicsError(Exception):
    """Base class of every deliberate error; its text holds no control characters, whatever it quotes."""

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n")


class ArgumentTypeError(TokenDynamicsError, TypeError):
    """An argument has a type or dtype that cannot be used."""


class ArgumentValueError(TokenDynamicsError, ValueError):
    """An argument has the right type and an impossible value or shape."""


class CheckpointError(TokenDynamicsError, ValueError):
    """A model cannot be found, read or trusted; the message says which file or tensor and what to do."""


def expected(argument: str, wanted: str, came: object, advice: str = "") -> str:
    """One line in the house form ``argument: expected …, got …; advice``; what is quoted is shortened.

    >>> expected("x", "at least one token", "shape (0, 3)", "pass a non-empty prompt")
    'x: expected at least one token, got shape (0, 3); pass a non-empty prompt'
    """
    argument, came, advice = (shortened(printable(str(part)), _LONGEST) for part in (argument, came, advice))
    return f"{argument}: expected {wanted}, got {came}" + (f"; {advice}" if advice else "")
