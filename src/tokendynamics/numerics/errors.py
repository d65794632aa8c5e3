"""Typed errors: each names the argument, what was expected, what came, and what to do.

Every error the library raises on purpose derives from `TokenDynamicsError`, so that a caller (the command
line among them) can tell a refused input from a defect.
"""

from __future__ import annotations

import re

from tokendynamics.numerics.printable import printable, shortened_clauses

_LONGEST = 200
"""Characters of one part of a message: a value of a million digits says no more than its ends."""


class TokenDynamicsError(Exception):
    """Base class of every deliberate error; its text holds no control characters, whatever it quotes.

    Args:
        text: The whole message; or the name of the argument, if `wanted` says what was expected of it.
        wanted: See `expected`, which then writes the message, as `came` and `advice`.
        came: What came instead.
        advice: What to do.

    >>> print(ArgumentValueError("x", "at least one token", "shape (0, 3)"))
    x: expected at least one token, got shape (0, 3)
    """

    def __init__(self, text: str = "", wanted: str = "", came: object = "", advice: str = "") -> None:
        super().__init__(expected(text, wanted, came, advice) if wanted else text)

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n")


class ArgumentTypeError(TokenDynamicsError, TypeError):
    """An argument has a type or dtype that cannot be used."""


class ArgumentValueError(TokenDynamicsError, ValueError):
    """An argument has the right type and an impossible value or shape."""


class CheckpointError(TokenDynamicsError, ValueError):
    """A model cannot be found, read or trusted; the message says which file or tensor and what to do."""


class AttentionFactorsError(CheckpointError):
    """The factors of a layer's attention are not known, or do not give its attention back; its states are sound.

    Attributes:
        reason: Layer and cause in a few words, without advice.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


_LONGEST_SHOWN = 80


def shown(value: object) -> str:
    """Return `value` as a message can hold it: its repr cut to 80 characters, or its type without one.

    >>> shown("a" * 200)[-3:]
    'aa…'
    >>> shown(10**5000)
    'an integer of 16610 bits'
    """
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to write the longest ones
        return f"an integer of {value.bit_length()} bits"
    try:
        # Of a long list the rest is cut in any case.
        written = value[:_LONGEST_SHOWN] if isinstance(value, list | tuple) else value
        text = " ".join(repr(written).split())
    except Exception:  # a repr that fails is the caller's, and must not replace the message about the argument
        text = f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


class StorageError(TokenDynamicsError, OSError):
    """Results cannot be written; the message says where and why, and that nothing older was lost."""


class PageError(TokenDynamicsError, RuntimeError):
    """A page cannot be drawn; the data that it shows are not affected."""


class MemoryLimitError(TokenDynamicsError, MemoryError):
    """What was asked for needs more memory than there is; refused before anything is allocated."""


_HOUSE_FORM = re.compile(r"(?:(.*?): )?expected (.*?), got (.*)", re.DOTALL)


_CLAUSE = re.compile(r"(?:(layer \d+): )?((?:no|nothing)\b.*|(?:its|it)\b.*\b(?:is|are|has)\b.*)", re.DOTALL)
"""What came that is no noun which "not" may stand before: the layer, and the rest."""

_VERB = re.compile(r"\b(?:is|are|was|were|has|gives|reads|acts)\b")


def why(error: BaseException, *subjects: str) -> str:
    """Return what an error says as a clause of a sentence for readers who did not make the call.

    Args:
        error: In the house form or any other, which is kept.
        subjects: What need not be named, such as the argument or the network that the page is about.

    >>> why(ArgumentValueError("texts", "at least 5 prompts", 3), "texts")
    'this needs at least 5 prompts, not 3'
    >>> why(CheckpointError("gpt2: layer 1: expected a norm, got none"), "gpt2")
    'this needs a norm, which is missing (layer 1)'
    >>> why(CheckpointError("gpt2: expected an attention, got layer 1: no softmax was seen in it"), "gpt2")
    'this needs an attention, but in layer 1 no softmax was seen in it'
    """
    text = error.reason if isinstance(error, AttentionFactorsError) else str(error)
    for subject in subjects:
        text = text.removeprefix(f"{subject}: ")
    if (parts := _HOUSE_FORM.fullmatch(text)) is None:
        return text
    place, wanted, came = parts.groups()
    came, semicolon, advice = came.partition("; ")
    if came in ("none", "nothing") or came.startswith("none ("):
        got = f"which is missing{came[len('none') :]}" if "(" in came else "which is missing"
    elif (clause := _CLAUSE.fullmatch(came)) is not None:
        layer, what = clause.groups()
        got = f"but {f'in {layer} ' if layer else ''}{'' if _VERB.search(what) else 'there is '}{what}"
    else:
        got = f"not {came}"
    return f"this needs {wanted}, {got}" + (f" ({place})" if place else "") + semicolon + advice


def expected(argument: str, wanted: str, came: object, advice: str = "") -> str:
    """Return one line in the house form ``argument: expected …, got …; advice``; what is quoted is shortened.

    >>> expected("x", "at least one token", "shape (0, 3)", "pass a non-empty prompt")
    'x: expected at least one token, got shape (0, 3); pass a non-empty prompt'
    """
    came = shown(came) if isinstance(came, int) else came
    argument, came, advice = (shortened_clauses(printable(str(part)), _LONGEST) for part in (argument, came, advice))
    return f"{argument}: expected {wanted}, got {came}" + (f"; {advice}" if advice else "")
