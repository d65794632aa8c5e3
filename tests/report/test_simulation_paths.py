"""The paths of a simulation's page: when a sphere is outlined, and what is drawn where lengths differ too much."""

from __future__ import annotations

import numpy as np
import pytest

import tokendynamics as td
from tokendynamics.figures.matrix import _numbered
from tokendynamics.report.simulation._run import Shown, shown
from tokendynamics.report.simulation._tokens import _paths, _to_scale


def _shown(space: td.Free | td.Sphere, dim: int) -> Shown:
    flow = td.Flow(td.Attention(np.eye(dim), 0.1 * np.eye(dim)), space)
    start = td.Sphere().sample(4, dim, seed=3)
    return shown(td.simulate(flow, start, [0.0, 0.5, 1.0]))


@pytest.mark.parametrize(
    ("space", "dim", "outlined"), [(td.Sphere(), 3, True), (td.Sphere(), 4, False), (td.Free(), 3, False)]
)
def test_a_sphere_is_outlined_only_where_tokens_stay_on_one_that_can_be_drawn(
    space: td.Free | td.Sphere, dim: int, outlined: bool
) -> None:
    run = _shown(space, dim)
    assert _paths(run, run.states[0].numpy(), np.arange(3)).drawn.circle is outlined


def test_directions_are_drawn_where_lengths_differ_too_much_whatever_their_size() -> None:
    run = _shown(td.Free(), 3)
    states = run.states[0].numpy().copy()
    text, same, unit = _to_scale(run, states)
    assert (text, unit) == ("", False)
    np.testing.assert_array_equal(same, states)
    grown = states * np.array([1.0, 1e150, 1e300])[:, None, None]
    text, directions, unit = _to_scale(run, grown)
    assert unit
    assert "Directions" in text
    np.testing.assert_allclose(directions, states / np.linalg.norm(states, axis=-1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize(
    ("cell", "numbers"),
    [(13.0, list(range(1, 21))), (6.5, list(range(2, 21, 2))), (2.6, [5, 10, 15, 20]), (1.3, [10, 20])],
)
def test_entries_are_numbered_as_often_as_there_is_room(cell: float, numbers: list[int]) -> None:
    assert list(_numbered(20, cell)) == numbers
