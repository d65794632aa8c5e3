"""`tokendynamics train` as a user meets it: presets, the folder of a run, going on with it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from command_line import call
from tokendynamics.cli._train import _print
from tokendynamics.training import Record
from tokendynamics.training.experiment import PRESETS

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
    sentence, progress = capsys.readouterr()
    summary, folder = json.loads(sentence), Path("train-bytes-small")
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
    printed = capsys.readouterr().out
    assert "divergence: finished after 4 steps" in printed
    assert f"{record.measures['test']['bits_per_byte']:.4f}" in printed
    assert call([*arguments, "--resume", "--set", "recipe.clip=0.5"]) == 2
    assert "recipe.clip: 1.0 then, 0.5 now" in capsys.readouterr().err


def test_a_run_whose_loss_is_not_finite_says_why_and_fails(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hot = tiny(text, recipe__learning_rate="1e20", recipe__clip="null", recipe__schedule="constant")
    assert call(hot) == 1
    printed = capsys.readouterr().out
    assert "bytes-small, regime baseline: not finite" in printed
    assert "gradients are not clipped" in printed
    assert "Model:" not in printed


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


INTERRUPTED = {
    "before anything is written": ("_run", "_former", "nothing was written"),
    "while the folder is locked": ("_run", "held", "has no checkpoint yet"),
    "before the first checkpoint": ("_trainer", "put_checkpoint", "has no checkpoint yet"),
    "after a checkpoint": ("folder", "remove_older", "checkpoint-2 is in"),
    "while the network is written": ("_training_run", "put_folder", "checkpoint-4 is in"),
    "while the page is drawn": ("record", "Record.report", "is complete, with its record"),
}


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("moment", INTERRUPTED)
def test_ctrl_c_says_what_is_on_the_disk(
    moment: str, text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name, words = INTERRUPTED[moment]
    monkeypatch.setattr(f"tokendynamics.training.{module}.{name}", interrupt)
    assert call(tiny(text)) == 130
    (line,) = (splitline for splitline in capsys.readouterr().err.splitlines() if splitline.startswith("interrupted"))
    assert words in line
    folder = Path("train-bytes-small")
    assert ("nothing was written" in line) == (not folder.exists())
    for number in (2, 4):
        assert f"checkpoint-{number} is in" not in line or (folder / "checkpoints" / f"checkpoint-{number}").is_dir()
    monkeypatch.undo()
    monkeypatch.chdir(text.parent)
    assert call([*tiny(text), "--resume"]) == 0
    assert Record.open(folder).finished


def test_ctrl_c_at_the_start_of_a_resumed_run_names_the_checkpoint_that_is_there(
    text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokendynamics.training._training_run.put_folder", interrupt)
    assert call(tiny(text)) == 130
    monkeypatch.setattr("tokendynamics.training.preset", interrupt)
    capsys.readouterr()
    assert call([*tiny(text), "--resume"]) == 130
    line = "interrupted: checkpoint-4 is in train-bytes-small; continue with --resume\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(("command", "package"), [("sweep", "sweeps"), ("study", "sweeps.study")])
def test_ctrl_c_in_a_sweep_or_a_study_says_whether_anything_is_there(
    command: str, package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call([command, "--example", "list"]) == 0
    example = capsys.readouterr().out.split()[0]
    assert call([command, "--example", example]) == 0
    Path("spec.toml").write_text(capsys.readouterr().out)

    def begun(plan: Any, store: Path, *_: Any, **__: Any) -> None:
        store.mkdir()
        (store / {"sweep": "zarr.json", "study": "study.json"}[command]).write_text("{}")  # as each begins its store
        raise KeyboardInterrupt

    stops = [("read_plan", interrupt, "nothing was written"), (command, begun, "continue with --resume")]
    for name, work, words in stops:
        monkeypatch.setattr(f"tokendynamics.{package}.{name}", work)
        assert call([command, "spec.toml"]) == 130
        assert words in capsys.readouterr().err.splitlines()[-1]
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)


def test_every_preset_is_listed_with_its_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["train", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(PRESETS)
    assert lines[0].endswith("6 layers × 512    100,000 steps")
    assert lines[2].endswith("12 layers × 192   1,501,500 steps, 4 processes × 64")


@pytest.mark.parametrize(
    ("arguments", "message"),
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
        ([*SMALL, "--sample-tokens", "9"], "--sample-tokens needs samples: add --sample-every STEPS"),
        (["train", "digits", "--sample-every", "9", "--out", "train-bytes-small"], "samples: expected a task of text"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line_and_leaves_nothing(
    arguments: list[str], message: str, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not Path("train-bytes-small").exists()


@pytest.mark.parametrize(("steps", "words"), [(1, "finished after 1 step\n"), (1500, "finished after 1,500 steps\n")])
def test_one_step_is_no_steps(steps: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = SimpleNamespace(name="bytes-small", model={})
    record = SimpleNamespace(
        experiment=experiment, status="finished", steps=steps, notes=[], measures={}, finished=True
    )
    _print(cast(Any, record), Path("run"), Path("run/report.html"))
    assert words in capsys.readouterr().out
