"""The weights of a learned model before the first step."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.circuits.learning.architecture import Design
from tokendynamics.circuits.pair_task import PairTask
from tokendynamics.numerics.seeding import generator


def initial_parameters(design: Design, task: PairTask, hidden: int, seed: int) -> dict[str, Tensor]:
    """Uniform in ±1/√fan-in, the LayerNorm the identity.

    Args:
        design: Which features the circuits see.
        task: N categories, M positions.
        hidden: Hidden units.
        seed: Of the draw.

    Returns:
        float64 tensors that record gradients: q, k (rank, key features), v (stream features squared), gain, shift,
        B (hidden, stream features), bias (hidden,), C (hidden,), offset (1,). Rank is the number of key features.
    """
    keys, stream = (part.stop - part.start for part in (design.key_features(task), design.stream_features(task)))
    shapes = {
        "q": ((keys, keys), keys),
        "k": ((keys, keys), keys),
        "v": ((stream, stream), stream),
        "B": ((hidden, stream), stream),
        "bias": ((hidden,), stream),
        "C": ((hidden,), hidden),
        "offset": ((1,), hidden),
    }
    draw = generator(seed)
    parameters = {
        name: (2.0 * torch.rand(*shape, generator=draw, dtype=torch.float64) - 1.0) / fan_in**0.5
        for name, (shape, fan_in) in shapes.items()
    }
    parameters["gain"] = torch.ones(stream, dtype=torch.float64)
    parameters["shift"] = torch.zeros(stream, dtype=torch.float64)
    return {name: value.requires_grad_() for name, value in parameters.items()}
