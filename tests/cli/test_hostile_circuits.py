"""The circuits commands refuse impossible options and damaged files in one line, soon, and write nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli.hostile_circuits import CALLS, FUNCTIONALS, RECORDS
from cli.refusals import assert_refused
from tokendynamics.circuits import LearningRecord, PairTask, learn


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("learned") / "model"
    learn(PairTask([[1.0, -2.0], [3.0, 4.0]], 3), "solution-2", batch=5, steps=1, inner=1, folder=made)
    return made


@pytest.mark.few(80)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", CALLS)
def test_an_impossible_call_is_one_line(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "file").write_text("a file in the way")
    assert_refused(list(CALLS[name]), folder, capsys)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", FUNCTIONALS)
def test_a_file_that_holds_no_matrix_is_one_line(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, content = FUNCTIONALS[name]
    (folder / path).write_bytes(content)
    assert_refused(["circuits", "build", "solution-2", "--q-true", path, "--out", "o"], folder, capsys)


@pytest.mark.few(60)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", RECORDS)
def test_a_damaged_record_is_one_line(
    name: str, learned: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = json.loads((learned / "record.json").read_text())
    with np.load(learned / "parameters.npz") as stored:
        arrays = {key: stored[key] for key in stored.files}
    record, parameters = RECORDS[name](entries, arrays)
    (folder / "model").mkdir()
    (folder / "model" / "record.json").write_bytes(record)
    (folder / "model" / "parameters.npz").write_bytes(parameters)
    assert_refused(["circuits", "evidence", "model", "--samples", "50", "--out", "o"], folder, capsys)


def test_the_record_behind_the_corpus_is_read(learned: Path) -> None:
    assert LearningRecord.open(learned).status == "finished"
