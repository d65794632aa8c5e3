"""`tokendynamics study` as a user meets it: runs, what is beside them, examples, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from distributed import Client

from command_line import call
from sweeps.conftest import client
from sweeps.study.conftest import TWO_ARMS, Planted, planted
from tokendynamics.specification.examples import example_names, example_text
from tokendynamics.sweeps import _cluster
from tokendynamics.sweeps.study import open_study

__all__ = ["client", "planted"]


@pytest.fixture
def spec(tmp_path: Path, planted: Planted, client: Client, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of two arms, workers in this process, and runs whose divergence is worse."""
    planted(means={"divergence": 0.2})
    monkeypatch.chdir(tmp_path)
    connected = _cluster.connected
    monkeypatch.setattr(_cluster, "connected", lambda scheduler, *_, **__: connected(scheduler or client, None))
    path = tmp_path / "two.toml"
    path.write_text(TWO_ARMS)
    return path


def test_a_study_leaves_its_runs_a_page_and_tables(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], undrawn: None
) -> None:
    assert call(["study", "two.toml"]) == 0
    text = capsys.readouterr()
    assert "two: 2 arms × 3 seeds = 6 runs of the preset bytes-small" in text.err
    words = " ".join(text.out.split())
    assert "divergence is significantly worse than" in words
    assert "does not hold: the difference is significant in the other direction" in words
    result = open_study(tmp_path / "study-two")
    assert result.manifest["command"].startswith("tokendynamics")
    assert "95 % CI" in words
    folder = tmp_path / "study-two-report"
    assert "divergence" in (folder / "report.html").read_text(encoding="utf-8")

    assert call(["study", "two.toml"]) == 2
    assert "--resume" in capsys.readouterr().err
    assert call(["study", "two.toml", "--resume", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["sentences"] == result.sentences
    assert summary["comparisons"][0]["verdict"] == "separated"
    assert (tmp_path / summary["folder"] / "runs.csv").is_file()


def test_what_is_beside_the_runs_is_refused_before_anything_is_trained(
    spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study-two-report").mkdir()
    (tmp_path / "study-two-report" / "runs.csv").write_text("mine")
    assert call(["study", "two.toml"]) == 2
    assert "runs.csv" in capsys.readouterr().err
    assert not (tmp_path / "study-two").exists()


def test_examples_are_listed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["study", "--example", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == example_names("study")
    assert call(["study", "--example", "table1"]) == 0
    assert capsys.readouterr().out == example_text("table1", "study")
    assert call(["study", "--example", "tabel1"]) == 2
    assert "did you mean 'table1'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected either SPEC or --example NAME"),
        (
            ["two.toml", "--workers", "2", "--scheduler", "tcp://127.0.0.1:1"],
            "expected either --workers or --scheduler",
        ),
        (["two.toml", "--workers", "0"], "--workers"),
        (["none.toml"], "none.toml"),
    ],
)
def test_wrong_usage_is_one_line(
    spec: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["study", *arguments]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert len(printed.splitlines()) == 1


def test_what_is_wrong_in_the_file_is_one_line_with_its_number(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec.write_text(TWO_ARMS.replace('regime = "divergence"', 'regime = "divergent"'))
    assert call(["study", "two.toml"]) == 2
    text = capsys.readouterr().err.splitlines()
    assert text == [
        "error: two.toml line 11: arms.divergence.regime: unknown regime 'divergent'; did you mean 'divergence'? "
        "(valid: baseline, contracting, convergence, divergence, expanding, intermediate, tied, w_only)"
    ]
