"""Runs as processes: ended with their study, never two in one folder, and resumed to the same result."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from distributed import Client

from sweeps.study.conftest import TWO_ARMS, Planted, starts
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.sweeps._store import own_versions
from tokendynamics.sweeps.study import open_study, parse_plan, study
from tokendynamics.sweeps.study._running import run_process

PLAN = parse_plan(TWO_ARMS, "two.toml")


def until(true: Callable[[], object], seconds: float = 180.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def waiting(store: Path) -> list[int]:
    """Processes of runs that wait, as they have written down."""
    texts = [path.read_text() for path in store.glob("runs/*/*/waiting")]
    return [int(text) for text in texts if text]


def gone(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.long
def test_an_interrupted_study_ends_its_runs_and_goes_on_where_it_was(
    planted: Planted, client: Client, tmp_path: Path
) -> None:
    planted(acts={"baseline 1": "wait"})
    store = tmp_path / "store"

    def interrupt(done: float, total: float, what: str) -> None:
        if done >= 3 and waiting(store):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study(PLAN, store, client, progress=interrupt)
    (pid,) = waiting(store)
    until(lambda: gone(pid))
    assert open_study(store).dataset["status"].sel(arm="baseline", seed=1) == "not run"
    planted()
    whole = study(PLAN, store, client, resume=True)
    planted()
    other = study(PLAN, tmp_path / "other", client)
    assert whole.dataset.drop_attrs().identical(other.dataset.drop_attrs())
    assert starts(store) == {place: 2 if place == "runs/baseline/1" else 1 for place in starts(tmp_path / "other")}


def test_a_run_whose_process_outlived_its_study_is_waited_for(planted: Planted, client: Client, tmp_path: Path) -> None:
    program, store = planted(), tmp_path / "store"
    study(PLAN, store, client)
    folder = store / "runs" / "baseline" / "1"
    (folder / "record.json").unlink()
    resumed = threading.Thread(target=lambda: study(PLAN, store, client, resume=True))
    with (folder / "running.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        resumed.start()
        time.sleep(1.0)
        assert starts(store)["runs/baseline/1"] == 1
        subprocess.run([sys.executable, *program, str(folder)], check=True)
    resumed.join(60)
    assert starts(store)["runs/baseline/1"] == 2  # by the process that held the folder alone
    assert open_study(store).dataset["status"].sel(arm="baseline", seed=1) == "finished"


def test_a_worker_that_does_not_see_the_folder_is_an_error_and_no_run_s_status(tmp_path: Path) -> None:
    run = PLAN.runs("baseline", None)[0]
    nowhere = str(tmp_path / "not shared")
    with pytest.raises(ArgumentValueError, match=r"store: expected a folder that every worker sees.*share"):
        run_process(nowhere, run.place, run.experiment.as_json(), (), str(tmp_path), own_versions(), "key")
    assert list(tmp_path.iterdir()) == []


_SCRIPT = """
import sys
from tokendynamics.sweeps.study import _running
_running.PROGRAM = ({script!r}, {law!r})
from tokendynamics.cli import main
main(["study", *sys.argv[1:]])
"""


Begun = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def begun() -> Iterator[Begun]:
    """Begins the command in a process group of its own, as a shell does, with the stand-in for training."""
    groups: list[int] = []

    def begin(spec: Path, program: tuple[str, ...], *further: str) -> subprocess.Popen[str]:
        script = _SCRIPT.format(script=program[0], law=program[1])
        arguments = [sys.executable, "-c", script, str(spec), "--workers", "2", *further]
        silent = subprocess.DEVNULL
        process = subprocess.Popen(
            arguments, cwd=spec.parent, stdout=silent, stderr=subprocess.PIPE, text=True, process_group=0
        )
        groups.append(process.pid)
        return process

    yield begin
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


@pytest.mark.slow
def test_a_study_that_is_killed_takes_its_runs_with_it_and_resumes_to_the_same_result(
    planted: Planted, begun: Begun, client: Client, tmp_path: Path
) -> None:
    spec, store = tmp_path / "two.toml", tmp_path / "study-two"
    spec.write_text(TWO_ARMS)
    program = planted(acts={"baseline 2": "wait", "divergence 1": "wait"})
    process = begun(spec, program)
    until(lambda: len(waiting(store)) == 2)
    pids = waiting(store)
    process.kill()
    process.wait()
    until(lambda: all(map(gone, pids)))
    planted()
    process = begun(spec, program, "--resume")
    _, text = process.communicate(timeout=300)
    assert process.returncode == 0, text
    other = study(PLAN, tmp_path / "other", client)
    assert open_study(store).dataset.drop_attrs().identical(other.dataset.drop_attrs())
    twice = ("runs/baseline/2", "runs/divergence/1")
    assert starts(store) == {place: 2 if place in twice else 1 for place in starts(tmp_path / "other")}


@pytest.mark.slow
def test_ctrl_c_ends_the_runs_and_says_how_to_go_on(planted: Planted, begun: Begun, tmp_path: Path) -> None:
    spec, store = tmp_path / "two.toml", tmp_path / "study-two"
    spec.write_text(TWO_ARMS)
    process = begun(spec, planted(acts={"baseline 2": "wait", "divergence 1": "wait"}))
    until(lambda: len(waiting(store)) == 2)
    pids = waiting(store)
    os.killpg(process.pid, signal.SIGINT)
    _, text = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "interrupted: finished parts are in study-two; continue with --resume" in text
    assert "Traceback" not in text
    until(lambda: all(map(gone, pids)))
    assert open_study(store).dataset["status"].sel(arm="baseline", seed=1) == "finished"
