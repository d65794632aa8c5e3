"""One-layer transformers set by hand: three places for the same logic, as printed and as they work."""

from tokendynamics.numerics.extras import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
