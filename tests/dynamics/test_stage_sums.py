"""Sums over stages in lanes against the tableaus in exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from numba import njit

from tokendynamics.dynamics.engines.compiled._known import Compiler
from tokendynamics.dynamics.engines.compiled._steps import Method, coarse_error_of, error_of, move_to_stage, move_within
from tokendynamics.dynamics.engines.compiled.lanes import WIDTH, behind, broadcast, floats, room, store
from tokendynamics.dynamics.engines.tableau import TABLEAUS, Row

ENTRIES, ROOM = 3, 3 * 20


@njit(error_model="numpy", pipeline_class=Compiler)
def _sums(method, memory, share, h, stages, others):
    """Lanes at `memory`: states, slopes of all stages, and room for what is found."""
    y = floats(memory)
    slopes, into = behind(y, ENTRIES), behind(y, ROOM)
    for stage in range(1, method.last + 1 + method.extra):
        move_to_stage(method, stage, y, slopes, broadcast(h), ENTRIES, into)
        for number in range(ENTRIES * WIDTH):
            stages[stage, number] = into[number]
    for entry in range(ENTRIES):
        store(into, entry, error_of(method, slopes, entry, ENTRIES))
        store(into, ENTRIES + entry, coarse_error_of(method, slopes, entry, ENTRIES))
    move_within(method, broadcast(share), broadcast(h), y, slopes, ENTRIES, behind(into, 2 * ENTRIES))
    for number in range(3 * ENTRIES * WIDTH):
        others[number] = into[number]


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ["dopri5", "bosh3", "dop853"])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_sums_over_stages_are_those_of_the_tableau(name: str, share: float) -> None:
    tableau, rng, h = TABLEAUS[name], np.random.default_rng(3), 0.25
    rows = [*tableau.stages, *tableau.extra_stages]
    y, slopes = rng.normal(size=(ENTRIES, WIDTH)), rng.normal(size=(len(rows), ENTRIES, WIDTH))
    array, place = room(ROOM + 3 * ENTRIES)
    lanes = array[(place - array.ctypes.data) // 8 :]
    lanes[: y.size], lanes[y.size : y.size + slopes.size] = y.ravel(), slopes.ravel()
    stages, others = np.zeros((len(rows), ENTRIES * WIDTH)), np.zeros(3 * ENTRIES * WIDTH)
    _sums(Method.of(tableau, 1e-6, 1e-8), place, share, h, stages, others)

    def exact(row: Row) -> np.ndarray:
        return sum(
            (float(factor) * slope for factor, slope in zip(row, slopes, strict=False)), np.zeros((ENTRIES, WIDTH))
        )

    for number, row in enumerate(rows[1:], start=1):
        np.testing.assert_allclose(stages[number].reshape(y.shape), y + h * exact(row), rtol=0, atol=1e-13)
    theta = Fraction(share)
    factors = [theta]
    for power in range(1, len(tableau.extension[0])):
        factors.append(factors[-1] * (1 - theta if power % 2 else theta))
    weights = tuple(
        sum((one * factor for one, factor in zip(row, factors, strict=True)), Fraction(0)) for row in tableau.extension
    )
    error, coarse, within = others.reshape(3, ENTRIES, WIDTH)
    np.testing.assert_allclose(error, exact(tableau.error), rtol=0, atol=1e-14)
    np.testing.assert_allclose(coarse, exact(tableau.coarse), rtol=0, atol=1e-14)
    np.testing.assert_allclose(within, y + h * exact(weights), rtol=0, atol=1e-13)


def test_a_stage_of_weight_zero_does_not_matter_even_where_it_overflowed() -> None:
    tableau = TABLEAUS["dop853"]
    slopes = np.ones((len(tableau.extension), ENTRIES, WIDTH))
    slopes[1] = np.inf  # the second stage has weight zero in the solution, the error and the extension
    array, place = room(ROOM + 3 * ENTRIES)
    lanes = array[(place - array.ctypes.data) // 8 :]
    lanes[ENTRIES * WIDTH : ENTRIES * WIDTH + slopes.size] = slopes.ravel()
    stages, others = np.zeros((len(slopes), ENTRIES * WIDTH)), np.zeros(3 * ENTRIES * WIDTH)
    _sums(Method.of(tableau, 1e-6, 1e-8), place, 0.5, 1.0, stages, others)
    assert np.isfinite(stages[len(tableau.stages) - 1]).all()
    assert np.isfinite(others).all()
