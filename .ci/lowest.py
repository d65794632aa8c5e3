"""Print constraints that hold the package's direct dependencies at the lowest versions that pyproject.toml allows.

The versions come from pyproject.toml alone. PyTorch is an exception: the tests run with one build of it, that of
constraints.txt, and its lowest version is not tested.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLOOR = re.compile(r"([A-Za-z0-9_.-]+)>=([0-9][0-9A-Za-z.]*)")
TESTED = ("netcdf", "sweeps")
"""Extras whose lowest versions are tested as well."""


def lowest() -> list[str]:
    """Return a line ``name==version`` for each direct dependency."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(each for extra in TESTED for each in extras[extra])]
    found = [FLOOR.fullmatch(each) for each in wanted]
    lines = [f"{each[1]}=={each[2]}" for each in found if each is not None and each[1] != "torch"]
    if len(lines) != len(wanted) - 1:
        raise SystemExit(f"expected every dependency as name>=version, got {wanted}")
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [*lines, *(line for line in pinned if line.startswith("torch=="))]


if __name__ == "__main__":
    print("\n".join(lowest()))
