"""What is kept of a system: how its run ended, what became of its tokens, and observables of its states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokendynamics import observables
from tokendynamics.dynamics import Status, Trajectory
from tokendynamics.specification.build import Setup
from tokendynamics.sweeps._tables import SweepTable
from tokendynamics.sweeps.outcome import OUTCOMES, outcome_codes
from tokendynamics.theorems.contraction import contraction_form
from tokendynamics.theorems.outcomes import log_norms
from tokendynamics.theorems.statements.positional_remark_3_5 import largest_real_part

COMPLETE = "complete"
"""Of each system whether it was run: its chunk is written after all others of its task and is the task's record."""
MISSING = -1
"""The code of a system that was not run yet."""
STATUSES = tuple(str(status) for status in Status)


def flags(words: tuple[str, ...]) -> dict[str, Any]:
    """Return the attributes of a variable whose numbers stand for words, as the CF conventions have them."""
    return {"flag_values": list(range(len(words))), "flag_meanings": " ".join(word.replace(" ", "_") for word in words)}


@dataclass(frozen=True)
class Measure:
    """A number for each system, or for each of its saved times.

    Attributes:
        dtype: Of the stored numbers.
        says: What it is, and its unit.
        of_states: From directions or states (…, token, dim) to (…); None where it is of the run.
        of_run: From what was built and its run to (system,).
        directions: Whether it needs tokens that are not zero.
        attributes: Further ones.
    """

    dtype: str
    says: str
    of_states: Callable[[Tensor, SweepTable], Tensor] | None = None
    of_run: Callable[[Setup, Trajectory, SweepTable], np.ndarray] | None = None
    directions: bool = True
    attributes: Mapping[str, Any] = field(default_factory=dict)


ALWAYS: dict[str, Measure] = {
    "status": Measure(
        "int8",
        "how the run ended",
        of_run=lambda setup, run, table: np.array([STATUSES.index(str(word)) for word in run.status]),
        attributes=flags(STATUSES),
    ),
    "end_time": Measure("float64", "where the run ended", of_run=lambda setup, run, table: run.end_times),
    "accepted": Measure(
        "int32", "accepted steps of the last try", of_run=lambda setup, run, table: run.counts["accepted"]
    ),
    "right_hand_sides": Measure(
        "int32", "right-hand sides of all tries", of_run=lambda setup, run, table: run.counts["right_hand_sides"]
    ),
    "tries": Measure(
        "int8",
        "which try the numbers are of: 1 the first, 2 that of the stiff engine, 3 that of many explicit steps",
        of_run=lambda setup, run, table: np.ones(len(run.status)),
    ),
}
"""What is kept of every system."""

MEASURES: dict[str, Measure] = {
    "outcome": Measure("int8", "what became of the tokens", of_run=outcome_codes, attributes=flags(OUTCOMES)),
    "value_growth": Measure(
        "float64",
        "largest Re λ(V), over ‖V‖, of one head",
        of_run=lambda setup, run, table: _value_growth(setup),
    ),
    "contraction_growth": Measure(
        "float64",
        "largest eigenvalue of A_sym over ‖A‖, of one head",
        of_run=lambda setup, run, table: _highest(contraction_form(setup.flow).matrix, len(setup.start)),
    ),
    "qk_lowest": Measure(
        "float64",
        "lowest eigenvalue of qk_sym over ‖qk‖, of one head",
        of_run=lambda setup, run, table: -_highest(-contraction_form(setup.flow).qk, len(setup.start)),
    ),
    "log_norm": Measure(
        "float64", "log max |x_l|", of_states=lambda states, table: log_norms(states), directions=False
    ),
    "diameter": Measure(
        "float64",
        "largest distance of two tokens",
        of_states=lambda states, table: observables.diameter(states),
        directions=False,
    ),
    "consensus": Measure(
        "float64", "E, |cosines| with the first token", of_states=lambda states, table: observables.consensus(states)
    ),
    "consensus_signed": Measure(
        "float64",
        "E, cosines with the first token",
        of_states=lambda states, table: observables.consensus(states, signed=True),
    ),
    "mean_pair_cosine": Measure(
        "float64", "mean cosine of two tokens", of_states=lambda states, table: observables.mean_pair_cosine(states)
    ),
    "clusters": Measure(
        "int32",
        "clusters of directions by single linkage at cluster_angle",
        of_states=lambda states, table: observables.clusters(states, table.cluster_angle),
    ),
    "effective_rank": Measure(
        "float64",
        "effective rank of unit rows",
        of_states=lambda states, table: observables.effective_rank(states, unit_rows=True),
    ),
}
"""What ``measure`` and ``over_time`` of a sweep can name."""


def _value_growth(setup: Setup) -> np.ndarray:
    size = torch.linalg.matrix_norm(contraction_form(setup.flow).ov, ord=2).numpy()
    return np.broadcast_to(largest_real_part(setup.flow)[0] / size, (len(setup.start),))


def _highest(matrix: Tensor, systems: int) -> np.ndarray:
    """Return the largest eigenvalue of the symmetric part over the spectral norm, (system,)."""
    highest = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)[..., -1] / torch.linalg.matrix_norm(matrix, ord=2)
    return np.broadcast_to(highest.numpy(), (systems,))


def measured(measure: Measure, setup: Setup, run: Trajectory, table: SweepTable) -> np.ndarray:
    """Return one number for each system: of its run, or of its last states."""
    if measure.of_run is not None:
        return np.asarray(measure.of_run(setup, run, table)).astype(measure.dtype)
    return of_states(measure, run.tensor[:, -1], table)


def of_states(measure: Measure, states: Tensor, table: SweepTable) -> np.ndarray:
    """Return one number for each state (…, token, dim); what is not defined there is NaN, or `MISSING`."""
    if measure.of_states is None:
        raise AssertionError
    usable = torch.isfinite(states).all(dim=-1).all(dim=-1)
    if measure.directions:
        usable &= (states != 0).any(dim=-1).all(dim=-1)
    undefined = MISSING if measure.dtype.startswith("int") else np.nan
    found = np.full(tuple(usable.shape), undefined, dtype=measure.dtype)
    if bool(usable.any()):
        found[usable.numpy()] = measure.of_states(states[usable].double(), table).numpy()
    return found
