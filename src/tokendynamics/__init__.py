"""Where do a transformer's tokens go with depth, why, and what can be done about it?

The public names are resolved on first use, so that importing the package costs nothing until something is asked
of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tokendynamics._version import __version__

if TYPE_CHECKING:
    from tokendynamics import (
        attention,
        circuits,
        modules,
        observables,
        plots,
        spaces,
        specification,
        spectra,
        sweeps,
        theorems,
        training,
    )
    from tokendynamics.attention import AbsolutePositions, Attention, Periodic, RotaryPositions, Sinusoidal
    from tokendynamics.diagnosis import (
        Comparison,
        Deeper,
        Diagnosis,
        Levers,
        attention_seen,
        audit,
        compare,
        decode,
        deeper,
        diagnose,
        flow_of,
        levers,
        logit_lens,
        passes,
        token_clusters,
        token_paths,
        trace,
        what_if,
    )
    from tokendynamics.dynamics import Flow, Trajectory, events, simulate
    from tokendynamics.pretrained import Checkpoint, apply_remedy, load
    from tokendynamics.spaces import Ellipsoid, Free, Sphere
    from tokendynamics.sweeps import sweep
    from tokendynamics.theorems import certify, check
    from tokendynamics.training import Monitor

_HOMES = {
    "attention": ("AbsolutePositions", "Attention", "Periodic", "RotaryPositions", "Sinusoidal"),
    "diagnosis": (
        "Comparison",
        "Deeper",
        "Diagnosis",
        "Levers",
        "attention_seen",
        "audit",
        "compare",
        "decode",
        "deeper",
        "diagnose",
        "flow_of",
        "levers",
        "logit_lens",
        "passes",
        "token_clusters",
        "token_paths",
        "trace",
        "what_if",
    ),
    "dynamics": ("Flow", "Trajectory", "events", "simulate"),
    "pretrained": ("Checkpoint", "apply_remedy", "load"),
    "spaces": ("Ellipsoid", "Free", "Sphere"),
    "sweeps": ("sweep",),
    "theorems": ("certify", "check"),
    "training": ("Monitor",),
}
_PACKAGES = (
    "attention",
    "circuits",
    "modules",
    "observables",
    "plots",
    "spaces",
    "specification",
    "spectra",
    "sweeps",
    "theorems",
    "training",
)

__all__ = [
    "AbsolutePositions", "Attention", "Checkpoint", "Comparison", "Deeper", "Diagnosis", "Ellipsoid", "Flow", "Free",
    "Levers", "Monitor", "Periodic", "RotaryPositions", "Sinusoidal", "Sphere", "Trajectory", "__version__",
    "apply_remedy", "attention", "attention_seen", "audit", "certify", "check", "circuits", "compare", "decode",
    "deeper", "diagnose", "events", "flow_of", "levers", "load", "logit_lens", "modules", "observables", "passes",
    "plots", "simulate", "spaces", "specification", "spectra", "sweep", "sweeps", "theorems", "token_clusters",
    "token_paths", "trace", "training", "what_if",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = next((package for package, names in _HOMES.items() if name in names), None)
    if home is None and name not in _PACKAGES:
        raise AttributeError(f"module 'tokendynamics' has no attribute {name!r}; it has {', '.join(__all__)}")
    module = importlib.import_module(f"tokendynamics.{home or name}")
    value = module if home is None else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
