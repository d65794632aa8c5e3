"""Clusters of directions: counts known by construction, and the linking rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.observables import clusters, direction_clustering


def circle(angles):
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def test_groups_on_the_circle_are_counted():
    x = circle(np.array([0.0, 0.01, 0.02, 1.0, 1.01, 3.0]))
    assert [int(clusters(x, angle)) for angle in (0.001, 0.015, 1.05, 1.995, 3.0)] == [6, 3, 2, 1, 1]


def test_a_chain_is_one_cluster_though_its_ends_are_apart():
    x = circle(np.linspace(0, 3, 31))
    assert clusters(x, 0.11) == 1
    assert clusters(x, 0.09) == 31


def test_angle_zero_links_only_coincident_directions():
    x = np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 4.0], [1.0, 2.0 + 1e-9]])
    assert clusters(x, 0.0) == 2


@pytest.mark.parametrize("gap", [1e-12, 1e-9])
def test_clusters_closer_than_an_arccos_resolves_are_told_apart(gap):
    x = circle(np.array([0.0, gap]))
    assert clusters(x, gap / 2) == 2
    assert clusters(x, gap * 2) == 1


def test_antipodal_tokens_are_two_clusters_until_the_angle_is_pi():
    x = np.array([[1.0, 1.0], [-1.0, -1.0]])
    assert clusters(x, 3.14) == 2
    assert clusters(x, math.pi) == 1


def test_a_batch_counts_each_system_alone():
    random = np.random.default_rng(0)
    x = random.standard_normal((3, 4, 9, 3))
    result = clusters(x, 0.5)
    assert result.dtype == np.int64
    assert result.tolist() == [[int(clusters(s, 0.5)) for s in row] for row in x]
    assert len(set(result.ravel().tolist())) > 1


def test_counts_are_int64_tensors_for_tensors_and_ints_for_lists():
    assert clusters(torch.eye(3), 0.1).dtype == torch.int64
    assert clusters([[1.0, 0.0], [0.0, 1.0]], 0.1) == 2


@pytest.mark.parametrize("angle", [-0.1, 30.0, math.nan])
def test_an_angle_that_is_no_angle_in_radians_is_refused(angle):
    with pytest.raises(ArgumentValueError, match=r"angle: expected radians from 0 to π.*convert degrees"):
        clusters([[1.0]], angle)


def _chains(tokens):
    """Points on a circle in arcs of very different lengths, shuffled, and how many arcs there are."""
    random = np.random.default_rng(3)
    sizes = [tokens // 2, tokens // 4, tokens - tokens // 2 - tokens // 4 - 2, 1, 1]
    starts = np.arange(len(sizes)) * 1.1
    placed = [start + 1e-4 * np.arange(size) for start, size in zip(starts, sizes, strict=True)]
    return circle(random.permutation(np.concatenate(placed))), len(sizes)


@pytest.mark.parametrize("pairs", [1, 40 * 7, 10**9])
@pytest.mark.parametrize("angle", [0.0, 1.1e-4, 0.1, 3.0])
def test_blocks_of_rows_count_what_all_pairs_at_once_do(pairs, angle, monkeypatch):
    random = np.random.default_rng(1)
    x = np.concatenate([random.standard_normal((5, 40, 2)), np.ones((1, 40, 2)), _chains(40)[0][None]])
    wanted = clusters(x, angle)
    monkeypatch.setattr(direction_clustering, "_PAIRS", pairs)
    assert clusters(x, angle).tolist() == wanted.tolist()


@pytest.mark.long
def test_many_tokens_are_counted_without_a_matrix_of_all_pairs():
    x, arcs = _chains(2500)
    largest = 0

    class Sizes(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.numel())
            return result

    with Sizes():
        assert clusters(x, 1.1e-4) == arcs
        assert clusters(np.ones((2500, 2)), 0.0) == 1
    assert largest <= direction_clustering._PAIRS < 2500**2 / 4
