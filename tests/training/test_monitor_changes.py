"""A layer has changed its state where its measures leave it no other; the line says from what to what, and by what."""

from __future__ import annotations

from itertools import permutations, product
from typing import get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokendynamics.diagnosis.tracing.layer_states import (
    ANISOTROPIC,
    CONSENSUS,
    LINE_EXCESS,
    ONE_POINT,
    SPREAD,
    State,
    state_of,
)
from tokendynamics.training.monitor.changes import LARGE, ROOM, settled, states_in
from tokendynamics.training.monitor.looks import DECIDING, Look
from tokendynamics.training.monitor.series import Series
from training.monitored import look


def followed(kappas: list[float], half: float = 0.0) -> Series:
    """One layer whose κ' takes these values."""
    series = Series()
    for step, kappa in enumerate(kappas):
        series.add(look(100 * step, (0.1, kappa, 0.0), half=half))
    return series


def test_a_state_that_flips_within_its_interval_is_no_change() -> None:
    series = followed([0.04, 0.09, 0.03, 0.1, 0.05, 0.08], half=0.05)
    assert [states_in(entry.values)[0] for entry in series.looks[:2]] == ["spread", "drawing together"]
    assert series.changes == []
    assert series.layers.held == [["spread"]] * 6
    assert [states[0] for states in series.states] == ["spread", "drawing together"] * 3  # each look by itself


def test_a_number_close_to_a_threshold_is_on_neither_side_of_it() -> None:
    """However well it is known: of many texts the interval is narrow."""
    for half in (0.0, 1e-6):
        kappas = [SPREAD - 0.9 * ROOM, SPREAD + 0.9 * ROOM] * 3
        assert followed(kappas, half).changes == []
        beyond = followed([SPREAD - 1.1 * ROOM, SPREAD + 1.1 * ROOM] * 2, half)
        assert len(beyond.changes) == 3


def test_what_leaves_its_interval_changes_once_and_has_a_line() -> None:
    series = followed([0.04, 0.05, 0.21, 0.22], half=0.03)
    (change,) = series.changes
    assert change.text == "step 200: layer 1 went from spread to drawing together (κ′ 0.05 → 0.21)"
    assert series.layers.held[-1] == ["drawing together"]


def test_the_way_back_is_as_long_as_the_way_there() -> None:
    """From above the threshold, too, a layer stays until its whole interval is below."""
    assert len(followed([0.04, 0.21, 0.05], half=0.03).changes) == 1
    assert len(followed([0.04, 0.21, 0.02], half=0.03).changes) == 2


def test_a_wide_interval_holds_the_state_between_its_ends() -> None:
    """Both ends make other states than what lies between: spread and consensus."""
    series = Series()
    series.add(look(0, (0.1, 0.4, 0.0)))
    series.add(look(1, (0.1, 0.4, 0.0), half=0.38))
    assert series.layers.held[-1] == ["drawing together"]
    assert {state_of(0.1, end, 0.0) for end in (0.02, 0.78)} == {"spread", "consensus"}


_MEASURE = st.floats(-0.1, 1.0)


@pytest.mark.long
@given(st.tuples(_MEASURE, _MEASURE, _MEASURE), st.floats(0.0, 0.6))
@example((ANISOTROPIC - ROOM, SPREAD - ROOM, LINE_EXCESS), 0.0)
@example((1.0, 0.0, 0.0), 0.0)
@settings(max_examples=60)
def test_a_layer_changes_only_where_nothing_around_its_measures_makes_its_state(
    numbers: tuple[float, float, float], half: float
) -> None:
    """Compared with every point of a fine grid around the measures."""
    thresholds = (SPREAD, CONSENSUS, LINE_EXCESS, ANISOTROPIC, 1 - ONE_POINT)
    lines = []
    for value in numbers:
        width = max(half, min(ROOM, (1 - value) / 2))
        within = [threshold for threshold in thresholds if value - width <= threshold <= value + width]
        near = [entry + side for entry in within for side in (-1e-9, 1e-9) if abs(entry + side - value) <= width]
        lines.append(np.unique([*np.linspace(value - width, value + width, 9), *within, *near]))
    possible = {state_of(*entry) for entry in product(*lines)}
    values = look(1, numbers, half=half).values
    for former in get_args(State):
        (now,) = settled([former], values)
        assert now == (former if former in possible else state_of(*numbers))


_AT: dict[str, tuple[float, float, float]] = {
    "spread": (0.1, 0.01, 0.0),
    "drawing together": (0.1, 0.3, 0.0),
    "consensus": (0.1, 0.9, 0.0),
    "rank collapse": (0.1, 0.2, 0.5),
    "anisotropic": (0.99, 0.0, 0.0),
    "one point": (0.9999, 0.0, 0.0),
    "undetermined": (0.1, np.nan, np.nan),
}


@pytest.mark.parametrize(("former", "now"), list(permutations(_AT, 2)))
def test_the_line_has_the_number_that_tells_the_two_states_apart(former: str, now: str) -> None:
    """Moved from one value to the other alone, it makes one state of the other; the other two numbers do not."""
    series = Series()
    series.add(look(0, _AT[former]))
    change, *others = [entry for entry in series.add(look(7, _AT[now])) if entry.former != entry.state]
    assert not others
    assert (change.former, change.state) == (former, now)
    start = f"step 7: layer 1 went from {former} to {now}"
    if "undetermined" in (former, now):
        assert change.text == start
        return
    place = DECIDING.index(change.measure)
    before, after = _AT[former][place], _AT[now][place]
    word = {"share_common": "common share", "consensus_relative": "κ′", "line_excess": "line excess"}[change.measure]
    assert change.text == f"{start} ({word} {before:.2f} → {after:.2f})"
    mixed = list(_AT[former])
    mixed[place] = after
    assert state_of(*mixed) != former


def test_a_state_that_began_at_this_look_is_not_still_there() -> None:
    """Where another measure decides the states, the one that moved has a line that does not deny the change."""
    series = Series()
    series.add(look(0, (0.11, 0.31, 0.0)))
    assert {change.text for change in series.add(look(7, (0.96, 0.01, 0.0)))} == {
        "step 7: layer 1 went from drawing together to anisotropic (κ′ 0.31 → 0.01)",
        "step 7: layer 1 is now anisotropic, and common share 0.11 → 0.96",
    }


def test_layers_that_do_the_same_share_a_line() -> None:
    series = Series()
    series.add(look(0, *[_AT["spread"]] * 6))
    together = [(0.1, kappa, 0.0) for kappa in (0.2, 0.3, 0.41)]
    series.add(look(500, *together, _AT["spread"], _AT["anisotropic"], (0.1, 0.25, 0.0)))
    assert [change.text for change in series.changes] == [
        "step 500: layer 5 went from spread to anisotropic (common share 0.10 → 0.99)",
        "step 500: layers 1–3, 6 went from spread to drawing together (κ′ 0.01 → 0.20 to 0.41)",
    ]


def test_a_look_without_numbers_is_no_change_and_what_follows_is_held_against_the_one_before() -> None:
    series = Series()
    series.add(look(0, _AT["spread"]))
    assert series.add(Look(1, "not finite at layer 1")) == []
    assert series.states[-1] == []
    (change,) = series.add(look(2, _AT["consensus"]))
    assert change.text == "step 2: layer 1 went from spread to consensus (κ′ 0.01 → 0.90)"
    assert series.dataset.state_held.values.tolist() == [
        ["embedding", "spread"], ["embedding", "undetermined"], ["embedding", "consensus"]
    ]  # fmt: skip


def test_nothing_is_said_of_layers_that_stay() -> None:
    series = Series()
    series.add(look(0, _AT["spread"]))
    assert series.add(look(1, _AT["spread"])) == series.changes == []


def test_a_change_is_compared_with_the_look_that_made_the_former_state() -> None:
    """Not with the look before, whose wide interval alone kept the state: 0.14 → 0.12 explains nothing."""
    series = Series()
    series.add(look(100, (0.1, 0.04, 0.0), half=0.01))
    series.add(look(200, (0.1, 0.14, 0.0), half=0.1))
    assert (series.states[-1], series.layers.held[-1]) == (["drawing together"], ["spread"])
    (change,) = series.add(look(300, (0.1, 0.12, 0.0), half=0.01))
    assert change.text == "step 300: layer 1 went from spread to drawing together (κ′ 0.04 at step 100 → 0.12)"


_NUMBER = st.floats(0.0, 0.99)


@pytest.mark.long
@given(st.lists(st.tuples(_NUMBER, _NUMBER, _NUMBER, st.floats(0.0, 0.3)), min_size=2, max_size=8))
@settings(max_examples=100)
def test_the_numbers_of_a_line_lie_on_both_sides_of_a_threshold(course: list[tuple[float, ...]]) -> None:
    """Whatever course a layer takes, the measure in its line has passed from one state to the other."""
    thresholds = {
        "share_common": [ANISOTROPIC],
        "consensus_relative": [SPREAD, CONSENSUS],
        "line_excess": [LINE_EXCESS],
    }
    series = Series()
    for step, (*numbers, half) in enumerate(course):
        series.add(look(step, (numbers[0], numbers[1], numbers[2]), half=half))
    for change in series.changes:
        (before, _), (after, _) = change.before, change.after
        if change.former == change.state:
            assert abs(after - before) == change.moved >= LARGE
        else:
            assert any((before < threshold) != (after < threshold) for threshold in thresholds[change.measure])


def test_a_large_change_of_a_measure_has_a_line_though_the_state_stays() -> None:
    series = Series()
    series.add(look(0, (0.04, 0.1, 0.0), (0.04, 0.01, 0.0), (0.4, 0.1, 0.0), half=0.02))
    series.add(look(500, (0.97, 0.12, 0.0), (0.97, 0.15, 0.0), (0.7, 0.1, 0.0), half=0.02))
    assert [change.text for change in series.changes] == [
        "step 500: layer 1 is still drawing together, but common share 0.04 → 0.97",
        "step 500: layer 2 is now drawing together, and common share 0.04 → 0.97",
        "step 500: layer 2 went from spread to drawing together (κ′ 0.01 → 0.15)",
    ]
    assert series.add(look(1000, (0.97, 0.12, 0.0), (0.97, 0.15, 0.0), (0.7, 0.1, 0.0), half=0.02)) == []
    (slow,) = series.add(look(1500, (0.97, 0.12, 0.0), (0.97, 0.15, 0.0), (0.81, 0.1, 0.0), half=0.02))
    assert slow.text == "step 1500: layer 3 is still drawing together, but common share 0.40 at step 0 → 0.81"


def test_a_state_that_only_the_intervals_hold_is_not_called_the_state() -> None:
    """The look itself makes "drawing together", as the map of states shows it."""
    series = Series()
    series.add(look(0, (0.1, 0.0, 0.3), (0.1, 0.0, 0.4), half=0.05))
    series.add(look(30, (0.1, 0.43, 0.19), (0.1, 0.44, 0.4), half=0.05))
    assert series.states[-1] == ["drawing together", "rank collapse"]
    assert [change.text for change in series.changes] == [
        "step 30: layer 2 is still in rank collapse, but κ′ 0.00 → 0.44",
        "step 30: layer 1 may still be in rank collapse, but κ′ 0.00 → 0.43",
    ]


@pytest.mark.parametrize(("first", "then", "half"), [(0.04, 0.97, 0.5), (0.5, 0.89, 0.0), (0.5, np.nan, 0.0)])
def test_a_measure_that_moved_little_or_within_its_interval_has_no_line(first: float, then: float, half: float) -> None:
    series = Series()
    series.add(look(0, (first, 0.3, 0.0), half=half))
    assert series.add(look(500, (then, 0.3, 0.0), half=half)) == []


def test_two_texts_have_numbers_but_no_state_and_no_change() -> None:
    series = Series()
    for step, numbers in enumerate((_AT["spread"], _AT["consensus"], _AT["anisotropic"])):
        series.add(look(step, numbers, half=np.nan))
    assert series.states == series.layers.held == [["undetermined"]] * 3
    assert series.changes == []
    assert series.dataset.consensus_relative.values[:, 1].tolist() == [0.01, 0.9, 0.0]
