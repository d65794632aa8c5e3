"""Groups of directions: planted ones, none, and silhouettes by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.observables import direction_clusters


@pytest.mark.parametrize("sizes", [(6, 4), (9, 5, 3), (4, 4, 4, 4, 4)])
def test_groups_that_are_there_are_found(sizes: tuple[int, ...]) -> None:
    """Tight groups around random directions in 64 dimensions, shuffled, with lengths that do not matter."""
    rng = np.random.default_rng(2)
    centers = rng.normal(size=(len(sizes), 64))
    truth = np.repeat(np.arange(len(sizes)), sizes)
    x = centers[truth] + 0.3 * rng.normal(size=(len(truth), 64))
    order = rng.permutation(len(truth))
    groups = direction_clusters(x[order] * rng.uniform(0.1, 30, size=(len(truth), 1)))
    assert groups.count == len(sizes)
    assert groups.silhouette > 0.8
    assert len(
        {(int(actual), int(reference)) for actual, reference in zip(groups.member, truth[order], strict=True)}
    ) == len(sizes)
    assert np.bincount(groups.member).tolist() == sorted(sizes, reverse=True)


@pytest.mark.parametrize("tokens", [5, 30])
def test_directions_at_random_are_one_group(tokens: int) -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        groups = direction_clusters(rng.normal(size=(tokens, 64)))
        assert groups.count == 1
        assert not groups.member.any()
        assert groups.silhouette < 0.3


def test_silhouettes_by_hand() -> None:
    angles = torch.tensor([0.0, 0.1, 0.3, 2.0, 2.2], dtype=torch.float64)
    groups = direction_clusters(torch.stack([angles.cos(), angles.sin()], dim=1))
    assert groups.member.tolist() == [0, 0, 0, 1, 1]
    expected = []
    for i, group in enumerate(groups.member):
        far = [1 - np.cos(float(angles[i] - angles[j])) for j in range(5)]
        direct = [far[j] for j in range(5) if groups.member[j] == group and j != i]
        other = [far[j] for j in range(5) if groups.member[j] != group]
        a, b = np.mean(direct), np.mean(other)
        expected.append((b - a) / max(a, b))
    np.testing.assert_allclose(groups.silhouettes, expected, rtol=1e-9)
    assert groups.silhouette == pytest.approx(np.mean(expected))


def test_one_alone_has_no_silhouette_and_most_is_a_bound() -> None:
    x = np.eye(6)[[0, 0, 0, 1, 1, 2]] + 1e-3 * np.random.default_rng(0).normal(size=(6, 6))
    groups = direction_clusters(x)
    assert groups.count == 3
    assert groups.member.tolist() == [0, 0, 0, 1, 1, 2]
    assert groups.silhouettes[5] == 0.0
    fewer = direction_clusters(x, most=2)  # what is left is no clear division
    assert fewer.count == 1
    assert fewer.silhouette == pytest.approx(1 / 3, abs=0.01)


def test_tokens_of_one_direction_are_one_group() -> None:
    groups = direction_clusters([[1.0, 2.0]] * 5)
    assert groups.count == 1
    assert not groups.silhouette >= 0.5


@pytest.mark.parametrize("x", [[[1.0, 0.0], [0.0, 1.0]], np.zeros((2, 3, 4)) + 1, [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
def test_wrong_states(x: Any) -> None:
    with pytest.raises(ArgumentValueError):
        direction_clusters(x)
    with pytest.raises(ArgumentValueError, match="most"):
        direction_clusters(np.eye(4), most=1)
