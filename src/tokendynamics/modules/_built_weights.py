"""Weights of keys and values that are functions of other parameters, by `torch.nn.utils.parametrize`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected

Build = Callable[[], Sequence[Tensor]]


class BuiltWeights(nn.Module):
    """Weights without values of their own: one tensor (weight, dim, dim) that a function builds at each read.

    ``weight`` is a parametrization of PyTorch's without original tensors. It is built anew at each read, so that it
    cannot be out of date, whatever writes to the parameters. Within ``torch.nn.utils.parametrize.cached()`` it is built
    once; that cache is for evaluation on one thread.

    Args:
        build: Returns the weights, of one shape.

    >>> built = BuiltWeights(lambda: [torch.eye(2), 2 * torch.eye(2)])
    >>> built.weight.shape
    torch.Size([2, 2, 2])
    """

    weight: Tensor

    def __init__(self, build: Build) -> None:
        super().__init__()
        self._build = build
        self.register_buffer("weight", torch.empty(0))
        parametrize.register_parametrization(self, "weight", _Built(build), unsafe=True)

    def __reduce__(self) -> tuple[type[BuiltWeights], tuple[Build]]:
        """Pickle the function: parametrized modules have no pickled form otherwise."""
        return BuiltWeights, (self._build,)


class _Built(nn.Module):
    """The parametrization of a tensor that has no original."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self._build = build

    def forward(self) -> Tensor:
        return torch.stack(list(self._build()))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, ...]:
        if weight.numel():
            raise ArgumentValueError(
                expected("weight", "no value, since it is built from other parameters", f"shape {tuple(weight.shape)}")
            )
        return ()


class DerivedLinear(nn.Module):
    """Keys or values of a layer that builds their weight: like `nn.Linear`, with a weight that is no parameter.

    Args:
        built: The weights of the layer.
        position: Which of them this is.
        dim: Features of a token.
        bias: Whether there is one, which is a parameter.
        place: Device and dtype of the bias.
    """

    def __init__(self, built: BuiltWeights, position: int, dim: int, *, bias: bool, **place: Any) -> None:
        super().__init__()
        self._built, self._position = [built], position  # in a list: it is a part of the layer, not of this module
        self.bias = nn.Parameter(torch.zeros(dim, **place)) if bias else None

    @property
    def weight(self) -> Tensor:
        """The weight, (dim, dim), in float32 at least."""
        return self._built[0].weight[self._position]

    def forward(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return ``x @ weight.T + bias`` in the precision of x.

        Args:
            x: States, (…, token, dim).
            weight: The weight, where the caller has read it; None reads it.
        """
        weight = self.weight if weight is None else weight
        # A network in bfloat16 multiplies in bfloat16; autocast does so by itself.
        return functional.linear(x, weight.to(x.dtype), self.bias)
