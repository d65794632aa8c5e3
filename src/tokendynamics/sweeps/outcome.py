"""What became of the tokens of a system, in one word for every space."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokendynamics.dynamics import Trajectory
from tokendynamics.observables import consensus
from tokendynamics.specification.build import Setup
from tokendynamics.theorems.outcomes import outcomes_of

if TYPE_CHECKING:
    from tokendynamics.sweeps._tables import SweepTable

OUTCOMES = ("zero", "diverged", "nonzero equilibrium", "consensus", "antipodal consensus", "undecided")
_TOGETHER = 1e-6
"""Consensus E below which directions agree: cosines of 1 − 1e-6, angles of about a thousandth."""


def outcome_codes(setup: Setup, run: Trajectory, table: SweepTable) -> np.ndarray:
    """Return the index in `OUTCOMES` of what became of each system of a run.

    In free space they are those of `tokendynamics.theorems.outcomes.outcomes_of`. On a sphere or an ellipsoid it is
    "consensus" where the directions of all tokens agree at the end with the first (E < 1e-6, signed, or the event
    "consensus"), "antipodal consensus" where they do up to the sign, and otherwise "nonzero equilibrium" or
    "undecided" as in free space: at rest, or not, over the last third of the run.
    """
    words = outcomes_of(run)
    if setup.flow.geometry.bounded:
        states = run.tensor[:, -1].double()
        signed, unsigned = (consensus(states, signed=each).numpy() < _TOGETHER for each in (True, False))
        signed = signed | (run.status == "consensus")
        resting = np.where(words == "nonzero equilibrium", words, "undecided")
        words = np.where(signed, "consensus", np.where(unsigned, "antipodal consensus", resting))
    return np.array([OUTCOMES.index(str(word)) for word in words.tolist()], dtype=np.int8)


def unsettled(setup: Setup, run: Trajectory, table: SweepTable) -> np.ndarray:
    """Tell what may end otherwise when it is followed further: the undecided, and rest, which may be slow motion."""
    codes = outcome_codes(setup, run, table)
    return np.isin(codes, [OUTCOMES.index(word) for word in ("undecided", "nonzero equilibrium")])
