"""What is saved reads back as it was, in both formats, and a failure leaves nothing behind."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import tokendynamics as td
from diagnosis.conftest import write_config
from pretrained.families import network_of
from report.reading import page_of, plain_spaces
from tokendynamics.diagnosis import Deeper, Diagnosis, Levers, diagnose
from tokendynamics.diagnosis import result as saving
from tokendynamics.numerics import extras as extras
from tokendynamics.numerics.errors import ArgumentValueError


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    texts = ["a cat sat", "xy", "one two three", "it rains", "no more"]
    config = write_config(tmp_path_factory.mktemp("tiny") / "llama", "llama")
    made = diagnose(
        f"random:{config}:1", texts, command="a test", passes=3, baseline="untrained", remedies=True, joint=True
    )
    assert isinstance(made.levers, Levers)
    assert made.levers.table.sizes["candidate"]
    assert isinstance(made.joint, xr.Dataset)
    assert made.joint.sizes["step"]  # an empty column of texts opens as one of numbers
    levers = replace(made.levers, best=0)  # as if the answer named it
    return replace(
        made, levers=replace(levers, effect=td.what_if(td.load(f"random:{config}:1"), texts, levers.changes))
    )


@pytest.fixture(scope="module")
def few(measured: Diagnosis) -> Diagnosis:
    """The same without tables that the test at hand is not about: each array is two files of a folder."""
    return replace(measured, baseline=None, heads=None, directions=None, sources=None, remedies=None, joint=None)


@pytest.mark.slow
@pytest.mark.parametrize(("format", "engine"), [("zarr", "zarr"), ("netcdf", "h5netcdf")])
def test_datasets_read_back_as_they_were(measured: Diagnosis, tmp_path: Path, format: str, engine: str) -> None:
    paths = measured.save(tmp_path / "deep" / "folder", format=format)  # type: ignore[arg-type]
    assert {path.name for path in paths} == set(saving.data_file_names(format))  # type: ignore[arg-type]
    for path, table in zip(paths, saving.tables_of(measured).values(), strict=False):
        back = xr.open_dataset(path, engine=engine).load()
        xr.testing.assert_equal(back, table)
        assert back.attrs == table.attrs


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("format", ["zarr", "netcdf"])
def test_a_diagnosis_opens_as_it_was_saved(measured: Diagnosis, tmp_path: Path, format: str) -> None:
    measured.save(tmp_path, format=format)  # type: ignore[arg-type]
    assert_same(td.Diagnosis.open(tmp_path), measured)


def assert_same(back: Diagnosis, result: Diagnosis) -> None:
    stored, made = saving.tables_of(back), saving.tables_of(result)
    assert stored.keys() == made.keys()
    for name, other in made.items():
        one = stored[name]
        xr.testing.assert_identical(one, other)
        assert set(one.xindexes) == set(other.xindexes)
        assert {key: variable.dtype for key, variable in one.variables.items()} == {
            key: variable.dtype for key, variable in other.variables.items()
        }
    np.testing.assert_equal(asdict(back.verdict), asdict(result.verdict))  # in which NaN is NaN
    for name in ("model", "conventions", "manifest", "audit_refused", "levers_refused", "deeper_refused"):
        assert getattr(back, name) == getattr(result, name)
    if isinstance(result.levers, Levers) and isinstance(back.levers, Levers):
        same = {"table": result.levers.table, "effect": result.levers.effect}
        assert replace(back.levers, **same) == result.levers
    if isinstance(result.deeper, Deeper) and isinstance(back.deeper, Deeper):
        assert replace(back.deeper, table=result.deeper.table) == result.deeper


@pytest.mark.slow
def test_decoded_texts_and_refusals_read_back(few: Diagnosis, tmp_path: Path) -> None:
    assert isinstance(few.deeper, Deeper)
    texts = [["\u202ea\n", ""]] * few.deeper.table.sizes["variant"]
    both = ("variant", "decoded_pass")
    table = few.deeper.table.assign(decoded=(both, texts), distinct_1=(both, [[0.5, np.nan]] * len(texts)))
    made = replace(few.deeper, table=table.assign_coords(decoded_pass=[1, 5]), undecoded="", refused={"no-ffn": "x"})
    for place, format in enumerate(("zarr", "netcdf")):
        replace(few, deeper=made).save(tmp_path / str(place), format=format)
        assert_same(Diagnosis.open(tmp_path / str(place)), replace(few, deeper=made))


@pytest.mark.long
def test_a_folder_of_a_time_before_it_opens(few: Diagnosis, tmp_path: Path) -> None:
    few.save(tmp_path)
    summary = json.loads((tmp_path / "diagnosis.json").read_text())
    del summary["deeper"], summary["deeper_refused"]
    (tmp_path / "diagnosis.json").write_text(json.dumps(summary))
    shutil.rmtree(tmp_path / "deeper.zarr")
    (tmp_path / "manifest.json").unlink()  # whose checksums are those of the folder before these changes
    assert_same(Diagnosis.open(tmp_path), replace(few, deeper=None))


@pytest.mark.long
def test_one_without_an_audit_opens_without_one(tmp_path: Path) -> None:
    diagnosis = diagnose(network_of("fnet")[0], [[5, 9, 33, 21], [7]])
    diagnosis.save(tmp_path)
    assert_same(Diagnosis.open(tmp_path), diagnosis)
    assert "no softmax of products" in Diagnosis.open(tmp_path).audit_refused


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
def test_a_report_is_written_from_what_was_measured(measured: Diagnosis, tmp_path: Path) -> None:
    measured.save(tmp_path / "out")
    path = Diagnosis.open(tmp_path / "out").report(tmp_path / "page.html")
    assert plain_spaces(path.read_text(encoding="utf-8")) == page_of(measured)
    with pytest.raises(ArgumentValueError, match="max_bytes: expected at most 1000"):
        measured.report(tmp_path / "other.html", max_bytes=1000)
    assert not (tmp_path / "other.html").exists()


def _words(**changes: Any) -> dict[str, Any]:
    whole = {"state": "spread", "worst": {"state": "spread", "layer": 1}, "layers": ["spread"] * 3}
    return whole | {"sentences": [], "details": []} | changes


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing": (lambda f: shutil.rmtree(f), "got nothing at"),
    "no summary": (lambda f: (f / "diagnosis.json").unlink(), "without diagnosis.json"),
    "half a summary": (lambda f: (f / "diagnosis.json").write_text("{"), "expected JSON"),
    "a list": (lambda f: (f / "diagnosis.json").write_text("[]"), "expected a saved diagnosis"),
    "no model": (lambda f: _edit(f, model=None), "expected a saved diagnosis"),
    "words of another": (lambda f: _edit(f, verdict=_words(layers=["grows"] * 3)), "drawing together, consensus"),
    "badges of another": (lambda f: _edit(f, verdict=_words(layers=[])), "a badge for each of 3 layers"),
    "a worst layer of another": (lambda f: _edit(f, verdict=_words(worst={"state": "spread"})), "no 'layer'"),
    "no levers": (lambda f: shutil.rmtree(f / "levers.zarr"), r"without levers\.zarr"),
    "levers of another": (lambda f: _answer(f, where=4), "a layer from 1 to 3"),
    "no effect of the best": (lambda f: shutil.rmtree(f / "what_if.zarr"), r"without what_if\.zarr"),
    "a best that is no candidate": (lambda f: _answer(f, best=99), "best: expected 0 to"),
    "an answer of another": (lambda f: _answer(f, answer="do nothing"), "levers: expected one"),
    "no passes": (lambda f: shutil.rmtree(f / "deeper.zarr"), r"without deeper\.zarr"),
    "passes of another": (lambda f: _renamed(f / "deeper.zarr"), "variant: expected 'full', 'no-ffn'"),
    "fits of another": (lambda f: _shorter(f / "deeper.zarr"), "deeper: expected fits within its passes"),
    "texts of nowhere": (lambda f: _deeper(f, undecoded=""), "deeper decoded: expected axes"),
    "sentences of another": (lambda f: _deeper(f, sentences=[1]), "sentences"),
    "no trace": (lambda f: shutil.rmtree(f / "trace.zarr"), r"without trace\.zarr or trace\.nc"),
    "no variable": (lambda f: shutil.rmtree(f / "trace.zarr" / "norm_median"), "norm_median"),
    "a foreign codec": (lambda f: _pickled(f / "paths.zarr" / "norm" / ".zarray"), "a codec among"),
    "no layout": (lambda f: _layout(f, "{"), "expected a saved diagnosis"),
    "a layout of another": (lambda f: _layout(f, json.dumps({"kinds": [], "layers": [0] * 3})), "a saved diagnosis"),
    "a layout of another depth": (
        lambda f: _layout(f, json.dumps({"kinds": [{"residual": None}], "layers": [0], "final_norm": []})),
        "feed_forward: expected 3 layers, got 1",
    ),
    "two diagnoses": (lambda f: _longer(f / "paths.zarr"), "paths: expected layers 0 to 3"),
}


def _edit(folder: Path, **changes: Any) -> None:
    path = folder / "diagnosis.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _answer(folder: Path, **changes: Any) -> None:
    _edit(folder, levers=json.loads((folder / "diagnosis.json").read_text())["levers"] | changes)


def _deeper(folder: Path, **changes: Any) -> None:
    _edit(folder, deeper=json.loads((folder / "diagnosis.json").read_text())["deeper"] | changes)


def _renamed(path: Path) -> None:
    table = xr.open_zarr(path).load()
    shutil.rmtree(path)
    table.assign_coords(variant=["a", "b", "c", "d"]).drop_encoding().to_zarr(path, zarr_format=2)


def _shorter(path: Path) -> None:
    table = xr.open_zarr(path).load()
    shutil.rmtree(path)
    table.isel({"pass": slice(2)}).drop_encoding().to_zarr(path, zarr_format=2)


def _pickled(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"filters": [{"id": "pickle"}]}))


def _layout(folder: Path, record: str) -> None:
    path = folder / "trace.zarr"
    table = xr.open_zarr(path).load()
    shutil.rmtree(path)
    table.assign_attrs(layout=record).drop_encoding().to_zarr(path, zarr_format=2)


def _longer(path: Path) -> None:
    table = xr.open_zarr(path).load()
    shutil.rmtree(path)
    table.isel(layer=slice(2)).drop_encoding().to_zarr(path, zarr_format=2)


@pytest.fixture(scope="module")
def saved(few: Diagnosis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "out"
    few.save(folder)
    return folder


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_line(saved: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(saved, tmp_path / "out")
    DAMAGES[damage][0](tmp_path / "out")
    with pytest.raises(ArgumentValueError, match=DAMAGES[damage][1]) as raised:
        Diagnosis.open(tmp_path / "out")
    assert str(raised.value).startswith("folder: expected ")
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_saving_in_the_other_format_leaves_no_stale_data(measured: Diagnosis, tmp_path: Path) -> None:
    measured.save(tmp_path / "out", format="zarr")
    measured.save(tmp_path / "out", format="netcdf")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*saving.data_file_names("netcdf"), "manifest.json"}


def test_netcdf_without_its_library_is_refused_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(ArgumentValueError, match=r"tokendynamics\[netcdf\]"):
        saving.data_file_names("netcdf")


@pytest.mark.long
def test_the_summary_is_strict_json_with_null_for_what_is_undefined(few: Diagnosis, tmp_path: Path) -> None:
    few.save(tmp_path)
    text = (tmp_path / "diagnosis.json").read_text()
    read = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert read["audit"]["A_inertia"][0] == [None, None, None]
    assert read["audit"]["V_condition"][0] is None
    assert read["audit"]["regime"] == ["undefined"] * 3
    assert read["verdict"]["layers"] == list(few.verdict.layers)
    assert [entry["text"] for entry in read["verdict"]["sentences"]] == [f.text for f in few.verdict.sentences]
    assert read["manifest"]["versions"]["torch"]
    assert {entry["name"] for entry in read["conventions"]} >= {"Value map", "Sinks", "Norm folding", "Scaling"}


@pytest.mark.long
def test_a_failure_while_saving_keeps_what_was_there(
    few: Diagnosis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few.save(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    monkeypatch.setattr(saving, "summary", lambda diagnosis: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        few.save(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.long
@pytest.mark.usefixtures("unchecked")
def test_an_unknown_format_is_refused_before_anything_is_written(measured: Diagnosis, tmp_path: Path) -> None:
    with pytest.raises(ArgumentValueError, match="format: expected 'zarr' or 'netcdf', got 'csv'"):
        measured.save(tmp_path / "new", format="csv")  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("axis", "labels"), [("bound", [0, 1]), ("bound", ["high", "low"]), ("share", ["a", "b", "c"])]
)
def test_other_labels_of_intervals_and_shares_are_refused(
    axis: str, labels: list[Any], few: Diagnosis, tmp_path: Path
) -> None:
    few.save(tmp_path / "saved")
    (tmp_path / "saved" / "manifest.json").unlink()
    path = tmp_path / "saved" / "trace.zarr"
    table = xr.open_zarr(path).load()
    shutil.rmtree(path)
    table.assign_coords({axis: labels}).drop_encoding().to_zarr(path, zarr_format=2)
    with pytest.raises(ArgumentValueError, match=f"{axis}: expected"):
        Diagnosis.open(tmp_path / "saved")
