"""What everything stands on. For users: the errors, each of which names what is wrong and says what to do."""

from tokendynamics.numerics.extras import lazy_names as _lazy_names

__getattr__, __dir__, __all__ = _lazy_names(__name__, __file__)
