"""One-layer transformers that learn the pair task, tailored to one solution or free to choose."""

from tokendynamics.circuits.learning._run import learn
from tokendynamics.circuits.learning.record import LearningRecord

__all__ = ["LearningRecord", "learn"]
