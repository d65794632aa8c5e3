"""One-layer transformers that learn the pair task, tailored to one solution or free to choose."""

from tokendynamics.circuits.learning._record import SOLVED, LearningRecord
from tokendynamics.circuits.learning._run import learn
from tokendynamics.circuits.learning._settings import Flavour, Settings
from tokendynamics.circuits.learning.model import DESIGNS, Architecture, Design, design

__all__ = ["DESIGNS", "SOLVED", "Architecture", "Design", "Flavour", "LearningRecord", "Settings", "design", "learn"]
