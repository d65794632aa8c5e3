"""How the run of one system ended."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """One for every system of a batch; a failure is a status and never a NaN or an exception.

    Every engine means the same by them. "diverged": in free space the norm passed its bound, or grew in finite time
    beyond what the numbers or the time can resolve. "not finite": the field itself is not finite, at a state of
    moderate size. "step size underflow": states stay bounded, but no step is short enough for the tolerance. "radius
    reached zero": a token of a space with radii has no direction any more. "held at a tie": of two senders with the
    largest logits of a hardmax each loses the receiver as soon as it has it.

    >>> [status.value for status in Status][:3]
    ['reached the horizon', 'consensus', 'diverged']
    """

    HORIZON = "reached the horizon"
    CONSENSUS = "consensus"
    DIVERGED = "diverged"
    EQUILIBRIUM = "equilibrium"
    BUDGET = "step budget spent"
    UNDERFLOW = "step size underflow"
    NOT_FINITE = "not finite"
    INTERRUPTED = "interrupted"
    # Stores of sweeps have the places of these words: new ones come last.
    RADIUS = "radius reached zero"
    TIED = "held at a tie"
