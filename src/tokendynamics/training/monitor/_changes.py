"""When a layer counts as having changed its state, and the line that says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import get_args

import numpy as np

from tokendynamics.diagnosis._finding import plain, ranges
from tokendynamics.diagnosis._layer_states import ANISOTROPIC, CONSENSUS, LINE_EXCESS, SPREAD, State, state_of

ROOM = 0.02
"""A measure nearer than this to a threshold is on neither side of it, however well it is known: half of the distance
from 0.06 to the nearest built networks that are not spread."""

MEASURES: dict[str, tuple[str, tuple[float, ...]]] = {
    "share_common": ("common share", (ANISOTROPIC,)),
    "consensus_relative": ("κ'", (SPREAD, CONSENSUS)),
    "line_excess": ("line excess", (LINE_EXCESS,)),
}
"""What states are made of: the word for each, and the values at which it decides."""

Values = Mapping[str, np.ndarray]
"""The measures of one look, by name, over layers 0 … L."""


@dataclass(frozen=True)
class Change:
    """What one or several layers did at a step, alike.

    Attributes:
        step: At which it was seen.
        layers: Counted from 1.
        former: Their state before.
        state: Their state now.
        measure: The name of the measure that tells the two apart; empty where either is undetermined.
        before: Its lowest and highest value over these layers at the look before.
        after: The same now.
    """

    step: int
    layers: tuple[int, ...]
    former: State
    state: State
    measure: str
    before: tuple[float, float]
    after: tuple[float, float]

    @property
    def text(self) -> str:
        """The line in words.

        >>> Change(1500, (7,), "spread", "drawing together", "consensus_relative", (0.04, 0.04), (0.21, 0.21)).text
        "step 1500: layer 7 went from spread to drawing together (κ' 0.04 → 0.21)"
        """
        who = f"{'layer' if len(self.layers) == 1 else 'layers'} {ranges(self.layers)}"
        numbers = ""
        if self.measure:
            word, _ = MEASURES[self.measure]
            numbers = f" ({word} {_between(self.before)} → {_between(self.after)})"
        return f"step {self.step}: {who} went from {self.former} to {self.state}{numbers}"


def _between(ends: tuple[float, float]) -> str:
    low, high = map(plain, ends)
    return low if low == high else f"{low} to {high}"


def states_in(values: Values) -> list[State]:
    """Return the state after each layer 1 … L, as a verdict has it.

    Args:
        values: Of one look.
    """
    numbers = (values[name][1:] for name in MEASURES)
    return [state_of(*each) for each in zip(*numbers, strict=True)]


def settled(former: Sequence[State], values: Values) -> list[State]:
    """Return the states that layers are held to be in, after one more look.

    A layer stays in its state for as long as that is possible: as long as measures anywhere within their intervals, or
    within `ROOM` of what was measured, make it. So neither noise about a threshold nor texts too few to tell make a
    layer change back and forth.

    Args:
        former: What they were held to be in before.
        values: Of the look.
    """
    found = states_in(values)
    kept = [before in _possible(values, layer) for layer, before in enumerate(former, start=1)]
    return [before if stays else now for before, now, stays in zip(former, found, kept, strict=True)]


def _possible(values: Values, layer: int) -> set[State]:
    around = []
    for name, (_, thresholds) in MEASURES.items():
        value = float(values[name][layer])
        low, high = values[f"{name}_interval"][layer]
        low, high = float(np.fmin(low, value - ROOM)), float(np.fmax(high, value + ROOM))
        # A state begins at its threshold, and the one below ends there.
        around.append([low, high, *(each for each in thresholds if low < each < high)])
    return {state_of(*each) for each in product(*around)}


def changes_between(
    step: int, former: Sequence[State], before: Values, states: Sequence[State], after: Values
) -> Iterator[Change]:
    """Yield what layers did from one look to the next: those that did the same together.

    Args:
        step: Of the later look.
        former: The states that layers were held to be in.
        before: What was measured then.
        states: Those that they are held to be in now.
        after: What was measured now.
    """
    done = list(zip(former, states, strict=True))
    for pair in permutations(get_args(State), 2):
        layers = [layer for layer, each in enumerate(done, start=1) if each == pair]
        if layers:
            measure = _deciding(*pair)
            ends = [_ends(values, measure, layers) for values in (before, after)]
            yield Change(step, tuple(layers), *pair, measure, *ends)


def _deciding(*pair: State) -> str:
    """Return the measure that tells two states apart, in the order in which `state_of` asks for them."""
    if "undetermined" in pair:
        return ""
    if "consensus" in pair:
        return "consensus_relative"
    if "rank collapse" in pair:
        return "line_excess"
    return "consensus_relative" if "drawing together" in pair else "share_common"


def _ends(values: Values, measure: str, layers: Sequence[int]) -> tuple[float, float]:
    if not measure:
        return (np.nan, np.nan)
    numbers = values[measure][list(layers)]
    return float(numbers.min()), float(numbers.max())
