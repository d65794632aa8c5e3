"""The matrix that a linear module applies, whatever wraps it."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


def applied_weight(linear: nn.Module, dim: int, like: Tensor) -> Tensor:
    """Return the weight, (output, dim), with which a linear module multiplies.

    Of `nn.Linear` it is its weight, also where that is parametrized, normalised or pruned. Other modules (adapters,
    quantised layers) apply their matrix to the identity: what they return is the matrix that they apply now.

    Args:
        linear: An `nn.Linear`, or what has taken its place.
        dim: Features that it reads.
        like: A tensor on the device and of the dtype of its input.

    >>> linear = nn.Linear(3, 2)
    >>> torch.equal(applied_weight(linear, 3, linear.weight), linear.weight)
    True
    """
    if type_before_parametrizations(linear) is nn.Linear:
        return _renewed(linear)
    probe = torch.eye(dim + 1, dim, dtype=like.dtype, device=like.device)  # the last row is zero: the bias alone
    images = linear.forward(probe)  # no call: hooks are for the tokens of a network
    return (images[:-1] - images[-1]).mT


def _renewed(linear: nn.Module) -> Tensor:
    """Return the weight; hooks from before parametrizations renew it in a call alone, so that it may be an old one."""
    for hook in linear._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm) and hook.name == "weight":
            return hook.compute_weight(linear)
        if isinstance(hook, SpectralNorm) and hook.name == "weight":
            return hook.compute_weight(linear, do_power_iteration=False)
        if isinstance(hook, BasePruningMethod) and hook._tensor_name == "weight":
            return hook.apply_mask(linear)
    return cast(Tensor, linear.weight)
