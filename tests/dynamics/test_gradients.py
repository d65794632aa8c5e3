"""Gradients through a simulation with fixed steps are those of finite differences."""

from __future__ import annotations

import pytest
import torch

from tokendynamics.attention import Attention
from tokendynamics.dynamics import Flow, simulate
from tokendynamics.spaces import Ellipsoid, Free, Sphere


def normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def space_of(name: str) -> Free | Ellipsoid:
    root = normal(3, 3, seed=5)
    return {"free": Free, "sphere": Sphere, "ellipsoid": lambda: Ellipsoid(root @ root.mT + torch.eye(3))}[name]()


def loss(x0: torch.Tensor, qk: torch.Tensor, ov: torch.Tensor, space: str, causal: bool, method: str) -> torch.Tensor:
    flow = Flow(Attention(qk, ov, causal=causal), space_of(space))
    run = simulate(flow, x0, [0.0, 0.4, 1.0], step=0.2, method=method)
    weights = normal(*run.states.shape, seed=9)
    return (weights * run.states).sum() + run.states[-1].pow(3).sum()


@pytest.mark.parametrize("space", ["free", "sphere", "ellipsoid"])
@pytest.mark.parametrize(("causal", "method"), [(False, "dopri5"), (True, "rk4"), (False, "euler")])
@pytest.mark.parametrize("values", ["general", "identity"])
def test_gradients_to_start_and_matrices_equal_finite_differences(space, causal, method, values, unchecked):
    ov = 0.5 * normal(2, 3, 3, seed=2) if values == "general" else torch.eye(3).double().repeat(2, 1, 1)
    given = [normal(4, 3, seed=0), 0.5 * normal(2, 3, 3, seed=1), ov]
    inputs = [part.clone().requires_grad_() for part in given]
    loss(*inputs, space, causal, method).backward()
    for position, part in enumerate(inputs):
        direction = normal(*part.shape, seed=20 + position)
        assert part.grad is not None
        result = float((part.grad * direction).sum())
        sides = []
        for sign in (1, -1):
            shifted = [one + (sign * 1e-5 * direction if place == position else 0.0) for place, one in enumerate(given)]
            sides.append(float(loss(*shifted, space, causal, method)))
        wanted = (sides[0] - sides[1]) / 2e-5
        assert result == pytest.approx(wanted, rel=1e-7, abs=1e-8)


def test_gradients_reach_a_batch_and_matrices_of_its_systems():
    x0 = normal(2, 4, 3, seed=0).requires_grad_()
    qk = normal(2, 1, 3, 3, seed=1).requires_grad_()
    run = simulate(Flow(Attention(qk, torch.eye(3).double()), Sphere()), x0, [0.0, 1.0], step=0.25)
    run.states[0, -1].pow(3).sum().backward()
    assert x0.grad is not None
    assert qk.grad is not None
    assert x0.grad[0].abs().min() > 0
    assert qk.grad[0].abs().min() > 0
    assert x0.grad[1].abs().max() == 0
    assert qk.grad[1].abs().max() == 0


def test_the_gradient_of_one_free_token_is_the_exponential():
    x0 = torch.tensor([[1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    ov = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    run = simulate(Flow(Attention(torch.eye(2).double(), ov), Free()), x0, [0.0, 1.0], step=0.02)
    run.states[-1, 0, 0].backward()
    wanted = torch.linalg.matrix_exp(ov)[0]
    assert x0.grad is not None
    torch.testing.assert_close(x0.grad[0], wanted, rtol=1e-10, atol=1e-11)
