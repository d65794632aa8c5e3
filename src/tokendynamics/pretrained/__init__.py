"""Real checkpoints behind one small interface: their attention weights as factors, and their states on real text.

>>> checkpoint = load("random:distilgpt2:0")
>>> checkpoint.architecture.layers, checkpoint.attention(1).query.shape
(6, torch.Size([12, 768, 64]))
"""

from __future__ import annotations

from tokendynamics.pretrained.architecture import Architecture
from tokendynamics.pretrained.attention_weights import AttentionWeights
from tokendynamics.pretrained.checkpoint import Checkpoint
from tokendynamics.pretrained.encoding import Encoding
from tokendynamics.pretrained.load import load
from tokendynamics.pretrained.states import SiteStates

__all__ = ["Architecture", "AttentionWeights", "Checkpoint", "Encoding", "SiteStates", "load"]
