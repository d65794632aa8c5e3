"""A folder of results is the older one or the newer one, at every moment, and what others put there stays."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokendynamics.numerics.errors import ArgumentValueError, StorageError
from tokendynamics.provenance import swap as swap
from tokendynamics.provenance import whole as whole_folder
from tokendynamics.provenance.owned import written_in
from tokendynamics.provenance.whole import whole_file

WRITER = "a test"


def write(target: Path, content: str, **options: Any) -> None:
    """Results with a file, a folder of files, and a file that only this content has."""
    with whole_folder.whole_folder(target, {"seed": 0}, WRITER, **options) as made:
        (made / "numbers.txt").write_text(content)
        (made / "data.zarr").mkdir()
        for part in ("a", "b"):
            (made / "data.zarr" / part).write_text(content)
        (made / f"only-{content}.txt").write_text(content)


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if not path.is_dir()}


def without(files: dict[str, str], *names: str) -> dict[str, str]:
    return {name: text for name, text in files.items() if name not in names}


@pytest.fixture
def journalled(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Chooses between the exchange of whole folders and a system that has none."""

    def choose(wanted: bool) -> None:
        def refuse(one: Path, other: Path) -> None:
            raise OSError(errno.ENOSYS, "no exchange here")

        if wanted:
            monkeypatch.setattr(swap, "exchange", refuse)

    return choose


@pytest.mark.parametrize("one_by_one", [False, True])
def test_newer_results_replace_older_ones_and_leave_nothing_beside(
    tmp_path: Path, journalled: Callable[[bool], None], one_by_one: bool
) -> None:
    journalled(one_by_one)
    out = tmp_path / "deep" / "out"
    write(out, "old")
    write(out, "new")
    assert sorted(tree(out)) == ["data.zarr/a", "data.zarr/b", "manifest.json", "numbers.txt", "only-new.txt"]
    assert {text for name, text in tree(out).items() if name != "manifest.json"} == {"new"}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]
    written = written_in(out)
    assert written is not None
    assert sorted(written.files) == ["data.zarr/a", "data.zarr/b", "numbers.txt", "only-new.txt"]
    assert json.loads((out / "manifest.json").read_text())["seed"] == 0


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("foreign", ["notes.txt", "notes/deep/thesis.txt"])
def test_files_of_others_stay_with_their_identity(
    tmp_path: Path, journalled: Callable[[bool], None], one_by_one: bool, foreign: str
) -> None:
    journalled(one_by_one)
    out = tmp_path / "out"
    write(out, "old")
    actual = out / foreign
    actual.parent.mkdir(parents=True, exist_ok=True)
    actual.write_text("mine")
    (out / "empty folder").mkdir()
    (out / "link").symlink_to("nowhere")
    before = actual.stat()
    write(out, "new")
    assert (out / "numbers.txt").read_text() == "new"
    assert actual.read_text() == "mine"
    assert (actual.stat().st_ino, actual.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert (out / "empty folder").is_dir()
    assert (out / "link").readlink() == Path("nowhere")


def put(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")


IN_THE_WAY: list[tuple[str, Callable[[Path], Any]]] = [
    ("data.zarr/x", lambda out: put(out / "data.zarr" / "x")),
    ("data.zarr/deep/x", lambda out: put(out / "data.zarr" / "deep" / "x")),
    ("data.zarr/a", lambda out: put(out / "data.zarr" / "a")),
    ("numbers.txt", lambda out: put(out / "numbers.txt")),
    ("numbers.txt", lambda out: ((out / "numbers.txt").unlink(), (out / "numbers.txt").symlink_to("data.zarr/a"))),
    ("only-new.txt", lambda out: put(out / "only-new.txt")),
    ("only-new.txt", lambda out: (out / "only-new.txt").mkdir()),
    ("only-new.txt/x", lambda out: put(out / "only-new.txt" / "x")),
    ("data.zarr/a", lambda out: ((out / "manifest.json").unlink(), put(out / "manifest.json" / "x"))),
    ("data.zarr/a", lambda out: ((out / "manifest.json").unlink(), (out / "manifest.json").mkdir())),
    ("data.zarr/a", lambda out: (out / "manifest.json").write_text('{"name": "another program"}')),
    ("data.zarr/a", lambda out: (out / "manifest.json").write_text("[" * 9000)),
    ("data.zarr/a", lambda out: (out / "manifest.json").write_text('{"written_by": "a test", "files": {"../x": ""}}')),
]


@pytest.mark.parametrize(("name", "change"), IN_THE_WAY)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_foreign_file_in_the_way_is_named_and_replaced_only_on_request(
    tmp_path: Path, journalled: Callable[[bool], None], one_by_one: bool, name: str, change: Callable[[Path], Any]
) -> None:
    journalled(one_by_one)
    out = tmp_path / "out"
    write(out, "old")
    change(out)
    before = tree(out)
    entries = ("numbers.txt", "data.zarr", "only-new.txt")
    with pytest.raises(ArgumentValueError, match=r"folder: expected no file in the way .* --overwrite") as refused:
        whole_folder.check_free(out, entries, WRITER)
    assert f"got {out / name}" in str(refused.value)
    with pytest.raises(ArgumentValueError, match="folder: expected no file in the way"):
        write(out, "new")
    assert tree(out) == before
    whole_folder.check_free(out, entries, WRITER, overwrite=True)
    write(out, "new", overwrite=True)
    assert {text for at, text in tree(out).items() if at.startswith(("numbers", "data.zarr/a", "only-new"))} == {"new"}
    assert "data.zarr/x" not in tree(out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    write(out, "new")


def test_results_of_another_command_are_refused(tmp_path: Path) -> None:
    with whole_folder.whole_folder(tmp_path / "out", {}, "another command") as made:
        (made / "else.txt").write_text("else")
    message = r"expected a folder without results of other commands than a test, got .*out with those of another"
    with pytest.raises(ArgumentValueError, match=message):
        whole_folder.check_free(tmp_path / "out", (), WRITER)
    with pytest.raises(ArgumentValueError, match=message):
        write(tmp_path / "out", "new")
    assert (tmp_path / "out" / "else.txt").read_text() == "else"


def test_a_file_where_the_folder_should_be_is_refused_even_with_overwrite(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ArgumentValueError, match="expected a folder or a new name, got the file"):
        write(tmp_path / "out", "new", overwrite=True)
    assert (tmp_path / "out").read_text() == "mine"


def test_a_cumulative_folder_keeps_earlier_results_and_still_knows_them(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in ("one", "two", "one"):
        with whole_folder.whole_folder(out, {}, WRITER, keep=True, shared=True) as made:
            (made / f"{name}.txt").write_text(name)
            (made / "all.txt").write_text(name)
    assert without(tree(out), "manifest.json") == {"all.txt": "one", "one.txt": "one", "two.txt": "two"}
    write(out, "new")
    assert "two.txt" not in tree(out)


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to("real")
    write(tmp_path / "out", "old")
    write(tmp_path / "out", "new")
    assert (tmp_path / "out").readlink() == Path("real")
    assert (tmp_path / "real" / "numbers.txt").read_text() == "new"


def test_the_folder_a_shell_stands_in_stays_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    write(out, "old")
    monkeypatch.chdir(out)
    before = out.stat().st_ino
    write(Path(), "new")
    assert out.stat().st_ino == before
    assert Path("numbers.txt").read_text() == "new"
    assert "only-old.txt" not in tree(out)


def test_permissions_of_the_folder_stay(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    (tmp_path / "out").chmod(0o751)
    write(tmp_path / "out", "new")
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o751


class Killed(BaseException):
    """A kill: nothing after it happens, no clearing either."""


STEPS = ("mkdir", "rename", "replace", "rmdir", "unlink", "link", "open", "scandir")


def steps_until_killed(monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Raise `Killed` at the given step of the file system and at every one after it; returns what was done."""
    done: list[str] = []

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            if len(done) >= number:
                raise Killed
            done.append(name)
            return real(*args, **options)

        return step

    for name in STEPS:
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    monkeypatch.setattr(swap, "exchange", counted("exchange", swap.exchange))
    return done


@pytest.mark.long
@pytest.mark.parametrize("way", ["exchanged", "beside a folder of others", "shared"])
def test_a_kill_at_any_step_leaves_the_old_or_the_new_results_and_the_next_run_clears_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    outcomes, number = set(), 0
    while True:
        out = tmp_path / str(number) / "out"
        write(out, "old")
        (out / "notes.txt").write_text("mine")
        if way == "beside a folder of others":
            put(out / "others" / "thesis.txt")
        old = without(tree(out), "manifest.json")
        killed = False
        with monkeypatch.context() as patch:
            done = steps_until_killed(patch, number)
            try:
                write(out, "new", shared=way == "shared")
            except Killed:
                killed = True
        new = {name.replace("old", "new"): text.replace("old", "new") for name, text in old.items()}
        result = without(tree(out), "manifest.json")
        assert {name: text for name, text in result.items() if text == "mine"} == {
            name: text for name, text in old.items() if text == "mine"
        }
        outcomes.add("old" if result == old else "new" if result == new else "between")
        # Completing first, as every command does before it looks at the folder.
        whole_folder.check_free(out, ("numbers.txt", "data.zarr"), WRITER)
        assert without(tree(out), "manifest.json") in (old, new)
        write(out, "new")
        assert without(tree(out), "manifest.json") == new
        assert [path.name for path in out.parent.iterdir()] == ["out"]
        assert not list(out.glob(".*"))
        number += 1
        if not killed:
            break
    assert number > 20
    assert "exchange" in done or way != "exchanged"
    assert outcomes == ({"old", "new"} if way == "exchanged" else {"old", "new", "between"})


def broken_off(out: Path, error: Exception) -> None:
    with whole_folder.whole_folder(out, {}, WRITER) as made:
        (made / "part").write_text("half")
        raise error


def test_a_full_disk_is_one_line_and_leaves_the_old_results(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, "old")
    before = tree(out)
    for error in (
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "data.zarr/0"),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        RuntimeError("Unable to flush: write failed, errno = 28, error message = 'No space left on device'"),
    ):
        with pytest.raises(StorageError, match=r"expected room for the results, got .*; free space") as raised:
            broken_off(out, error)
        assert "\n" not in str(raised.value)
        with pytest.raises(StorageError), whole_file(tmp_path / "file.txt"):
            raise error
        assert tree(out) == before
        assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EFBIG, os.strerror(errno.EFBIG)),
        RuntimeError(f"[enforce fail] write failed: {os.strerror(errno.EFBIG)}"),
    ],
)
def test_a_limit_of_file_size_is_not_called_a_full_disk(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(StorageError, match=r"got file too large; raise the limit of a file's size \(ulimit -f\)"):
        broken_off(tmp_path / "out", error)


def test_a_disk_that_is_full_for_the_manifest_leaves_the_old_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write(out, "old")
    before = tree(out)
    real = Path.write_text

    def full(self: Path, text: str, **options: Any) -> int:
        if self.name == "manifest.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return real(self, text, **options)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(StorageError, match="no space left"):
        write(out, "new")
    assert tree(out) == before


def test_what_a_living_run_makes_is_not_cleared(tmp_path: Path) -> None:
    with whole_folder.whole_folder(tmp_path / "out", {}, WRITER) as first:
        (first / "numbers.txt").write_text("first")
        write(tmp_path / "out", "second")
        assert (first / "numbers.txt").read_text() == "first"
    assert without(tree(tmp_path / "out"), "manifest.json") == {"numbers.txt": "first"}


def test_only_remains_of_our_own_are_cleared(tmp_path: Path) -> None:
    for name in (".out.partial-", ".out.partial-mine", ".other.partial-0123456789ab", ".out.partial-0123456789ab.txt"):
        put(tmp_path / name / "x")
    (tmp_path / ".out.partial-0123456789ac").write_text("a file")
    put(tmp_path / ".out.partial-0123456789ab" / "x")
    write(tmp_path / "out", "new")
    assert not (tmp_path / ".out.partial-0123456789ab").exists()
    assert len(list(tmp_path.iterdir())) == 6


TOGETHER = """
import sys
from pathlib import Path
from tokendynamics.provenance.whole import whole_folder

name, out = sys.argv[1:]
for _ in range(20):
    with whole_folder(out, {}, "a test") as made:
        for number in range(5):
            (made / f"{number}.txt").write_text(name)
"""


@pytest.mark.slow
def test_of_two_processes_the_later_one_wins_whole_and_neither_fails(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", textwrap.dedent(TOGETHER)]
    running = [subprocess.Popen([*command, name, str(out)], stderr=subprocess.PIPE, text=True) for name in "ABC"]
    seen = set()
    while any(process.poll() is None for process in running):
        try:
            folder = os.open(out, os.O_RDONLY)
        except FileNotFoundError:
            continue
        # Reading by a handle of the folder: a path could lead to another one after each step.
        texts = []
        for number in range(5):
            try:
                with open(f"{number}.txt", opener=lambda name, flags: os.open(name, flags, dir_fd=folder)) as file:  # noqa: B023
                    texts.append(file.read())
            except FileNotFoundError:
                break
        else:
            assert len(set(texts)) == 1
            seen.add(texts[0])
        os.close(folder)
        time.sleep(0.002)  # leaves the processors to those that write
    assert [(process.wait(), process.stderr and process.stderr.read()) for process in running] == [(0, "")] * 3
    assert len(set(without(tree(out), "manifest.json").values())) == 1
    assert len(tree(out)) == 6
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_is_the_older_or_the_newer_one_and_remains_are_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "page.html"
    number = 0
    while True:
        path.parent.mkdir(exist_ok=True)
        path.write_text("old")
        with monkeypatch.context() as patch:
            steps_until_killed(patch, number)
            try:
                with whole_file(path) as made:
                    made.write_text("new")
                ended = True
            except Killed:
                ended = False
        assert path.read_text() in ("old", "new")
        with whole_file(path) as made:
            made.write_text("newer")
        assert tree(tmp_path) == {"deep/page.html": "newer"}
        assert [entry.name for entry in path.parent.iterdir()] == ["page.html"]
        number += 1
        if ended:
            break
    assert number > 3
