"""One `study`: from a file to its runs, each in a process of its own, through a folder that can be continued."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_count
from tokendynamics.numerics.extras import require
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.provenance.manifest import write_json
from tokendynamics.provenance.progress import Progress
from tokendynamics.provenance.reading import read_json
from tokendynamics.provenance.swap import staging
from tokendynamics.provenance.whole import whole_file
from tokendynamics.sweeps._store import check_versions, filling, own_versions, recorded
from tokendynamics.sweeps.study._plan import PlannedRun, StudyPlan, read_plan
from tokendynamics.sweeps.study._store import (
    FAILURE,
    STUDY,
    check_same,
    chosen_rates,
    how_ended,
    measured,
    write_chosen,
    write_failure,
    write_study,
)
from tokendynamics.sweeps.study.result import StudyResult, open_study
from tokendynamics.training import Experiment
from tokendynamics.training.experiment import differences

if TYPE_CHECKING:
    from distributed import Client

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

PROGRAM = ("-m", "tokendynamics.training")
"""What trains the folder that follows."""
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


@typed_arguments
def study(
    spec: str | Path | StudyPlan,
    store: str | Path,
    scheduler: str | Client | None = None,
    workers: int | None = None,
    *,
    resume: bool = False,
    progress: bool | Progress = False,
    command: str | None = None,
) -> StudyResult:
    """Train every run of a study and return what was found.

    Each run is a process of its own on one thread, with the paired seeds of the file. Learning rates are tuned first,
    by the validation split and on seeds of their own; the test split is read of the runs that are compared alone. A
    run that fails is a status of that run, and the others go on.

    Args:
        spec: The path of a study's file, or what `read_plan` or `parse_plan` gave.
        store: Folder of the runs. With a scheduler elsewhere it must be one that all workers share.
        scheduler: Address of a scheduler of dask.distributed, or a client; None for workers on this machine.
        workers: Runs at a time on this machine; None for one for each processor.
        resume: Go on with a folder that is there: runs that ended are not run again, those that were stopped go on from
            their last checkpoint, those that failed are tried again.
        progress: True for a progress bar, or a function; see `Progress`.
        command: What to record as the command that makes this again; None for the Python call.

    Raises:
        SpecificationError: What is wrong in the file, with its line.
        ArgumentValueError: A folder in the way or of another study, or one that a worker does not see.
        SchedulerError: No scheduler answers.
        WorkerVersionError: A worker has other versions.
        StorageError: The disk is full or cannot be written; the study can be resumed.
    """
    require("sweeps", "study", "running on many workers")
    require("training", "study", "training")
    if workers is not None:
        as_count(workers, "workers")
    plan, place = spec if isinstance(spec, StudyPlan) else read_plan(spec), Path(store)
    begun = filling(
        place,
        resume=resume,
        progress=progress,
        check_new=plan.check,
        check_same=lambda: check_same(place, plan),
        kept="runs",
    )
    with begun as (there, report):
        if not there:
            with staging(place) as staged:
                write_study(staged, place, plan)
        called = command or f"tokendynamics.sweeps.study.study({plan.source.name!r}, …)"
        with recorded(place, called, plan.identity(), seed=None):
            _train(plan, place, partial(_run, place, report, scheduler, workers))
    return open_study(place)


def _train(plan: StudyPlan, place: Path, run: Callable[[str, Sequence[PlannedRun]], None]) -> None:
    """Tune the arms and run what is compared of those that have a learning rate.

    Learning rates are chosen for good; an arm without one is left out.
    """
    rates: dict[str, float | None] = dict.fromkeys(plan.arms)
    if plan.tables.tuning is not None:
        chosen = chosen_rates(place)
        untuned = [arm for arm in plan.arms if arm not in chosen]
        grids = [runs for arm in untuned for runs in plan.tuning_runs(arm).values()]
        run(f"Tuning {plan.name}", [planned for runs in grids for planned in runs])
        chosen |= {arm: rate for arm in untuned if (rate := best_rate(place, plan, arm)) is not None}
        if chosen:
            write_chosen(place, chosen)
        rates = {arm: chosen[arm] for arm in plan.arms if arm in chosen}
    run(f"Training {plan.name}", [planned for arm, rate in rates.items() for planned in plan.runs(arm, rate)])


def _run(
    place: Path,
    report: Progress,
    scheduler: str | Client | None,
    workers: int | None,
    what: str,
    runs: Sequence[PlannedRun],
) -> None:
    """Train the runs that have not come to an end, each in a process that a worker starts in the study's folder."""
    from distributed import KilledWorker

    from tokendynamics.sweeps._cluster import connected, ended

    waiting = [run for run in runs if not how_ended(place, run).settled]
    done = len(runs) - len(waiting)
    if runs:
        report(done, len(runs), what)
    if not waiting:
        return
    store, directory, versions = str(place.resolve()), str(Path.cwd()), own_versions()
    with connected(scheduler, workers) as client:
        for run, future in ended(
            client,
            run_process,
            waiting,
            lambda run, key: (store, run.place, run.experiment.as_json(), PROGRAM, directory, versions, key),
            name=lambda run: f"train-{run.place}",
            lost="scheduler: it was lost; finished runs are in the folder: resume",
        ):
            error = future.exception() if future.status == "error" else None
            if isinstance(error, KilledWorker):
                (place / run.place).mkdir(parents=True, exist_ok=True)
                write_failure(
                    place / run.place, "several workers died in turn on it; is the memory of a worker enough?"
                )
            elif isinstance(error, BaseException):
                raise error
            done += 1
            report(done, len(runs), what)


def best_rate(place: Path, plan: StudyPlan, arm: str) -> float | None:
    """Return the learning rate with the best mean over the seeds; None where none has all its seeds.

    Args:
        place: The folder of the study.
        plan: What it is of.
        arm: Which.
    """
    means = {
        rate: sum(measured(how_ended(place, run), "validation", plan.measure) for run in runs) / len(runs)
        for rate, runs in plan.tuning_runs(arm).items()
    }
    return best(means, lower_is_better=plan.lower_is_better)


def best(means: Mapping[float, float], *, lower_is_better: bool) -> float | None:
    """Return the key of the best number, the first of equals; NaN does not count.

    >>> best({0.1: 2.0, 0.2: 1.0, 0.4: float("nan")}, lower_is_better=True)
    0.2
    >>> best({0.1: 2.0, 0.2: 1.0, 0.4: 2.0}, lower_is_better=False)
    0.1
    """
    there = {rate: mean for rate, mean in means.items() if math.isfinite(mean)}
    if not there:
        return None
    return (min if lower_is_better else max)(there, key=there.__getitem__)


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
        raise ArgumentValueError("store", "a folder that every worker sees", f"none at {store} for one", advice)
    folder = root / place
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder, key) as lock:
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
def _locked(folder: Path, key: str) -> Iterator[int | None]:
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
    with output.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603
            start,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
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
            # Where processes have no groups, each is ended, first the one that would see its children end.
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(process.pid)
                for running in (root, *root.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        running.kill()
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
    last_line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return last_line or f"exit code {code}, without output"
