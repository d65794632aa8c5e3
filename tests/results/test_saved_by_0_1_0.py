"""Folders that version 0.1.0 wrote open with the values that 0.1.0 read from them.

``saved_by_0.1.0.tar.xz`` has one folder of each kind, and ``values.json``: what `digests` gave with the readers of that
version. The networks are random, of three layers and eight dimensions; the comparison is in NetCDF, the rest in Zarr.
The diagnosis is without its ``manifest.json``, which no reader asks for.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tokendynamics as td
from results import digests
from tokendynamics.circuits.learning import LearningRecord
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.training import Record

READERS: dict[str, tuple[Callable[[Path], Any], Callable[[Any], dict[str, Any]]]] = {
    "diagnosis": (td.Diagnosis.open, digests.of_diagnosis),
    "comparison": (td.Comparison.open, digests.of_comparison),
    "monitor": (td.Monitor.open, digests.of_monitor),
    "run": (Record.open, digests.of_run),
    "learning": (LearningRecord.open, digests.of_learning),
    "trajectory.zarr": (td.Trajectory.open, digests.of_trajectory),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    with tarfile.open(Path(__file__).with_name("saved_by_0.1.0.tar.xz")) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("kind", READERS)
def test_what_0_1_0_saved_opens_with_the_same_values(saved: Path, kind: str) -> None:
    opened, digest = READERS[kind]
    result = digest(opened(saved / kind))
    assert_same(json.loads(json.dumps(result)), json.loads((saved / "values.json").read_text())[kind])


def assert_same(result: Any, wanted: Any) -> None:
    if isinstance(wanted, dict):
        assert result.keys() == wanted.keys()
        for name in wanted:
            assert_same(result[name], wanted[name])
    elif isinstance(wanted, list):
        assert len(result) == len(wanted)
        for one, other in zip(result, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, float):
        assert result == pytest.approx(wanted, rel=1e-12, abs=1e-12, nan_ok=True)
    else:
        assert result == wanted


@pytest.mark.parametrize(("kind", "other"), [("diagnosis", "comparison"), ("comparison", "diagnosis")])
def test_a_folder_of_another_kind_is_refused_with_what_reads_it(saved: Path, kind: str, other: str) -> None:
    with pytest.raises(ArgumentValueError, match=f"{other.capitalize()}.open reads {other}.json"):
        READERS[kind][0](saved / other)


@pytest.mark.slow
def test_what_0_1_0_saved_is_replaced_without_being_asked(saved: Path) -> None:
    """The manifest of that version says which files are ours; a file of somebody else is still refused."""
    folder = saved / "comparison"
    opened = td.Comparison.open(folder)
    opened.save(folder)
    assert not list(folder.glob("*.nc"))
    (folder / "table.nc").write_text("somebody's own")
    with pytest.raises(ArgumentValueError, match=r"table\.nc"):
        opened.save(folder, format="netcdf")
