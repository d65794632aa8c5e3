"""Workers that die, that are several, that have other versions, and schedulers that do not answer."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, Future, LocalCluster

from sweeps.conftest import SMALL, files
from tokendynamics.numerics.errors import StorageError
from tokendynamics.specification import SpecificationError
from tokendynamics.sweeps import Plan, open_store, parse_plan, sweep
from tokendynamics.sweeps import _cluster as cluster
from tokendynamics.sweeps._store import WorkerVersionError, own_versions
from tokendynamics.sweeps.systems.running import run_task


@pytest.mark.slow
def test_a_worker_that_is_killed_has_its_tasks_rerun(small: Plan, whole: Path, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill(done: float, total: float, what: str) -> None:
        """Kill a worker process when the first tasks are done, and another one later."""
        if len(killed) < 2 and done >= (4, 12)[len(killed)]:
            workers = [entry for entry in psutil.Process().children(recursive=True) if "spawn_main" in _command(entry)]
            os.kill(workers[-1].pid, signal.SIGKILL)
            killed.append(workers[-1].pid)

    sweep(small, tmp_path / "killed.zarr", workers=2, progress=kill)
    assert len(killed) == 2
    assert files(tmp_path / "killed.zarr") == files(whole)


def test_workers_that_join_later_are_given_tasks(client: Client) -> None:
    """A sweep may begin before the jobs of a cluster do: two tasks are out at first."""
    threads, given = [0], 0

    def arguments(task: int, key: str) -> tuple[int]:
        nonlocal given
        given += 1
        return (task,)

    done = cluster.ended(client, abs, range(20), arguments, name=str, lost="", at_a_time=lambda: max(2, 3 * threads[0]))
    next(done)
    assert given == 3  # the first two, and one after the first of them
    threads[0] = 4
    next(done)
    assert given == 3 + 11  # twelve are out, of which one was yielded with the others under way
    assert sorted(future.result() for _, future in done)[-1] == 19
    assert given == 20


def test_workers_on_this_machine_take_no_task_without_the_key_of_the_run() -> None:
    with cluster.connected(None, 1) as client:
        address = client.scheduler_info()["address"]
        assert address.startswith("tls://127.0.0.1:")
        with pytest.raises(OSError):  # noqa: PT011  # what the connection ends with is the library's
            Client(address.replace("tls://", "tcp://"), timeout=3, set_as_default=False)


@pytest.mark.slow
def test_arrays_that_are_lost_with_their_worker_are_made_again(
    small: Plan, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, lost = cluster._died, []

    def lose(future: Future, *task: Any) -> Any:
        """Kill both workers, one of which holds the first arrays, after they are said to be done."""
        if not lost:
            for pid in future.client.run(os.getpid).values():
                os.kill(pid, signal.SIGKILL)
            lost.append(_until(future, "lost"))
        return fetch(future, *task)

    monkeypatch.setattr(cluster, "_died", lose)
    sweep(small, tmp_path / "lost.zarr", workers=2)
    assert lost == ["lost"]
    assert files(tmp_path / "lost.zarr") == files(whole)


def _until(future: Future, status: str) -> str:
    end = time.monotonic() + 30
    while future.status != status and time.monotonic() < end:
        time.sleep(0.001)
    return future.status


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.mark.slow
def test_a_scheduler_by_address_gives_the_same_bytes(small: Plan, whole: Path, tmp_path: Path) -> None:
    with LocalCluster(
        processes=False, n_workers=3, threads_per_worker=1, dashboard_address=None, host="127.0.0.1", protocol="tcp"
    ) as three:
        sweep(small, tmp_path / "three.zarr", three.scheduler_address)
    assert files(tmp_path / "three.zarr") == files(whole)


def test_a_scheduler_that_does_not_answer_is_named_and_nothing_is_left(
    small: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_PATIENCE", 0.5)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    for wrong in (address, "nonsense://127.0.0.1:1", "tcp://127.0.0.1"):
        with pytest.raises(cluster.SchedulerError, match="scheduler: expected the address of a scheduler that answers"):
            sweep(small, tmp_path / "sweep.zarr", wrong)
    assert list(tmp_path.iterdir()) == []


def test_workers_of_another_version_are_refused_before_the_sweep(
    small: Plan, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual = own_versions()
    monkeypatch.setattr(client, "run", lambda *_, **__: {"tcp://10.0.0.7:4": actual | {"tokendynamics": "0.0.3"}})
    with pytest.raises(WorkerVersionError, match=r"got tokendynamics 0\.0\.3 on the worker tcp://10\.0\.0\.7:4"):
        sweep(small, tmp_path / "sweep.zarr", client)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_of_another_version_that_comes_later_is_refused_by_its_first_task(small: Plan, client: Client) -> None:
    wanted = own_versions() | {"tokendynamics": "99.0"}
    future = client.submit(run_task, small.text, small.name, (0, 0, 0), wanted, "batched", pure=False)
    with pytest.raises(WorkerVersionError, match=r"expected tokendynamics 99\.0, got tokendynamics .* on the worker"):
        future.result()


def of_two_axes() -> Plan:
    """Each value fits the others' first; dim 3 and a matrix of dim 2 do not fit each other."""
    spec = SMALL[: SMALL.index("[[sweep.axis]]")].replace('{ law = "normal", scale = 0.5 }', "[[1.0, 0.0], [0.0, 1.0]]")
    dims = '[[sweep.axis]]\nkey = "start.dim"\nvalues = [2, 3]\n'
    matrices = '[[sweep.axis]]\nkey = "attention.qk"\nvalues = ["identity", [[1.0, 0.0], [0.0, 1.0]]]\n'
    return parse_plan(spec + dims + matrices, "two.toml")


TOGETHER = (
    r"two.toml line 32: attention.qk: expected shape \(3, 3\) to fit the tokens, got \(2, 2\).*; "
    r"at the point start.dim = 3, attention.qk = \[\[1.0, 0.0\], \[0.0, 1.0\]\]"
)


def test_values_that_do_not_go_together_are_refused_before_the_sweep(client: Client, tmp_path: Path) -> None:
    with pytest.raises(SpecificationError, match=TOGETHER):
        sweep(of_two_axes(), tmp_path / "sweep.zarr", client)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_values_that_do_not_go_together_in_a_large_sweep_end_as_an_error_that_names_the_point(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokendynamics.sweeps.systems._plan._SAMPLES", 3)  # points that are looked at before
    with pytest.raises(SpecificationError, match=TOGETHER):
        sweep(of_two_axes(), tmp_path / "sweep.zarr", client)
    assert not open_store(tmp_path / "sweep.zarr", partial=True).complete.all()


def test_too_low_a_limit_of_open_files_is_refused_before_workers_start(
    small: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 16 files dask waits without end; with 24 it fails in the middle."""
    monkeypatch.setattr(cluster, "open_files_limit", lambda: 59)
    monkeypatch.setattr(LocalCluster, "__init__", lambda *_, **__: pytest.fail("workers were started"))
    with pytest.raises(cluster.SchedulerError, match=r"at most 59 open files, .*, got 60 for 3 workers; raise it"):
        sweep(small, tmp_path / "few.zarr", workers=3)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_may_not_be_written_leaves_nothing_to_resume(
    small: Plan, tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr("tokendynamics.sweeps.systems._store.Store.create", refused)
    with pytest.raises(StorageError, match=r"ulimit -f.*; nothing was written: start again"):
        sweep(small, tmp_path / "none.zarr", client)
    assert list(tmp_path.iterdir()) == []


def test_workers_of_no_given_number_are_as_many_as_the_limit_of_open_files_allows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On 100 processors a sweep was refused under the usual limit of 1024."""
    taken: list[int] = []
    monkeypatch.setattr(LocalCluster, "__init__", lambda _, n_workers, **__: taken.append(n_workers))
    monkeypatch.setattr(LocalCluster, "__del__", lambda _: None)
    monkeypatch.setattr(cluster, "usable_processors", lambda: 128)
    monkeypatch.setattr(cluster, "open_files_limit", lambda: 1024)
    cluster._local(None)
    assert set(taken) == {99}  # twice where types are checked
    assert "99 workers for 128 processors: the limit of open files is 1024 (ulimit -n)" in caplog.text
    with pytest.raises(cluster.SchedulerError, match="1310 for 128 workers"):
        cluster._local(128)
