"""Recognises a normalization by what it does, whatever its class is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

_EPS_NAMES = ("eps", "variance_epsilon", "epsilon", "norm_eps", "layer_norm_eps")
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Norm:
    """A normalization of the last ``width`` features: RMS norm, or LayerNorm, which takes the mean off first.

    Attributes:
        kind: Which of the two.
        gain: What multiplies the normalized features: the module's weight, 1 + that (Gemma), or nothing.
        eps: Added under the root.
        width: How many features are normalized together.
        parameter: What the module calls the weight.
    """

    kind: Literal["rms", "layer"]
    gain: Literal["weight", "1 + weight", "none"]
    eps: float
    width: int
    parameter: str = "weight"

    def apply(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Return the normalized features of x (…, n · width).

        >>> Norm("rms", "none", 0.0, 2).apply(torch.tensor([[3.0, 4.0]]), None, None).mul(5 / 2**0.5).tolist()
        [[3.0, 4.0]]
        """
        groups = x.unflatten(-1, (-1, self.width))
        if self.kind == "layer":
            groups = groups - groups.mean(dim=-1, keepdim=True)
        unit = groups * torch.rsqrt(groups.square().mean(dim=-1, keepdim=True) + self.eps)
        gain = self.gain_of(weight, x)
        unit = unit if gain is None else unit * gain
        return (unit if bias is None else unit + bias.to(unit)).flatten(-2)

    def gain_of(self, weight: Tensor | None, like: Tensor) -> Tensor | None:
        """Return the gain, (width,), in the type of `like`; None for no gain."""
        if weight is None or self.gain == "none":
            return None
        return weight.to(like) if self.gain == "weight" else 1.0 + weight.to(like)


def norm_of(module: nn.Module, x: Tensor | None, y: Tensor) -> Norm | None:
    """Return which normalization took x to y; None if it was none.

    Args:
        module: Its weight, bias and epsilon are tried; without a weight, every parameter of its own with one axis.
        x: What it read, (…, width).
        y: What it gave.
    """
    if x is None or x.shape != y.shape or float(x.std()) == 0.0:
        return None
    given = (getattr(module, name, None) for name in ("weight", "bias"))  # of some modules "bias" is a switch
    weight, bias = (parameter if isinstance(parameter, Tensor) else None for parameter in given)
    width = x.shape[-1]
    numbers = (getattr(inner, name, None) for inner in module.modules() for name in _EPS_NAMES)
    eps = next((float(number) for number in numbers if isinstance(number, float)), 0.0)
    if any(parameter is not None and parameter.shape != (width,) for parameter in (weight, bias)):
        return None
    named = {"weight": weight} if weight is not None else dict(module.named_parameters(recurse=False))
    weights = {name: given for name, given in named.items() if given is not bias and given.shape == (width,)}
    kinds: tuple[Literal["rms", "layer"], ...] = ("rms", "layer")
    gains: tuple[Literal["weight", "1 + weight"], ...] = ("weight", "1 + weight")
    candidates = [Norm(kind, gain, eps, width, name) for kind in kinds for name in weights for gain in gains]
    candidates += [] if weight is not None else [Norm(kind, "none", eps, width) for kind in kinds]
    fits = (
        ((norm.apply(x.double(), weights.get(norm.parameter), bias) - y.double()).abs().max(), norm)
        for norm in candidates
    )
    misfit, best = min(fits, key=lambda pair: float(pair[0]))
    error = float(misfit / y.double().abs().max().clamp_min(torch.finfo(torch.float64).tiny))
    return best if error <= _TOLERANCE else None
