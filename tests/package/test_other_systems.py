"""What only some systems have is asked for, not taken for granted: macOS and Windows by what they lack."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib import reload
from pathlib import Path
from typing import Any

import psutil
import pytest

from tokendynamics.numerics import resources
from tokendynamics.provenance import swap, whole
from tokendynamics.provenance.swap import put_durably, to_disk
from tokendynamics.provenance.whole import whole_folder


def no_library(name: str | None, *_: Any, **__: Any) -> None:
    """As on Windows, where there is no library of that name."""
    raise TypeError(f"expected str, not {name}")


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "CDLL", no_library)
    monkeypatch.setattr(swap, "fcntl", None)
    for name in ("sched_getaffinity", "killpg", "O_DIRECTORY", "O_CLOEXEC", "sysconf", "fork"):
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.delattr(signal, "SIGKILL", raising=False)
    monkeypatch.setattr(shutil, "_use_fd_functions", False, raising=False)
    opened = os.open

    def no_folders(path: Any, flags: int, *further: Any, **named: Any) -> int:
        if isinstance(path, str | Path) and Path(path).is_dir():
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, flags, *further, **named)

    monkeypatch.setattr(os, "open", no_folders)


def test_processors_are_counted_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert resources.usable_processors() == os.cpu_count()
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert resources.usable_processors() == 1


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs affinity of processes")
def test_processors_are_those_that_the_process_may_use() -> None:
    program = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from tokendynamics.numerics.resources import usable_processors; print(usable_processors())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


@pytest.mark.usefixtures("windows")
def test_memory_is_given_back_where_there_is_a_way() -> None:
    resources.give_back()
    assert 0 < resources.free_memory() <= resources.installed_memory() < 2**60


@pytest.mark.usefixtures("windows")
def test_files_are_durable_where_folders_cannot_be_opened(tmp_path: Path) -> None:
    put_durably(b"whole", tmp_path / "new", tmp_path / "a" / "file")
    to_disk(tmp_path / "a" / "file")
    assert (tmp_path / "a" / "file").read_bytes() == b"whole"


@pytest.mark.usefixtures("windows")
@pytest.mark.parametrize("foreign", ["nothing", "file", "folder"])
def test_folders_are_replaced_where_they_cannot_be_exchanged(tmp_path: Path, foreign: str) -> None:
    place = tmp_path / "o"
    for word in ("old", "new"):
        with whole_folder(place, {}, "a test") as made:
            (made / f"{word}.txt").write_text(word)
        if word == "old" and foreign != "nothing":
            (place / "mine").mkdir() if foreign == "folder" else (place / "mine").write_text("mine")
    names = {path.name for path in place.iterdir()} - {"mine"}
    assert names == {"new.txt", "manifest.json"}
    assert (place / "mine").exists() == (foreign != "nothing")
    assert [path.name for path in tmp_path.iterdir()] == ["o"]


def test_a_system_without_quotas_still_knows_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.delattr(errno, "EDQUOT", raising=False)
        assert errno.ENOSPC in reload(whole)._FULL
    reload(whole)


@pytest.mark.parametrize("groups", [True, False])
def test_a_process_is_ended_with_its_children(groups: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    from tokendynamics.sweeps.study import _running

    if not groups:
        monkeypatch.delattr(os, "killpg", raising=False)
    sleep = "import time; time.sleep(600)"
    program = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {sleep!r}]); "
        "print(p.pid, flush=True); p.wait()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    _running._end(process)
    process.stdout.close()
    assert process.returncode
    child_ended = not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert child_ended or child.wait(10) is not None or not child.is_running()


def test_a_run_starts_without_inherited_locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    from tokendynamics.sweeps.study import _running

    given: dict[str, Any] = {}

    class Recorded(subprocess.Popen):
        def __init__(self, arguments: list[str], **options: Any) -> None:
            given.update(options, arguments=arguments)
            super().__init__(arguments, **options)

    monkeypatch.setattr(_running, "fcntl", None)
    monkeypatch.setattr(subprocess, "Popen", Recorded)
    assert _running._watched(["-c", "print(1)"], tmp_path / "output.txt", None, 0, "key") == 0
    assert given["arguments"] == [sys.executable, "-c", "print(1)"]
    assert given["pass_fds"] == ()
    assert not given["start_new_session"]


@pytest.mark.slow
def test_modules_with_locks_are_imported_where_there_are_none() -> None:
    program = """
import sys
sys.modules["fcntl"] = None
from importlib import import_module
for name in ("provenance.swap", "training.folder", "cli", "sweeps.study._running"):
    import_module("tokendynamics." + name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_texts_are_read_and_written_in_utf_8_whatever_the_system_prefers() -> None:
    """Python says where an encoding is left to the system, which is a code page on Windows."""
    program = "from tokendynamics.specification.examples import example_text; example_text('fig3')"
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-W", "error::EncodingWarning:tokendynamics", "-c", program],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_nothing_else_is_asked_of_posix() -> None:
    """Names that Windows or macOS lack stand only where they are guarded, in these files."""
    guarded = {
        "sched_getaffinity": {"numerics/resources.py"},
        "CDLL": {"numerics/resources.py", "provenance/swap.py", "sweeps/study/_running.py"},
        "killpg": {"sweeps/study/_running.py"},
        "SIGKILL": {"sweeps/study/_running.py"},
        "O_DIRECTORY": {"provenance/swap.py", "training/folder.py"},
        "import fcntl": {"provenance/swap.py", "training/folder.py", "sweeps/study/_running.py"},
        "os.fork": set(),
        "os.getuid": set(),
        "SIGALRM": set(),
        "import resource": {"numerics/resources.py"},
        "os.mkfifo": set(),
        "os.sysconf": set(),
        "/proc/": set(),
        "os.fsync": {"provenance/swap.py"},
    }
    root = Path(whole.__file__).parents[1]
    texts = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in root.rglob("*.py")}
    for name, files in guarded.items():  # a name that a module of ours gives is no module of POSIX
        named = re.compile(rf"^\s*{name}" if name.startswith("import ") else re.escape(name), re.MULTILINE)
        assert {place for place, text in texts.items() if named.search(text)} == files, name
