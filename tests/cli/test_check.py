"""`tokendynamics check` as a user meets it: theorems only, nothing integrated, nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokendynamics.cli.main import main
from tokendynamics.specification.examples import example_text


def call(arguments: list[str]) -> int:
    """Exit code of the command line run in this process."""
    with pytest.raises(SystemExit) as done:
        main(arguments)
    return int(done.value.code or 0)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def integrated(*arguments: object, **options: object) -> None:
        raise AssertionError("check must not integrate")

    monkeypatch.setattr("tokendynamics.dynamics.simulate", integrated)


def checked(name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, dict]:
    Path(f"{name}.toml").write_text(example_text(name))
    assert call(["check", f"{name}.toml", "--json"]) == 0
    return {found["statement"]: found for found in json.loads(capsys.readouterr().out)["checks"]}


@pytest.mark.parametrize(
    ("name", "statement"),
    [("fig1", "asymptotic-3.1"), ("fig1", "asymptotic-3.2"), ("fig3", "asymptotic-4.1"), ("fig4", "asymptotic-6.1")],
)
def test_the_theorem_a_figure_illustrates_applies_to_its_example(
    name: str, statement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = checked(name, capsys)[statement]
    assert found["applies"]
    assert found["prediction"]["text"]


def test_what_fails_is_said_with_its_measure(capsys: pytest.CaptureFixture[str]) -> None:
    found = checked("fig3", capsys)["asymptotic-5.1"]
    assert not found["applies"]
    assert found["prediction"] is None
    assert any("causal" in reason for reason in found["reasons"])


def test_the_table_has_predictions_reasons_and_errata_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    Path("fig3.toml").write_text(example_text("fig3"))
    assert call(["check", "fig3.toml", "--threads", "1"]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    row = next(line for line in lines if line.strip().startswith("asymptotic-4.1 "))
    assert row.split()[1] == "yes"
    assert "consensus" in printed
    row = next(line for line in lines if line.strip().startswith("asymptotic-5.1 "))
    assert row.split()[1] == "no"
    assert any(line.startswith("asymptotic-4.1, erratum:") for line in lines)
    assert [path.name for path in tmp_path.iterdir()] == ["fig3.toml"]


def test_a_wrong_file_is_one_line_with_its_line_number(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.toml").write_text(example_text("fig3").replace("5 Hz", "5 hertz", 1))
    assert call(["check", "a.toml"]) == 2
    printed = capsys.readouterr()
    line = (
        example_text("fig3").splitlines().index(next(x for x in example_text("fig3").splitlines() if "5 Hz" in x)) + 1
    )
    assert printed.err.startswith(f"error: a.toml line {line}: attention.qk[0].frequency[0]: unknown unit 'hertz'")
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""
