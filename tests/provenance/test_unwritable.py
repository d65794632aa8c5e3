"""Where nothing can be written, everything that saves says so in one error, which names the place."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokendynamics as td
from pretrained.families import network_of
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits.learning import learn
from tokendynamics.numerics.errors import StorageError
from tokendynamics.provenance.whole import storage_errors, whole_folder
from tokendynamics.sweeps.systems._plan import parse_plan


def _run() -> td.Trajectory:
    return td.simulate(td.Flow(td.Attention(np.eye(2), -np.eye(2)), td.Free()), np.ones((3, 2)), [0.0, 1.0], step=0.5)


def _edited() -> td.Checkpoint:
    return td.load(network_of("gpt2")[0]).under({"layer 1 attention": 0.5})


def _learned(folder: Path) -> None:
    task = PairTask([[1.0, -2.0], [3.0, 4.0]], positions=3)
    learn(task, "solution-2", batch=5, steps=1, inner=2, hidden=2, seed=0).save(folder)


PLAN = parse_plan(
    """
[attention]
qk = { law = "normal" }
ov = { law = "normal" }
[space]
kind = "sphere"
[start]
law = "normal"
tokens = 2
dim = 2
[time]
end = 1.0
[sweep]
draws = 1
seed = 0
[[sweep.axis]]
key = "start.tokens"
values = [2, 3]
""",
    "small.toml",
)

WRITERS: dict[str, Callable[[Path], Any]] = {
    "trajectory": lambda folder: _run().save(folder / "run.zarr"),
    "page": lambda folder: _run().report(folder / "page.html"),
    "network": lambda folder: _edited().save(folder / "network"),
    "learned": lambda folder: _learned(folder / "learned"),
    "sweep": lambda folder: td.sweep(PLAN, folder / "sweep.zarr"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_that_is_a_file_is_named(name: str, tmp_path: Path, undrawn: None) -> None:
    (tmp_path / "taken").write_text("a file of somebody")
    with pytest.raises(StorageError, match=r"taken.*expected a place that can be written to, got .*; choose another"):
        WRITERS[name](tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "a file of somebody"


@pytest.mark.parametrize("name", WRITERS)
def test_a_disk_that_is_read_only_is_named(
    name: str, tmp_path: Path, undrawn: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = os.mkdir

    def refuse(path: Any, *arguments: Any, **named: Any) -> None:
        if Path(path).is_relative_to(tmp_path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        plain(path, *arguments, **named)

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(StorageError, match=r"got read-only file system; choose another folder"):
        WRITERS[name](tmp_path)


@pytest.mark.parametrize("name", [None, "elsewhere/data.json"])
def test_errors_of_other_files_pass_as_they_are(name: str | None, tmp_path: Path) -> None:
    """A file that the work reads is no place of its results."""
    other = None if name is None else str(tmp_path / name)
    with pytest.raises(FileNotFoundError) as raised, storage_errors(tmp_path / "results" / "page.html"):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", other)
    assert not isinstance(raised.value, StorageError)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of POSIX")
def test_a_run_that_may_open_no_more_files_leaves_nothing_and_says_why(tmp_path: Path) -> None:
    import resource

    former = resource.getrlimit(resource.RLIMIT_NOFILE)

    def run_out_of_files() -> None:
        with whole_folder(tmp_path / "out", {}, "tests") as made:
            (made / "a" / "b" / "c" / "d").mkdir(parents=True)
            for place in (made, *made.rglob("*")):
                (place / "numbers.txt").write_text("1 2 3")
            lowest = os.open(tmp_path, os.O_RDONLY)
            os.close(lowest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, former[1]))
            with (made / "numbers.txt").open(), (made / "a" / "numbers.txt").open():
                pytest.fail("the limit does not hold")

    try:
        with pytest.raises(StorageError, match=r"files that can be opened, got too many open files; raise the limit"):
            run_out_of_files()
        left = list(tmp_path.iterdir())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, former)
    assert left == []
