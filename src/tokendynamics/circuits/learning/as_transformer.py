"""A learned model as a transformer whose weights stand over all N + M features."""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.attention import Attention
from tokendynamics.circuits.hand_built.layer_norm import LayerNorm
from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer
from tokendynamics.circuits.learning.objective import EPSILON
from tokendynamics.circuits.learning.settings import Settings


def as_transformer(settings: Settings, parameters: dict[str, Tensor], name: str) -> OneLayerTransformer:
    """Embed the circuits into the features the design sees; the rest is zero, and not normalized.

    Args:
        settings: Task and architecture.
        parameters: See `initial_parameters`.
        name: Of the transformer.
    """
    weights = {key: value.detach() for key, value in parameters.items()}
    task, design = settings.task, settings.design
    keys, stream = design.key_features(task), design.stream_features(task)
    qk, ov = (torch.zeros(task.width, task.width, dtype=torch.float64) for _ in range(2))
    qk[keys, keys] = weights["q"].T @ weights["k"]
    ov[stream, stream] = weights["v"]
    B = torch.zeros(settings.hidden, task.width, dtype=torch.float64)
    B[:, stream] = weights["B"]
    return OneLayerTransformer(
        Attention(qk, ov, weights="linear"),
        B,
        weights["bias"],
        weights["C"],
        task,
        offset=float(weights["offset"]),
        norm=LayerNorm(weights["gain"], weights["shift"], EPSILON, stream),
        name=name,
    )
