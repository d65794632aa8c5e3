"""Whether two versions of the package give the same numbers, bit for bit: compares the folders that each has written.

Make one folder with each version, on one machine and with one thread, then compare them:

    python -m reproductions --quick --threads 1 --out before/papers
    tokendynamics diagnose smollm2 --threads 1 --out before/demo
    python -m bench.same_numbers before after

Times, machines and commands differ and are left out; so are pictures, which are drawn from these numbers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

_OF_THE_RUN = {"manifest", "ran_on", "seconds", "duration_seconds", "started", "run_time", "made_with"}


def main() -> int:
    """Print what differs; exit with 1 if anything does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    arguments = parser.parse_args()
    before, after = (dict(_numbers(folder)) for folder in (arguments.before, arguments.after))
    differing = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    for name in differing:
        print(f"{name}: {_shown(before.get(name))} -> {_shown(after.get(name))}")
    print(f"{len(before)} entries before, {len(after)} after, {len(differing)} differ")
    return bool(differing or not before)


def _numbers(folder: Path) -> Iterator[tuple[str, Any]]:
    """Every entry of every record and array in a folder by its place; arrays as their bytes."""
    for path in sorted(folder.rglob("*.json")):
        if path.name != "manifest.json" and not any(part.endswith(".zarr") for part in path.parts):
            yield from _entries(path.relative_to(folder).as_posix(), json.loads(path.read_text(encoding="utf-8")))
    for path in sorted(folder.rglob("*.zarr")):
        with xr.open_zarr(path, consolidated=False) as table:
            for name, values in table.variables.items():
                array = np.asarray(values)
                data = array.tolist() if array.dtype.kind in "OU" else array.tobytes()
                yield f"{path.relative_to(folder).as_posix()}/{name}", (array.shape, str(array.dtype), data)


def _entries(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        if str(value.get("name", "")).startswith("seconds"):
            return
        for key, entry in value.items():
            if key not in _OF_THE_RUN:
                yield from _entries(f"{place}/{key}", entry)
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _entries(f"{place}/{index}", entry)
    else:
        # A NaN equals itself here; 1 and 1.0 differ.
        yield place, repr(value)


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)[:100]


if __name__ == "__main__":
    sys.exit(main())
