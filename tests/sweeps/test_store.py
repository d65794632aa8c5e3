"""What is in a store is whole, says what it is, and does not depend on who wrote it or when."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from numcodecs.checksum32 import CRC32C

from sweeps.conftest import SMALL, files
from tokendynamics.numerics.errors import ArgumentValueError, StorageError
from tokendynamics.specification import SpecificationError
from tokendynamics.sweeps import Plan, open_store, parse_plan, sweep
from tokendynamics.sweeps import _cluster as cluster
from tokendynamics.sweeps.systems import _store as module
from tokendynamics.sweeps.systems._store import Store


class StoppedError(Exception):
    pass


def stopped_after(tasks: int, monkeypatch: pytest.MonkeyPatch, chunks: int = 0) -> None:
    """Let a sweep fail after some tasks, and some chunks of the next one."""
    written, task = {"tasks": 0, "chunks": 0}, Store.write
    chunk = Store._write_chunk

    def counted(self: Store, *arguments: Any) -> None:
        if written["tasks"] == tasks:
            if written["chunks"] == chunks:
                raise StoppedError
            written["chunks"] += 1
        chunk(self, *arguments)

    def write(self: Store, *arguments: Any) -> None:
        task(self, *arguments)
        written["tasks"] += 1

    monkeypatch.setattr(Store, "_write_chunk", counted)
    monkeypatch.setattr(Store, "write", write)


@pytest.mark.parametrize("step", [1, -1])
def test_arrays_come_in_the_order_of_the_plan_however_they_are_listed(
    whole: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    opened = module.xr.open_zarr

    def listed(*arguments: Any, **options: Any) -> Any:
        dataset = opened(*arguments, **options)
        return dataset[sorted(map(str, dataset.variables))[::step]]

    monkeypatch.setattr(module.xr, "open_zarr", listed)
    dataset, plan = open_store(whole), parse_plan(SMALL, "small.toml")
    assert list(dataset.variables) == list(module.layout(plan))
    assert list(dataset.coords) == [axis.name for axis in plan.axes]
    assert list(dataset.to_dataframe().index.names) == list(plan.dims)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(("tasks", "chunks"), [(0, 0), (4, 3), (11, 6)])
def test_a_stopped_sweep_resumes_to_the_same_bytes(
    tasks: int, chunks: int, small: Plan, whole: Path, client: Client, tmp_path: Path
) -> None:
    store = tmp_path / "sweep.zarr"
    with pytest.MonkeyPatch.context() as patch:
        stopped_after(tasks, patch, chunks)
        with pytest.raises(StoppedError):
            sweep(small, store, client)
    assert int(open_store(store, partial=True).complete.sum()) < small.systems
    sweep(small, store, client, resume=True)
    assert files(store) == files(whole)


@pytest.mark.long
def test_tasks_of_another_order_give_the_same_bytes(
    small: Plan, whole: Path, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = cluster.ended
    monkeypatch.setattr(
        cluster, "ended", lambda c, run, tasks, *rest, **options: given(c, run, [*tasks][::-1], *rest, **options)
    )
    store = tmp_path / "sweep.zarr"
    sweep(small, store, client)
    assert files(store) == files(whole)


def test_no_part_of_a_task_is_read_as_data(small: Plan, client: Client, tmp_path: Path) -> None:
    store = tmp_path / "sweep.zarr"
    with pytest.MonkeyPatch.context() as patch:
        stopped_after(3, patch, 4)
        with pytest.raises(StoppedError):
            sweep(small, store, client)
    with pytest.raises(ArgumentValueError, match=r"with 6 of 24 systems; resume"):
        open_store(store)
    result = open_store(store, partial=True)
    missing = ~result.complete.values
    chunks = len(list(store.glob("accepted/c/*/*/*")))
    assert chunks == 4  # one more than there are records
    assert missing.sum() == small.systems - 6
    assert (result.accepted.values[missing] == -1).all()
    assert (result.outcome.values[missing] == -1).all()
    assert np.isnan(result.consensus.values[missing]).all()
    assert (result.accepted.values[~missing] > 0).all()


@pytest.mark.slow
def test_a_full_disk_is_said_and_leaves_what_can_be_resumed(
    small: Plan, whole: Path, client: Client, tmp_path: Path
) -> None:
    store, written = tmp_path / "sweep.zarr", module.put_durably

    def full(data: bytes, made: Path, target: Path) -> None:
        if len(list(store.glob("complete/c/*/*/*"))) == 5:
            made.write_bytes(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        written(data, made, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "put_durably", full)
        with pytest.raises(StorageError, match=r"no space left on device.* continue with --resume"):
            sweep(small, store, client)
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.zarr"]
    assert int(open_store(store, partial=True).complete.sum()) == 10
    sweep(small, store, client, resume=True)
    assert files(store) == files(whole)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
    if made.returncode:
        pytest.skip("no right to mount a small file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("mount") is None, reason="no mount")
def test_a_disk_that_fills_up_is_said_and_what_is_done_is_resumed(
    small: Plan, whole: Path, client: Client, small_disk: Path
) -> None:
    store, ballast = small_disk / "sweep.zarr", small_disk / "ballast"

    def others_write(done: float, total: float, what: str) -> None:
        """Let somebody else fill the disk when a third of the systems are done."""
        if done >= 8 and not ballast.exists():
            ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - 8192))

    with pytest.raises(StorageError, match=r"no space left on device.* continue with --resume"):
        sweep(small, store, client, progress=others_write)
    result = int(open_store(store, partial=True).complete.sum())
    assert 8 <= result < small.systems
    ballast.unlink()
    sweep(small, store, client, resume=True)
    assert files(store) == files(whole)


@pytest.mark.long
def test_of_two_sweeps_that_begin_at_the_same_time_the_later_is_refused(
    small: Plan, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, create = tmp_path / "sweep.zarr", Store.create

    def overtaken(self: Store) -> None:
        monkeypatch.setattr(Store, "create", create)
        sweep(small, store, client)
        create(self)

    monkeypatch.setattr(Store, "create", overtaken)
    with pytest.raises(
        ArgumentValueError, match=r"got .*sweep\.zarr, which another run began at the same time; continue"
    ):
        sweep(small, store, client)
    assert bool(open_store(store).complete.all())


def test_a_store_in_the_way_needs_resume(small: Plan, whole: Path, client: Client) -> None:
    with pytest.raises(ArgumentValueError, match="continue it with --resume"):
        sweep(small, whole, client)
    before = files(whole)
    sweep(small, whole, client, resume=True)
    assert files(whole) == before


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("rtol = 1e-4", "rtol = 1e-5", "solver.rtol is 0.0001 in the store and 1e-05 here"),
        ("high = 1.5", "high = 2.5", "sweep.axis.1.high is 1.5 in the store and 2.5 here"),
        ("seed = 7", "seed = 8", "sweep.seed is 7 in the store and 8 here"),
        ("dim = 2", "dim = 2\nseed = 4", "start.seed is not in the store and 4 here"),
    ],
)
def test_a_store_of_another_specification_is_refused_with_the_difference(
    old: str, new: str, difference: str, whole: Path, client: Client
) -> None:
    with pytest.raises(ArgumentValueError) as caught:
        sweep(parse_plan(SMALL.replace(old, new), "other.toml"), whole, client, resume=True)
    assert difference in str(caught.value)


def test_words_and_order_of_the_file_do_not_make_another_specification(
    whole: Path, client: Client, tmp_path: Path
) -> None:
    store = shutil.copytree(whole, tmp_path / "sweep.zarr")
    same = "# a remark\n" + SMALL.replace('kind = "sphere"', "kind =    'sphere'")
    sweep(parse_plan(same, "same.toml"), store, client, resume=True)


def test_a_store_of_other_versions_is_refused(
    small: Plan, whole: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = module.own_versions()
    monkeypatch.setattr(module, "own_versions", lambda: versions | {"torch": "0.1"})
    with pytest.raises(ArgumentValueError, match=r"torch is \".*\" in the store and \"0.1\" here"):
        sweep(small, whole, client, resume=True)


def test_a_sweep_larger_than_the_disk_is_refused_before_it_begins(client: Client, tmp_path: Path) -> None:
    large = SMALL.replace("draws = 4", "draws = 1_000_000_000_000").replace("task = 2", "task = 1_000_000")
    with pytest.raises(ArgumentValueError, match=r"fits into the .* GiB free at .*GiB needed"):
        sweep(parse_plan(large, "large.toml"), tmp_path / "sweep.zarr", client)
    assert list(tmp_path.iterdir()) == []


def _with_a_folder(chunk: Path) -> None:
    chunk.unlink()
    chunk.mkdir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "one bit": lambda chunk: chunk.write_bytes(bytes([chunk.read_bytes()[0] ^ 1]) + chunk.read_bytes()[1:]),
    "half": lambda chunk: chunk.write_bytes(chunk.read_bytes()[: chunk.stat().st_size // 2]),
    "nothing in it": lambda chunk: chunk.write_bytes(b""),
    "that of another type": lambda chunk: chunk.write_bytes(CRC32C().encode(np.zeros(1, np.int8))),
    "a folder": _with_a_folder,  # read as fill values: status -1 of a finished system
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["consensus", "status", "complete"])
def test_a_chunk_that_was_damaged_is_named_and_computed_again(
    damage: str, name: str, small: Plan, whole: Path, client: Client, tmp_path: Path
) -> None:
    store = shutil.copytree(whole, tmp_path / "sweep.zarr")
    chunk = store / name / "c" / "0" / "0" / "0"
    DAMAGES[damage](chunk)
    for partial in (False, True):
        with pytest.raises(ArgumentValueError, match=f"got a damaged one at {chunk}; resume the sweep"):
            open_store(store, partial=partial)
    if damage == "a folder":
        with pytest.raises(StorageError, match="is a directory"):
            sweep(small, store, client, resume=True)
    else:
        assert sweep(small, store, client, resume=True).load().identical(open_store(whole).load())


def test_states_of_points_of_different_shapes_are_refused_with_both(client: Client, tmp_path: Path) -> None:
    plan = parse_plan(SMALL.replace("seed = 7", "keep = 'states'\nseed = 7"), "small.toml")
    message = r"got 2 tokens of dim \d at \d times from 0 to \d+ and 3 tokens of dim \d at \d times"
    with pytest.raises(SpecificationError, match=message):
        sweep(plan, tmp_path / "store.zarr", scheduler=client)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zarr.json").write_text("{}")
    for place in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ArgumentValueError, match="the store of a sweep"):
            open_store(place)
