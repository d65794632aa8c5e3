"""What to watch in layers whose matrices are made by inverses and products."""

from __future__ import annotations

import torch
from torch import nn

from tokendynamics.modules import ConstrainedAttention

_LOWEST = "value_real_lowest"


def worst_conditioning(model: nn.Module) -> dict[str, float]:
    """Return the worst over the layers: largest condition numbers of Q, A and V, and the range of Re λ(V).

    Returns:
        By the names of `ConstrainedAttention.conditioning`; empty for a network without such layers, or with weights
        that are not finite.

    >>> sorted(worst_conditioning(ConstrainedAttention(4, 2, "contracting")))[-1]
    'value_real_lowest'
    """
    layers = [module for module in model.modules() if isinstance(module, ConstrainedAttention)]
    if not layers or not all(bool(torch.isfinite(weight).all()) for each in layers for weight in each.weights()[:3]):
        return {}
    numbers = [layer.conditioning() for layer in layers]
    return {name: (min if name == _LOWEST else max)(each[name] for each in numbers) for name in numbers[0]}
