"""What is kept of a system: how its run ended, what became of its tokens, and observables of its states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendynamics import observables
from tokendynamics.dynamics import Status, Trajectory
from tokendynamics.specification.build import Setup
from tokendynamics.theorems.contraction import contraction_form
from tokendynamics.theorems.outcomes import log_norms, outcomes_of
from tokendynamics.theorems.statements.positional_remark_3_5 import largest_real_part

COMPLETE = "complete"
"""Of each system whether it was run: its chunk is written after all others of its task and is the task's record."""
MISSING = -1
"""The code of a system that was not run yet."""
STATUSES = tuple(str(status) for status in Status)
OUTCOMES = ("zero", "diverged", "nonzero equilibrium", "consensus", "antipodal consensus", "undecided")
_TOGETHER = 1e-6
"""Consensus E below which directions agree: cosines of 1 − 1e-6, angles of about a thousandth."""


def outcome_codes(setup: Setup, run: Trajectory) -> np.ndarray:
    """Return the index in `OUTCOMES` of what became of each system of a run.

    In free space they are those of `tokendynamics.theorems.outcomes.outcomes_of`. On a sphere or an ellipsoid, and of
    tokens with a radius, it is
    "consensus" where the directions of all tokens agree at the end with the first (E < 1e-6, signed, or the event
    "consensus"), "antipodal consensus" where they do up to the sign, and otherwise "nonzero equilibrium" or
    "undecided" as in free space: at rest, or not, over the last third of the run.
    """
    words = outcomes_of(run)
    if setup.flow.geometry.bounded or setup.flow.geometry.has_radius:
        states = run.tensor[:, -1].double()
        signed, unsigned = (observables.consensus(states, signed=sign).numpy() < _TOGETHER for sign in (True, False))
        signed = signed | (run.status == "consensus")
        resting = np.where(words == "nonzero equilibrium", words, "undecided")
        words = np.where(signed, "consensus", np.where(unsigned, "antipodal consensus", resting))
    return np.array([OUTCOMES.index(str(word)) for word in words.tolist()], dtype=np.int8)


def unsettled(setup: Setup, run: Trajectory) -> np.ndarray:
    """Tell what may end otherwise when it is followed further: the undecided, and rest, which may be slow motion."""
    codes = outcome_codes(setup, run)
    return np.isin(codes, [OUTCOMES.index(word) for word in ("undecided", "nonzero equilibrium")])


def _highest(matrix: Tensor, setup: Setup) -> np.ndarray:
    """Return the largest eigenvalue of the symmetric part over the spectral norm, (system,)."""
    highest = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)[..., -1] / torch.linalg.matrix_norm(matrix, ord=2)
    return np.broadcast_to(highest.numpy(), (len(setup.start),))


def _value_growth(setup: Setup, run: Trajectory) -> np.ndarray:
    size = torch.linalg.matrix_norm(contraction_form(setup.flow).ov, ord=2).numpy()
    return np.broadcast_to(largest_real_part(setup.flow)[0] / size, (len(setup.start),))


@dataclass(frozen=True)
class Measure:
    """A number for each system, or for each of its saved times.

    Attributes:
        dtype: Of the stored numbers.
        says: What it is, and its unit.
        of_states: From directions or states (…, token, dim) and the angle of clusters to (…); None where it is of the
            run.
        of_run: From what was built and its run to (system,).
        directions: Whether it needs tokens that are not zero.
        words: What its numbers stand for; empty where they are numbers.
    """

    dtype: str
    says: str
    of_states: Callable[[Tensor, float], Tensor] | None = None
    of_run: Callable[[Setup, Trajectory], np.ndarray] | None = None
    directions: bool = True
    words: tuple[str, ...] = ()

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Of its variable; words for numbers as the CF conventions have them."""
        meanings = " ".join(word.replace(" ", "_") for word in self.words)
        flags = {"flag_values": list(range(len(self.words))), "flag_meanings": meanings} if self.words else {}
        return {"long_name": self.says, **flags}


ALWAYS: dict[str, Measure] = {
    "status": Measure(
        "int8",
        "how the run ended",
        of_run=lambda _, run: np.array([STATUSES.index(str(word)) for word in run.status]),
        words=STATUSES,
    ),
    "end_time": Measure("float64", "where the run ended", of_run=lambda _, run: run.end_times),
    "accepted": Measure("int32", "accepted steps of the last try", of_run=lambda _, run: run.counts["accepted"]),
    "right_hand_sides": Measure(
        "int32", "right-hand sides of all tries", of_run=lambda _, run: run.counts["right_hand_sides"]
    ),
    "tries": Measure(
        "int8",
        "which try the numbers are of: 1 the first, 2 that of the stiff engine, 3 that of many explicit steps",
        of_run=lambda _, run: np.ones(len(run.status)),
    ),
}
"""What is kept of every system."""

MEASURES: dict[str, Measure] = {
    "outcome": Measure("int8", "what became of the tokens", of_run=outcome_codes, words=OUTCOMES),
    "value_growth": Measure("float64", "largest Re λ(V), over ‖V‖, of one head", of_run=_value_growth),
    "contraction_growth": Measure(
        "float64",
        "largest eigenvalue of A_sym over ‖A‖, of one head",
        of_run=lambda setup, _: _highest(contraction_form(setup.flow).matrix, setup),
    ),
    "qk_lowest": Measure(
        "float64",
        "lowest eigenvalue of qk_sym over ‖qk‖, of one head",
        of_run=lambda setup, _: -_highest(-contraction_form(setup.flow).qk, setup),
    ),
    "log_norm": Measure("float64", "log max |x_l|", lambda states, _: log_norms(states), directions=False),
    "diameter": Measure(
        "float64", "largest distance of two tokens", lambda states, _: observables.diameter(states), directions=False
    ),
    "consensus": Measure(
        "float64", "E, |cosines| with the first token", lambda states, _: observables.consensus(states)
    ),
    "consensus_signed": Measure(
        "float64", "E, cosines with the first token", lambda states, _: observables.consensus(states, signed=True)
    ),
    "mean_pair_cosine": Measure(
        "float64", "mean cosine of two tokens", lambda states, _: observables.mean_pair_cosine(states)
    ),
    "clusters": Measure("int32", "clusters of directions by single linkage at cluster_angle", observables.clusters),
    "effective_rank": Measure(
        "float64", "effective rank of unit rows", lambda states, _: observables.effective_rank(states, unit_rows=True)
    ),
}
"""What ``measure`` and ``over_time`` of a sweep can name."""


def measured(measure: Measure, setup: Setup, run: Trajectory, angle: float) -> np.ndarray:
    """Return one number for each system: of its run, or of its last states."""
    if measure.of_run is not None:
        return np.asarray(measure.of_run(setup, run)).astype(measure.dtype)
    return of_states(measure, run.tensor[:, -1], angle)


def of_states(measure: Measure, states: Tensor, angle: float) -> np.ndarray:
    """Return one number for each state (…, token, dim); what is not defined there is NaN, or `MISSING`."""
    if measure.of_states is None:
        raise AssertionError
    usable = torch.isfinite(states).all(dim=-1).all(dim=-1)
    if measure.directions:
        usable &= (states != 0).any(dim=-1).all(dim=-1)
    undefined = MISSING if measure.dtype.startswith("int") else np.nan
    values = np.full(tuple(usable.shape), undefined, dtype=measure.dtype)
    if bool(usable.any()):
        values[usable.numpy()] = measure.of_states(states[usable].double(), angle).numpy()
    return values
