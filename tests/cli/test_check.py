"""`tokendynamics check` as a user meets it: theorems only, nothing integrated, nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import call
from tokendynamics.specification.examples import example_text


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def integrated(*arguments: object, **options: object) -> None:
        raise AssertionError("check must not integrate")

    monkeypatch.setattr("tokendynamics.specification._simulation.simulate", integrated)


def checked(name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, dict]:
    Path(f"{name}.toml").write_text(example_text(name))
    assert call(["check", f"{name}.toml", "--json"]) == 0
    return {load["statement"]: load for load in json.loads(capsys.readouterr().out)["checks"]}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "statement"),
    [("fig1", "asymptotic-3.1"), ("fig1", "asymptotic-3.2"), ("fig3", "asymptotic-4.1"), ("fig4", "asymptotic-6.1")],
)
def test_the_theorem_a_figure_illustrates_applies_to_its_example(
    name: str, statement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    computed = checked(name, capsys)[statement]
    assert computed["applies"]
    assert computed["prediction"]["text"]


def test_what_fails_is_said_with_its_measure(capsys: pytest.CaptureFixture[str]) -> None:
    computed = checked("fig3", capsys)["asymptotic-5.1"]
    assert not computed["applies"]
    assert computed["prediction"] is None
    assert any("causal" in reason for reason in computed["reasons"])


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
    row = next(line for line in lines if line.strip().startswith("asymptotic-remark-4.2 "))
    assert row.split()[1] == "no"
    beside = next(line for line in lines if line.startswith("  causal mask: the mask is full: "))
    assert "asymptotic-5.1, asymptotic-6.1, masking-4.1" in beside
    assert any(line.startswith("asymptotic-4.1, erratum:") for line in lines)
    assert [path.name for path in tmp_path.iterdir()] == ["fig3.toml"]


@pytest.mark.parametrize(
    ("law", "applies"),
    [
        ('law = "uniform"', True),
        ('law = "normal"', True),
        ('law = "box"', False),
        ('law = "hemisphere"\ndirection = [1.0, 0.0, 0.0]', False),
    ],
)
def test_the_remark_on_uniform_starts_goes_by_the_law_of_the_file(
    law: str, applies: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a.toml").write_text(example_text("minimal").replace('law = "uniform"', law))
    assert call(["check", "a.toml", "--json"]) == 0
    computed = {one["statement"]: one for one in json.loads(capsys.readouterr().out)["checks"]}["asymptotic-remark-4.2"]
    assert (computed["applies"], computed["assumed"]) == (applies, [])
    assert (computed["prediction"] is not None) == applies
    assert [reason.partition(":")[0] for reason in computed["reasons"]] == ["start drawn uniformly"] * (not applies)


@pytest.mark.parametrize(
    ("addition", "line", "words"),
    [
        ('[solver]\nengine = "fixed"', 1, "solver: engine 'fixed' needs 'step'"),
        ('[solver]\nengine = "batched"\nstep = 0.1', 3, "solver.step: engine 'batched' has no 'step'"),
        ('[solver]\nmethod = "rk4"', 2, "solver.method: 'rk4' needs 'step': only 'dopri5' or 'bosh3' or 'dop853' can"),
        ("[output]\nsystem = 1", 2, "output.system: expected a system from 0 to 0, got 1"),
        ('[output]\nfigures = ["norms", "hemisphere"]', 2, "output.figures[1]: 'hemisphere': expected tokens that"),
    ],
)
def test_what_simulate_refuses_before_it_integrates_is_refused_with_its_line(
    addition: str, line: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = example_text("minimal") + "\n"
    Path("a.toml").write_text(text + addition + "\n")
    printed = []
    for command in ("check", "simulate"):
        assert call([command, "a.toml"]) == 2
        printed.append(capsys.readouterr().err)
    assert printed[0].startswith(f"error: a.toml line {text.count(chr(10)) + line}: {words}"), printed[0]
    assert printed[0] == printed[1]


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


def test_noise_is_given_as_the_reason_where_a_statement_would_apply_without_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    noise = "[solver]\nstep = 0.1\nnoise = { strength = 0.5, seed = 1 }\n"
    Path("noise.toml").write_text(f"{example_text('minimal')}\n{noise}")
    assert call(["check", "noise.toml", "--json"]) == 0
    checks = {one["statement"]: one for one in json.loads(capsys.readouterr().out)["checks"]}
    assert not any(one["applies"] for one in checks.values())
    assert checks["perspective-6.1"]["reasons"] == ["no noise: noise has the strength 0.5"]
    assert call(["check", "noise.toml"]) == 0
    assert "no noise" in capsys.readouterr().out
