"""From a sweep's dataset to its page: what the page shows is counted here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tokendynamics import figures
from tokendynamics.numerics import ArgumentTypeError
from tokendynamics.numerics.arguments import as_path
from tokendynamics.numerics.errors import expected, shown
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.manifest import plain
from tokendynamics.provenance.owned import MANIFEST
from tokendynamics.provenance.reading import read_json
from tokendynamics.provenance.whole import check_free, whole_folder
from tokendynamics.results import Result
from tokendynamics.sweeps._plan import DRAW, POINT
from tokendynamics.sweeps._store import ENGINE, IDENTITY, VERSIONS
from tokendynamics.sweeps.outcome_fractions import fractions
from tokendynamics.words import plural

WRITER = "tokendynamics sweep"
PAGE, DIAGRAM, SHARES = "report.html", "phase-diagram", "shares.csv"
_ROWS = 4
"""Values of a third parameter that a diagram has a row for."""


@dataclass(frozen=True, repr=False)
class SweepResult(Result):
    """What a sweep found, counted.

    Attributes:
        title: What it is called.
        shape: How many systems there are over what.
        shares: Counts, shares and intervals of each outcome over the parameters, from `fractions`.
        status: The same of the statuses.
        again: How many systems were tried again.
        systems: How many the design has; some of them may not have been run yet.
        facts: What else is known, by name.
        manifest: How to make it again.
        files: Names of the data files beside the page.
        notes: What is to be known of the diagrams.
    """

    title: str
    shape: str
    shares: xr.Dataset
    status: xr.Dataset
    again: int
    systems: int
    facts: tuple[tuple[str, str], ...] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """Title and shape."""
        return f"{self.title}: {self.shape}"

    @property
    def findings(self) -> list[str]:
        """How many systems had each outcome, or ended with each status, the most frequent first."""
        kind = next(str(dim) for dim in self.shares["count"].dims if dim not in self.shares.total.dims)
        counts = self.shares["count"].sum(self.shares.total.dims)
        met = sorted(((int(many), str(word)) for word, many in zip(counts[kind].values, counts.values, strict=True)))
        return [f"{word}: {plural(many, 'system')}" for many, word in reversed(met) if many]


@typed_arguments
def report(
    dataset: xr.Dataset,
    path: str | Path,
    *,
    title: str = "A sweep",
    files: tuple[str, ...] = (),
    manifest: dict[str, Any] | None = None,
    max_bytes: int | None = None,
) -> Path:
    """Write the page of a sweep: sentences, phase diagrams with intervals, how the runs ended; one file.

    Args:
        dataset: From `sweep` or `open_store`.
        path: The file to write; its folder is made if need be.
        title: What the sweep is called.
        files: Names of the data files beside the page.
        manifest: How to make it again; None for what the dataset records.
        max_bytes: Refuse to write a page larger than this; None for no limit.

    Returns:
        The path written.

    Raises:
        ArgumentTypeError, ArgumentValueError: Not the dataset of a sweep, `path` is a folder, or the page would be
            larger than `max_bytes`.
    """
    if not isinstance(dataset, xr.Dataset) or not {"status", "tries"} <= set(dataset):
        raise ArgumentTypeError(
            expected("dataset", "the result of `sweep` or `open_store`", shown(type(dataset).__name__))
        )
    as_path(path, "path")
    if manifest is not None and not isinstance(manifest, dict):
        raise ArgumentTypeError(expected("manifest", "a record by name, or None", shown(manifest)))
    return counted(dataset, title=title, files=files, manifest=manifest).report(path, max_bytes=max_bytes)


def counted(
    dataset: xr.Dataset, *, title: str = "A sweep", files: tuple[str, ...] = (), manifest: dict[str, Any] | None = None
) -> SweepResult:
    """Count what the page of a sweep shows; the arguments are those of `report`."""
    by = parameters(dataset) if POINT in dataset.dims else ()
    status = fractions(dataset, "status", by=by)
    return SweepResult(
        title=title,
        shape=f"{dataset['status'].size:,} systems: "
        + " × ".join(f"{dim} ({length:,})" for dim, length in dataset["status"].sizes.items()),
        shares=fractions(dataset, by=by) if "outcome" in dataset else status,
        status=status,
        again=int((dataset["tries"] > 1).sum()),
        systems=dataset["status"].size,
        facts=_facts(dataset),
        manifest=_recorded(dataset) if manifest is None else manifest,
        files=files,
        notes=(_IN_CELLS,) if by else (),
    )


def write_results(
    dataset: xr.Dataset, store: Path, folder: Path, *, title: str, overwrite: bool = False
) -> tuple[Path, ...]:
    """Write the shares of a sweep, then their phase diagram, then the page into a folder, each step whole.

    Args:
        dataset: From `sweep`.
        store: Where it is stored.
        folder: Need not exist; see `check_results`.
        title: What the sweep is called.
        overwrite: Replace foreign files that are in the way.

    Returns:
        Paths of what was written.

    Raises:
        ArgumentValueError: See `whole_folder`.
        PageError: The page cannot be drawn; everything else is written.
    """
    record, shares = read_json(store / MANIFEST, "store"), _drawn(dataset)
    put = partial(whole_folder, folder, record, WRITER, overwrite=overwrite, argument="--out")
    with put() as made:
        shares.to_dataframe().to_csv(made / SHARES)
    with put(keep=True) as made:
        if shares.total.ndim:
            for kind in ("png", "svg"):
                figures.save(figures.phase_diagram(shares), made / f"{DIAGRAM}.{kind}")
        names = {SHARES, PAGE, *(path.name for path in made.iterdir())}
    with put(keep=True) as made:
        report(dataset, made / PAGE, title=title, manifest=record, files=(SHARES,))
    return tuple(folder / name for name in sorted(names))


def check_results(folder: Path, *, overwrite: bool = False) -> None:
    """Refuse a folder in which `write_results` would replace what no sweep wrote, before anything is run.

    Raises:
        ArgumentValueError: See `whole_folder`.
    """
    entries = (PAGE, SHARES, f"{DIAGRAM}.png", f"{DIAGRAM}.svg")
    check_free(folder, entries, WRITER, overwrite=overwrite, argument="--out")


def _drawn(dataset: xr.Dataset) -> xr.Dataset:
    """Return the shares of a diagram: over two parameters, or three of which the last has few values."""
    variable = "outcome" if "outcome" in dataset else "status"
    if POINT in dataset.dims:
        return fractions(dataset, variable, by=parameters(dataset))
    axes = [str(dim) for dim, length in dataset[variable].sizes.items() if dim != DRAW and length > 1]
    few = len(axes) == 3 and dataset.sizes[axes[2]] <= _ROWS
    kept = axes[: 3 if few else 2]
    over = tuple(str(dim) for dim in dataset[variable].dims if dim not in kept)
    return fractions(dataset, variable, over=over)


_IN_CELLS = (
    "The points of this random design are sorted into at most 12 cells along each parameter; a cell of numbers is "
    "named by its middle."
)


def parameters(dataset: xr.Dataset) -> tuple[str, ...]:
    """Return the first two parameters of a random design that vary."""
    named = [str(name) for name, each in dataset.coords.items() if each.dims == (POINT,)]
    return tuple(name for name in named if len(np.unique(dataset[name])) > 1)[:2]


def _facts(dataset: xr.Dataset) -> tuple[tuple[str, str], ...]:
    versions = dataset.attrs.get(VERSIONS, {})
    facts = [
        ("Engine", str(dataset.attrs.get(ENGINE, ""))),
        ("With", ", ".join(f"{k} {v}" for k, v in versions.items())),
    ]
    return tuple((name, text) for name, text in facts if text)


def _recorded(dataset: xr.Dataset) -> dict[str, Any]:
    names = (IDENTITY, VERSIONS, ENGINE)
    return json.loads(json.dumps(plain({name: dataset.attrs[name] for name in names if name in dataset.attrs})))
