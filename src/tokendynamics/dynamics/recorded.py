"""Events that are recorded while the run goes on, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokendynamics.dynamics.engines.problem import Outcome
from tokendynamics.dynamics.events import Event


@dataclass(frozen=True)
class Recorded:
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


def recorded(events: Sequence[Event], outcome: Outcome, leading: tuple[int, ...]) -> Recorded | None:
    """Return the crossings of an outcome up to the end of each system's run; None where nothing was to be recorded."""
    if not events:
        return None
    systems, _, *shape = outcome.states.shape
    ends = outcome.end_times.tolist()
    found: dict[tuple[int, int], list[tuple[float, np.ndarray]]] = {}
    for number, system, time, state in sorted(outcome.crossings, key=lambda crossing: crossing[2]):
        if time <= ends[system]:
            found.setdefault((system, number), []).append((time, state.detach().cpu().numpy()))
    most = max(map(len, found.values()), default=0)
    counts = np.zeros((systems, len(events)), dtype=np.int64)
    times = np.full((systems, len(events), most), np.nan)
    states = np.full((systems, len(events), most, *shape), np.nan)
    for place, met in found.items():
        counts[place] = len(met)
        for occurrence, (time, state) in enumerate(met):
            times[(*place, occurrence)], states[(*place, occurrence)] = time, state
    parts = (part.reshape(*leading, *part.shape[1:]) for part in (counts, times, states))
    return Recorded(tuple(map(repr, events)), *parts)
