"""How a store came about: the manifest beside its arrays, which alone holds times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tokendynamics.provenance.manifest import manifest, write_json
from tokendynamics.provenance.owned import MANIFEST
from tokendynamics.provenance.reading import read_json
from tokendynamics.provenance.whole import whole_file
from tokendynamics.sweeps._plan import Plan
from tokendynamics.sweeps._store import identity


def write_record(place: Path, plan: Plan, started: datetime, systems: int, workers: int, command: str) -> None:
    """Write down one more run that a store was filled by, whether it came to the end or was stopped.

    Args:
        place: The store.
        plan: What it is of.
        started: When the run began, timezone-aware.
        systems: How many this run added.
        workers: Threads of the workers at its end.
        command: What the user called.
    """
    run = {"systems": systems, "workers": workers}
    add_run(place, command, identity(plan), run, seed=plan.table.seed, started=started)


def add_run(
    place: Path,
    command: str,
    parameters: dict[str, Any],
    run: Mapping[str, Any],
    *,
    seed: int | None,
    started: datetime,
) -> None:
    """Write a manifest that names one more run beside those that it named; `run` is what to say of it."""
    record = manifest(command, parameters, seed=seed, started=started, threads=1)
    told = {
        **run,
        "started": record.pop("started"),
        "duration_seconds": (datetime.now(UTC) - started).total_seconds(),
        "hardware": record.pop("hardware"),
    }
    del record["duration_seconds"]
    with whole_file(place / MANIFEST) as made:
        write_json(made, record | {"runs": [*_runs(place), told]})


def _runs(place: Path) -> list[Any]:
    try:
        runs = read_json(place / MANIFEST, "store")["runs"]
        return runs if isinstance(runs, list) else []
    except (ValueError, KeyError, TypeError):
        return []
