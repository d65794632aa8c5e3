"""What a heat map shows: the numbers in their places, signs that survive a photocopy, and borders between blocks."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgb

from tokendynamics import figures
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError

MATRIX = np.array([[0.0, 2.0, -4.0], [-0.1, 1.0, 0.5], [3.0, -2.0, 0.0]])


def mesh_of(axes: Axes) -> QuadMesh:
    (mesh,) = [entry for entry in axes.collections if isinstance(entry, QuadMesh)]
    return mesh


def lightness(colour: object) -> float:
    return float(np.array(to_rgb(colour)) @ [0.2126, 0.7152, 0.0722])  # type: ignore[arg-type]


def written(axes: Axes) -> dict[tuple[int, int], str]:
    """Texts by row and column, from the top."""
    return {(int(text.get_position()[1]), int(text.get_position()[0])): text.get_text() for text in axes.texts}


def test_cells_hold_the_matrix_with_its_first_row_at_the_top():
    (axes,) = figures.heat_map(MATRIX).axes
    np.testing.assert_array_equal(np.asarray(mesh_of(axes).get_array()).reshape(3, 3), MATRIX)
    assert axes.get_ylim() == (3, 0)
    assert axes.get_xlim() == (0, 3)


def test_zero_is_white_and_the_two_signs_differ_in_lightness():
    mesh = mesh_of(figures.heat_map(MATRIX).axes[0])
    zero, most, least = mesh.to_rgba(np.array([0.0, 4.0, -4.0]))[:, :3]
    assert min(zero) > 0.99
    assert lightness(least) < 0.65 * lightness(most) < 0.65 * 0.65 * lightness(zero)


def test_the_scale_is_symmetric_and_can_be_shared():
    assert mesh_of(figures.heat_map(MATRIX).axes[0]).get_clim() == (-4, 4)
    assert mesh_of(figures.heat_map(MATRIX, scale=10.0).axes[0]).get_clim() == (-10, 10)
    assert mesh_of(figures.heat_map(np.zeros((2, 2))).axes[0]).get_clim() == (-1, 1)


def test_numbers_stand_in_their_cells_and_zero_has_no_sign():
    axes = figures.heat_map(np.array([[-0.0, 2.0], [-4.25, 1234.5]]), cells="numbers").axes[0]
    assert written(axes) == {(0, 0): "0", (0, 1): "2", (1, 0): "−4.25", (1, 1): "1,230"}


def test_signs_mark_the_negative_cells_that_are_not_white():
    axes = figures.heat_map(MATRIX, cells="signs").axes[0]
    assert set(written(axes)) == {(0, 2), (2, 1)}


def test_borders_lie_between_blocks_and_names_in_their_middle():
    axes = figures.heat_map(np.zeros((5, 5)), blocks={"category": 2, "position": 3}).axes[0]
    borders = [np.asarray(line.get_xydata())[0].tolist() for line in axes.lines]
    assert borders == [[0.0, 2.0], [2.0, 0.0]]
    assert axes.get_xticks().tolist() == axes.get_yticks().tolist() == [1.0, 3.5]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["category", "position"]


def test_rows_and_columns_can_have_blocks_of_their_own():
    axes = figures.heat_map(np.zeros((4, 3)), blocks={"a": 1, "b": 3}).axes[0]
    assert len(axes.lines) == 1
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "3"]
    both = figures.heat_map(np.zeros((4, 3)), blocks={"a": 1, "b": 3}, column_blocks={"c": 2, "d": 1}).axes[0]
    assert len(both.lines) == 2


def test_a_large_matrix_is_not_numbered_densely():
    axes = figures.heat_map(np.zeros((60, 60))).axes[0]
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["1", "6", "12", "18", "24", "30", "36", "42", "48", "54", "60"]
    assert axes.get_xticks()[1] == 5.5


def test_a_colour_bar_is_drawn_for_a_label_only():
    figure, (left, right) = figures.panels(2)
    assert figures.heat_map(MATRIX, axes=left) is figure
    assert len(figure.axes) == 2
    figures.heat_map(MATRIX, label="weight", axes=right)
    assert figure.axes[-1].get_ylabel() == "weight"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"blocks": {"a": 1, "b": 1}}, "blocks"),
        ({"blocks": {"a": 3, "b": 0}}, "blocks"),
        ({"blocks": {}}, "blocks"),
        ({"column_blocks": {"a": 4}}, "column_blocks"),
        ({"cells": "letters"}, "cells"),
        ({"scale": 0.0}, "scale"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_arguments_are_named(arguments: dict[str, object], named: str):
    with pytest.raises(ArgumentValueError, match=rf"^{named}: expected"):
        figures.heat_map(MATRIX, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("matrix", [[1.0, 2.0], [[[1.0]]], [[float("nan"), 1.0]], np.zeros((0, 3))])
def test_only_one_finite_matrix_is_drawn(matrix):
    with pytest.raises(ArgumentValueError, match=r"^matrix"):
        figures.heat_map(matrix)


def test_integers_are_refused():
    with pytest.raises(ArgumentTypeError, match=r"^matrix"):
        figures.heat_map(np.ones((2, 2), dtype=int))
