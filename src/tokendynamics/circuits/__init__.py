"""One-layer transformers on pairs of adjacent categories: built by hand, learned, and taken apart by measurement.

`pair_task` says what is computed, `hand_built` how it can be, `landscape` what a descent can run into, `learning` what
it finds, and `evidence` which part of a model does the logic. Theory: `logical`.
"""

from tokendynamics.circuits import evidence, hand_built, landscape, learning, pair_task
from tokendynamics.circuits.hand_built.transformer import OneLayerTransformer
from tokendynamics.circuits.learning import LearningRecord, learn
from tokendynamics.circuits.pair_task import PairTask

__all__ = [
    "LearningRecord",
    "OneLayerTransformer",
    "PairTask",
    "evidence",
    "hand_built",
    "landscape",
    "learn",
    "learning",
    "pair_task",
]
