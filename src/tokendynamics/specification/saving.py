"""Writes a simulation: trajectory, figures, certificates and manifest, whole or not at all."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from tokendynamics import plots
from tokendynamics.dynamics import Trajectory
from tokendynamics.specification.read import SpecificationFile
from tokendynamics.specification.tables import FigureFormat, FigureName
from tokendynamics.theorems import Certificate, Check

TRAJECTORY, CERTIFICATES, MANIFEST, SPECIFICATION = (
    "trajectory.zarr",
    "certificates.json",
    "manifest.json",
    "specification.toml",
)
_ANIMATION = "animation"


@dataclass(frozen=True)
class Results:
    """What a run leaves.

    Attributes:
        trajectory: The run, whole or up to where it was interrupted.
        checks: Which statements applied before the run.
        certificates: What held; None where the run was interrupted.
        manifest: How to make the results again.
        figures: From `tokendynamics.plots`, by name.
    """

    trajectory: Trajectory
    checks: Sequence[Check]
    certificates: Sequence[Certificate] | None
    manifest: dict[str, Any]
    figures: dict[str, Any]


def save_simulation(results: Results, file: SpecificationFile, folder: Path) -> tuple[Path, ...]:
    """Write everything to a temporary folder beside the target and move it when complete.

    Files of an earlier simulation in `folder` are replaced, and those that this one does not have are removed.

    Returns:
        Paths of what was written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as scratch:
        made = Path(scratch)
        results.trajectory.save(made / TRAJECTORY)
        (made / SPECIFICATION).write_text(file.text, encoding="utf-8")
        _write_json(made / MANIFEST, results.manifest)
        _write_json(made / CERTIFICATES, {"checks": results.checks, "certificates": results.certificates})
        for name, figure in results.figures.items():
            for format in file.tables.output.formats:
                plots.save(figure, made / f"{name}.{format}")
        if file.tables.output.animation is not None and results.certificates is not None:
            system = file.tables.output.system if results.trajectory.tensor.ndim == 4 else None
            plots.animate(
                results.trajectory, made / f"{_ANIMATION}.{file.tables.output.animation}", seconds=None, system=system
            )
        written = sorted(made.iterdir())
        _clear(folder)
        return tuple(path.replace(folder / path.name) for path in written)


def plain(value: Any) -> Any:
    """Dataclasses, arrays and tensors as plain JSON values; NaN and infinity are null.

    >>> plain({"margin": np.float64("nan"), "shape": (1, 2)})
    {'margin': None, 'shape': [1, 2]}
    """
    if isinstance(value, Check | Certificate):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Enum):
        return value.value
    return value


def _write_json(path: Path, values: Any) -> None:
    text = json.dumps(plain(values), indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _clear(folder: Path) -> None:
    """Remove what an earlier simulation may have left, and nothing else."""
    figures = [f"{name}.{format}" for name in get_args(FigureName) for format in get_args(FigureFormat)]
    films = [f"{_ANIMATION}.{format}" for format in ("gif", "mp4")]
    for name in (CERTIFICATES, MANIFEST, SPECIFICATION, *figures, *films):
        (folder / name).unlink(missing_ok=True)
    if (folder / TRAJECTORY).exists():
        shutil.rmtree(folder / TRAJECTORY)
