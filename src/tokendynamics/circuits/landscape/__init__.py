"""Exact loss landscapes of attention that is to read pairs, their stationary points, and where descent ends.

The families of stationary points are in `positions_only` for 3.1, in `categories_only` for 3.3.
"""

from tokendynamics.numerics.extras import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
