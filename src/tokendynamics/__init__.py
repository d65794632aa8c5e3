"""Where do a transformer's tokens go with depth, why, and what can be done about it?

The public names are resolved on first use, so that importing the package costs nothing until something is asked
of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tokendynamics._version import __version__

if TYPE_CHECKING:
    from tokendynamics import observables, spectra
    from tokendynamics.diagnosis import Diagnosis, audit, diagnose, trace
    from tokendynamics.pretrained import Checkpoint, load

_HOME = {
    "observables": "tokendynamics.observables",
    "spectra": "tokendynamics.spectra",
    "load": "tokendynamics.pretrained",
    "Checkpoint": "tokendynamics.pretrained",
    "audit": "tokendynamics.diagnosis",
    "trace": "tokendynamics.diagnosis",
    "diagnose": "tokendynamics.diagnosis",
    "Diagnosis": "tokendynamics.diagnosis",
}

__all__ = ["Checkpoint", "Diagnosis", "__version__", "audit", "diagnose", "load", "observables", "spectra", "trace"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tokendynamics' has no attribute {name!r}; it has {', '.join(__all__)}")
    module = importlib.import_module(_HOME[name])
    value = module if module.__name__.rpartition(".")[2] == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
