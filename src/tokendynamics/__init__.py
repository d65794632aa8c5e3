"""Where do a transformer's tokens go with depth, why, and what can be done about it?

The public names are listed in `__init__.pyi` and imported on first use, so that importing the package is fast.
"""

from tokendynamics._version import __version__ as __version__
from tokendynamics.numerics.extras import lazy_names as _lazy_names

_attribute, __dir__, __all__ = _lazy_names(__name__, __file__)
__all__ += ["__version__", "plots"]


def __getattr__(name: str) -> object:
    """Import a name on first use; `plots` is the former name of `figures`."""
    return _attribute("figures" if name == "plots" else name)
