"""The closed form of attention on one-hot tokens against the products of token vectors it replaces."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits.functionals import random_functional
from tokendynamics.circuits.learning.model import (
    DESIGNS,
    EPSILON,
    Sequences,
    Settings,
    initial_parameters,
    mean_squared_error,
    stream,
)
from tokendynamics.circuits.learning.record import as_transformer


def run_of(architecture: str, categories: int = 4, positions: int = 7, hidden: int = 5, seed: int = 3):
    task = PairTask(random_functional(categories, seed), positions, law="zipf")
    options = Settings(task, architecture, "free", 10, 1, 1, hidden, seed)  # type: ignore[arg-type]
    parameters = initial_parameters(options.design, task, hidden, seed)
    draw = torch.Generator().manual_seed(seed)
    for name in ("gain", "shift"):
        with torch.no_grad():
            parameters[name] += 0.3 * torch.randn(parameters[name].shape, generator=draw, dtype=torch.float64)
    return options, parameters


def direct_loss(options: Settings, parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Every product of token vectors taken, and the gradient left to automatic differentiation."""
    task, design = options.task, options.design
    tokens = task.embed(x)
    seen, carried = tokens[..., design.key_features(task)], tokens[..., design.stream_features(task)]
    weights = (seen @ parameters["q"].T) @ (seen @ parameters["k"].T).mT
    z = weights @ (carried @ parameters["v"].T) + carried
    centred = z - z.mean(dim=-1, keepdim=True)
    z = centred / (centred.square().mean(dim=-1, keepdim=True) + EPSILON).sqrt()
    z = z * parameters["gain"] + parameters["shift"]
    hidden = torch.relu(z @ parameters["B"].T + parameters["bias"])
    outputs = hidden @ parameters["C"] + parameters["offset"]
    return (outputs - task.targets(x))[:, 1:].square().mean()


@pytest.mark.parametrize("architecture", DESIGNS)
@given(categories=st.integers(1, 6), positions=st.integers(2, 9), seed=st.integers(0, 1000))
@settings(max_examples=15)
def test_the_stream_is_that_of_the_products(architecture, categories, positions, seed):
    options, parameters = run_of(architecture, categories, positions, seed=seed)
    x = options.task.sample(4, seed)
    qk = (parameters["q"].T @ parameters["k"]).detach()
    actual = stream(options.design, qk, parameters["v"].detach(), Sequences.of(x, options.task))
    products = as_transformer(options, parameters, "as products").stream(x)[
        ..., options.design.stream_features(options.task)
    ]
    torch.testing.assert_close(actual.transpose(0, 1), products, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("architecture", DESIGNS)
@pytest.mark.parametrize("tokens", [10_000, 20])
def test_loss_and_gradient_are_those_of_automatic_differentiation(architecture, tokens):
    options, parameters = run_of(architecture)
    x = options.task.sample(11, seed=5)
    expected = direct_loss(options, parameters, x)
    wanted = torch.autograd.grad(expected, list(parameters.values()))
    actual = mean_squared_error(options.design, parameters, Sequences.of(x, options.task).in_pieces(tokens))
    assert actual == pytest.approx(expected.item(), rel=1e-13)
    for gradient, (name, value) in zip(wanted, parameters.items(), strict=True):
        scale = float(gradient.abs().max())
        torch.testing.assert_close(value.grad, gradient, rtol=0.0, atol=1e-13 * max(scale, 1e-3), msg=name)


@pytest.mark.parametrize("architecture", DESIGNS)
def test_the_transformer_of_a_record_has_the_loss_that_was_trained(architecture):
    options, parameters = run_of(architecture)
    x = options.task.sample(9, seed=6)
    model = as_transformer(options, parameters, "as trained")
    outside = (model(x) - options.task.targets(x))[:, 1:].square().mean()
    frozen = {name: value.detach() for name, value in parameters.items()}
    actual = mean_squared_error(options.design, frozen, Sequences.of(x, options.task).in_pieces())
    assert actual == pytest.approx(float(outside), rel=1e-12)


def test_weights_start_uniform_within_one_over_the_root_of_the_fan_in():
    _, parameters = run_of("combined", categories=6, positions=16, hidden=36)
    fan_in = {"q": 22, "k": 22, "v": 22, "B": 22, "bias": 22, "C": 36, "offset": 36}
    for name, fan in fan_in.items():
        bound = fan**-0.5
        assert float(parameters[name].detach().abs().max()) <= bound
        if parameters[name].numel() > 100:
            assert float(parameters[name].detach().std()) == pytest.approx(bound / 3**0.5, rel=0.1)
