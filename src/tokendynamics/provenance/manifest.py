"""How a result came about: command, parameters, versions, hardware, seed, start and duration, as plain JSON values."""

from __future__ import annotations

import json
import math
import os
import platform
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from tokendynamics._version import __version__


@runtime_checkable
class _Array(Protocol):
    def tolist(self) -> Any: ...


def plain(value: Any) -> Any:
    """Return dataclasses, arrays and tensors as plain JSON values; NaN and infinity are null, a path its last name.

    >>> import numpy as np
    >>> plain({"margin": np.float64("nan"), "shape": (1, 2)})
    {'margin': None, 'shape': [1, 2]}
    """
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, _Array):  # arrays, tensors and their numbers
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Enum):
        return value.value
    return value.name if isinstance(value, Path) else value


def write_json(path: Path, values: Any) -> None:
    """Write `plain` values, indented, with a newline at the end."""
    text = json.dumps(plain(values), indent=2, ensure_ascii=False, allow_nan=False)
    # A file name that is no UTF-8 holds lone surrogates, which JSON has as escapes.
    path.write_text(text + "\n", encoding="utf-8", errors="backslashreplace")


_RECORDED = ("torch", "transformers", "numpy", "scipy", "xarray", "tokenizers", "safetensors", "gguf")


def manifest(
    command: str, parameters: dict[str, Any], *, seed: int | None, started: datetime, threads: int
) -> dict[str, Any]:
    """Return a record that says how to make the result again.

    Args:
        command: What the user called.
        parameters: Every argument that changes the numbers.
        seed: Seed of the random weights, None where nothing was drawn.
        started: Timezone-aware start; the duration runs until now.
        threads: PyTorch threads in force.

    >>> from datetime import datetime, UTC
    >>> manifest("td.audit(…)", {}, seed=None, started=datetime.now(UTC), threads=1)["seed"] is None
    True
    """
    return {
        "command": command,
        "parameters": parameters,
        "versions": versions(*_RECORDED),
        "hardware": {
            "machine": platform.machine(),
            "system": f"{platform.system()} {platform.release()}",
            "cores": os.cpu_count(),
            "threads": threads,
            "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "seed": seed,
        "started": started.isoformat(timespec="seconds"),
        "duration_seconds": round((datetime.now(UTC) - started).total_seconds(), 3),
    }


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of the package, of Python, and of those of `packages` that are installed."""
    version_of = {"tokendynamics": __version__, "python": platform.python_version()}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            version_of[name] = _version(name)
    return version_of


@cache
def _version(package: str) -> str:
    """Return the version of what this process runs: what is installed meanwhile does not change that."""
    return metadata.version(package)
