"""One-layer transformers on pairs of adjacent categories: built by hand, learned, and taken apart by measurement.

`PairTask` says what is computed (`functionals` draws some), `constructions` how a transformer can do it, `landscape`
what a descent can run into, `learning` what it finds, and `evidence` which part of a model does the logic. Theory:
`logical`.
"""

from tokendynamics.numerics.extras import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
