"""What a layer did from one look to another: a change of state, or a large change of one measure; and its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from tokendynamics.diagnosis.tracing.layer_states import (
    ANISOTROPIC,
    CONSENSUS,
    LINE_EXCESS,
    ONE_POINT,
    SPREAD,
    State,
    state_of,
)
from tokendynamics.training.monitor.looks import DECIDING, FINAL_NORM, Look, Values
from tokendynamics.words import fixed, ranges

ROOM = 0.02
"""A measure nearer than this to a threshold is on neither side of it, however well it is known: half of the distance
from 0.06 to the nearest built networks that are not spread. Near 1 the room is half of the distance to 1."""

LARGE = 0.4
"""Change of a measure that has a line although the state stays. Small networks that learn and stay spread move by up to
0.25 in their first steps."""

MEASURES: dict[str, tuple[str, tuple[float, ...]]] = {
    "share_common": ("common share", (ANISOTROPIC, 1 - ONE_POINT)),
    "consensus_relative": ("κ′", (SPREAD, CONSENSUS)),
    "line_excess": ("line excess", (LINE_EXCESS,)),
}
"""The measures that decide a state: the word for each, and the values at which it decides."""


_AS_PREDICATES: dict[State, str] = {
    "consensus": "in consensus", "rank collapse": "in rank collapse", "one point": "at one point",
}  # fmt: skip
"""States whose name is a noun, as what layers are."""


@dataclass(frozen=True)
class Change:
    """What one layer or several layers did alike, seen at one step.

    Attributes:
        step: At which it was seen.
        layers: Counted from 1; none for the state after the final norm.
        former: Their state before; the same as `state` where one measure changed much and the state did not.
        state: Their state now.
        measure: The name of the measure that changed; empty where a state is undetermined.
        before: Its lowest and highest value over these layers at `since`.
        after: The same now.
        since: First and last step of the looks that `before` is from: for a change of state the last look at which the
            measures themselves made the former state.
        recent: Whether all of these are the look before this one.
        moved: The largest change of the measure over these layers.
        measured: Whether the measures themselves make the state; otherwise it only lies within the intervals.
        kept: Whether they were in this state at the look that the measure is compared with, if the state is one.
    """

    step: int
    layers: tuple[int, ...]
    former: State
    state: State
    measure: str
    before: tuple[float, float]
    after: tuple[float, float]
    since: tuple[int, int]
    recent: bool = True
    moved: float = 0.0
    measured: bool = True
    kept: bool = True

    @property
    def text(self) -> str:
        """The line in words.

        >>> numbers = ("consensus_relative", (0.04, 0.04), (0.21, 0.21), (1000, 1000))
        >>> Change(1500, (7,), "spread", "drawing together", *numbers).text
        'step 1500: layer 7 went from spread to drawing together (κ′ 0.04 → 0.21)'
        >>> numbers = ("share_common", (0.04, 0.05), (0.9, 0.97), (500, 500))
        >>> Change(1500, (1, 2), "drawing together", "drawing together", *numbers, recent=False).text
        'step 1500: layers 1–2 are still drawing together, but common share 0.04 to 0.05 at step 500 → 0.90 to 0.97'
        >>> numbers = ("consensus_relative", (0.0, 0.0), (0.43, 0.44), (0, 0))
        >>> Change(30, (2, 3), "rank collapse", "rank collapse", *numbers, recent=False, measured=False).text
        'step 30: layers 2–3 may still be in rank collapse, but κ′ 0.00 at step 0 → 0.43 to 0.44'
        >>> numbers = ("share_common", (0.11, 0.11), (0.96, 0.96), (1, 1))
        >>> Change(2, (1,), "anisotropic", "anisotropic", *numbers, kept=False).text
        'step 2: layer 1 is now anisotropic, and common share 0.11 → 0.96'
        >>> numbers = ("share_common", (0.9993, 0.9993), (0.9981, 0.9981), (500, 500))
        >>> Change(1000, (2,), "one point", "anisotropic", *numbers).text
        'step 1000: layer 2 went from one point to anisotropic (common share 0.999 → 0.998)'
        >>> numbers = ("share_common", (0.4, 0.4), (0.9999, 0.9999), (0, 0))
        >>> Change(500, (), "spread", "one point", *numbers).text
        'step 500: the state after the final norm went from spread to one point (common share 0.40 → 1.00)'
        """
        several = len(self.layers) > 1
        layers = f"{'layers' if several else 'layer'} {ranges(self.layers)}" if self.layers else ""
        who = f"step {self.step}: {layers or 'the state after the final norm'}"
        if self.former == self.state:
            when, link = ("still", "but") if self.kept else ("now", "and")
            verb = f"may {when} be" if not self.measured else f"are {when}" if several else f"is {when}"
            return f"{who} {verb} {_AS_PREDICATES.get(self.state, self.state)}, {link} {self._numbers}"
        return f"{who} went from {self.former} to {self.state}" + (f" ({self._numbers})" if self.measure else "")

    @property
    def _numbers(self) -> str:
        first, last = self.since
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        at = "" if self.recent else f" at {steps}"
        # Both sides of a threshold near 1 are 1.00: as many places as it takes to see the change.
        pairs = [(_between(self.before, places), _between(self.after, places)) for places in range(2, 7)]
        before, after = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
        return f"{MEASURES[self.measure][0]} {before}{at} → {after}"


def _between(ends: tuple[float, float], places: int) -> str:
    low, high = (fixed(end, places) for end in ends)
    return low if low == high else f"{low} to {high}"


@dataclass
class Track:
    """The states of layers, look by look, and what changed.

    Attributes:
        looks: All so far.
        states: The state after each layer 1 … L by the measures of each look alone; none where there are no numbers.
        held: The states that changes are counted from: a state stays while anything within the intervals makes it.
        anchors: By measure, for each layer 1 … L the place of the look from which large changes count.
    """

    looks: list[Look] = field(default_factory=list)
    states: list[list[State]] = field(default_factory=list)
    held: list[list[State]] = field(default_factory=list)
    anchors: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, look: Look) -> list[Change]:
        """Add a look; return what layers have done since the last one that has numbers.

        Args:
            look: Of a later step than all others.
        """
        former = next((states for states in reversed(self.held) if states), None)
        states = states_in(look.values) if look.values else []
        self.looks.append(look)
        self.states.append(states)
        self.held.append(states if former is None or not states else settled(former, look.values))
        if not states:
            return []
        place = len(self.looks) - 1
        if former is None:
            self.anchors = {name: np.full(len(states), place) for name in MEASURES}
            return []
        changes = changes_at(self.looks, self.states, self.held, self.anchors)
        for change in changes:
            if change.measure:
                self.anchors[change.measure][[layer - 1 for layer in change.layers]] = place
        return changes


def after_final_norm(look: Look) -> Look:
    """Return the measures of the state after the final norm as those of a network of one layer; none without a norm.

    Args:
        look: Of a network.
    """
    names = [*DECIDING, *(f"{name}_interval" for name in DECIDING)]
    values = {name: look.values[f"{FINAL_NORM}{name}"] for name in names if f"{FINAL_NORM}{name}" in look.values}
    known = len(values) == len(names) and bool(np.isfinite(values["share_common"]))
    return replace(look, values={name: np.stack([value, value]) for name, value in values.items()} if known else {})


def states_in(values: Values) -> list[State]:
    """Return the state after each layer 1 … L, as a verdict has it; all undetermined with fewer than three texts.

    Args:
        values: Of one look.
    """
    if not has_intervals(values):
        return ["undetermined"] * (len(values["share_common"]) - 1)
    numbers = (values[name][1:] for name in MEASURES)
    return [state_of(*of_layer) for of_layer in zip(*numbers, strict=True)]


def has_intervals(values: Values) -> bool:
    """Return whether there are intervals over texts, which need three different ones.

    Args:
        values: Of one look.
    """
    return bool(np.isfinite(values["share_common_interval"]).any())


def settled(former: Sequence[State], values: Values) -> list[State]:
    """Return the states that layers are taken to be in, after one more look.

    A layer keeps its state as long as measures anywhere within their intervals, or within `ROOM` of the measured
    value and half of its distance from 1, make that state. Neither noise about a threshold nor too few texts make a
    layer change back and forth.

    Args:
        former: The states before.
        values: Of the look.
    """
    now = states_in(values)
    if not has_intervals(values):
        return now
    kept = [before in possible_states(values, layer) for layer, before in enumerate(former, start=1)]
    return [before if stays else state for before, state, stays in zip(former, now, kept, strict=True)]


def possible_states(values: Values, layer: int) -> set[State]:
    """Return the states that measures within their intervals, or within `ROOM` of the measured value, make.

    Args:
        values: Of one look.
        layer: Counted from 0, the embedding.
    """
    around = []
    for name, (_, thresholds) in MEASURES.items():
        value = float(values[name][layer])
        low, high = values[f"{name}_interval"][layer]
        room = min(ROOM, max(0.0, (1 - value) / 2))
        low, high = float(np.fmin(low, value - room)), float(np.fmax(high, value + room))
        # A state begins at its threshold, and the one below ends there.
        around.append([low, high, *(threshold for threshold in thresholds if low < threshold < high)])
    return {state_of(*point) for point in product(*around)}


class _Done(NamedTuple):
    """What one layer did, with the place of the look that it is compared with."""

    former: State
    state: State
    measure: str
    layer: int
    place: int
    measured: bool = True
    kept: bool = True


def changes_at(
    looks: Sequence[Look],
    states: Sequence[Sequence[State]],
    held: Sequence[Sequence[State]],
    anchors: Mapping[str, np.ndarray],
) -> list[Change]:
    """Return what layers did up to the last look, the largest change of a measure first.

    A change of state is compared with the last look at which the measures made the former state, so that the measure
    has crossed the threshold between the two states. A measure that moved by `LARGE` since the look in `anchors`, with
    intervals that do not overlap, has a line of its own unless a change of state shows it.

    Args:
        looks: In the order of their steps; the last one has numbers, and so has an earlier one.
        states: The states that the measures of each look make.
        held: The states that layers are taken to be in at each look.
        anchors: By measure, for each layer 1 … L the place in `looks` from which its changes count. Not changed here.
    """
    previous = max(place for place, look in enumerate(looks[:-1]) if look.values)
    done = list(_of_states(looks, states, held, previous))
    shown = {(item.measure, item.layer) for item in done}
    now = looks[-1].values
    for name, places in anchors.items():
        for layer, place in enumerate(places.tolist(), start=1):
            before = looks[place].values
            # Comparisons with NaN are false: what is not defined has not changed.
            large = abs(float(now[name][layer] - before[name][layer])) >= LARGE
            (low, high), (former_low, former_high) = (values[f"{name}_interval"][layer] for values in (now, before))
            if (name, layer) not in shown and large and (low > former_high or high < former_low):
                state = held[-1][layer - 1]
                kept = held[place][layer - 1] == state
                done.append(_Done(state, state, name, layer, place, states[-1][layer - 1] == state, kept))
    grouped: dict[tuple[State, State, str, bool, bool], list[_Done]] = {}
    for item in done:
        grouped.setdefault((*item[:3], item.measured, item.kept), []).append(item)
    return sorted((_change(looks, previous, group) for group in grouped.values()), key=lambda change: -change.moved)


def _of_states(
    looks: Sequence[Look], states: Sequence[Sequence[State]], held: Sequence[Sequence[State]], previous: int
) -> Iterator[_Done]:
    for layer, (former, state) in enumerate(zip(held[previous], held[-1], strict=True), start=1):
        if former != state:
            earlier = (place for place in range(previous, -1, -1) if states[place])
            place = next(place for place in earlier if states[place][layer - 1] == former)
            measure = deciding(former, state)
            if measure and not all(np.isfinite(looks[index].values[measure][layer]) for index in (place, -1)):
                measure = ""
            yield _Done(former, state, measure, layer, place)


def _change(looks: Sequence[Look], previous: int, group: Sequence[_Done]) -> Change:
    former, state, measure = group[0][:3]
    layers, places = tuple(change.layer for change in group), [change.place for change in group]
    steps = [looks[place].step for place in places]
    before = after = np.full(len(group), np.nan)
    if measure:
        before = np.array([looks[change.place].values[measure][change.layer] for change in group])
        after = looks[-1].values[measure][list(layers)]
    ends = [(float(values.min()), float(values.max())) for values in (before, after)]
    sizes = np.abs(after - before)
    return Change(
        looks[-1].step,
        layers,
        former,
        state,
        measure,
        *ends,
        since=(min(steps), max(steps)),
        recent=set(places) == {previous},
        moved=float(np.nan_to_num(sizes).max()),
        measured=group[0].measured,
        kept=group[0].kept,
    )


def deciding(*pair: State) -> str:
    """Return the measure that tells two states apart, in the order in which `state_of` asks for them."""
    if "undetermined" in pair:
        return ""
    if "one point" in pair:
        return "share_common"
    if "consensus" in pair:
        return "consensus_relative"
    if "rank collapse" in pair:
        return "line_excess"
    return "consensus_relative" if "drawing together" in pair else "share_common"
