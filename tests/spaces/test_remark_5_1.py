"""The projection of Remark 5.1: tangent, idempotent after ov, and the one its flow is made of."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import tokendynamics as td
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.spaces import remark_5_1_projection


def drawn(seed):
    rng = np.random.default_rng(seed)
    ov = rng.standard_normal((3, 3)) + 2 * np.eye(3)
    space = td.Ellipsoid(ov.T @ ov)
    return ov, space, space.sample(6, 3, seed=seed).numpy(), rng


@pytest.mark.parametrize("seed", range(5))
def test_what_is_projected_is_tangent_and_is_the_spheres_projection_of_its_image(seed):
    ov, space, y, rng = drawn(seed)
    vectors = rng.standard_normal(y.shape)
    result = remark_5_1_projection(y, vectors, ov)
    np.testing.assert_allclose(((y @ space.metric.numpy()) * result).sum(1), 0, atol=1e-12)
    # ov Π_y X = (I − z z^T) X with z = ov y on the sphere.
    z = y @ ov.T
    np.testing.assert_allclose(result @ ov.T, vectors - (z * vectors).sum(1, keepdims=True) * z, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_its_flow_is_the_projection_of_the_attention_output(seed):
    ov, space, y, rng = drawn(seed)
    qk = rng.standard_normal((3, 3))
    flow = td.Flow(td.Attention(qk, ov, causal=True), space, "remark_5_1")
    weights = np.exp(np.where(np.tri(6, dtype=bool), y @ qk @ y.T, -np.inf))
    output = (weights / weights.sum(1, keepdims=True)) @ y @ ov.T / math.sqrt(3)
    np.testing.assert_allclose(flow.velocity(y), remark_5_1_projection(y, output, ov), rtol=1e-10, atol=1e-12)


def test_a_singular_map_is_refused():
    with pytest.raises(ArgumentValueError, match="ov: expected a regular matrix, got one of rank 1 of 2"):
        remark_5_1_projection(torch.ones(1, 2), torch.ones(1, 2), torch.ones(2, 2))
