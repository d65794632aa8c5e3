"""A sweep that is killed from outside, at random moments: what it leaves is resumed to the same bytes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from distributed import Client

from sweeps.conftest import SMALL, files
from tokendynamics.sweeps import parse_plan, sweep
from tokendynamics.sweeps.systems.results import write_results

TASKS = 12


def begun(spec: Path, store: Path) -> subprocess.Popen[bytes]:
    options = ["--out", str(store), "--workers", "2", *(["--resume"] if store.exists() else [])]
    command = [sys.executable, "-m", "tokendynamics", "sweep", str(spec), *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def records(store: Path) -> int:
    return len(list(store.glob("complete/c/*/*/*")))


def kill(process: subprocess.Popen[bytes], *, workers: bool) -> None:
    """Kill the client, and its scheduler with it; or all processes of the sweep."""
    every = psutil.Process(process.pid).children(recursive=True) if workers else []
    process.kill()
    for entry in every:
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(entry.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "engine"), [(0, "batched"), (1, "batched"), (2, "compiled"), (3, "compiled")])
def test_what_is_killed_at_random_moments_resumes_to_the_same_bytes(
    seed: int, engine: str, client: Client, tmp_path: Path
) -> None:
    text = SMALL.replace('engine = "batched"', f'engine = "{engine}"')
    spec, store, moments = tmp_path / "small.toml", tmp_path / "killed.zarr", random.Random(seed)  # noqa: S311
    spec.write_text(text)
    for number, share in enumerate(sorted(moments.sample(range(1, TASKS), 3))):
        process = begun(spec, store)
        while process.poll() is None and records(store) < share:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.02))
        assert process.poll() is None
        kill(process, workers=number % 2 == seed % 2)
        assert records(store) < TASKS
    process = begun(spec, store)
    _, sentence = process.communicate(timeout=120)
    assert process.returncode == 0, sentence
    sweep(parse_plan(text, "small.toml"), tmp_path / "whole.zarr", client)
    assert files(store) == files(tmp_path / "whole.zarr")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "killed-report",
        "killed.zarr",
        "small.toml",
        "whole.zarr",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_all_processes_is_one_line_and_the_code_of_the_signal(
    number: signal.Signals, tmp_path: Path
) -> None:
    """A terminal sends Ctrl-C to the workers too; they left their tracebacks. SIGTERM and SIGHUP left no word."""
    spec, store = tmp_path / "small.toml", tmp_path / "ended.zarr"
    spec.write_text(SMALL)
    command = [sys.executable, "-m", "tokendynamics", "sweep", str(spec), "--out", str(store), "--workers", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    while process.poll() is None and records(store) < 2:
        time.sleep(0.002)
    os.killpg(process.pid, number)
    _, written = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    *before, last = written.decode().splitlines()
    assert last == f"interrupted: finished parts are in {store}; continue with --resume"
    assert "Traceback" not in "".join(before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ended.zarr", "small.toml"]


def test_a_complete_store_whose_manifest_was_never_written_gets_one(client: Client, tmp_path: Path) -> None:
    """A kill between the last task and the manifest: the sweep could neither be continued nor reported."""
    plan, store = parse_plan(SMALL, "small.toml"), tmp_path / "whole.zarr"
    first = sweep(plan, store, client).load()
    for damage in (lambda path: path.unlink(), lambda path: path.write_text('{"runs": ')):
        damage(store / "manifest.json")
        assert sweep(plan, store, client, resume=True).load().identical(first)
        assert write_results(first, store, tmp_path / "report", title="whole")
