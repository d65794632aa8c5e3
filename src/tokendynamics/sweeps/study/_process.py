"""One run in a process of its own, as a task of a worker: started, watched, and ended when nobody waits for it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected
from tokendynamics.provenance.manifest import write_json
from tokendynamics.provenance.reading import read_json
from tokendynamics.provenance.whole import whole_file
from tokendynamics.sweeps._store import check_versions
from tokendynamics.sweeps.study._plan import PlannedRun
from tokendynamics.sweeps.study._store import FAILURE, STUDY, how_ended, write_failure
from tokendynamics.training import Experiment
from tokendynamics.training.experiment import differences

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

EXPERIMENT, OUTPUT, LOCK = "experiment.json", "output.txt", "running.lock"

_WATCH = 0.3
"""Seconds between two looks at whether anybody still waits for a run."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_LAST_BYTES = 8192

# A process that is killed cannot end its children: Linux does, when the thread that started them is gone.
_WITH_ITS_PARENT = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the worker is gone")
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def run_process(
    store: str,
    place: str,
    experiment: Mapping[str, Any],
    program: Sequence[str],
    directory: str,
    versions: Mapping[str, str],
    key: str,
) -> None:
    """Train one run and leave its record, or the reason why it is missing, in its folder.

    Args:
        store: Folder of the study, which the worker must see.
        place: Of the run within it.
        experiment: What is trained.
        program: Arguments of Python before the run's folder.
        directory: The client's, from which relative paths of data count.
        versions: Of the client.
        key: Of the task: when the scheduler takes it back, the process is ended.

    Raises:
        WorkerVersionError: This process has other versions of what makes the numbers.
        ArgumentValueError: The worker does not see the folder of the study.
    """
    check_versions(versions)
    root, run = Path(store), PlannedRun(place, Experiment.from_json(experiment))
    if not (root / STUDY).is_file():
        advice = "put it on a file system that all workers share, or run on this machine"
        raise ArgumentValueError(
            expected("store", "a folder that every worker sees", f"none at {store} for one", advice)
        )
    folder = root / place
    folder.mkdir(parents=True, exist_ok=True)
    with _held(folder, key) as lock:
        if lock is None or how_ended(root, run).settled:
            return
        (folder / FAILURE).unlink(missing_ok=True)
        if other := _described(folder, run.experiment):
            write_failure(folder, f"its folder belongs to another experiment ({other}): remove it")
            return
        there = directory if Path(directory).is_dir() else None
        code = _watched([*program, str(folder)], folder / OUTPUT, there, lock, key)
        if code is not None and not how_ended(root, run).settled:
            write_failure(folder, _reason(code, folder / OUTPUT))


@contextmanager
def _held(folder: Path, key: str) -> Iterator[int | None]:
    """Hold a run's folder, which its process continues holding; None once nobody waits any more.

    A process that outlived its worker is waited for: two never train in one folder.
    """
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while fcntl is not None:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(_WATCH)
            if _given_up(key):
                yield None
                return
        yield lock
    finally:
        os.close(lock)


def _described(folder: Path, experiment: Experiment) -> str:
    """Write down what a folder trains, unless that is there; return what differs from it."""
    path = folder / EXPERIMENT
    if path.is_file():
        with contextlib.suppress(ArgumentValueError):  # of what cannot be read
            return "; ".join(differences(Experiment.from_json(read_json(path, "folder")), experiment))
    with whole_file(path) as made:
        write_json(made, experiment.as_json())
    return ""


def _watched(arguments: Sequence[str], output: Path, directory: str | None, lock: int, key: str) -> int | None:
    """Run Python and return its exit code; None where it was ended because nobody waits for it."""
    # Windows has neither sessions nor inherited locks, and what replaces a process there is another process.
    posix = fcntl is not None
    with_parent = ["-I", "-S", "-c", _WITH_ITS_PARENT, str(os.getpid())] if posix else []
    start = [sys.executable, *with_parent, *arguments]
    threads = dict.fromkeys(_THREADS, "1")
    with output.open("wb") as said:
        process = subprocess.Popen(  # noqa: S603
            start,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            cwd=directory,
            env={**os.environ, **threads},
            pass_fds=(lock,) if posix else (),
            start_new_session=posix,
        )
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(_WATCH)
                if _given_up(key):
                    return None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children; its last checkpoint is whole at any moment."""
    if process.poll() is None:
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        else:
            # Where processes have no groups, what it started is ended one by one.
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(process.pid)
                for each in (*root.children(recursive=True), root):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
        process.wait()


def _given_up(key: str) -> bool:
    """Tell whether the scheduler has taken a task back, as it does when its client is gone."""
    from distributed import get_worker

    try:
        task = get_worker().state.tasks.get(key)
    except ValueError:  # in no worker
        return False
    return task is None or task.state == "cancelled"


def _reason(code: int, output: Path) -> str:
    """Return the last line that a process said, or what ended it."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - _LAST_BYTES))
        lines = file.read().decode("utf-8", errors="replace").replace("\r", "\n").splitlines()
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return said or f"exit code {code}, without output"
