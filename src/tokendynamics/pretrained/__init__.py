"""Real checkpoints behind one small interface: their attention weights as factors, and their states on real text.

>>> checkpoint = load("random:distilgpt2:0")
>>> checkpoint.architecture.layers, checkpoint.attention(1).query.shape
(6, torch.Size([12, 768, 64]))
"""

from __future__ import annotations

from tokendynamics.pretrained._attention_weights import AttentionWeights
from tokendynamics.pretrained._checkpoint import Checkpoint
from tokendynamics.pretrained._remedy import apply_remedy, remedy_coefficients, remedy_parameters, remove_remedy
from tokendynamics.pretrained.architecture import Architecture
from tokendynamics.pretrained.inputs import Texts
from tokendynamics.pretrained.loading import load

__all__ = [
    "Architecture", "AttentionWeights", "Checkpoint", "Texts", "apply_remedy", "load", "remedy_coefficients",
    "remedy_parameters", "remove_remedy",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
