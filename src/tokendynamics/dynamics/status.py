"""How the run of one system ended."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """One for every system of a batch; a failure is a status and never a NaN or an exception."""

    HORIZON = "reached the horizon"
    CONSENSUS = "consensus"
    DIVERGED = "diverged"
    EQUILIBRIUM = "equilibrium"
    BUDGET = "step budget spent"
    UNDERFLOW = "step size underflow"
    NOT_FINITE = "not finite"
    INTERRUPTED = "interrupted"
