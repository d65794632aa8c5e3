"""What every engine is given and what it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics._deviations import Deviations
from tokendynamics.dynamics._field import Field
from tokendynamics.dynamics._noise import Draws
from tokendynamics.dynamics.engines.tableau import Tableau
from tokendynamics.dynamics.events import Event, Status
from tokendynamics.provenance.progress import Progress, silent


@dataclass(frozen=True)
class Problem:
    """One batch of systems to run.

    Attributes:
        field: The vector field, in the dtype and on the device of `start`.
        start: States (system, token, dim), on the space.
        times: Increasing times; the first is that of `start`.
        rtol: Relative tolerance per step.
        atol: Absolute tolerance per step.
        events: What ends a system's run early.
        max_steps: Budget of attempted steps for each system.
        tableau: The Runge–Kutta method of the stepping engines.
        step: Fixed step of the `fixed` engine; None for step control.
        tau: Step of one layer of the `layers` engine.
        residual: The factor of the state itself in such a layer.
        progress: Told now and then how far the run is, see `report`.
        recorded: Events that are recorded while the run continues.
        footprint: Numbers a system's right-hand side touches beyond its states and weights.
        max_step: The longest step under step control; None for any.
        stops: Times that no step passes, increasing; none where all that depends on time is known as a formula.
        deviations: Of `start`, where a run of layers continues.
        notes: How it is run, in words, for the notes of a trajectory.
        draws: The numbers of its noise; None of a run without.
    """

    field: Field
    start: Tensor
    times: tuple[float, ...]
    rtol: float
    atol: float
    events: tuple[Event, ...]
    max_steps: int
    tableau: Tableau
    step: float | None = None
    tau: float = 1.0
    progress: Progress = silent
    recorded: tuple[Event, ...] = ()
    footprint: int = 0
    max_step: float | None = None
    stops: tuple[float, ...] = ()
    residual: float = 1.0
    deviations: Deviations | None = None
    notes: tuple[str, ...] = ()
    draws: Draws | None = None

    def report(self, share: float) -> None:
        """Tell the share of the work that is done, 0 to 1."""
        self.progress(share, 1.0, "simulating")

    @property
    def wants_gradients(self) -> bool:
        """Whether the start or a matrix is to be differentiated by."""
        schedules = self.field.attention.schedules
        matrices = (schedule.matrix_at(self.times[0]) for schedule in schedules)
        return self.start.requires_grad or any(matrix.requires_grad for matrix in matrices)


@dataclass
class Outcome:
    """What an engine found.

    Attributes:
        states: (system, time, token, dim); from the end of a system's run on, its last state.
        status: One for each system.
        end_times: Where each system's run ended, (system,), float64.
        counts: Numbers of right-hand sides, accepted and rejected steps, each (system,) int64, and whatever else
            an engine counts.
        notes: How the work was done, in words.
        interrupted: Whether Ctrl-C ended it.
        crossings: Of recorded events: number of the event, system, time, state (token, dim); also some after the end
            of a system's run, within its last step.
        longest_step: Of all accepted steps, where `Problem.stops` asks for it; else 0.
        deviations: Of layers that can be followed below rounding, (system, time).
    """

    states: Tensor
    status: list[Status]
    end_times: Tensor
    counts: dict[str, Tensor]
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    crossings: list[tuple[int, int, float, Tensor]] = field(default_factory=list)
    longest_step: float = 0.0
    deviations: Deviations | None = None

    @classmethod
    def blank(cls, problem: Problem) -> Outcome:
        """Return all systems at their start."""
        systems, (first, count) = len(problem.start), (problem.times[0], len(problem.times))
        states = problem.start.detach().unsqueeze(1).repeat(1, count, 1, 1)
        counts = {
            name: torch.zeros(systems, dtype=torch.int64) for name in ("right_hand_sides", "accepted", "rejected")
        }
        end_times = torch.full((systems,), first, dtype=torch.float64)
        return cls(states, [Status.HORIZON] * systems, end_times, counts)


@dataclass(frozen=True)
class RecordedEvents:
    """When each recorded event happened, and where tokens were.

    Attributes:
        events: What was recorded, in words.
        counts: How often each system met each event, (…, event).
        times: (…, event, occurrence), NaN beyond the count.
        states: (…, event, occurrence, token, dim), likewise.
    """

    events: tuple[str, ...]
    counts: np.ndarray
    times: np.ndarray
    states: np.ndarray


def recorded(events: Sequence[Event], outcome: Outcome, leading: tuple[int, ...]) -> RecordedEvents | None:
    """Return the crossings of an outcome up to the end of each system's run; None where nothing was to be recorded."""
    if not events:
        return None
    systems, _, *shape = outcome.states.shape
    ends = outcome.end_times.tolist()
    crossings: dict[tuple[int, int], list[tuple[float, np.ndarray]]] = {}
    for event, system, time, state in sorted(outcome.crossings, key=lambda crossing: crossing[2]):
        if time <= ends[system]:
            crossings.setdefault((system, event), []).append((time, state.detach().cpu().numpy()))
    most = max(map(len, crossings.values()), default=0)
    counts = np.zeros((systems, len(events)), dtype=np.int64)
    times = np.full((systems, len(events), most), np.nan)
    states = np.full((systems, len(events), most, *shape), np.nan)
    for place, met in crossings.items():
        counts[place] = len(met)
        for occurrence, (time, state) in enumerate(met):
            times[(*place, occurrence)], states[(*place, occurrence)] = time, state
    parts = (part.reshape(*leading, *part.shape[1:]) for part in (counts, times, states))
    return RecordedEvents(tuple(map(repr, events)), *parts)
