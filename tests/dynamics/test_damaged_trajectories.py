"""A store that is no trajectory, or a damaged one, is refused by name."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import tokendynamics as td
from tokendynamics.numerics.errors import ArgumentValueError, MemoryLimitError


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flow = td.Flow(td.Attention([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]), td.Sphere())
    return td.simulate(flow, [[1.0, 0.0], [0.6, 0.8]], [0.0, 1.0]).save(tmp_path_factory.mktemp("run") / "t.zarr")


@pytest.mark.parametrize("name", ["status", "reached", "end_time", "flow_qk", "time", "states"])
def test_a_missing_variable_is_named(name: str, saved: Path, tmp_path: Path) -> None:
    store = shutil.copytree(saved, tmp_path / "t.zarr")
    shutil.rmtree(store / name)
    with pytest.raises(ArgumentValueError, match="path: expected a"):
        td.Trajectory.open(store)


@pytest.mark.parametrize("name", ["engine", "notes", "leading_shape", "counts", "flow", "parameters"])
@pytest.mark.parametrize("value", [None, "[", "{}x", "[1000000]"])
def test_a_damaged_attribute_is_refused_or_read(name: str, value: str | None, saved: Path, tmp_path: Path) -> None:
    store = shutil.copytree(saved, tmp_path / "t.zarr")
    attributes = json.loads((store / ".zattrs").read_text())
    attributes.pop(name)
    if value is not None:
        attributes[name] = value
    (store / ".zattrs").write_text(json.dumps(attributes))
    if value in ("[", "{}x", None) and not (name == "engine" and value is not None):
        with pytest.raises(ArgumentValueError, match="path: expected a"):
            td.Trajectory.open(store)


def changed(saved: Path, folder: Path, variable: str, **entries: object) -> Path:
    """A copy of the store in which a variable declares something else."""
    store = shutil.copytree(saved, folder / "t.zarr")
    described = store / variable / ".zarray"
    described.write_text(json.dumps(json.loads(described.read_text()) | entries))
    return store


@pytest.mark.parametrize("variable", ["states", "status", "time", "flow_qk"])
@pytest.mark.parametrize("entry", ["shape", "chunks"])
def test_a_size_beyond_the_memory_is_refused_with_the_number(
    variable: str, entry: str, saved: Path, tmp_path: Path
) -> None:
    length = len(json.loads((saved / variable / ".zarray").read_text())["shape"])
    store = changed(saved, tmp_path, variable, **{entry: [10**14] + [1] * (length - 1)})
    with pytest.raises(MemoryLimitError, match=r"GiB of memory of this machine, got .*GiB needed at least"):
        td.Trajectory.open(store)


class Bomb:
    """What would show that a store was unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple:
        return Path.touch, (self.proof,)


def test_a_store_cannot_run_code(saved: Path, tmp_path: Path) -> None:
    proof = tmp_path / "it ran"
    store = changed(saved, tmp_path, "status", filters=[{"id": "pickle", "protocol": 5}], compressor=None)
    (store / "status" / "0").write_bytes(pickle.dumps([Bomb(proof)]))
    with pytest.raises(ArgumentValueError, match=r"path: expected a codec among .*got 'pickle' at 'status'"):
        td.Trajectory.open(store)
    assert not proof.exists()


@pytest.mark.parametrize(
    "entries",
    [
        {"compressor": {"id": "nothing"}},
        {"compressor": "blosc"},
        {"compressor": {}},
        {"filters": 3},
        {"shape": [-1]},
        {"shape": [True]},
        {"shape": "long"},
        {"chunks": None},
        {"chunks": [0]},
        {"dtype": "no"},
        {"dtype": None},
        {"zarr_format": 9},
    ],
    ids=str,
)
def test_what_a_variable_declares_wrongly_is_refused(entries: dict, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentValueError, match="path: expected"):
        td.Trajectory.open(changed(saved, tmp_path, "end_time", **entries))


@pytest.mark.parametrize("content", [b"", b"[" * 10_000, b"\xff\xfe", b"{}", b"[1]", b"null"])
def test_damaged_metadata_is_refused(content: bytes, saved: Path, tmp_path: Path) -> None:
    store = shutil.copytree(saved, tmp_path / "t.zarr")
    (store / "states" / ".zarray").write_bytes(content)
    with pytest.raises(ArgumentValueError, match="path: expected"):
        td.Trajectory.open(store)


@pytest.mark.parametrize(
    "content", [b"", b"no chunk", b"\x02\x01\x01\x08\xff\xff\xff\x7f\xff\xff\xff\x7f\x10\x00\x00\x00"]
)
def test_a_damaged_chunk_is_refused(content: bytes, saved: Path, tmp_path: Path) -> None:
    store = shutil.copytree(saved, tmp_path / "t.zarr")
    chunk = next(path for path in (store / "states").iterdir() if not path.name.startswith("."))
    chunk.write_bytes(content)
    with pytest.raises(ArgumentValueError, match="path: expected"):
        td.Trajectory.open(store)


def test_a_store_of_version_3_and_an_empty_folder_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "zarr.json").write_text("{}")
    for name in ("empty", "later"):
        with pytest.raises(ArgumentValueError, match="path: expected a"):
            td.Trajectory.open(tmp_path / name)


def test_netcdf_is_held_to_the_same(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    pytest.importorskip("h5netcdf")
    (tmp_path / "no.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(ArgumentValueError, match="path: expected a saved trajectory"):
        td.Trajectory.open(tmp_path / "no.nc")
    with h5py.File(tmp_path / "huge.nc", "w") as file:
        file.create_dataset("time", shape=(10**14,), dtype="f8", chunks=(1024,)).make_scale("time")
    with pytest.raises(MemoryLimitError, match="GiB needed at least"):
        td.Trajectory.open(tmp_path / "huge.nc")


@pytest.mark.parametrize("variable", ["states", "time", "status", "end_time"])
def test_a_chunk_that_is_gone_is_not_taken_for_nothing(variable: str, saved: Path, tmp_path: Path) -> None:
    # Zarr reads what it does not find as its fill value.
    store = shutil.copytree(saved, tmp_path / "t.zarr")
    for chunk in (store / variable).glob("[0-9]*"):
        chunk.unlink()
    with pytest.raises(ArgumentValueError, match="path: expected a saved trajectory"):
        td.Trajectory.open(store)


def rewritten(saved: Path, path: Path, change: Callable[[xr.Dataset], xr.Dataset]) -> Path:
    """A copy of the store with other content, in perfect order as a store."""
    with xr.open_zarr(saved, consolidated=False) as dataset:
        dataset = change(dataset.load())
    for variable in dataset.variables.values():
        variable.encoding.clear()
    dataset.to_zarr(path, zarr_format=2, consolidated=False)
    return path


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda result: result.assign(status=("system", ["arrived"])),
            "status: expected words for the end of a run, got 'arrived'",
        ),
        (lambda result: result.assign_coords(time=[1.0, 0.0]), "times: expected increasing times"),
        (lambda result: result.assign(end_time=("system", [0.5])), "reached: expected True up to each end_time"),
        (lambda result: result.assign(end_time=("system", [np.nan])), "reached: expected True up to each end_time"),
        (lambda result: result.assign(states=result.states * np.inf), "states: expected finite"),
        (lambda result: result.isel(feature=[0]), "states: expected shape .* to fit qk"),
        (lambda result: result.assign(accepted=-result.accepted), "accepted: expected whole numbers of at least 0"),
        (
            lambda result: result.assign(accepted=result.accepted + 0.5),
            "accepted: expected whole numbers of at least 0",
        ),
        (lambda result: result.assign_attrs(engine=1), "engine: expected a text"),
        (lambda result: result.assign_attrs(notes="[1]"), "notes: expected a text"),
        (lambda result: result.assign_attrs(parameters="[1]"), "parameters: expected an object"),
        (lambda result: result.assign_attrs(parameters='{"rtol": -1.0}'), "rtol: expected a positive finite number"),
        (lambda result: result.assign_attrs(parameters='{"atol": "x"}'), "atol: expected a real number"),
        (lambda result: result.assign_attrs(parameters='{"tau": 0.0}'), "tau: expected a positive finite number"),
    ],
)
def test_what_no_run_can_have_found_is_refused(
    change: Callable[[xr.Dataset], xr.Dataset], message: str, saved: Path, tmp_path: Path
) -> None:
    assert td.Trajectory.open(rewritten(saved, tmp_path / "same.zarr", lambda result: result)).flow is not None
    with pytest.raises(ArgumentValueError, match=f"path: expected a saved trajectory, got .*{message}"):
        td.Trajectory.open(rewritten(saved, tmp_path / "other.zarr", change))
