"""Trainable attention in a chosen regime."""

from tokendynamics.numerics.extras import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
