"""A study's result as files: the dataset, tables for a spreadsheet, a summary in JSON, and the page."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import xarray as xr

from tokendynamics.provenance.manifest import plain, write_json
from tokendynamics.provenance.whole import check_free, whole_folder

WRITER = "tokendynamics study"
DATASET, SUMMARY, PAGE = "study.zarr", "study.json", "report.html"
TABLES = ("runs.csv", "comparisons.csv", "claims.csv")

Row = Mapping[str, Any]


def check_results(folder: Path, *, overwrite: bool = False) -> None:
    """Refuse a folder in which `write_results` would replace what no study wrote, before anything is run.

    Raises:
        ArgumentValueError: See `whole_folder`.
    """
    check_free(folder, (DATASET, SUMMARY, PAGE, *TABLES), WRITER, overwrite=overwrite, argument="--out")


def write_results(
    dataset: xr.Dataset,
    summary: Row,
    folder: Path,
    page: Callable[[Path, tuple[str, ...]], object],
    *,
    manifest: Row,
    overwrite: bool = False,
) -> tuple[Path, ...]:
    """Write the data into a folder, then the page, each step whole.

    Args:
        dataset: Of the result.
        summary: The rest of the result, with rows for each of the tables.
        folder: Need not exist.
        page: Writes the page under a name, which tells the names of the files beside it.
        manifest: How to make it again.
        overwrite: Replace foreign files that are in the way.

    Returns:
        Paths of what was written.

    Raises:
        ArgumentValueError: See `whole_folder`.
        PageError: The page cannot be drawn; everything else is written.
    """
    put = partial(whole_folder, folder, manifest, WRITER, overwrite=overwrite)
    with put() as made:
        # Version 3 has no settled form for words; version 2 has, and every reader takes it.
        dataset.to_zarr(made / DATASET, mode="w", zarr_format=2, consolidated=False)
        write_json(made / SUMMARY, summary)
        for name, rows in zip(TABLES, (_runs(dataset), summary["comparisons"], summary["claims"]), strict=True):
            _write_table(made / name, rows)
        names = sorted((*(path.name for path in made.iterdir()), PAGE))
    with put(keep=True) as made:
        page(made / PAGE, (SUMMARY, *TABLES))
    return tuple(folder / name for name in names)


def _runs(dataset: xr.Dataset) -> list[Row]:
    names = ("status", "reason", "measure", "final_validation", "seconds")
    return [
        {
            "arm": str(arm),
            "seed": int(seed),
            "learning_rate": plain(dataset["learning_rate"].sel(arm=arm).item()),
            "learning_rate_at_end": str(dataset["learning_rate_at_end"].sel(arm=arm).item())
            if "learning_rate_at_end" in dataset
            else "",
            **{name: plain(dataset[name].sel(arm=arm, seed=seed).item()) for name in names},
        }
        for arm in dataset["arm"].values
        for seed in dataset["seed"].values
    ]


def _write_table(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows([{name: _field(value) for name, value in row.items()} for row in rows])


def _field(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value
