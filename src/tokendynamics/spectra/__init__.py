"""Signs and spectra of the QK and OV circuits, and the regime they put a layer in."""

from tokendynamics.numerics.extras import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
