"""``tokendynamics circuits landscape`` in a terminal of 80 columns, and what it records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokendynamics.cli import main


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as done:
        main(["circuits", "landscape", *arguments])
    return int(done.value.code or 0)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_stalls_have_a_table_of_their_own_per_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("3.2", "--starts", "1") == 0
    printed = capsys.readouterr().out
    assert "Stationary points" not in printed
    rows = [line.split() for line in printed.splitlines() if line.split() and line.split()[0] in ("2", "4", "6")]
    # T = 0.8 is the loss per token of the mean predictor, which these starts are next to.
    assert [row[:2] for row in rows] == [["2", "0.79708"], ["4", "0.799946"], ["6", "0.799999"]]
    assert rows[0][3] == "81.3"
    assert "quasi-newton, 1 start " in printed


@pytest.mark.long
def test_numbers_and_kinds_are_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("3.1", "--starts", "4") == 0
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert "Stalls" not in printed
    (row,) = [line for line in printed.splitlines() if line.strip().startswith("∞")]
    assert row.split()[-2:] == ["at", "infinity"]
    assert "0.13336" in row
    assert "Why 4 runs stopped:" in printed


def test_what_was_asked_is_recorded(inside: Path) -> None:
    assert call("3.3", "-N", "3", "-M", "3", "--law", "zipf", "--starts", "1", "--out", "out") == 0
    manifest = json.loads((inside / "out" / "manifest.json").read_text())
    wanted = {"section": "3.3", "categories": 3, "positions": 3, "law": "zipf", "q_true": "random:0", "starts": 1}
    assert wanted.items() <= manifest["parameters"].items()
    stored = json.loads((inside / "out" / "landscape.json").read_text())
    assert (stored["categories"], stored["positions"], len(stored["q_true"])) == (3, 3, 3)
    assert stored["law"] == pytest.approx([6 / 11, 3 / 11, 2 / 11])


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_defaults_are_recorded_as_the_numbers_they_stand_for(inside: Path) -> None:
    assert call("3.2", "-M", "2", "--out", "out") == 0
    parameters = json.loads((inside / "out" / "manifest.json").read_text())["parameters"]
    assert (parameters["categories"], parameters["starts"], parameters["q_true"]) == (5, 10, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["3.1", "-N", "1"], "--categories: expected at least 2, got 1"),
        (["3.2", "-N", "0"], "--categories: expected at least 2, got 0"),
        (["3.3", "--q-true", "huge.json"], "--q-true: expected numbers up to 100000 in size, got 1e+200"),
        (["3.1", "--q-true", "random:1"], "--q-true: expected none outside of section 3.3"),
        (["3.2", "--causal"], "--causal: expected none outside of section 3.3"),
    ],
)
def test_refusals_name_the_option_in_one_line(
    arguments: list[str], message: str, inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (inside / "huge.json").write_text("[[1e200, -1e200], [1e200, 3]]")
    assert call(*arguments, "--out", "out") == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert not (inside / "out").exists()
