"""The public names of the package: `lazy_loader` imports each on first use, and type checkers read this file."""

from . import constructions as constructions
from . import evidence as evidence
from . import functionals as functionals
from . import landscape as landscape
from . import learning as learning
from ._task import PairTask as PairTask
from ._transformer import LayerNorm as LayerNorm
from ._transformer import OneLayerTransformer as OneLayerTransformer
from .learning import LearningRecord as LearningRecord
from .learning import learn as learn
