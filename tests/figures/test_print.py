"""Print and page draw the same object: the numbers that Altair is given are those that Matplotlib has drawn."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tokendynamics import figures
from tokendynamics.figures._print import draw
from tokendynamics.figures.axes import Axis, parameter
from tokendynamics.figures.curves import Curve, Curves, Rule, styled
from tokendynamics.figures.matrix import Matrices, Panel, Side
from tokendynamics.figures.outcomes import OutcomeCurves, OutcomeMap, Shares
from tokendynamics.figures.palette import NEGATIVE, POSITIVE
from tokendynamics.figures.svg import plain


def rows_of(layer: dict) -> list[dict]:
    return json.loads(layer["data"]["values"])


def test_curves_hold_the_same_numbers_in_print_and_on_the_page() -> None:
    x, values = np.array([1.0, 2.0, 4.0]), np.array([0.3, np.nan, 20.0])
    curves = [
        styled("an arm", 1, x, values, values / 2, values * 2),
        Curve("", [1, 2, 4], [None, 5.0, -1.0], "#1f5a99", width=0, mark="ring"),
    ]
    drawn = Curves(curves, "size", axis=Axis("step", (0.5, 8.0), log=True), log=True, rules=[Rule(0.5, "half")])
    _, (panel,) = figures.panels()
    draw(drawn, panel)
    arm, marks, rule = panel.lines
    assert rule.get_ydata() == [0.5, 0.5]
    assert (panel.get_xscale(), panel.get_yscale(), panel.get_xlim()) == ("log", "log", (0.5, 8.0))
    assert (panel.get_xlabel(), panel.get_ylabel(), arm.get_label()) == ("step", "size", "an arm")
    assert (marks.get_linestyle(), marks.get_marker()) == ("None", "o")
    layers = plain(drawn.chart())["layer"]
    (band,), (line,), (_, points) = (
        [one for one in layers if one["mark"]["type"] == kind] for kind in ("area", "line", "point")
    )
    np.testing.assert_array_equal(arm.get_xydata(), [(row["x"], row["mid"] or np.nan) for row in rows_of(line)])
    # What is not positive has no place on a logarithmic axis: the page leaves it out, matplotlib masks it.
    assert [row["mid"] for row in rows_of(points)] == [None, 5.0, None]
    corners = panel.collections[0].get_paths()[0].vertices
    for row in rows_of(band)[:1]:
        at = corners[corners[:, 0] == row["x"], 1]
        assert (at.min(), at.max()) == (row["low"], row["high"]) == (0.15, 0.6)
    assert (arm.get_color(), panel.collections[0].get_facecolor()[0, 3]) == (curves[0].colour, 0.16)


def test_the_border_of_a_map_is_straight_on_its_logarithmic_axis_in_print_as_on_the_page() -> None:
    across, up = parameter("scale", np.array([1.0, 10.0, 100.0])), parameter("y", np.array([0.0, 1.0]))
    fraction = np.repeat([[0.0], [0.4], [0.8]], 2, axis=1)
    drawn = OutcomeMap(across, up, Shares("consensus", fraction, fraction - 0.2, fraction + 0.2, [""] * 6))
    _, (panel,) = figures.panels()
    draw(drawn, panel)
    mesh, *borders = panel.collections
    np.testing.assert_allclose(np.asarray(mesh.get_array()), fraction.T)
    # A quarter of the way from 0.4 to 0.8 in the logarithm; the lower end a quarter before 100, the upper one at 0.3.
    for border, decades in zip(borders, (1.25, 1.75, 0.75), strict=True):
        np.testing.assert_allclose(border.get_paths()[0].vertices[:, 0], 10.0**decades)
    lines = [rows_of(one) for one in plain(drawn.chart())["layer"] if one["mark"]["type"] == "line"]
    assert [row["x"] for row in lines[1]] == pytest.approx([10**1.25] * 2)


def test_between_words_nothing_is_drawn_and_their_intervals_stand_beside_each_other() -> None:
    along = parameter("sign", np.array(["a", "b"]))
    shares = [
        Shares(word, np.full(2, at), np.full(2, at - 0.1), np.full(2, at + 0.1))
        for word, at in (("x", 0.3), ("y", 0.6))
    ]
    _, (panel,) = figures.panels()
    draw(OutcomeCurves(along, shares), panel)
    assert [line.get_linestyle() for line in panel.lines] == ["None", "None"]
    for line, bars, at in zip(panel.lines, panel.collections, (0.3, 0.6), strict=True):
        places = np.asarray(line.get_xdata())
        assert np.abs(places - [0, 1]).max() < 0.2
        ends = [np.asarray(path.vertices) for path in bars.get_paths()]
        np.testing.assert_allclose([end[:, 0].tolist() for end in ends], np.stack([places, places], axis=-1))
        np.testing.assert_allclose([end[:, 1].tolist() for end in ends], [[at - 0.1, at + 0.1]] * 2)
    left, right = (line.get_xdata()[0] for line in panel.lines)
    assert left < right


def test_a_matrix_has_the_colours_and_the_scale_of_the_page() -> None:
    side = Side("", (("", 2),))
    values = np.array([[2.0, -1.0], [0.0, -2.0]])
    for scale, limit in ((None, 2.0), (4.0, 4.0)):
        matrix = Panel("m", values, side, side, scale=scale)
        _, (panel,) = figures.panels()
        draw(matrix, panel)
        mesh = panel.collections[0]
        assert mesh.get_clim() == (-limit, limit)
        assert f"+{limit:g}" in str(Matrices([matrix], "m", 1).chart())
    full = figures.heat_map(values).axes[0].collections[0].to_rgba(np.array([2.0, -2.0]))[:, :3]
    for colour, wanted in zip(full, (POSITIVE, NEGATIVE), strict=True):
        np.testing.assert_allclose(colour, [int(wanted[n : n + 2], 16) / 255 for n in (1, 3, 5)], atol=1e-6)


def test_what_has_no_form_in_print_is_refused() -> None:
    with pytest.raises(TypeError, match="list is not drawn in print"):
        draw([], figures.panels()[1][0])
