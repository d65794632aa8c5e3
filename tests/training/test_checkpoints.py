"""A checkpoint is whole or not there, at whatever moment its writing or the removal of an older one is broken off."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.training.folder import (
    checkpoints,
    clear_partial,
    last_checkpoint,
    partial_place,
    put_checkpoint,
)

NAMES = ("model.safetensors", "optimizer.pt", "trainer_state.json")


class BrokenOff(BaseException):
    """Stands for a kill: nothing catches it, and nothing that it interrupts goes on."""


@contextmanager
def broken_off_at(moment: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Break off at the call of the system with that number, counted from 0; removals also half way."""
    calls = iter(range(10**6))

    def counted(name: str, place: Any = os) -> None:
        genuine = getattr(place, name) if name != "fsync" else (lambda _: None)  # the disk may take its time

        def call(*given: Any, **options: Any) -> Any:
            if next(calls) == moment:
                raise BrokenOff
            return genuine(*given, **options)

        monkeypatch.setattr(place, name, call)

    for name in ("fsync", "rename", "rmdir", "unlink", "mkdir"):
        counted(name)
    counted("write_text", Path)
    try:
        yield
    finally:
        monkeypatch.undo()


def written(folder: Path, step: int, processes: int = 1) -> Path:
    made = partial_place(folder, step) / f"checkpoint-{step}"
    made.mkdir(parents=True)
    for name in NAMES:
        (made / name).write_text(f"{name} of step {step}")
    return put_checkpoint(made, folder, keep=2, processes=processes)


def assert_whole(folder: Path, among: set[str]) -> None:
    last = last_checkpoint(folder, 1)
    assert last is not None
    assert last.name in among
    step = last.name.rpartition("-")[2]
    assert all((last / name).read_text() == f"{name} of step {step}" for name in NAMES)


def test_broken_off_at_any_moment_the_last_checkpoint_is_whole_and_the_next_leaves_no_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    for step in (10, 20):
        written(begun, step)
    for moment in range(1000):
        folder = tmp_path / str(moment)
        shutil.copytree(begun, folder)
        try:
            with broken_off_at(moment, monkeypatch):
                written(folder, 30)
        except BrokenOff:
            assert_whole(folder, {"checkpoint-20", "checkpoint-30"})
            clear_partial(folder)
            if last_checkpoint(folder, 1) == folder / "checkpoint-20":
                written(folder, 30)
            written(folder, 40)
            assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-30", "checkpoint-40"]
        else:
            break
    assert moment > len(NAMES) + 5  # each file is brought to the disk, and there are renames and removals
    assert [path.name for path in checkpoints(folder)] == ["checkpoint-20", "checkpoint-30"]


def test_a_checkpoint_written_once_more_takes_the_place_of_the_older_one_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on from an earlier one, since somebody removed the last, comes by its step again."""
    begun = tmp_path / "begun"
    for step in (10, 20):
        written(begun, step)
    for moment in range(1000):
        folder = tmp_path / str(moment)
        shutil.copytree(begun, folder)
        try:
            with broken_off_at(moment, monkeypatch):
                written(folder, 20)
        except BrokenOff:
            assert_whole(folder, {"checkpoint-10", "checkpoint-20"})
        else:
            break
    assert_whole(folder, {"checkpoint-20"})


@pytest.mark.parametrize("name", [*NAMES, "manifest.json"])
@pytest.mark.parametrize("damage", ["shorter", "changed", "missing"])
def test_a_damaged_checkpoint_is_named_with_what_to_do(tmp_path: Path, name: str, damage: str) -> None:
    for step in (10, 20):
        file = written(tmp_path, step) / name
    content = file.read_bytes()
    changed = bytes([content[0] ^ 1]) + content[1:]
    file.unlink() if damage == "missing" else file.write_bytes(content[:-3] if damage == "shorter" else changed)
    with pytest.raises(CheckpointError) as refused:
        last_checkpoint(tmp_path, 1)
    words = str(refused.value)
    assert str(tmp_path / "checkpoint-20") in words
    assert name in words
    assert "remove this checkpoint and resume: the run continues from checkpoint-10" in words
    assert "\n" not in words
    shutil.rmtree(tmp_path / "checkpoint-20")
    assert_whole(tmp_path, {"checkpoint-10"})


def test_with_one_damaged_checkpoint_alone_the_run_is_said_to_begin_anew(tmp_path: Path) -> None:
    (written(tmp_path, 10) / NAMES[0]).unlink()
    with pytest.raises(CheckpointError, match="the run starts anew"):
        last_checkpoint(tmp_path, 1)


def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path, 2) is None
    written(tmp_path, 10, processes=2)
    assert last_checkpoint(tmp_path, 2) == tmp_path / "checkpoint-10"
    with pytest.raises(ArgumentValueError, match="processes: expected 2, with which the run was started"):
        last_checkpoint(tmp_path, 1)


def test_the_last_checkpoint_is_that_of_the_highest_step_and_other_files_are_none(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        place = tmp_path / f"checkpoint-{step}"
        place.mkdir()
    (tmp_path / "checkpoint-11").touch()
    (tmp_path / "checkpoint-12-old").mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-2", "checkpoint-9", "checkpoint-10"]
