"""How far the parts of two networks differ on the same inputs, so that no difference is one that came before it."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokendynamics.diagnosis.prompt_trace import COMPONENTS
from tokendynamics.pretrained import SiteStates


def own_differences(
    first: SiteStates,
    attention: Float[Tensor, "layer token dim"],
    feed_forward: Float[Tensor, "layer token dim"],
    counted: Bool[Tensor, "depth token"],
) -> np.ndarray:
    """Measure what each part of another network makes of the first one's states, against what the first one's makes.

    Args:
        first: States of the first network.
        attention: After the attention of each block of the other one, given the first one's input of that block; index
            0 for block 1. NaN where that state is not known.
        feed_forward: After the block, likewise.
        counted: The tokens that count at layers 0 … L.

    Returns:
        Shape (layer, component), layers 0 … L: ‖Δ_b − Δ_a‖/‖Δ_a‖, NaN where there is no such part. The feed-forward
        part of a block whose attention differs reads another state for that alone.
    """
    found = np.full((len(first.feed_forward), len(COMPONENTS)), np.nan)
    for layer in range(1, len(found)):
        use = counted[layer]
        if not bool(use.any()):
            continue
        before, middle, after = (
            each[use].double().cpu()
            for each in (first.feed_forward[layer - 1], first.attention[layer], first.feed_forward[layer])
        )
        own_middle, own_after = (each[layer - 1][use].double().cpu() for each in (attention, feed_forward))
        if bool(middle.isnan().any()) or bool(own_middle.isnan().any()):
            found[layer, 1] = _relative(own_after - after, after - before, before)
            continue
        found[layer, 0] = _relative(own_middle - middle, middle - before, before)
        found[layer, 1] = _relative((own_after - own_middle) - (after - middle), after - middle, middle)
    return found


def _relative(gap: Tensor, update: Tensor, state: Tensor) -> float:
    """Return ‖gap‖/‖update‖; what adds nothing is compared with the rounding of what it is added to."""
    size, scale, reach = (float(torch.linalg.vector_norm(each)) for each in (gap, update, state))
    return size / max(scale, reach * torch.finfo(torch.float64).eps, torch.finfo(torch.float64).tiny)
