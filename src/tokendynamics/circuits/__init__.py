"""One-layer transformers on pairs of adjacent categories: built by hand, learned, and taken apart by measurement.

`PairTask` says what is computed (`functionals` draws some), `constructions` how a transformer can do it, `landscape`
what a descent can run into, `learning` what it finds, and `evidence` which part of a model does the logic. Theory:
`logical`.
"""

from tokendynamics.circuits import constructions, evidence, functionals, landscape, learning
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import LayerNorm, OneLayerTransformer
from tokendynamics.circuits.learning import LearningRecord, learn

__all__ = [
    "LayerNorm", "LearningRecord", "OneLayerTransformer", "PairTask", "constructions", "evidence", "functionals",
    "landscape", "learn", "learning",
]  # fmt: skip
