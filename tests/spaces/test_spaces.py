"""Free space, sphere and ellipsoid: projection, tangents, distances and the laws that are sampled."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError
from tokendynamics.spaces import Ellipsoid, Free, Space, Sphere

RNG = np.random.default_rng(2)
ROOT = RNG.normal(size=(3, 3))
METRIC = ROOT @ ROOT.T + 0.5 * np.eye(3)
SPACES = {"free": Free(), "sphere": Sphere(), "ellipsoid": Ellipsoid(METRIC)}
METRICS = {"sphere": np.eye(3), "ellipsoid": METRIC}
every_space = pytest.mark.parametrize("name", SPACES)
every_constrained = pytest.mark.parametrize("name", METRICS)


def norm_in(metric, vectors):
    return np.sqrt(np.einsum("...i,ij,...j->...", vectors, metric, vectors))


@every_space
def test_every_space_has_what_engines_need(name):
    assert isinstance(SPACES[name], Space)
    assert SPACES[name].name == name
    assert (SPACES[name].metric is None) == (name != "ellipsoid")


@every_constrained
@settings(max_examples=50)
@given(seed=st.integers(0, 2**20), exponent=st.integers(-150, 150))
def test_projection_keeps_the_ray_whatever_its_size(name, seed, exponent):
    x = np.random.default_rng(seed).normal(size=(4, 3))
    y = SPACES[name].project(x * 10.0**exponent)
    np.testing.assert_allclose(y, x / norm_in(METRICS[name], x)[:, None], rtol=1e-13, atol=1e-15)
    assert np.abs(norm_in(METRICS[name], y) ** 2 - 1).max() <= 2e-15
    np.testing.assert_allclose(SPACES[name].project(y), y, rtol=0, atol=2e-15)
    assert SPACES[name].defect(y) <= 2e-15


def test_free_space_leaves_everything_as_it_is():
    x = RNG.normal(size=(2, 4, 3))
    np.testing.assert_array_equal(Free().project(x), x)
    np.testing.assert_array_equal(Free().tangent(x, 2 * x), 2 * x)
    assert Free().defect(1e6 * x) == 0.0
    np.testing.assert_allclose(Free().distance(x, 0 * x), np.linalg.norm(x, axis=-1), rtol=1e-15)


@every_constrained
def test_the_tangent_part_is_normal_to_the_point_and_idempotent(name):
    space, metric = SPACES[name], METRICS[name]
    y, v = space.project(RNG.normal(size=(5, 3))), RNG.normal(size=(5, 3))
    w = space.tangent(y, v)
    assert np.abs(np.einsum("ti,ij,tj->t", y, metric, w)).max() <= 2e-15
    np.testing.assert_allclose(space.tangent(y, w), w, rtol=0, atol=2e-15)
    # It is the derivative of the projection: π(y + h v) = y + h w + O(h²).
    h = 1e-6
    np.testing.assert_allclose((space.project(y + h * v) - space.project(y - h * v)) / (2 * h), w, atol=1e-9)


@every_constrained
def test_distances_are_angles_of_the_metric_down_to_the_smallest(name):
    space, metric = SPACES[name], METRICS[name]
    y = space.project(RNG.normal(size=(1, 3)))
    normal = space.tangent(y, RNG.normal(size=(1, 3)))
    normal = normal / norm_in(metric, normal)[:, None]
    for angle in (1e-12, 1e-9, 1e-4, 1.0, 3.0, math.pi - 1e-9):
        other = math.cos(angle) * y + math.sin(angle) * normal
        assert float(space.distance(y, other)[0]) == pytest.approx(angle, rel=1e-3 if angle < 1e-10 else 1e-6)
    assert float(space.distance(y, y)[0]) == 0.0
    assert float(space.distance(y, -y)[0]) == pytest.approx(math.pi, rel=1e-15)
    np.testing.assert_allclose(space.distance(3 * y, 0.2 * normal), [math.pi / 2], rtol=1e-14)


def test_the_ellipsoid_of_the_identity_is_the_sphere():
    x, v = RNG.normal(size=(2, 5, 3))
    same = Ellipsoid(np.eye(3))
    for call in ("project", "tangent", "distance"):
        arguments = (x,) if call == "project" else (Sphere().project(x), v)
        np.testing.assert_allclose(getattr(same, call)(*arguments), getattr(Sphere(), call)(*arguments), atol=1e-15)


def test_each_system_may_have_a_metric_of_its_own():
    metrics = np.stack([METRIC, 4 * np.eye(3)])
    x = RNG.normal(size=(2, 5, 3))
    together = Ellipsoid(metrics)
    for index, metric in enumerate(metrics):
        np.testing.assert_allclose(together.project(x)[index], Ellipsoid(metric).project(x[index]), rtol=1e-15)
    assert together.defect(together.project(x)) <= 2e-15


def test_types_come_back_as_they_came_in():
    nested = [[3.0, 4.0], [0.0, 2.0]]
    assert Sphere().project(nested) == [[0.6, 0.8], [0.0, 1.0]]
    assert isinstance(Sphere().project(np.array(nested)), np.ndarray)
    result = Sphere().project(torch.tensor(nested, dtype=torch.float32))
    assert result.dtype == torch.float32
    assert Ellipsoid(np.eye(2)).project(np.array(nested, dtype=np.float32)).dtype == np.float32


@every_constrained
def test_samples_are_uniform_for_the_metric(name):
    space = SPACES[name]
    sample = space.sample(20_000, 3, seed=3)
    assert sample.shape == (20_000, 3)
    assert sample.dtype == torch.float64
    assert space.defect(sample) <= 3e-15
    # Images of uniform points: under M^(1/2) every coordinate is uniform on [−1, 1] in three dimensions (Archimedes).
    values, vectors = np.linalg.eigh(METRICS[name])
    round_again = sample.numpy() @ (vectors * np.sqrt(values)) @ vectors.T
    for direction in (np.eye(3)[0], np.array([0.6, 0.0, -0.8])):
        assert stats.kstest(round_again @ direction, stats.uniform(-1, 2).cdf).pvalue > 1e-3


def test_free_samples_are_standard_normal():
    sample = Free().sample(20_000, 3, seed=3)
    assert stats.kstest(sample.flatten(), "norm").pvalue > 1e-3


@every_space
def test_samples_repeat_with_the_seed_and_differ_without(name):
    space = SPACES[name]
    first = space.sample(4, 3, (2, 5), seed=1)
    assert first.shape == (2, 5, 4, 3)
    torch.testing.assert_close(first, space.sample(4, 3, (2, 5), seed=1), rtol=0, atol=0)
    assert (first - space.sample(4, 3, (2, 5), seed=2)).abs().min() > 0
    assert len(torch.unique(first[..., 0])) == 40
    with pytest.raises(ArgumentTypeError, match="seed: expected an integer"):
        space.sample(4, 3, seed=True)


@every_space
def test_hemisphere_samples_are_the_law_given_the_half_space(name):
    space, direction = SPACES[name], np.array([0.3, -1.0, 0.5])
    sample = space.sample_hemisphere(20_000, direction, seed=4)
    side = sample.numpy() @ direction
    assert side.min() > 0
    assert space.defect(sample) <= 3e-15
    whole = np.abs(space.sample(20_000, 3, seed=5).numpy() @ direction)
    assert stats.ks_2samp(side, whole).pvalue > 1e-3
    across = np.cross(direction, [1.0, 0.0, 0.0])
    kept = space.sample(40_000, 3, seed=6).numpy()
    kept = kept[kept @ direction > 0]
    assert stats.ks_2samp(sample.numpy() @ across, kept @ across).pvalue > 1e-3


def test_a_metric_that_is_not_symmetric_positive_definite_is_refused_with_what_is_wrong():
    with pytest.raises(ArgumentValueError, match=r"metric: expected a symmetric .*got an asymmetry of 0\.5; pass \(M"):
        Ellipsoid([[1.0, 0.5], [0.0, 1.0]])
    with pytest.raises(ArgumentValueError, match=r"metric: .*positive definite matrix, got lowest eigenvalue -1$"):
        Ellipsoid([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(ArgumentValueError, match=r"metric: .*got lowest eigenvalue 0$"):
        Ellipsoid([[1.0, 0.0], [0.0, 0.0]])
    with pytest.raises(ArgumentValueError, match=r"lowest eigenvalue -0\.25"):
        Ellipsoid(np.stack([np.eye(2), np.diag([1.0, -0.25])]))
    with pytest.raises(ArgumentValueError, match=r"metric: expected square matrices.*got shape \(2, 3\)"):
        Ellipsoid(np.ones((2, 3)))
    # Noise of rounding is no asymmetry.
    noisy = METRIC + 1e-16 * RNG.normal(size=(3, 3))
    kept = Ellipsoid(noisy).metric
    assert kept is not None
    np.testing.assert_array_equal(kept, kept.mT)


@pytest.mark.parametrize("call", ["project", "defect"])
def test_tokens_of_another_dim_are_refused_with_both_shapes(call):
    with pytest.raises(ArgumentValueError, match=r"tokens of dim 3 to fit metric, shape \(3, 3\), got shape \(4, 2\)"):
        getattr(Ellipsoid(METRIC), call)(np.ones((4, 2)))


@every_constrained
def test_a_zero_token_has_no_direction(name):
    x = np.ones((2, 4, 3))
    x[1, 2] = 0.0
    with pytest.raises(ArgumentValueError, match=r"x: expected tokens that are not zero.*token 2 of system \(1,\)"):
        SPACES[name].project(x)
    with pytest.raises(ArgumentValueError, match="tokens that are not zero"):
        SPACES[name].distance(x[0], x[1])


@every_space
def test_a_half_space_needs_a_direction(name):
    for direction in ([0.0, 0.0, 0.0], [[1.0, 0.0, 0.0]]):
        with pytest.raises(ArgumentValueError, match="direction: expected a vector"):
            SPACES[name].sample_hemisphere(3, direction, seed=0)


def test_each_systems_metric_is_measured_by_its_own_size():
    uneven = np.stack([1e20 * np.eye(2), np.array([[1.0, 0.9], [0.1, 1.0]])])
    with pytest.raises(ArgumentValueError, match=r"metric: .* got an asymmetry of 0.8 in system \(1,\)"):
        Ellipsoid(uneven)
    indefinite = np.stack([np.eye(2), np.diag([1.0, -2.0])])
    with pytest.raises(ArgumentValueError, match=r"got lowest eigenvalue -2 in system \(1,\)"):
        Ellipsoid(indefinite)
