"""Landscapes and points that several tests share, and derivatives by another route."""

from __future__ import annotations

import itertools

import torch
from hypothesis import strategies as st
from torch import Tensor

from tokendynamics.circuits.landscape.landscape import Landscape, flatten, unflatten
from tokendynamics.numerics.arguments import generator


def normal_point(landscape: Landscape, seed: int, *lead: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Standard normal q and v, times a scale."""
    size = sum(rows * columns for rows, columns in (landscape.attention_shape, landscape.v_shape))
    draws = torch.randn(*lead, size, generator=generator(seed), dtype=torch.float64)
    return unflatten(landscape, scale * draws)


def gradient_by_autograd(landscape: Landscape, q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The derivatives of the loss by automatic differentiation."""
    q, v = q.detach().clone().requires_grad_(), v.detach().clone().requires_grad_()
    q_slope, v_slope = torch.autograd.grad(landscape.loss(q, v).sum(), (q, v))
    return q_slope, v_slope


def hessian_by_autograd(landscape: Landscape, q: Tensor, v: Tensor) -> Tensor:
    """The derivatives of the closed-form gradient by automatic differentiation."""

    def slope(point: Tensor) -> Tensor:
        gradient = landscape.gradient(*unflatten(landscape, point))
        return flatten(gradient.attention, gradient.v)

    jacobian = torch.autograd.functional.jacobian(slope, flatten(q, v))
    assert isinstance(jacobian, Tensor)
    return jacobian


def slope_size(landscape: Landscape, q: Tensor, v: Tensor) -> float:
    """The largest entry of the gradient."""
    gradient = landscape.gradient(q, v)
    return float(flatten(gradient.attention, gradient.v).abs().max())


def loss_by_enumeration(law: Tensor, weights: Tensor, v: Tensor) -> float:
    """The expected squared error as a plain sum over all sequences, token by token."""
    categories, positions = law.shape[0], weights.shape[0]
    total = 0.0
    for sequence in itertools.product(range(categories), repeat=positions):
        chance, error = 1.0, 0.0
        for category in sequence:
            chance *= float(law[category])
        for i in range(1, positions):
            output = sum(weights[j, i] * v[:, sequence[j]] for j in range(positions))
            target = torch.nn.functional.one_hot(torch.tensor(sequence[i - 1]), categories).double()
            error += float((target - output).square().sum())
        total += chance * error
    return total


@st.composite
def laws(draw: st.DrawFn, largest: int = 5) -> list[float]:
    """Probabilities of 2 to `largest` categories, none below 2 %."""
    shares = draw(st.lists(st.integers(5, 100), min_size=2, max_size=largest))
    return [share / sum(shares) for share in shares]
