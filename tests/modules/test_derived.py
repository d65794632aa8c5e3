"""Weights made once for each change of the parameters: the same gradients, and never stale."""

import copy
import pickle

import pytest
import torch
from torch import nn

from tokendynamics.modules import ConstrainedAttention
from tokendynamics.modules._derived import Derived


class Counted:
    """A making of two tensors from two parameters that counts how often it is asked."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.times += 1
        return left @ right, left.exp() * 2


@pytest.fixture
def parts():
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(3, 3, generator=generator, dtype=torch.float64)) for _ in range(2)]
    return Counted(), Derived(), parameters


def loss_of(made: tuple[torch.Tensor, ...], weight: float) -> torch.Tensor:
    return (made[0] ** 2).sum() * weight + (made[1] * made[0]).sum()


def test_gradients_are_those_of_making_it_each_time(parts):
    make, derived, parameters = parts
    for weight in (1.0, 3.0):  # two batches of one accumulation
        loss_of(derived(make, parameters), weight).backward()
    assert make.times == 1
    found = [parameter.grad.clone() for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    for weight in (1.0, 3.0):
        loss_of(make(*parameters), weight).backward()
    for one, parameter in zip(found, parameters, strict=True):
        torch.testing.assert_close(one, parameter.grad)


def test_a_changed_parameter_makes_it_anew(parts):
    make, derived, parameters = parts
    derived(make, parameters)
    with torch.no_grad():
        parameters[1].mul_(2.0)
    torch.testing.assert_close(derived(make, parameters)[0], make(*parameters)[0])
    parameters[0] = nn.Parameter(parameters[0].detach() + 1)
    torch.testing.assert_close(derived(make, parameters)[0], make(*parameters)[0])


def test_evaluation_shares_and_training_after_it_has_gradients(parts):
    make, derived, parameters = parts
    with torch.no_grad():
        assert not any(made.requires_grad for made in derived(make, parameters))
        derived(make, parameters)
    assert make.times == 1
    with torch.inference_mode():
        derived(make, parameters)
    assert make.times == 1
    loss_of(derived(make, parameters), 1.0).backward()
    assert make.times == 2
    assert all(parameter.grad is not None for parameter in parameters)
    with torch.no_grad():
        derived(make, parameters)
    assert make.times == 2


def test_the_first_use_in_inference_mode_does_not_spoil_training(parts):
    make, derived, parameters = parts
    with torch.inference_mode():
        derived(make, parameters)
    loss_of(derived(make, parameters), 1.0).backward()
    assert parameters[0].grad is not None


def test_parameters_of_inference_mode_are_never_taken_for_unchanged(parts):
    make, derived, _ = parts
    with torch.inference_mode():
        made_there = [torch.eye(3).double(), torch.eye(3).double()]
        derived(make, made_there)
        made_there[0].mul_(2.0)
        assert derived(make, made_there)[0].diagonal().tolist() == [2.0, 2.0, 2.0]


def test_frozen_parameters_get_no_gradient(parts):
    make, derived, parameters = parts
    parameters[0].requires_grad_(False)
    loss_of(derived(make, parameters), 1.0).backward()
    assert parameters[0].grad is None
    assert parameters[1].grad is not None


def test_a_parameter_that_thaws_gets_gradients_at_once(parts):
    make, derived, parameters = parts
    parameters[0].requires_grad_(False)
    loss_of(derived(make, parameters), 1.0).backward()
    parameters[0].requires_grad_(True)
    loss_of(derived(make, parameters), 1.0).backward()
    assert parameters[0].grad is not None


def test_writes_that_are_not_counted_are_seen_after_forget(parts):
    make, derived, parameters = parts
    before = derived(make, parameters)[0]
    parameters[1].data = parameters[1].data  # the same memory, written to behind PyTorch's back
    parameters[1].data.mul_(2.0)
    derived.forget()
    torch.testing.assert_close(derived(make, parameters)[0], 2 * before)


def test_made_in_float32_for_bfloat16_parameters_and_under_autocast():
    seen = []

    def make(weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = weight @ weight
        seen.append((weight.dtype, product.dtype))
        return (product,)

    parameter = nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).bfloat16())
    (product,) = Derived()(make, [parameter])
    product.sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        Derived()(make, [nn.Parameter(torch.eye(4))])
    assert seen == [(torch.float32, torch.float32)] * 2
    assert parameter.grad.dtype == torch.bfloat16


def test_a_layer_makes_its_weights_once_a_step_and_follows_every_change(monkeypatch):
    calls = []
    original = ConstrainedAttention._make
    monkeypatch.setattr(ConstrainedAttention, "_make", lambda self, raw: calls.append(1) or original(self, raw))
    layer = ConstrainedAttention(4, 2, "divergence", generator=torch.Generator().manual_seed(0))
    calls.clear()
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(3):
        for _ in range(4):
            layer(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(calls) == 3
    with torch.no_grad():
        now = layer(x)
        layer(x)
    assert len(calls) == 4
    fresh = ConstrainedAttention(4, 2, "divergence")
    fresh.load_state_dict(layer.state_dict())
    torch.testing.assert_close(fresh(x).detach(), now)


def test_a_layer_that_was_written_to_behind_its_back_forgets():
    layer = ConstrainedAttention(4, 2, "divergence", generator=torch.Generator().manual_seed(0))
    before = layer.weights().key.detach().clone()
    layer.query.weight.data.mul_(2.0)
    layer.forget()
    torch.testing.assert_close(layer.weights().key.detach(), 2 * before)


def test_copies_and_pickles_of_a_used_layer_are_their_own():
    layer = ConstrainedAttention(4, 2, "convergence", generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    before = layer(x)
    stored = pickle.loads(pickle.dumps(layer))  # noqa: S301
    for twin in (copy.deepcopy(layer), stored):
        torch.testing.assert_close(twin(x), before)
        with torch.no_grad():
            twin.query_key.skew.add_(1.0)
        assert not torch.allclose(twin(x), before)
        torch.testing.assert_close(layer(x), before)
