"""How a result came about: command, parameters, versions, hardware, seed, start and duration."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import torch

from tokendynamics._version import __version__

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
        "versions": _versions(),
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


def _versions() -> dict[str, str]:
    versions = {"tokendynamics": __version__, "python": platform.python_version()}
    for name in _RECORDED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
