"""Norms are recognised by what they do, whether a module names its epsilon or not."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from tokendynamics.pretrained.discovery._maps import norm_of
from tokendynamics.pretrained.discovery._recomputed import affine_of
from tokendynamics.pretrained.discovery.words import norm_in_words

WIDTH = 12


class Hidden(nn.Module):
    """Its epsilon is a number in the code."""

    def __init__(self, kind: str, eps: float, gain: bool) -> None:
        super().__init__()
        self.kind, self.hidden = kind, {"value": eps}
        self.scale = nn.Parameter(torch.rand(WIDTH) + 0.5) if gain else None

    def forward(self, x: Tensor) -> Tensor:
        eps, gain = self.hidden["value"], 1.0 if self.scale is None else self.scale
        if self.kind == "layer":
            return functional.layer_norm(x, (WIDTH,), eps=eps) * gain
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * gain


@pytest.mark.parametrize("formula", ["layer", "rms"])
@pytest.mark.parametrize("gain", [False, True])
@pytest.mark.parametrize("eps", [1e-6, 1e-5, 1e-3])
def test_a_norm_that_does_not_name_its_epsilon_is_recognised_on_small_states(
    formula: str, gain: bool, eps: float
) -> None:
    torch.manual_seed(1)
    module, x = Hidden(formula, eps, gain), 2 * eps**0.5 * torch.randn(2, 5, WIDTH)
    norm = norm_of(module, x, module(x).detach())
    assert norm is not None
    assert (norm.kind, norm.gain, norm.eps) == (formula, "weight" if gain else "none", eps)
    other = norm_of(nn.Tanh(), x, torch.tanh(x))
    assert other is None


class Named(nn.Module):
    """With names of its own; by the deviation of a sample, as in The Annotated Transformer, where `sampled`."""

    def __init__(self, *, sampled: bool, width: int = WIDTH) -> None:
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.rand(width) + 0.5), nn.Parameter(torch.randn(width))
        self.eps, self.bias, self.sampled = 1e-6, True, sampled

    def forward(self, x: Tensor) -> Tensor:
        deviation = x.std(dim=-1, keepdim=True, unbiased=self.sampled) + self.eps
        return self.a_2 * (x - x.mean(dim=-1, keepdim=True)) / deviation + self.b_2

    def usual(self) -> nn.LayerNorm:
        """Return the norm of PyTorch that gives the same."""
        norm, n = nn.LayerNorm(len(self.a_2), eps=1e-6), len(self.a_2)
        norm.weight.data = self.a_2.detach() * (1 - 1 / n if self.sampled else 1) ** 0.5
        norm.bias.data = self.b_2.detach().clone()
        return norm


class Attending(nn.Module):
    """A block that keeps the weights of its last pass."""

    def __init__(self) -> None:
        super().__init__()
        self.norms: Any = nn.ModuleList(Named(sampled=sampled, width=8) for sampled in (True, False))
        self.qkv, self.out, self.mlp, self.weights = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 8), torch.ones(1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, -1))
        self.weights = (q @ k.mT / 2).softmax(dim=-1)
        x = x + self.out((self.weights @ v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x).relu())


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks: Any = nn.ModuleList(Attending() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("sampled", [True, False])
def test_a_norm_with_other_names_is_that_of_pytorch_with_its_gain(sampled: bool) -> None:
    torch.manual_seed(2)
    module, x = Named(sampled=sampled), torch.randn(2, 5, WIDTH)
    norm = norm_of(module, x, module(x).detach())
    assert norm is not None
    assert (norm.kind, norm.parameter, norm.bias_parameter) == ("layer", "a_2", "b_2")
    affine, usual = affine_of(module, norm), module.usual()
    torch.testing.assert_close(affine.weight[0], usual.weight.detach())
    assert affine.bias is not None
    torch.testing.assert_close(affine.bias, usual.bias.detach())
    assert norm_in_words(norm).startswith(f"LayerNorm with the gain {'√(1 − 1/n) · ' if sampled else ''}a_2, epsilon")


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_network_that_holds_tensors_of_its_training_is_audited_as_with_norms_of_pytorch(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    network, example = Chain(), torch.randn(2, 5, 8)
    usual = copy.deepcopy(network)
    for block in usual.blocks:
        block.norms = nn.ModuleList(norm.usual() for norm in block.norms)
    audits = []
    for one in (network.to(dtype), usual.to(dtype)):
        one(example.to(dtype)).sum().backward()  # its weights have gradients
        ckpt = td.load(one, inputs=example)
        assert not any(layer.attention is None or layer.attention.changed for layer in ckpt.layout.layers)
        one(example.to(dtype)).sum().backward()
        audits.append(td.audit(ckpt))
    near = 1e-5 if dtype == torch.float32 else 0.02
    for name, values in audits[0].data_vars.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(audits[1][name], values, rtol=near, atol=near, err_msg=str(name))
