"""How numbers, intervals, lists and findings are written: one notation for terminal, pages and documents."""

from tokendynamics.numerics.extras import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
