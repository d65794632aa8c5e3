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

_HOMES = {
    "_file": ("SpecificationFile", "parse", "read"),
    "_section": ("SpecificationError",),
    "_simulation": ("InterruptedRun", "Simulation", "check", "run"),
}

__all__ = [
    "InterruptedRun", "Simulation", "SpecificationError", "SpecificationFile", "check", "parse", "read", "run",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
