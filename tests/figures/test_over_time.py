"""Lines over time hold the numbers that were passed, or that follow from the states by another route."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tokendynamics import figures
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError

Find = Callable[..., np.ndarray]
TIMES = np.array([0.0, 0.5, 2.0, 3.0, 7.0, 8.0, 20.0])


def test_one_line_is_the_data_with_its_labels(drawn: Find) -> None:
    values = np.array([3.0, 2.0, 1.5, 1.2, 1.1, 1.0, 0.9])
    axes = figures.over_time(TIMES, values, "potential V").axes[0]
    np.testing.assert_array_equal(drawn(axes, "_line 1"), np.stack([TIMES, values], axis=-1))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("time t", "potential V")
    assert axes.get_legend() is None


def test_many_systems_are_all_drawn_under_their_median_and_band(drawn: Find) -> None:
    values = np.random.default_rng(0).exponential(size=(21, 7))
    axes = figures.over_time(TIMES, values, "E", log="values").axes[0]
    for system in range(21):
        np.testing.assert_array_equal(drawn(axes, f"_line {system + 1}")[:, 1], values[system])
    ordered = np.sort(values, axis=0)
    np.testing.assert_array_equal(drawn(axes, "median of 21 systems")[:, 1], ordered[10])
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    for time, low, high in zip(TIMES, ordered[2], ordered[18], strict=True):
        # With 21 numbers the 10 % and 90 % quantiles are the third from below and from above.
        heights = corners[corners[:, 0] == time, 1]
        assert heights.min() == pytest.approx(low)
        assert heights.max() == pytest.approx(high)


def test_few_systems_have_no_band() -> None:
    axes = figures.over_time(TIMES, np.random.default_rng(0).random((3, 7)), "E").axes[0]
    assert not axes.collections


def test_log_axes_say_what_they_leave_out() -> None:
    values = np.array([1.0, 0.1, 0.01, 0.0, 0.0, 0.0, 0.0])
    axes = figures.over_time(TIMES, values, "E", log="both").axes[0]
    assert axes.get_ylabel() == "E (zeros left out)"
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert (
        figures.over_time(TIMES, values - 0.5, "E", log="values").axes[0].get_ylabel() == "E (not positive: left out)"
    )


def test_references_are_drawn_where_they_are(drawn: Find) -> None:
    axes = figures.over_time(TIMES, TIMES, "V", references={"limit": -2.5}).axes[0]
    assert set(drawn(axes, "_reference limit")[:, 1]) == {-2.5}
    assert [text.get_text() for text in axes.texts] == ["limit"]


def test_every_pair_is_drawn_at_its_distance(plane: np.ndarray, drawn: Find) -> None:
    axes = figures.distances(TIMES, plane).axes[0]
    for i, j in itertools.combinations(range(4), 2):
        apart = [np.hypot(*(state[i] - state[j])) for state in plane]
        np.testing.assert_allclose(drawn(axes, f"tokens {i + 1}, {j + 1}")[:, 1], apart, rtol=1e-14)
    assert len(axes.lines) == 6
    assert axes.get_ylim()[0] == 0


def test_angles_are_those_of_the_circle(drawn: Find) -> None:
    angles = np.array([[0.0, 1.0], [0.0, 3.0], [0.0, 1e-9]])
    states = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    axes = figures.distances(TIMES[:3], states, geometry="sphere", log="values").axes[0]
    np.testing.assert_allclose(drawn(axes, "_line 1")[:, 1], [1.0, 3.0, 1e-9], rtol=1e-12)
    assert axes.get_ylabel() == "angle between tokens (rad)"


def test_many_pairs_are_thin_lines_under_their_median(drawn: Find) -> None:
    states = np.random.default_rng(5).normal(size=(7, 6, 3))
    axes = figures.distances(TIMES, states).axes[0]
    pairs = [np.linalg.norm(states[:, i] - states[:, j], axis=-1) for i, j in itertools.combinations(range(6), 2)]
    np.testing.assert_allclose(drawn(axes, "median of 15 pairs")[:, 1], np.median(pairs, axis=0), rtol=1e-14)


def test_norms_are_those_of_the_tokens_on_a_log_axis(plane: np.ndarray, drawn: Find) -> None:
    axes = figures.norms(TIMES, plane).axes[0]
    for token in range(4):
        wanted = np.sqrt((plane[:, token] ** 2).sum(axis=-1))
        np.testing.assert_allclose(drawn(axes, f"token {token + 1}")[:, 1], wanted, rtol=1e-14)
    assert axes.get_yscale() == "log"


def test_plots_share_the_panels_of_one_figure(plane: np.ndarray) -> None:
    figure, (left, right) = figures.panels(2, width=figures.DOUBLE, titles=["a", "b"])
    assert figures.tokens(plane, axes=left) is figure
    assert figures.distances(TIMES, plane, axes=right) is figure
    assert figure.axes == [left, right]
    assert len(right.lines) == 6
    assert left.get_title(loc="left") == "a"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: figures.over_time(TIMES, TIMES[:3], "E"), "times: expected one time for each of the 3 saved states"),
        (lambda: figures.over_time([0.0, 1.0, 1.0], [1.0, 1.0, 1.0], "E"), "1.0 at index 1 followed by 1.0"),
        (lambda: figures.over_time(TIMES, -TIMES, "E", log="values"), "values: expected something positive"),
        (
            lambda: figures.over_time(TIMES, TIMES, "E", names=["a", "b"]),
            "names: expected one name for each of 1 lines",
        ),
        (
            lambda: figures.over_time(TIMES, TIMES * np.ones((7, 1)), "E", names=list("abcdefg")),
            "at most 6 names, got 7",
        ),
        (lambda: figures.distances(TIMES, np.ones((7, 1, 2))), "states: expected 2 to 200 tokens, got 1"),
        (lambda: figures.distances(TIMES, np.ones((7, 201, 2))), "got 201; choose some of the tokens"),
        (lambda: figures.distances(TIMES[:2], np.ones((7, 2, 2))), "times: expected one time for each of the 7"),
        (lambda: figures.panels(0), "columns: expected at least 1, got 0"),
        (lambda: figures.panels(2, titles=["a"]), "titles: expected 2 titles, one for each panel, got 1"),
    ],
)
def test_wrong_input_is_named_in_one_line(call: Any, message: str) -> None:
    with pytest.raises(ArgumentValueError, match=re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_scale_is_named_with_the_known_ones() -> None:
    wrong: Any = "y"
    with pytest.raises(ArgumentValueError, match="log: expected one of 'none', 'values', 'times', 'both', got 'y'"):
        figures.over_time(TIMES, TIMES, "E", log=wrong)


def test_a_trajectory_brings_its_own_times_and_states():
    from tokendynamics.attention import Attention
    from tokendynamics.dynamics import Flow, simulate
    from tokendynamics.spaces import Free

    run = simulate(Flow(Attention(np.eye(2), np.eye(2)), Free()), [[1.0, 0.0], [0.0, 2.0]], [0.0, 0.5, 2.0])
    for draw in (figures.norms, figures.distances):
        alone, apart = draw(run).axes[0], draw(run.times, run.tensor).axes[0]
        for one, other in zip(alone.lines, apart.lines, strict=True):
            np.testing.assert_array_equal(one.get_xydata(), other.get_xydata())
    with pytest.raises(ArgumentTypeError, match="states: expected a trajectory, or times and states, got times alone"):
        figures.norms([0.0, 1.0])
    with pytest.raises(ArgumentValueError, match="states: expected none, a trajectory has its own"):
        figures.norms(run, run.tensor)
