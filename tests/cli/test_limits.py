"""Limits for automatic checks: an exit code of their own, one line, and results that are written all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
import xarray as xr

from command_line import call
from tokendynamics.cli._options import NOT_MET, Limits
from tokendynamics.diagnosis.tracing.layer_states import State
from tokendynamics.diagnosis.verdict import Verdict, Worst

TINY = {
    "model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 64, "vocab_size": 300,
}  # fmt: skip
PROMPTS = [word for text in ("a cat sat", "it rains", "who is there?") for word in ("--prompt", text)]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(TINY))
    monkeypatch.chdir(tmp_path)
    return f"random:{tmp_path / 'tiny'}"


def summary(out: str, name: str = "diagnosis.json") -> dict:
    return json.loads((Path(out) / name).read_text())


@pytest.mark.long
def test_a_state_that_must_not_be_is_exit_code_3_and_results_are_written(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["diagnose", model, *PROMPTS, "--no-levers", "--no-baseline", "--no-directions", "--quiet"]
    assert call([*arguments, "--out", "plain"]) == 0
    state = summary("plain")["verdict"]["state"]
    kappa = summary("plain")["trace_mean"]["consensus_relative"][-1][1]
    assert capsys.readouterr() == ("", "")  # --quiet: no progress, no notes, no results
    others = [arg for arg in get_args(State) if arg not in (state, summary("plain")["verdict"]["final_norm"])]
    assert call([*arguments, "--out", "met", "--fail-on", ",".join(others), "--max-similarity", str(kappa + 1e-6)]) == 0
    assert capsys.readouterr() == ("", "")
    assert call([*arguments, "--out", "state", "--fail-on", f"undetermined,{state.replace(' ', '-')}"]) == NOT_MET == 3
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("limit not met: ")
    assert f" ends in “{state}” (--fail-on)" in err
    assert call([*arguments, "--out", "similar", "--max-similarity", str(kappa - 1e-6)]) == NOT_MET
    assert " is above " in capsys.readouterr().err
    for folder in ("state", "similar"):
        assert summary(folder)["verdict"] == summary("plain")["verdict"]
        assert (Path(folder) / "report.html").exists()


def test_a_similarity_that_is_not_defined_is_not_below_a_bound(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "diagnose",
        model,
        "--prompt",
        "only one",
        "--no-levers",
        "--no-baseline",
        "--quiet",
        "--json",
        "--out",
        "one",
    ]
    assert call([*arguments, "--max-similarity", "1"]) == NOT_MET
    out, err = capsys.readouterr()
    assert "κ′ is undefined, so it cannot be compared with 1" in err
    assert json.loads(out)["verdict"]["state"] == "undetermined"  # JSON is what was asked for


@pytest.mark.slow
def test_limits_of_a_comparison_are_for_all_models_but_the_first(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", model, f"{model}:1", *PROMPTS, "--no-weights", "--quiet", "--name", "a", "--name", "b"]
    assert call([*arguments, "--out", "plain"]) == 0
    assert capsys.readouterr() == ("", "")
    verdicts = summary("plain", "comparison.json")["verdicts"]
    assert (
        call([*arguments, "--out", "limited", "--fail-on", verdicts["b"]["state"], "--max-similarity", "-5"]) == NOT_MET
    )
    err = capsys.readouterr().err
    assert err.startswith("limit not met: b ends in ")
    assert "; b: κ′ " in err
    assert "a ends in" not in err
    assert (Path("limited") / "comparison.json").exists()


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--fail-on", "collapse", "expected states among spread, drawing-together, consensus, rank-collapse"),
        ("--fail-on", "", "expected states among"),
        ("--max-similarity", "nan", "nan is not a number up to 1"),
        ("--max-similarity", "1.5", "1.5 is not a number up to 1"),
    ],
)
def test_wrong_limits_are_refused_before_the_work(
    model: str, option: str, value: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["diagnose", model, option, value]) == 2
    assert words in capsys.readouterr().err


def test_the_state_after_the_final_norm_counts(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = Verdict("spread", Worst("spread", 1), ("spread",), (), (), "one point")
    similarity = xr.Dataset({"consensus_relative": (("layer", "site"), [[0.0]])}, coords={"site": ["feed_forward"]})
    judged = [("a", verdict, similarity)]
    assert Limits(fail_on=("consensus",)).code_for(judged) == 0
    assert Limits(fail_on=("one point",)).code_for(judged) == NOT_MET
    assert "a is in “one point” after the final norm (--fail-on)" in capsys.readouterr().err
