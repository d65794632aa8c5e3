"""Where do a transformer's tokens go with depth, why, and what can be done about it?

The public names are resolved on first use, so that importing the package costs nothing until something is asked
of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tokendynamics._version import __version__

if TYPE_CHECKING:
    from tokendynamics import circuits, observables, plots, specification, spectra
    from tokendynamics.attention import AbsolutePositions, Attention, Periodic, RotaryPositions, Sinusoidal
    from tokendynamics.diagnosis import Diagnosis, audit, diagnose, flow_of, trace
    from tokendynamics.dynamics import Flow, Trajectory, events, simulate
    from tokendynamics.pretrained import Checkpoint, load
    from tokendynamics.spaces import Ellipsoid, Free, Sphere
    from tokendynamics.theorems import certify, check

_HOME = {
    "circuits": "tokendynamics.circuits",
    "observables": "tokendynamics.observables",
    "spectra": "tokendynamics.spectra",
    "load": "tokendynamics.pretrained",
    "Checkpoint": "tokendynamics.pretrained",
    "audit": "tokendynamics.diagnosis",
    "trace": "tokendynamics.diagnosis",
    "diagnose": "tokendynamics.diagnosis",
    "Diagnosis": "tokendynamics.diagnosis",
    "flow_of": "tokendynamics.diagnosis",
    "Attention": "tokendynamics.attention",
    "Sinusoidal": "tokendynamics.attention",
    "Periodic": "tokendynamics.attention",
    "AbsolutePositions": "tokendynamics.attention",
    "RotaryPositions": "tokendynamics.attention",
    "Free": "tokendynamics.spaces",
    "Sphere": "tokendynamics.spaces",
    "Ellipsoid": "tokendynamics.spaces",
    "Flow": "tokendynamics.dynamics",
    "simulate": "tokendynamics.dynamics",
    "Trajectory": "tokendynamics.dynamics",
    "events": "tokendynamics.dynamics",
    "check": "tokendynamics.theorems",
    "certify": "tokendynamics.theorems",
    "plots": "tokendynamics.plots",
    "specification": "tokendynamics.specification",
}

__all__ = [
    "AbsolutePositions",
    "Attention",
    "Checkpoint",
    "Diagnosis",
    "Ellipsoid",
    "Flow",
    "Free",
    "Periodic",
    "RotaryPositions",
    "Sinusoidal",
    "Sphere",
    "Trajectory",
    "__version__",
    "audit",
    "certify",
    "check",
    "circuits",
    "diagnose",
    "events",
    "flow_of",
    "load",
    "observables",
    "plots",
    "simulate",
    "specification",
    "spectra",
    "trace",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tokendynamics' has no attribute {name!r}; it has {', '.join(__all__)}")
    module = importlib.import_module(_HOME[name])
    value = module if module.__name__.rpartition(".")[2] == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
