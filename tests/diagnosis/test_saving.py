"""What is saved reads back as it was, in both formats, and a failure leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import xarray as xr

from tokendynamics.diagnosis import Diagnosis, diagnose
from tokendynamics.diagnosis import _result as saving
from tokendynamics.numerics import _extras as extras
from tokendynamics.numerics._errors import ArgumentValueError
from tokendynamics.pretrained import Checkpoint


@pytest.fixture
def found(tiny: Callable[..., Checkpoint]) -> Diagnosis:
    return diagnose(tiny("llama"), ["a cat sat", "x"], command="a test")


@pytest.mark.parametrize(("format", "engine"), [("zarr", "zarr"), ("netcdf", "h5netcdf")])
def test_datasets_read_back_as_they_were(found: Diagnosis, tmp_path: Path, format: str, engine: str) -> None:
    paths = found.save(tmp_path / "deep" / "folder", format=format)  # type: ignore[arg-type]
    assert {path.name for path in paths} == set(saving.data_file_names(format))  # type: ignore[arg-type]
    for path, table in zip(paths, (found.audit, found.trace, found.paths), strict=False):
        back = xr.open_dataset(path, engine=engine).load()
        xr.testing.assert_equal(back, table)
        assert back.attrs == table.attrs


def test_saving_in_the_other_format_leaves_no_stale_data(found: Diagnosis, tmp_path: Path) -> None:
    found.save(tmp_path / "out", format="zarr")
    found.save(tmp_path / "out", format="netcdf")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*saving.data_file_names("netcdf"), "manifest.json"}


def test_netcdf_without_its_library_is_refused_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(ArgumentValueError, match=r"tokendynamics\[netcdf\]"):
        saving.data_file_names("netcdf")


def test_the_summary_is_strict_json_with_null_for_what_is_undefined(found: Diagnosis, tmp_path: Path) -> None:
    found.save(tmp_path)
    text = (tmp_path / "diagnosis.json").read_text()
    read = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert read["audit"]["A_inertia"][0] == [None, None, None]
    assert read["audit"]["V_condition"][0] is None
    assert read["audit"]["regime"] == ["undefined"] * 3
    assert read["verdict"]["layers"] == list(found.verdict.layers)
    assert [entry["text"] for entry in read["verdict"]["sentences"]] == [f.text for f in found.verdict.sentences]
    assert read["manifest"]["versions"]["torch"]
    assert {entry["name"] for entry in read["conventions"]} >= {"Value map", "Sinks", "Norm folding", "Scaling"}


def test_a_failure_while_saving_keeps_what_was_there(
    found: Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found.save(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    monkeypatch.setattr(saving, "summary", lambda diagnosis: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        found.save(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_format_is_refused_before_anything_is_written(found: Diagnosis, tmp_path: Path) -> None:
    with pytest.raises(ArgumentValueError, match="format: expected 'zarr' or 'netcdf', got 'csv'"):
        saving.save_diagnosis(found, tmp_path / "new", format="csv")  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()
