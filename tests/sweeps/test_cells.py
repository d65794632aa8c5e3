"""Points of a random design in cells: every point in the cell that holds it, of equal steps or of equal ratios."""

from __future__ import annotations

import numpy as np
import pytest

from tokendynamics.sweeps.systems.results import _cells


@pytest.mark.parametrize(
    ("low", "high", "log"), [(0.01, 10.0, True), (1.0, 10.0, False), (-10.0, 10.0, False), (0.0, 10.0, False)]
)
def test_cells_are_of_equal_ratios_where_the_values_span_decades_above_zero(low: float, high: float, log: bool) -> None:
    random = np.random.default_rng(0)
    values = np.concatenate([[low, high], random.uniform(low, high, 400)])
    middles, place = _cells(values, 12)
    steps = np.diff(np.log(middles)) if log else np.diff(middles)
    assert steps == pytest.approx(steps[0])
    half = (np.log(high / low) if log else high - low) / 24
    distance = np.log(values / middles[place]) if log else values - middles[place]
    assert np.abs(distance).max() <= half * (1 + 1e-9)
    assert (place[0], place[1]) == (0, 11)


def test_few_values_and_words_are_cells_of_their_own() -> None:
    for values in (np.array([3, 1, 3, 2]), np.array(["c", "a", "c", "b"])):
        names, place = _cells(values, 3)
        assert names.tolist() == sorted(set(values.tolist()))
        assert names[place].tolist() == values.tolist()
