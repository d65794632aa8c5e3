"""A saved comparison opens as it was, in both formats; what is none, or is damaged, is refused in one line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import tokendynamics as td
from diagnosis.planted_damage import damaged, network
from report.reading import page_of
from tokendynamics.diagnosis import Comparison
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.pretrained import Checkpoint

PROMPTS = {"one": [5, 9, 33, 21, 7, 50], "two": [12, 3, 44, 18, 40], "three": [20, 31, 8, 6]}


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    whole = network("gpt2")
    silent = damaged(whole, "down_proj × 3", (2,))
    for parameter in whole.h[
        1
    ].mlp.c_proj.parameters():  # adds nothing: what the others add is infinitely much beside it
        parameter.data.zero_()
    return td.compare(whole, silent, td.load(whole), texts=PROMPTS, names=["a", "b", "c"])


@pytest.fixture(scope="module")
def saved(comparison: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "deep" / "comparison"
    comparison.save(folder)
    return folder


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("format", ["zarr", "netcdf"])
def test_a_comparison_opens_as_it_was_saved(comparison: Comparison, saved: Path, tmp_path: Path, format: str) -> None:
    folder = saved if format == "zarr" else tmp_path
    if format == "netcdf":
        comparison.save(folder, format="netcdf")
    assert_same(td.Comparison.open(folder), comparison)


def assert_same(back: Comparison, result: Comparison) -> None:
    tables = [(getattr(back, name), getattr(result, name)) for name in ("table", "difference", "gaps", "weights")]
    for one, other in [*tables, *zip(back.traces, result.traces, strict=True)]:
        if other is None:
            assert one is None
            continue
        xr.testing.assert_identical(one, other)
        assert set(one.xindexes) == set(other.xindexes)
        assert {key: variable.dtype for key, variable in one.variables.items()} == {
            key: variable.dtype for key, variable in other.variables.items()
        }
    for name in ("verdicts", "sentences"):  # in which NaN is NaN
        one, other = ([asdict(entry) for entry in getattr(of, name)] for of in (back, result))
        np.testing.assert_equal(one, other)
    for name in ("models", "partings", "descriptions", "conventions", "manifest"):
        assert getattr(back, name) == getattr(result, name)
    assert back.first_difference == result.first_difference


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
def test_a_page_is_made_from_what_was_saved(comparison: Comparison, saved: Path) -> None:
    assert page_of(td.Comparison.open(saved)) == page_of(comparison)


@pytest.mark.long
def test_what_is_infinite_comes_back_infinite(comparison: Comparison, saved: Path) -> None:
    for entry in (comparison, Comparison.open(saved)):
        assert entry.partings[0] is not None
        assert entry.partings[0].largest is not None
        assert entry.partings[0].largest.size == np.inf


@pytest.mark.long
def test_what_was_not_compared_is_none_again(tiny: Callable[..., Checkpoint], tmp_path: Path) -> None:
    narrow = td.compare(tiny("gpt2"), network("gpt2"), texts=PROMPTS, weights=False)
    narrow.save(tmp_path / "out")
    assert_same(Comparison.open(tmp_path / "out"), narrow)
    assert narrow.gaps is None
    assert narrow.weights is None
    assert narrow.partings == (None,)


def _edit(folder: Path, **changes: Any) -> None:
    path = folder / "comparison.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _of_a_diagnosis(folder: Path) -> None:
    (folder / "comparison.json").rename(folder / "diagnosis.json")


def _shorter(path: Path) -> None:
    table = xr.open_zarr(path).load()
    shutil.rmtree(path)
    table.isel(layer=slice(2)).drop_encoding().to_zarr(path, zarr_format=2)


def _kind(folder: Path) -> None:
    values = json.loads((folder / "comparison.json").read_text())["partings"]
    _edit(folder, partings=values | {"b": values["b"] | {"kind": "<b>"}})


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing": (shutil.rmtree, "expected a saved comparison, got nothing at"),
    "a diagnosis": (_of_a_diagnosis, "td.Diagnosis.open reads diagnosis.json"),
    "half a summary": (lambda f: (f / "comparison.json").write_text("{"), "expected JSON"),
    "a list": (lambda f: (f / "comparison.json").write_text("[]"), "expected a saved comparison"),
    "one model": (lambda f: _edit(f, models=["a"]), "at least two different names"),
    "other models": (lambda f: _edit(f, models=["a", "b", "d"]), "no 'd'"),
    "a model too many": (lambda f: _edit(f, models=["a", "b", "c", "d"]), "one for each of 4 models"),
    "another order": (lambda f: _edit(f, models=["b", "a", "c"]), "no 'a'"),
    "no tables": (lambda f: _edit(f, tables=[]), "tables: expected table and difference"),
    "an unknown table": (lambda f: _edit(f, tables=["table", "difference", "../x"]), "no others than"),
    "no trace": (lambda f: shutil.rmtree(f / "trace-2.zarr"), r"without trace-2\.zarr or trace-2\.nc"),
    "no gaps": (lambda f: shutil.rmtree(f / "gaps.zarr"), r"without gaps\.zarr"),
    "no variable": (lambda f: shutil.rmtree(f / "weights.zarr" / "ov_angle"), "ov_angle"),
    "two comparisons": (lambda f: _shorter(f / "trace-3.zarr"), "trace-3: expected layers 0 to 3"),
    "an unknown kind": (_kind, "kind: expected one of equal, rounding"),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.few(4)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_line(saved: Path, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "out"
    shutil.copytree(saved, folder)
    DAMAGES[damage][0](folder)
    with pytest.raises(ArgumentValueError, match=DAMAGES[damage][1]) as raised:
        Comparison.open(folder)
    assert str(raised.value).startswith("folder: expected ")
    assert "\n" not in str(raised.value)


def test_a_diagnosis_says_what_reads_a_comparison(saved: Path) -> None:
    with pytest.raises(ArgumentValueError, match=r"without diagnosis\.json; td\.Comparison\.open reads comparison"):
        td.Diagnosis.open(saved)


@pytest.mark.slow
def test_a_table_of_other_models_is_refused(saved: Path, tmp_path: Path) -> None:
    """Also where nothing of it but a later page would ask for the name."""
    folder = tmp_path / "comparison"
    shutil.copytree(saved, folder)
    (folder / "manifest.json").unlink()  # as who edits the data is told to
    tables = {path: xr.open_zarr(path).load() for path in sorted(folder.glob("*.zarr"))}
    named = {path.stem: (path, table) for path, table in tables.items() if "model" in table.dims}
    assert {"table", "heads"} <= named.keys()
    for name, (path, table) in named.items():
        shutil.rmtree(path)
        table.assign_coords(model=["x", "b", "c"]).drop_encoding().to_zarr(path, zarr_format=2)
        with pytest.raises(ArgumentValueError, match=f"{name} model: expected"):
            Comparison.open(folder)
        shutil.rmtree(path)
        table.drop_encoding().to_zarr(path, zarr_format=2)
