"""Simulations described by a file: what it may say, what is wrong in it, and running it.

`read` and `parse` check a file, `check` says which theorems apply to it, and `run` runs it. They are imported on first
use, so that examples and error messages do not wait for PyTorch; the examples are in `.examples`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokendynamics.specification._file import SpecificationFile, parse, read
    from tokendynamics.specification._section import SpecificationError
    from tokendynamics.specification._simulation import InterruptedRun, Simulation, check, run

_HOME = {
    "InterruptedRun": "_simulation",
    "Simulation": "_simulation",
    "SpecificationError": "_section",
    "SpecificationFile": "_file",
    "check": "_simulation",
    "parse": "_file",
    "read": "_file",
    "run": "_simulation",
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
