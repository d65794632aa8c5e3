"""Simulations described by a file: what it may say, what is wrong in it, and running it.

`read` and `parse` check a file, `check` says which theorems apply to it, and `run` runs it. They are imported on first
use, so that examples and error messages do not wait for PyTorch; the examples are in `.examples`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokendynamics.specification.file import SpecificationFile, parse, read
    from tokendynamics.specification.section import SpecificationError
    from tokendynamics.specification.simulation import InterruptedRun, Simulation, check, run

_HOME = {
    "InterruptedRun": "simulation",
    "Simulation": "simulation",
    "SpecificationError": "section",
    "SpecificationFile": "file",
    "check": "simulation",
    "parse": "file",
    "read": "file",
    "run": "simulation",
}

__all__ = [
    "InterruptedRun",
    "Simulation",
    "SpecificationError",
    "SpecificationFile",
    "check",
    "parse",
    "read",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
