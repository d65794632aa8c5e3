"""A store that is no trajectory, or a damaged one, is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tokendynamics as td
from tokendynamics.numerics.errors import ArgumentValueError


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flow = td.Flow(td.Attention([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]), td.Sphere())
    return td.simulate(flow, [[1.0, 0.0], [0.6, 0.8]], [0.0, 1.0]).save(tmp_path_factory.mktemp("run") / "t.zarr")


@pytest.mark.parametrize("name", ["status", "reached", "end_time", "flow_qk", "time", "states"])
def test_a_missing_variable_is_named(name: str, saved: Path, tmp_path: Path) -> None:
    store = shutil.copytree(saved, tmp_path / "t.zarr")
    shutil.rmtree(store / name)
    with pytest.raises(ArgumentValueError, match="path: expected a"):
        td.Trajectory.open(store)


@pytest.mark.parametrize("name", ["engine", "notes", "leading_shape", "counts", "flow", "parameters"])
@pytest.mark.parametrize("value", [None, "[", "{}x", "[1000000]"])
def test_a_damaged_attribute_is_refused_or_read(name: str, value: str | None, saved: Path, tmp_path: Path) -> None:
    store = shutil.copytree(saved, tmp_path / "t.zarr")
    attributes = json.loads((store / ".zattrs").read_text())
    attributes.pop(name)
    if value is not None:
        attributes[name] = value
    (store / ".zattrs").write_text(json.dumps(attributes))
    if value in ("[", "{}x", None) and not (name == "engine" and value is not None):
        with pytest.raises(ArgumentValueError, match="path: expected a"):
            td.Trajectory.open(store)
