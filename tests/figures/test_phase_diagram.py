"""Phase diagrams: what is drawn is what was counted, where the parameters are."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from tokendynamics.figures import phase_diagram
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.intervals import wilson
from tokendynamics.sweeps import fractions

ZERO, CONSENSUS = 0, 3


def counted(consensus: np.ndarray, draws: int, **parameters: list) -> xr.Dataset:
    """Shares of a grid at whose points so many of the draws are consensus, the others zero; −1 where none was run."""
    dims = tuple(parameters)
    codes = np.full((*consensus.shape, draws), ZERO)
    codes[np.arange(draws) < consensus[..., None]] = CONSENSUS
    codes[consensus < 0] = -1
    return fractions(xr.Dataset({"outcome": ((*dims, "draw"), codes)}, parameters))


def test_curves_have_the_shares_at_their_values_with_wilson_bands() -> None:
    shares = counted(np.array([9, 1, 4]), 10, scale=[4.0, 1.0, 2.0])
    (panel,) = phase_diagram(shares, words=["consensus"]).axes
    (line,) = panel.lines
    assert line.get_xdata().tolist() == [1.0, 2.0, 4.0]
    assert line.get_ydata().tolist() == [0.1, 0.4, 0.9]
    assert panel.get_xscale() == "log"  # equal factors
    band = panel.collections[0].get_paths()[0].vertices
    for scale, count in ((1.0, 1), (2.0, 4), (4.0, 9)):
        at = band[band[:, 0] == scale, 1]
        np.testing.assert_allclose([at.min(), at.max()], wilson(count, 10))


def test_cells_stand_at_their_values_and_borders_between_them() -> None:
    across = np.array([0, 0, 100, 100])
    shares = counted(np.stack([across, across, across], axis=-1), 100, x=[0.0, 1.0, 2.0, 3.0], y=[1.0, 2.0, 3.0])
    panel, _ = phase_diagram(shares, words=["consensus"]).axes
    mesh, *borders = panel.collections
    np.testing.assert_array_equal(np.asarray(mesh.get_array()), np.broadcast_to(across / 100, (3, 4)))
    np.testing.assert_allclose(mesh.get_coordinates()[0, :, 0], [-0.5, 0.5, 1.5, 2.5, 3.5])
    places = [np.concatenate([path.vertices for path in border.get_paths()])[:, 0] for border in borders]
    low, high = wilson(0, 100)[1], wilson(100, 100)[0]
    # Straight lines between (1, 0) and (2, 1), and between the ends of the intervals there.
    for computed, at in zip(places, (1.5, 1 + 0.5 / high, 1 + (0.5 - low) / (1 - low)), strict=True):
        np.testing.assert_allclose(computed, at, atol=1e-9)


def test_there_is_no_border_where_no_share_crosses_one_half() -> None:
    shares = counted(np.full((3, 3), 5), 100, x=[0.0, 1.0, 2.0], y=[0.0, 1.0, 2.0])
    figure = phase_diagram(shares, words=["consensus"])
    assert len(figure.axes[0].collections) == 1
    assert not figure.legends


def test_points_without_systems_are_left_out() -> None:
    shares = counted(np.array([[1, -1], [2, 3]]), 4, x=[0.0, 1.0], y=[0.0, 1.0])
    cells = phase_diagram(shares, words=["consensus"]).axes[0].collections[0].get_array()
    assert np.ma.getmaskarray(cells).T.tolist() == [[False, True], [False, False]]


def test_words_stand_in_their_order_and_have_no_border_between_them() -> None:
    shares = counted(np.array([[0, 4], [4, 4], [4, 0]]), 4, sign=["positive", "mixed", "negative"], dim=[2, 3])
    panel = phase_diagram(shares, words=["zero"]).axes[0]
    assert [xticklabel.get_text() for xticklabel in panel.get_xticklabels()] == ["positive", "mixed", "negative"]
    assert np.asarray(panel.collections[0].get_array()).T.tolist() == [[1, 0], [0, 0], [0, 1]]
    assert len(panel.collections) == 1


def test_a_third_parameter_has_rows_and_a_section_is_one_of_them() -> None:
    consensus = np.arange(12).reshape(2, 3, 2)
    shares = counted(consensus, 12, x=[0.0, 1.0], y=[0.0, 1.0, 3.0], dim=[2, 5])
    panels = phase_diagram(shares, words=["consensus"]).axes[:2]
    assert [panel.get_title(loc="left") for panel in panels] == ["consensus, dim = 2", "consensus, dim = 5"]
    for place, panel in enumerate(panels):
        np.testing.assert_allclose(np.asarray(panel.collections[0].get_array()).T, consensus[..., place] / 12)
    one = phase_diagram(shares, words=["consensus"], where={"dim": 5}).axes[0]
    np.testing.assert_array_equal(one.collections[0].get_array(), panels[1].collections[0].get_array())
    turned = phase_diagram(shares, "y", "x", words=["consensus"], where={"dim": 5}).axes[0]
    np.testing.assert_array_equal(turned.collections[0].get_array(), panels[1].collections[0].get_array().T)


def test_a_random_design_is_sorted_into_cells_by_its_coordinates() -> None:
    qk, ov = np.array([0.1, 0.2, 0.9, 1.0]), np.array(["a", "b", "a", "a"])
    codes = np.array([[ZERO], [CONSENSUS], [CONSENSUS], [-1]])
    dataset = xr.Dataset({"outcome": (("point", "draw"), codes)}, {"qk": ("point", qk), "ov": ("point", ov)})
    shares = fractions(dataset, by=("qk", "ov"), cells=3)
    np.testing.assert_allclose(shares.qk, [0.25, 0.55, 0.85])
    assert shares.ov.values.tolist() == ["a", "b"]
    assert shares.total.values.tolist() == [[1, 1], [0, 0], [1, 0]]
    assert shares["count"].sel(outcome="consensus").values.tolist() == [[0, 1], [0, 0], [1, 0]]
    assert phase_diagram(shares).axes
    with pytest.raises(ArgumentValueError, match="by: expected of qk, ov, got 'scale'"):
        fractions(dataset, by=("scale",))
    with pytest.raises(ArgumentValueError, match="a random design, which has no axes"):
        phase_diagram(fractions(dataset))


def test_cells_of_a_wide_range_have_equal_factors() -> None:
    qk = np.geomspace(0.01, 10.0, 50)
    dataset = xr.Dataset({"outcome": (("point", "draw"), np.zeros((50, 1), dtype=int))}, {"qk": ("point", qk)})
    shares = fractions(dataset, by=("qk",), cells=3)
    np.testing.assert_allclose(shares.qk, [10**-1.5, 10**-0.5, 10**0.5])
    assert shares.total.values.tolist() == [17, 16, 17]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": "beta"}, r"x: expected one of x, y, z, w, got 'beta'"),
        ({"x": "x", "y": "x"}, r"y: expected another parameter than x"),
        ({}, r"one to three parameters, got 4: x, y, z, w; fix others with where="),
        ({"where": {"w": 9.0}}, r"where: expected a value of w: 0.0, 1.0, got 9.0"),
        ({"where": {"w": 0.0}, "words": ["none"]}, r"words: expected of zero, .*, got 'none'"),
        ({"where": {"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0}}, r"one to three parameters, got none"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options: dict, message: str) -> None:
    two = [0.0, 1.0]
    with pytest.raises(ArgumentValueError, match=message):
        phase_diagram(counted(np.ones((2, 2, 2, 2)), 2, x=two, y=two, z=two, w=two), **options)


def test_what_is_no_shares_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match=r"what tokendynamics.sweeps.fractions returns, got variables a"):
        phase_diagram(xr.Dataset({"a": 1}))
