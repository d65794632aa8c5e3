"""Where do a transformer's tokens go with depth, why, and what can be done about it?

The public names are listed in `__init__.pyi` and imported on first use, so that importing the package is fast.
"""

from typing import Any

import lazy_loader

from tokendynamics._version import __version__ as __version__

_attribute, _, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__.append("__version__")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return _attribute(name)


def __dir__() -> list[str]:
    return __all__
