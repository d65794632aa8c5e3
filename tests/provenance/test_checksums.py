"""Damaged results that are still readable are refused: no changed number is taken for one that was measured."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import tokendynamics as td
from pretrained.families import network_of
from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits.learning import LearningRecord, learn
from tokendynamics.numerics.errors import ArgumentValueError, TokenDynamicsError
from tokendynamics.provenance.reading import CHECKSUM, check_checksum, with_checksum
from tokendynamics.training import Record, preset, train

TEXTS = [[5, 9, 33, 21], [7, 8], [4, 4, 2], [11, 30, 2]]
NETCDF = find_spec("h5netcdf") is not None


def _run() -> td.Trajectory:
    gates = td.Sinusoidal(np.eye(2), 1.0, 2.0, 0.0)
    flow = td.Flow(td.Attention(gates, -np.eye(2), positions=td.AbsolutePositions(np.ones((3, 2)))), td.Free())
    return td.simulate(flow, np.arange(1.0, 13.0).reshape(2, 3, 2), [0.0, 0.5, 1.0], step=0.25)


def _diagnosis(folder: Path) -> None:
    td.diagnose(network_of("gpt2")[0], TEXTS, levers=False, heads=False, baseline=None).save(folder)


def _comparison(folder: Path) -> None:
    td.compare(network_of("gpt2")[0], network_of("gpt2")[0], texts=TEXTS, heads=False).save(folder)


def _learned(folder: Path) -> None:
    learn(PairTask([[1.0, -2.0], [3.0, 4.0]], positions=3), "solution-2", batch=5, steps=3, inner=2, seed=0).save(
        folder
    )


def _trained(folder: Path) -> None:
    recipe: dict[str, Any] = {"steps": 2, "warmup": 1, "evaluate_every": 2, "save_every": 2, "log_every": 2}
    train(preset("bytes-small").changed(recipe=recipe, model={"num_hidden_layers": 1}), folder, threads=1)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def _numbers(table: xr.Dataset) -> list[Any]:
    return [(name, str(variable.values.tolist()), variable.dims) for name, variable in sorted(table.variables.items())]


def _of_diagnosis(folder: Path) -> Any:
    diagnosis = td.Diagnosis.open(folder)
    assert isinstance(diagnosis.audit, xr.Dataset)
    return _numbers(diagnosis.trace), _numbers(diagnosis.audit), _numbers(diagnosis.paths), repr(diagnosis.verdict)


def _of_comparison(folder: Path) -> Any:
    comparison = td.Comparison.open(folder)
    return [_numbers(trace) for trace in comparison.traces], repr(comparison.sentences), repr(comparison.verdicts)


def _of_learned(folder: Path) -> Any:
    record = LearningRecord.open(folder)
    return repr(record.as_json()), {name: value.tolist() for name, value in record.parameters.items()}


KINDS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "run.zarr": (lambda path: _run().save(path), lambda path: _numbers(td.Trajectory.open(path).dataset)),
    "run.nc": (lambda path: _run().save(path), lambda path: _numbers(td.Trajectory.open(path).dataset)),
    "diagnosis": (_diagnosis, _of_diagnosis),
    "comparison": (_comparison, _of_comparison),
    "learned": (_learned, _of_learned),
    "trained": (_trained, lambda folder: repr(Record.open(folder).as_json())),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("saved")

    def place(kind: str) -> Path:
        if not (root / kind).exists():
            KINDS[kind][0](root / kind)
        return root / kind

    return place


def _damaged(content: bytes, draw: np.random.Generator) -> bytes:
    """The content with one bit turned, cut off, or with one digit more."""
    data, place = bytearray(content), int(draw.integers(len(content)))
    match str(draw.choice(["bit", "bit", "bit", "cut", "digit"])):
        case "bit":
            data[place] ^= 1 << int(draw.integers(8))
        case "cut":
            del data[place:]
        case "digit":
            data[place:place] = b"7"
    return bytes(data)


KINDS_HERE = [
    pytest.param(kind, marks=pytest.mark.skipif(kind.endswith(".nc") and not NETCDF, reason="needs the extra netcdf"))
    for kind in KINDS
]


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize("kind", KINDS_HERE)
def test_a_damaged_result_is_refused_or_has_its_numbers(kind: str, saved: Callable[[str], Path]) -> None:
    place, read = saved(kind), KINDS[kind][1]
    whole, draw, refused = read(place), np.random.default_rng(33), 0
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    if kind in ("diagnosis", "comparison"):
        files = [path for path in files if path.name != "manifest.json"]  # reading without one compares nothing
    files = [path for path in files if path.suffix not in (".html", ".safetensors") and "logs" not in path.parts]
    for _ in range(12 if len(files) > 100 else 60):
        path = files[int(draw.integers(len(files)))]
        content = path.read_bytes()
        path.write_bytes(_damaged(content, draw))
        try:
            assert read(place) == whole, path
        except TokenDynamicsError:
            refused += 1
        finally:
            path.write_bytes(content)
    assert read(place) == whole
    assert refused


@pytest.mark.long
@pytest.mark.parametrize("change", ["other number", "no chunk", "further chunk"])
def test_a_store_that_changed_is_named_and_read_without_its_manifest(
    change: str, saved: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(saved("diagnosis"), tmp_path / "copy"))
    chunk = folder / "trace.zarr/update_ratio/0.0.0"
    with xr.open_zarr(folder / "trace.zarr", consolidated=False) as table:
        wide = table["update_ratio"].load()
    if change == "other number":
        array = zarr.open_array(chunk.parent, mode="r+", zarr_format=2)
        array[:] = 2 * wide.values
    elif change == "no chunk":
        chunk.unlink()
    else:
        chunk.with_name("0.0.1").write_bytes(b"0")
    with pytest.raises(ArgumentValueError, match=r"by their SHA-256 in manifest\.json, got another .*update_ratio"):
        td.Diagnosis.open(folder)
    (folder / "manifest.json").unlink()
    if change == "other number":
        assert np.array_equal(td.Diagnosis.open(folder).trace.update_ratio, 2 * wide, equal_nan=True)
    else:
        td.Diagnosis.open(folder)


@pytest.mark.long
def test_files_that_are_no_data_may_change(saved: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved("diagnosis"), tmp_path / "copy"))
    (folder / "notes.txt").write_text("mine")
    (folder / "my.json").write_text("{}")
    assert _of_diagnosis(folder) == _of_diagnosis(saved("diagnosis"))


@pytest.mark.long
def test_a_trajectory_that_was_edited_is_read_without_its_checksum(
    saved: Callable[[str], Path], tmp_path: Path
) -> None:
    with xr.open_zarr(saved("run.zarr"), consolidated=False) as table:
        edited = table.load().assign(flow_ov=2 * table.flow_ov)
    for variable in edited.variables.values():
        variable.encoding.clear()
    edited.to_zarr(tmp_path / "edited.zarr", zarr_format=2, consolidated=False)
    with pytest.raises(ArgumentValueError, match=f"expected the content of its {CHECKSUM}, got another one"):
        td.Trajectory.open(tmp_path / "edited.zarr")
    del edited.attrs[CHECKSUM]
    edited.to_zarr(tmp_path / "own.zarr", zarr_format=2, consolidated=False)
    flow = td.Trajectory.open(tmp_path / "own.zarr").flow
    assert flow is not None
    assert flow.attention.ov.matrix_at(0.0).tolist() == [[[-2.0, 0.0], [0.0, -2.0]]]


@pytest.mark.long
@pytest.mark.parametrize(
    "ending", [".zarr", pytest.param(".nc", marks=pytest.mark.skipif(not NETCDF, reason="needs h5"))]
)
def test_numbers_that_are_undefined_or_of_single_precision_have_the_checksum_they_were_saved_with(
    ending: str, tmp_path: Path
) -> None:
    flow = td.Flow(td.Attention(np.zeros((2, 2)), [[0.0, -1.0], [1.0, 0.0]]), td.Free())
    crossing = td.events.NormAbove(0.5, then="record")
    start = np.array([[[1.0, 0.0]], [[0.1, 0.0]]], dtype=np.float32)
    run = td.simulate(flow, start, [0.0, 1.0], events=[crossing])
    assert run.recorded is not None
    # The NaN of 0/0 on this processor has a sign, that of NumPy has none.
    run.recorded.states[np.isnan(run.recorded.states)] = -np.float32(np.nan)
    again = td.Trajectory.open(run.save(tmp_path / f"run{ending}"))
    assert np.array_equal(again.states, run.states)
    assert again.recorded is not None
    assert np.array_equal(again.recorded.states, run.recorded.states, equal_nan=True)


def test_a_checksum_is_of_values_and_not_of_their_order() -> None:
    values = with_checksum({"a": 1.5, "b": [None, "ä"]})
    check_checksum(json.loads(json.dumps(dict(reversed(values.items())), indent=3)), "record")
    check_checksum({"a": 1.5}, "record")  # of an earlier version
    with pytest.raises(ArgumentValueError, match="record: expected the content of its content_sha256"):
        check_checksum({**values, "a": 1.25}, "record")
