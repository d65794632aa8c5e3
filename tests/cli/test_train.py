"""`tokendynamics train` as a user meets it: presets, the folder of a run, going on with it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import call
from tokendynamics.training import PRESETS, Record

TINY = {
    "model.hidden_size": "16", "model.num_hidden_layers": "1", "model.num_attention_heads": "2",
    "model.intermediate_size": "16", "options.context": "16",
    "recipe.batch": "2", "recipe.warmup": "0", "recipe.evaluate_every": "4", "recipe.save_every": "2",
    "recipe.log_every": "1",
}  # fmt: skip
SMALL = ["train", "bytes-small", "--steps", "4"]


def tiny(text: Path, **changed: str) -> list[str]:
    entries = TINY | {name.replace("__", "."): value for name, value in changed.items()}
    return [*SMALL, "--data", str(text), *[part for name in entries for part in ("--set", f"{name}={entries[name]}")]]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{number} squared is {number * number}. " for number in range(300)))
    return path


def test_a_run_leaves_its_record_its_page_and_a_network(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*tiny(text), "--regime", "divergence", "--seed", "3", "--sample-every", "3", "--sample-tokens", "9"]
    assert call([*arguments, "--json"]) == 0
    said, progress = capsys.readouterr()
    summary, folder = json.loads(said), Path("train-bytes-small")
    record = Record.open(folder)
    assert summary == {
        "folder": str(folder), "status": "finished", "steps": 4, "measures": record.measures, "notes": [],
    }  # fmt: skip
    assert "Training bytes-small" in progress
    assert record.experiment.model["regime"] == "divergence"
    assert record.experiment.seed == 3
    names = {path.name for path in folder.iterdir()}
    assert {"experiment.json", "record.json", "report.html", "model", "checkpoints", "logs", "samples"} == names
    samples = sorted((folder / "samples").iterdir())
    assert [path.name for path in samples] == ["step-000003.txt", "step-000004.txt"]
    assert samples[0].read_text().startswith("Step 3: 16 tokens of the validation split, then 9 of the network.")

    assert call(arguments) == 2  # something is there
    assert "--resume" in capsys.readouterr().err
    assert call([*arguments, "--resume"]) == 0  # the run has ended: it is told again
    told = capsys.readouterr().out
    assert "divergence: finished after 4 steps" in told
    assert f"{record.measures['test']['bits_per_byte']:.4f}" in told
    assert call([*arguments, "--resume", "--set", "recipe.clip=0.5"]) == 2
    assert "recipe.clip: 1.0 then, 0.5 now" in capsys.readouterr().err


def test_a_run_whose_loss_is_not_finite_says_why_and_fails(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hot = tiny(text, recipe__learning_rate="1e20", recipe__clip="null", recipe__schedule="constant")
    assert call(hot) == 1
    told = capsys.readouterr().out
    assert "bytes-small, regime baseline: not finite" in told
    assert "gradients are not clipped" in told
    assert "Model:" not in told


def test_every_preset_is_listed_with_its_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["train", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(PRESETS)
    assert lines[0].endswith("6 layers × 512    100,000 steps")
    assert lines[2].endswith("12 layers × 192   1,501,500 steps, 4 processes × 64")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "nothing"], "preset: expected one of enwik8"),
        ([*SMALL, "--regime", "chaos"], "regime: expected one of"),
        ([*SMALL, "--data", "not-there"], "data: expected a file of text"),
        ([*SMALL, "--set", "recipe.speed=2"], "recipe: expected entries among"),
        ([*SMALL, "--set", "speed=2"], "expected model.NAME=VALUE"),
        ([*SMALL, "--set", "model.speed=2"], "model: expected arguments of LanguageModelConfig, got speed"),
        ([*SMALL, "--set", "model.num_attention_heads=5"], "num_attention_heads: expected a divisor of"),
        ([*SMALL, "--set", "options.contxt=5"], "options: expected entries among context"),
        ([*SMALL, "--seed", "-1"], "--seed"),
        ([*SMALL, "--sample-every", "0"], "--sample-every"),
        ([*SMALL, "--sample-tokens", "9"], "--sample-tokens is about samples: give --sample-every N as well"),
        (["train", "digits", "--sample-every", "9", "--out", "train-bytes-small"], "samples: expected a task of text"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line_and_leaves_nothing(
    arguments: list[str], said: str, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert not Path("train-bytes-small").exists()
