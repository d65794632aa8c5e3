"""A store of a sweep that somebody else may have made: nothing of it is run, and nothing endless is read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from sweeps.conftest import SMALL
from tokendynamics.numerics.errors import ArgumentValueError, MemoryLimitError, TokenDynamicsError
from tokendynamics.sweeps import open_store, parse_plan, sweep


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store.zarr"))


def change(store: Path, name: str, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the description of an array, also where the store repeats it."""
    described = store / name / "zarr.json"
    entry = json.loads(described.read_text())
    edit(entry)
    described.write_text(json.dumps(entry))
    root = json.loads((store / "zarr.json").read_text())
    root["consolidated_metadata"]["metadata"][name] = entry
    (store / "zarr.json").write_text(json.dumps(root))


@pytest.mark.long
@pytest.mark.parametrize("name", ["outcome", "scale", "complete"])
def test_codecs_that_could_run_code_are_refused(store: Path, name: str) -> None:
    codec = {"name": "numcodecs.pickle", "configuration": {"protocol": 5}}
    change(store, name, lambda entry: entry["codecs"].insert(0, codec))
    with pytest.raises(
        ArgumentValueError, match=rf"store: expected a codec among .*, got 'numcodecs.pickle' at '{name}'"
    ):
        open_store(store)


@pytest.mark.long
def test_a_harmful_copy_of_a_description_is_not_what_is_read(store: Path) -> None:
    root = json.loads((store / "zarr.json").read_text())
    root["consolidated_metadata"]["metadata"]["scale"]["shape"] = [7]
    (store / "zarr.json").write_text(json.dumps(root))
    assert open_store(store).sizes["scale"] == 3


@pytest.mark.parametrize(
    ("edit", "error", "message"),
    [
        (lambda entry: entry.update(data_type={"name": "struct"}), ArgumentValueError, "an array of numbers or words"),
        (lambda entry: entry.update(data_type="r8000000"), ArgumentValueError, "an array of numbers or words"),
        (lambda entry: entry.update(storage_transformers=[{"name": "x"}]), ArgumentValueError, "a codec among"),
        (lambda entry: entry.update(shape=[2**60]), MemoryLimitError, "declares it"),
        (lambda entry: entry.update(shape=[-1]), ArgumentValueError, "the store of a sweep"),
        (lambda entry: entry.pop("codecs"), ArgumentValueError, "the store of a sweep"),
        (lambda entry: entry.update(codecs=3), ArgumentValueError, "the store of a sweep"),
    ],
)
def test_descriptions_are_checked_before_anything_is_read(
    store: Path, edit: Callable[[dict[str, Any]], object], error: type[TokenDynamicsError], message: str
) -> None:
    change(store, "scale", edit)
    with pytest.raises(error, match=message):
        open_store(store)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("kind", ["pipe", "device", "folder of a device"])
@pytest.mark.parametrize("name", ["outcome/c/0/0/0", "zarr.json", "manifest.json"])
def test_pipes_and_devices_are_refused(store: Path, kind: str, name: str) -> None:
    place = store / name
    if kind == "folder of a device":
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        place.mkdir()
        (place / "0").symlink_to("/dev/zero")
        if name != "outcome/c/0/0/0":
            (place / "0").unlink()
    else:
        place.unlink()
        os.mkfifo(place) if kind == "pipe" else place.symlink_to("/dev/zero")
    if name == "manifest.json" and kind == "folder of a device":
        return  # an empty folder
    with pytest.raises(ArgumentValueError, match="store: expected "):
        open_store(store)


def test_a_description_of_any_size_is_not_read(store: Path) -> None:
    with (store / "zarr.json").open("r+b") as file:
        file.truncate(2**34)
    with pytest.raises(ArgumentValueError, match="store: expected "):
        open_store(store)
    with pytest.raises(ArgumentValueError, match="store: expected "):
        sweep(parse_plan(SMALL, "small.toml"), store, resume=True)


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("end_time", lambda entry: entry["codecs"][0]["configuration"].update(endian="big")),
        ("end_time", lambda entry: entry.update(fill_value=0.0)),
        ("end_time", lambda entry: entry.update(data_type="int64", fill_value=0)),
        ("accepted", lambda entry: entry.update(data_type="uint32", fill_value=0)),
        ("status", lambda entry: entry["attributes"].update(flag_meanings=entry["attributes"]["flag_meanings"][::-1])),
        ("outcome", lambda entry: entry["attributes"].pop("flag_values")),
    ],
)
def test_a_description_that_would_give_other_numbers_is_refused(
    store: Path, name: str, edit: Callable[[dict[str, Any]], object]
) -> None:
    change(store, name, edit)
    with pytest.raises(ArgumentValueError, match=f"whose array '{name}' is not that of its specification"):
        open_store(store)


def test_another_title_of_an_array_gives_no_other_numbers(store: Path, whole: Path) -> None:
    change(store, "status", lambda entry: entry["attributes"].update(long_name="as an earlier version had it"))
    assert open_store(store).load().equals(open_store(whole).load())


def test_values_of_an_axis_are_those_of_the_specification(store: Path) -> None:
    text = json.loads((store / "zarr.json").read_text())
    text["attributes"]["specification"] = text["attributes"]["specification"].replace("high = 1.5", "high = 1.25")
    (store / "zarr.json").write_text(json.dumps(text))
    with pytest.raises(ArgumentValueError, match="whose array 'scale' is not that of its specification"):
        open_store(store)


@pytest.mark.parametrize("name", ["outcome", "end_time", "accepted"])
def test_a_chunk_that_was_lost_is_not_read_as_fill_and_is_computed_again(
    store: Path, whole: Path, name: str, client: Client
) -> None:
    lost = store / name / "c/1/2/0"
    lost.unlink()
    for partial in (False, True):
        with pytest.raises(ArgumentValueError, match=rf"all chunks .*, got none at {lost}; resume the sweep"):
            open_store(store, partial=partial)
    resumed = sweep(parse_plan(SMALL, "small.toml"), store, client, resume=True)
    assert resumed.load().equals(open_store(whole).load())
