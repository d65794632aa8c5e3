"""Results of earlier runs, and matrices of users, with a few bytes changed: read, or refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tokendynamics as td
from cli.mutations import check_refusal, mutations
from pretrained.families import network_of
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits.learning import LearningRecord, learn
from tokendynamics.cli.circuits._options import functional_of
from tokendynamics.numerics.errors import ArgumentValueError, TokenDynamicsError

MATRIX = [[1.0, -2.0], [3.0, 4.0]]


def _trajectory(root: Path) -> Path:
    gates = td.Sinusoidal(np.eye(2), 1.0, 2.0, 0.0)
    flow = td.Flow(td.Attention(gates, -np.eye(2), positions=td.AbsolutePositions(np.ones((3, 2)))), td.Free())
    run = td.simulate(flow, np.ones((2, 3, 2)), [0.0, 0.5, 1.0], step=0.25)
    return run.save(root / "run.zarr")


def _record(root: Path) -> Path:
    task = PairTask(MATRIX, positions=3)
    return learn(task, "solution-2", batch=5, steps=1, inner=2, hidden=2, seed=0).save(root / "learned")


def _diagnosis(root: Path) -> Path:
    td.diagnose(network_of("gpt2")[0], [[5, 9, 33, 21], [7, 8]]).save(root / "diagnosis")
    return root / "diagnosis"


def _use_diagnosis(folder: Path) -> None:
    opened = td.Diagnosis.open(folder)
    assert isinstance(opened.audit, xr.Dataset)
    assert str(opened.verdict) is not None
    assert opened.trace.sel(site="feed_forward", sinks="removed").sizes["layer"] == opened.model["layers"] + 1


def _matrix(name: str, content: bytes) -> Callable[[Path], Path]:
    def write(root: Path) -> Path:
        (root / "matrix").mkdir()
        (root / "matrix" / name).write_bytes(content)
        return root / "matrix"

    return write


def _open_matrix(folder: Path) -> Any:
    (path,) = folder.iterdir()
    return functional_of(str(path), 2, 2, None)


def _npy() -> bytes:
    from io import BytesIO

    file = BytesIO()
    np.save(file, np.array(MATRIX))
    return file.getvalue()


def _use_trajectory(path: Path) -> None:
    run = td.Trajectory.open(path)
    assert run.states.shape[-3:] == (len(run.times), 3, 2)
    assert str(run)
    if run.flow is not None:
        td.certify(run)
        td.simulate(run.flow, run, [float(run.times[-1]) + 0.5], step=0.5)


def _use_record(folder: Path) -> None:
    record = LearningRecord.open(folder)
    assert record.transformer([1, 2]).isfinite().all()
    assert str(record)


CASES: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Any]]] = {
    "trajectory": (_trajectory, _use_trajectory),
    "learned model": (_record, _use_record),
    "diagnosis": (_diagnosis, _use_diagnosis),
    "npy": (_matrix("q.npy", _npy()), _open_matrix),
    "json": (_matrix("q.json", json.dumps(MATRIX).encode()), _open_matrix),
    "csv": (_matrix("q.csv", b"1.0,-2.0\n3.0,4.0\n"), _open_matrix),
}


class _Folders(dict[str, Path]):
    """A folder of each name, written when it is first asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def __missing__(self, name: str) -> Path:
        (self.root / name).mkdir()
        self[name] = CASES[name][0](self.root / name)
        return self[name]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return _Folders(tmp_path_factory.mktemp("results"))


def check(name: str, folders: dict[str, Path], data: st.DataObject) -> None:
    """Change a file of a result, and read it; then read it as it was."""
    folder, read = folders[name], CASES[name][1]
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files))
    whole = path.read_bytes()
    path.write_bytes(data.draw(mutations(whole)))
    try:
        read(folder)
    except TokenDynamicsError as error:
        check_refusal(error)
    finally:
        path.write_bytes(whole)
    read(folder)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in CASES if name != "diagnosis"])
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_mutated_result_is_read_or_refused(name: str, folders: dict[str, Path], data: st.DataObject) -> None:
    check(name, folders, data)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_so_are_many_more(name: str, folders: dict[str, Path], data: st.DataObject) -> None:
    check(name, folders, data)


def test_another_version_of_numpys_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "q.npy"
    path.write_bytes(_npy().replace(b"NUMPY\x01\x00", b"NUMPY\x09\x07"))
    with pytest.raises(ArgumentValueError, match=r"NumPy's format 9\.7 is not known"):
        functional_of(str(path), 2, 2, None)
