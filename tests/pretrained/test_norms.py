"""Norms are recognised by what they do, whether a module names its epsilon or not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tokendynamics.pretrained.discovery._maps import norm_of

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
