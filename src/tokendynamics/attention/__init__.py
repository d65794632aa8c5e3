"""Attention: QK and OV circuits, their schedules in time, positions, and the map of states they make."""

from tokendynamics.numerics.extras import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
