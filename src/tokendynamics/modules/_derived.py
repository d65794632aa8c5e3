"""Weights that are made from parameters: once for each change of the parameters, and not once for each batch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Made = tuple[Tensor, ...]


class Derived:
    """Tensors made from parameters by a function, kept until a parameter changes.

    They are made in float32 at least and with autocast off. A backward pass hands the gradient of the tensors through
    the operations of that one making to the parameters, so that every batch of an accumulation shares them too. A copy
    keeps nothing and makes its own.

    >>> weight, derived = torch.nn.Parameter(torch.tensor([2.0])), Derived()
    >>> (square,) = derived(lambda w: (w * w,), [weight])
    >>> square.sum().backward()
    >>> square.item(), weight.grad.item()
    (4.0, 4.0)
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Make the tensors anew at the next call.

        For parameters that change where PyTorch does not count it: writes to ``.data``, or sharded parameters that
        are gathered into the same memory.
        """
        self._of: tuple[Tensor, ...] = ()  # held, so that no other parameter can take the place of one in memory
        self._key: list[tuple[int, int | None, bool]] = []
        self._leaves: list[Tensor] = []
        self._made: Made = ()

    def __call__(self, make: Callable[..., Made], parameters: Sequence[Tensor]) -> Made:
        """Return what `make` makes of these parameters, given in their order."""
        wanted = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in parameters)
        key = [(parameter.data_ptr(), _version(parameter), parameter.requires_grad) for parameter in parameters]
        same = len(parameters) == len(self._of) and all(map(operator.is_, parameters, self._of))
        known = same and key == self._key and None not in [version for _, version, _ in key]
        if not known or (wanted and not any(made.requires_grad for made in self._made)):
            self._renew(make, parameters, graph=wanted)
            self._of, self._key = tuple(parameters), key
        if not wanted:
            return tuple(made.detach() for made in self._made)
        # The class looks its arguments up by position only, and the tensors must come in the order of the parameters.
        return _Replayed.apply(self._made, self._leaves, *parameters)

    def _renew(self, make: Callable[..., Made], parameters: Sequence[Tensor], *, graph: bool) -> None:
        device = parameters[0].device.type
        # Tensors of inference mode could never be trained with afterwards.
        with torch.inference_mode(mode=False), torch.autocast(device, enabled=False), torch.set_grad_enabled(graph):
            self._leaves = [at_least_float32(parameter.detach().clone()) for parameter in parameters]
            if graph:
                for leaf, parameter in zip(self._leaves, parameters, strict=True):
                    leaf.requires_grad_(parameter.requires_grad)
            self._made = make(*self._leaves)

    def __deepcopy__(self, memo: dict[int, Any]) -> Derived:
        return Derived()

    def __reduce__(self) -> tuple[type[Derived], tuple[()]]:
        return Derived, ()


class _Replayed(torch.autograd.Function):
    """Hands out the tensors as if the parameters had just made them."""

    @staticmethod
    def forward(ctx: Any, made: Made, leaves: list[Tensor], *parameters: Tensor) -> Made:
        ctx.made, ctx.leaves = made, leaves
        ctx.set_materialize_grads(False)
        ctx.dtypes = [parameter.dtype for parameter in parameters]
        return tuple(tensor.detach() for tensor in made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        asked = [leaf for leaf in ctx.leaves if leaf.requires_grad]
        given_to = zip(ctx.made, gradients, strict=True)
        pairs = [(made, given) for made, given in given_to if made.requires_grad and given is not None]
        with torch.autocast(asked[0].device.type, enabled=False):
            found = iter(
                torch.autograd.grad(
                    [made for made, _ in pairs],
                    asked,
                    [given for _, given in pairs],
                    retain_graph=True,
                    allow_unused=True,
                )
            )
        back = [next(found) if leaf.requires_grad else None for leaf in ctx.leaves]
        cast = [None if one is None else one.to(dtype) for one, dtype in zip(back, ctx.dtypes, strict=True)]
        return (None, None, *cast)


def _version(parameter: Tensor) -> int | None:
    """PyTorch's count of changes; None for tensors of inference mode, which have none."""
    return None if parameter.is_inference() else parameter._version


def at_least_float32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
