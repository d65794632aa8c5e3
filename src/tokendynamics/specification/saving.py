"""Writes a simulation: trajectory, figures, certificates and manifest, whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokendynamics import plots
from tokendynamics.dynamics import Trajectory
from tokendynamics.provenance.owned import MANIFEST
from tokendynamics.provenance.plain import write_json
from tokendynamics.provenance.whole_folder import whole_folder
from tokendynamics.specification.read import SpecificationFile
from tokendynamics.specification.tables import OutputTable
from tokendynamics.theorems import Certificate, Check

TRAJECTORY, CERTIFICATES, SPECIFICATION = "trajectory.zarr", "certificates.json", "specification.toml"
WRITER = "tokendynamics simulate"
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


def entries_of(names: Sequence[str], output: OutputTable) -> tuple[str, ...]:
    """Names that a simulation with these figures writes into its folder."""
    figures = [f"{name}.{format}" for name in names for format in output.formats]
    films = [] if output.animation is None else [f"{_ANIMATION}.{output.animation}"]
    return (TRAJECTORY, SPECIFICATION, CERTIFICATES, *figures, *films)


def save_simulation(
    results: Results, file: SpecificationFile, folder: Path, *, overwrite: bool = False
) -> tuple[Path, ...]:
    """Write everything, whole or not at all; see `tokendynamics.provenance.whole_folder`.

    Files of an earlier simulation in `folder` are replaced, and those that this one does not have are removed.

    Returns:
        Paths of what was written.
    """
    output = file.tables.output
    with whole_folder(folder, results.manifest, WRITER, overwrite=overwrite, argument="--out") as made:
        results.trajectory.save(made / TRAJECTORY)
        (made / SPECIFICATION).write_text(file.text, encoding="utf-8")
        write_json(made / CERTIFICATES, {"checks": results.checks, "certificates": results.certificates})
        for name, figure in results.figures.items():
            for format in output.formats:
                plots.save(figure, made / f"{name}.{format}")
        if output.animation is not None and results.certificates is not None:
            system = output.system if results.trajectory.tensor.ndim == 4 else None
            plots.animate(results.trajectory, made / f"{_ANIMATION}.{output.animation}", seconds=None, system=system)
        names = sorted([*(path.name for path in made.iterdir()), MANIFEST])
    return tuple(folder / name for name in names)
