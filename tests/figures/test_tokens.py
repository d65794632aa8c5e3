"""What `tokens` and `phase_plane` draw is the data, in the right place, and hidden exactly where it is hidden."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tokendynamics import figures
from tokendynamics.figures import _scene as quadric
from tokendynamics.figures._scene import front_parts
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.spaces import Ellipsoid, Free, Sphere

Find = Callable[..., np.ndarray]


def reader(azimuth: float, elevation: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows right, up (2, 3) and the direction towards the reader, by rotations: another route than the library's."""
    a, e = np.radians(azimuth), np.radians(elevation)
    turn = np.array([[np.cos(a), np.sin(a), 0], [-np.sin(a), np.cos(a), 0], [0, 0, 1]])
    tilt = np.array([[np.cos(e), 0, np.sin(e)], [0, 1, 0], [-np.sin(e), 0, np.cos(e)]])
    frame = tilt @ turn
    return frame[1:], frame[0]


def hidden_by_ray(point: np.ndarray, towards: np.ndarray, metric: np.ndarray) -> bool:
    """Whether the ray from a point of the ellipsoid to the reader meets it again: s in (y + s n)^T M (y + s n) = 1."""
    other = -2 * (point @ metric @ towards) / (towards @ metric @ towards)
    return bool(other > 0)


def test_paths_on_the_ellipsoid_are_the_states_seen_from_the_chosen_side(
    metric: np.ndarray, converging: Find, drawn: Find
) -> None:
    states = converging(metric)
    axes = figures.tokens(states, space=Ellipsoid(metric), view=(35.0, 20.0)).axes[0]
    paper, _ = reader(35.0, 20.0)
    for token in range(states.shape[1]):
        np.testing.assert_allclose(drawn(axes, f"_path {token + 1}"), states[:, token] @ paper.T, atol=1e-14)


@pytest.mark.parametrize("seed", range(5))
def test_circles_are_pale_exactly_where_the_surface_hides_them(metric: np.ndarray, converging: Find, seed: int) -> None:
    states = converging(metric, tokens=12, seed=seed)
    axes = figures.tokens(states, space=Ellipsoid(metric), view=(-50.0, 40.0)).axes[0]
    paper, towards = reader(-50.0, 40.0)
    for name, points in (("start", states[0]), ("end", states[-1])):
        hidden = np.array([hidden_by_ray(point, towards, metric) for point in points])
        for label, chosen in ((f"_{name}", ~hidden), (f"_{name} hidden", hidden)):
            values = [line.get_xydata() for line in axes.lines if line.get_label() == label]
            shown = np.concatenate(values) if values else np.empty((0, 2))
            np.testing.assert_allclose(shown, points[chosen] @ paper.T, atol=1e-14)


def test_wire_is_on_the_surface_and_its_drawing_is_its_projection(
    metric: np.ndarray, converging: Find, drawn: Find
) -> None:
    curves = np.concatenate(quadric.wire(metric))
    assert np.abs(np.einsum("pi,ij,pj->p", curves, metric, curves) - 1).max() < 1e-12
    axes = figures.tokens(converging(metric), space=Ellipsoid(metric), view=(10.0, 60.0)).axes[0]
    np.testing.assert_allclose(drawn(axes, "_wire"), curves @ reader(10.0, 60.0)[0].T, atol=1e-14)


def test_outline_is_the_farthest_that_the_surface_reaches_on_the_paper(metric: np.ndarray) -> None:
    paper, _ = reader(20.0, 15.0)
    edge = quadric.outline(metric, paper)
    # max of u·Cy over y^T M y = 1 is |C^T u| in the norm of M^(-1): the support function of the shadow.
    for angle in np.linspace(0, 6, 25):
        direction = np.array([np.cos(angle), np.sin(angle)]) @ paper
        farthest = np.sqrt(direction @ np.linalg.inv(metric) @ direction)
        reached = (edge @ [np.cos(angle), np.sin(angle)]).max()
        assert reached <= farthest + 1e-12
        assert reached == pytest.approx(farthest, rel=1e-3)
    points = Ellipsoid(metric).sample(500, 3, seed=1).numpy() @ paper.T
    inverse = np.linalg.inv(paper @ np.linalg.inv(metric) @ paper.T)
    assert np.einsum("pi,ij,pj->p", points, inverse, points).max() <= 1 + 1e-12
    np.testing.assert_allclose(np.einsum("pi,ij,pj->p", edge, inverse, edge), 1, atol=1e-12)


def test_front_parts_keep_every_segment_with_a_visible_end_and_no_other() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        points, front = draw.normal(size=(12, 2)), draw.random(12) < 0.4
        pieces = front_parts(points, front)
        shown = [(*a, *b) for a, b in itertools.pairwise(pieces) if not np.isnan([*a, *b]).any()]
        wanted = [(*points[i], *points[i + 1]) for i in range(11) if front[i] or front[i + 1]]
        assert shown == wanted


@pytest.mark.long
def test_the_default_view_has_the_mean_token_in_front(metric: np.ndarray, converging: Find, drawn: Find) -> None:
    for seed in range(8):
        states = converging(metric, seed=seed)
        end = states[-1, :1]
        still = np.repeat(end[None], 2, axis=0)
        axes = figures.tokens(still, space=Ellipsoid(metric)).axes[0]
        if abs(end[0, 2]) < 0.3:
            assert drawn(axes, "_end").shape == (1, 2)


@pytest.mark.parametrize("space", [Free(), None])
def test_in_the_plane_the_paths_are_the_states(plane: np.ndarray, drawn: Find, space: Any) -> None:
    axes = figures.tokens(torch.from_numpy(plane), space=space).axes[0]
    for token in range(4):
        np.testing.assert_array_equal(drawn(axes, f"_path {token + 1}"), plane[:, token])
    np.testing.assert_array_equal(drawn(axes, "_start"), plane[0])
    np.testing.assert_array_equal(drawn(axes, "_end"), plane[-1])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x[0]", "x[1]")
    assert axes.get_aspect() == 1


def test_on_the_circle_the_outline_is_the_circle(converging: Find, drawn: Find) -> None:
    states = converging(np.eye(2))
    axes = figures.tokens(states, space=Sphere()).axes[0]
    np.testing.assert_allclose(np.hypot(*drawn(axes, "_outline").T), 1, atol=1e-14)
    np.testing.assert_array_equal(drawn(axes, "_path 2"), states[:, 1])
    assert axes.get_ylabel() == "y[1]"


def test_more_dimensions_are_projected_on_principal_directions_and_say_so(converging: Find, drawn: Find) -> None:
    states = converging(np.eye(6), tokens=7)
    axes = figures.tokens(states, space=Sphere()).axes[0]
    centred = states.reshape(-1, 6) - states.reshape(-1, 6).mean(axis=0)
    _, singular, rows = np.linalg.svd(centred, full_matrices=False)
    shares = 100 * singular**2 / (singular**2).sum()
    for k, label in enumerate([axes.get_xlabel(), axes.get_ylabel()]):
        assert label == f"principal direction {k + 1} ({shares[k]:.0f} % of variance)"
        coordinate = np.concatenate([drawn(axes, f"_path {token + 1}")[:, k] for token in range(7)])
        wanted = np.concatenate([states[:, token] @ rows[k] for token in range(7)])
        np.testing.assert_allclose(coordinate * np.sign(coordinate[0]), wanted * np.sign(wanted[0]), atol=1e-13)


def test_a_free_run_in_three_dimensions_has_no_surface(drawn: Find) -> None:
    states = np.random.default_rng(2).normal(size=(4, 3, 3))
    axes = figures.tokens(states, view=(0.0, 0.0)).axes[0]
    # Seen along the first axis, the second points right and the third up.
    np.testing.assert_allclose(drawn(axes, "_path 2"), states[:, 1, 1:], atol=1e-14)
    assert "_wire" not in {line.get_label() for line in axes.lines}


def test_a_trajectory_is_drawn_on_its_own_space_and_only_as_far_as_it_went(
    metric: np.ndarray, converging: Find, drawn: Find, make_run: Any
) -> None:
    states = np.stack([converging(metric, seed=seed) for seed in (1, 2)])
    reached = np.ones((2, 9), dtype=bool)
    reached[1, 6:] = False
    flow = SimpleNamespace(space=Ellipsoid(metric))
    run = make_run(np.arange(9.0), torch.from_numpy(states), reached, flow)
    axes = figures.tokens(run, system=1, view=(35.0, 20.0)).axes[0]
    np.testing.assert_allclose(drawn(axes, "_path 1"), states[1, :6, 0] @ reader(35.0, 20.0)[0].T, atol=1e-14)
    assert "_outline" in {line.get_label() for line in axes.lines}


def test_one_metric_for_each_system_draws_that_of_the_system(metric: np.ndarray, converging: Find) -> None:
    metrics = np.stack([np.eye(3), metric])
    states = np.stack([converging(m) for m in metrics])
    edge = figures.tokens(states, space=Ellipsoid(metrics), system=1, view=(0.0, 0.0)).axes[0]
    paper, _ = reader(0.0, 0.0)
    (shown,) = [line.get_xydata() for line in edge.lines if line.get_label() == "_outline"]
    np.testing.assert_allclose(shown, quadric.outline(metric, paper), atol=1e-14)


def test_phase_plane_draws_the_chosen_components(drawn: Find) -> None:
    states = np.random.default_rng(3).normal(size=(5, 2, 4))
    axes = figures.phase_plane(states, components=(3, 1)).axes[0]
    np.testing.assert_array_equal(drawn(axes, "_path 2"), states[:, 1][:, [3, 1]])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x[3]", "x[1]")


def test_arrows_are_the_velocity_of_the_probe_with_the_others_held(plane: np.ndarray) -> None:
    class Pull:
        """Every token moves towards the mean of the OTHERS, turned by time."""

        def velocity(self, x: Any, t: float = 0.0) -> Any:
            others = (x.sum(dim=-2, keepdim=True) - x) / (x.shape[-2] - 1)
            return (others - x) * (1 + t)

    times = np.linspace(0.0, 3.0, 7)
    axes = figures.phase_plane(plane, flow=Pull(), probe=2, frame=-1, times=times).axes[0]
    (arrows,) = [artist for artist in axes.collections if artist.get_label() == "_velocity"]
    rest = plane[-1][[0, 1, 3]].mean(axis=0)
    at = np.stack([arrows.X, arrows.Y], axis=-1)
    np.testing.assert_allclose(np.stack([arrows.U, arrows.V], axis=-1), 4 * (rest - at), atol=1e-12)
    assert axes.get_xlabel() == "x[0]\narrows: velocity of token 3, others held at t = 3"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: figures.tokens(s[0]), "states: expected one run of shape (time, token, dim), got shape (5, 3)"),
        (
            lambda s: figures.tokens(np.stack([s, s])),
            "states: expected one run of shape (time, token, dim), got shape (2, 9, 5, 3); choose one with system=",
        ),
        (lambda s: figures.tokens(np.stack([s, s]), system=2), "system: expected an index from 0 to 1, got 2"),
        (lambda s: figures.tokens(s[..., :1]), "states: expected tokens of dim 2 or more, got dim 1"),
        (lambda s: figures.tokens(s[..., :2], view=(0.0, 0.0)), "view: expected none unless tokens have dim 3"),
        (
            lambda s: figures.tokens(2 * s, space=Sphere()),
            "states: expected tokens on the surface, got |y^T M y - 1| = ",
        ),
        (lambda s: figures.tokens(s, space=Ellipsoid(np.eye(4))), "space: expected a metric of shape (dim, dim), got"),
        (lambda s: figures.tokens(s * np.nan), "states: expected finite numbers, got nan at index (0, 0, 0)"),
        (lambda s: figures.phase_plane(s, components=(0, 3)), "components: expected an index from 0 to 2, got 3"),
        (lambda s: figures.phase_plane(s, probe=0), "flow: expected a flow, since probe is given, got none"),
        (lambda s: figures.phase_plane(s, times=[1.0, 2.0]), "times: expected one time for each of the 9 saved states"),
        (
            lambda s: figures.phase_plane(s, times=-np.arange(9.0)),
            "times: expected increasing times, got -0.0 at index 0 followed by -1.0",
        ),
    ],
)
def test_wrong_input_is_named_in_one_line(converging: Find, call: Any, message: str) -> None:
    with pytest.raises(ArgumentValueError, match=re.escape(message)) as caught:
        call(converging(np.eye(3)))
    assert "\n" not in str(caught.value)


def test_a_velocity_field_off_the_surface_is_refused(plane: np.ndarray) -> None:
    flow = SimpleNamespace(space=Sphere(), velocity=lambda x, t=0.0: x)
    with pytest.raises(ArgumentValueError, match="flow: expected a flow of free tokens, got one on the sphere"):
        figures.phase_plane(plane, flow=flow, probe=0)


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_space_is_named(converging: Find) -> None:
    wrong: Any = "sphere"
    with pytest.raises(ArgumentTypeError, match="space: expected a Space, got 'sphere'"):
        figures.tokens(converging(np.eye(3)), space=wrong)
