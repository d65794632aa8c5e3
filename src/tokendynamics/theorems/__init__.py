"""The statements of the theory: which apply to a flow, what they predict, and what held along a trajectory."""

from tokendynamics.numerics.extras import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
