"""What is refused, in one line that says what came and what to do; and a disk that is full."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError, StorageError
from tokendynamics.training import Experiment, Record, _run, preset
from tokendynamics.training.__main__ import main
from tokendynamics.training.folder import into_room
from training.runs import At, assert_same, interrupt, run, small, weights

VALUE, TYPE = ArgumentValueError, ArgumentTypeError


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"seed": -1}, VALUE, "seed: expected 0 to 4294967295, got -1"),
        ({"seed": 2**32}, VALUE, "seed: expected 0 to 4294967295, got 4294967296"),
        ({"seed": 1.0}, TYPE, "seed: expected an integer"),
        ({"recipe": {"stepz": 3}}, VALUE, "recipe: expected entries among steps, batch, .*, got 'stepz'"),
        ({"recipe": {"multipliers": {"low": 3}}}, VALUE, "multipliers: expected entries among lower"),
        ({"recipe": {"multipliers": {"skew": -1.0}}}, VALUE, r"multipliers\.skew: expected a number from 0"),
        ({"recipe": 3}, TYPE, "recipe: expected a dict with texts as keys, got 3"),
        ({"model": [3]}, TYPE, "model: expected a dict"),
        ({"regime": object()}, TYPE, "regime: expected a text, got <object"),
        ({"remedy": 1}, TYPE, "remedy: expected a text, got 1"),
        ({"options": {3: 4}}, TYPE, "options: expected a dict with texts as keys"),
        ({"recipe": {"steps": 0}}, VALUE, "steps: expected at least 1, got 0"),
        ({"recipe": {"batch": "two"}}, TYPE, "batch: expected an integer"),
        ({"recipe": {"schedule": "square"}}, VALUE, "schedule: expected one of constant, linear, cosine"),
        ({"recipe": {"optimizer": "sgd"}}, VALUE, "optimizer: expected one of adam, adamw, got 'sgd'"),
        ({"recipe": {"precision": "fp8"}}, VALUE, "precision: expected one of float32, bf16, fp16"),
        ({"recipe": {"learning_rate": float("nan")}}, VALUE, "learning_rate: expected a positive number"),
        ({"recipe": {"betas": [0.9, 1.0]}}, VALUE, "betas: expected two numbers from 0 to below 1"),
        ({"recipe": {"betas": [0.9]}}, VALUE, "betas: expected a tuple of 2, got 1 entries"),
        ({"recipe": {"clip": 0.0}}, VALUE, "clip: expected a positive number, or None"),
        ({"recipe": {"averaging": 1.0}}, VALUE, "averaging: expected a number between 0 and 1, or None"),
        ({"recipe": {"lowest": 1.5}}, VALUE, "lowest: expected a share of the highest learning rate"),
        ({"recipe": {"weight_decay": -1}}, VALUE, "weight_decay: expected a number from 0"),
        ({"recipe": {"warmup": -1}}, VALUE, "warmup: expected at least 0"),
        ({"recipe": {"log_every": 4, "save_every": 6}}, VALUE, "save_every: expected a multiple of log_every = 4"),
    ],
)  # fmt: skip
def test_an_experiment_is_refused_by_the_name_of_what_is_wrong(
    changes: dict[str, Any], error: type, message: str, unchecked: None
) -> None:
    with pytest.raises(error, match=message) as refused:
        preset("bytes-small").changed(**changes)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"data": "/nowhere/at/all"}, VALUE, "data: expected a file of text such as enwik8 .*, got nothing at"),
        ({"options": {"windows": 3}}, VALUE, "options: expected entries among context, held_out, got 'windows'"),
        ({"regime": "chaos"}, VALUE, "regime: expected one of baseline, tied, .*, got 'chaos'"),
        ({"remedy": "sleep"}, VALUE, "remedy: expected one of none, identity, diagonal, got 'sleep'"),
        ({"model": {"layers": 3}}, VALUE, "model: expected arguments of Lang.*, got layers"),
        ({"model": {"vocab_size": 3}}, VALUE, "model: expected no vocab_size, which the data determine"),
        ({"model": {"positions": "rotary", "rotary_width": 3}}, VALUE, "width: expected an even number"),
        ({"model": {"num_attention_heads": 3}}, VALUE, "num_attention_heads: expected a divisor of hid"),
        ({"model": {"hidden_size": "large"}}, TYPE, "hidden_size: expected an integer, got 'large'"),
        ({"model": {"dropout": 1.5}}, VALUE, "dropout: expected a share from 0 to below 1"),
        ({"recipe": {"precision": "fp16"}}, VALUE, "precision: expected float32 or bf16 without an accelerator"),
    ],
)  # fmt: skip
def test_what_a_run_cannot_be_made_of_is_refused_before_there_is_a_folder(
    changes: dict[str, Any], error: type, message: str, tmp_path: Path, unchecked: None
) -> None:
    experiment = small(tmp_path).changed(**changes)
    with pytest.raises(error, match=message) as refused:
        run(experiment, tmp_path / "run", arguments={"use_cpu": True})
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_an_unknown_task_and_an_unknown_preset_are_refused(tmp_path: Path) -> None:
    values = {**small(tmp_path).as_json(), "task": "sorting"}
    with pytest.raises(ArgumentValueError, match=r"task: expected one of bytes, .*, got 'sorting'"):
        run(Experiment.from_json(values), tmp_path / "run")
    with pytest.raises(ArgumentValueError, match="preset: expected one of enwik8"):
        preset("enwik9")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"arguments": {"max_steps": 3}}, VALUE, "arguments: expected none that experiment, .*, got 'max_steps'"),
        ({"arguments": {"output_dir": "x"}}, VALUE, "arguments: expected none that .*, got 'output_dir'"),
        ({"arguments": {"report_to": "all"}}, VALUE, "arguments: expected none that .*, got 'report_to'"),
        ({"arguments": {"speed": 3}}, VALUE, "arguments: expected names of transformers.TrainingArguments"),
        ({"arguments": {"optim": "sgd"}}, VALUE, "arguments: expected none that .*, got 'optim'"),
        ({"arguments": {"dataloader_prefetch_factor": 2}}, VALUE, "arguments: expected what transformers"),
        ({"arguments": {"fsdp": True, "use_cpu": True}}, VALUE, "fsdp: expected several processes"),
        ({"arguments": ["bf16"]}, TYPE, "arguments: expected a dict"),
        ({"loggers": ["tensorbord"]}, VALUE, "loggers: expected names among .*tensorboard.*, got 'tensorbord'"),
        ({"loggers": ["all"]}, VALUE, "loggers: expected names among"),
        ({"loggers": ["wandb"]}, VALUE, r"loggers: expected installed ones, got wandb \(.*pip install wandb"),
        ({"callbacks": [3]}, TYPE, r"callbacks\[0\]: expected a callback of Hugging Face's Trainer, got 3"),
        ({"callbacks": [TrainerCallback]}, TYPE, r"callbacks\[0\]"),
        ({"threads": 0}, VALUE, "threads: expected at least 1, got 0"),
        ({"progress": "yes"}, TYPE, "progress: expected True or False"),
    ],
)  # fmt: skip
def test_options_of_a_run_are_refused_before_there_is_a_folder(
    options: dict[str, Any], error: type, message: str, tmp_path: Path, unchecked: None
) -> None:
    with pytest.raises(error, match=message) as refused:
        _run.train(small(tmp_path), tmp_path / "run", **{"loggers": (), **options})
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    experiment, folder = small(tmp_path), tmp_path / "run"
    folder.mkdir()
    (folder / "letter.txt").write_text("dear")
    for resume in (False, True):
        with pytest.raises(ArgumentValueError, match="folder: expected a new name, or the folder of a run, got"):
            run(experiment, folder, resume=resume)
    with pytest.raises(ArgumentValueError, match="folder: expected a new name, or the folder of a run, got"):
        run(experiment, folder / "letter.txt")
    assert [path.name for path in folder.iterdir()] == ["letter.txt"]
    assert (folder / "letter.txt").read_text() == "dear"


DAMAGES: dict[str, Callable[[str], str]] = {
    "cut off": lambda text: text[: len(text) // 2],
    "no JSON": lambda _: "once upon a time",
    "empty": lambda _: "",
    "a list": lambda _: "[1, 2]",
    "a number": lambda _: "3",
    "an entry less": lambda text: json.dumps(dict(list(json.loads(text).items())[1:])),
    "nested too deep": lambda _: "[" * 100_000,
    "NaN": lambda text: text.replace(": 0", ": NaN"),
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Path]:
    """A run of two steps, which has ended."""
    folder = tmp_path_factory.mktemp("begun")
    experiment = small(folder, recipe={"steps": 2})
    run(experiment, folder / "run")
    return experiment, folder / "run"


@pytest.fixture
def restored(begun: tuple[Experiment, Path]) -> Iterator[tuple[Experiment, Path]]:
    kept = {name: (begun[1] / name).read_text() for name in ("experiment.json", "record.json")}
    yield begun
    for name, text in kept.items():
        (begun[1] / name).write_text(text)


@pytest.mark.long
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_or_experiment_is_named(restored: tuple[Experiment, Path], damage: str) -> None:
    experiment, folder = restored
    for name in ("record.json", "experiment.json"):
        text = (folder / name).read_text()
        (folder / name).write_text(DAMAGES[damage](text))
        with pytest.raises(ArgumentValueError) as refused:
            run(experiment, folder, resume=True)
        words = str(refused.value)
        assert words.startswith("folder: expected")
        assert str(folder / name) in words
        assert "\n" not in words
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("measures", 5), ("history", {"step": 1}), ("history", [1]), ("steps", "two"), ("status", None), ("layers", []),
        ("notes", "all is well"), ("seconds", None), ("manifest", 3), ("experiment", {"name": "x"}), ("experiment", 4),
        ("measures", {"test": True}), ("layers", {"full": {"distance": [[1.0]]}}), ("validation", [{"loss": 1.0}]),
        ("layers", {"full": {"distance": "an"}}), ("history", [{"step": 1, "loss": "low"}]), ("steps", -1),
        ("notes", [3]), ("seconds", True),
    ],
)  # fmt: skip
def test_a_record_of_other_kinds_of_values_is_named(restored: tuple[Experiment, Path], name: str, value: Any) -> None:
    _, folder = restored
    values = json.loads((folder / "record.json").read_text())
    (folder / "record.json").write_text(json.dumps({**values, name: value}))
    with pytest.raises(ArgumentValueError, match=r"folder: expected a readable record\.json, got") as refused:
        Record.open(folder)
    assert name in str(refused.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"recipe": "fast"}, {"recipe": {"steps": 3}}, {"model": 3}, {"options": None}, {"seed": "one"}, {"data": 3},
        {"recipe": {"steps": 3, "batch": 2, "learning_rate": 1.0, "betas": 3}}, {"further": 1},
        {"recipe": {"steps": 3, "batch": 2, "learning_rate": 1.0, "multipliers": 3}},
    ],
)  # fmt: skip
def test_an_experiment_of_other_kinds_of_values_is_named(
    restored: tuple[Experiment, Path], changed: dict[str, Any], unchecked: None
) -> None:
    experiment, folder = restored
    values = {**json.loads((folder / "experiment.json").read_text()), **changed}
    (folder / "experiment.json").write_text(json.dumps(values))
    with pytest.raises(ArgumentValueError, match=r"folder: expected a readable experiment\.json, got"):
        run(experiment, folder, resume=True)
    with pytest.raises((ArgumentTypeError, ArgumentValueError)):
        Experiment.from_json(values)


def test_a_folder_without_a_record_is_said_to_have_none(tmp_path: Path) -> None:
    with pytest.raises(ArgumentValueError, match=r"folder: expected a folder with record\.json"):
        Record.open(tmp_path)


def test_sequences_stand_for_lists_when_a_run_goes_on(tmp_path: Path) -> None:
    from tokendynamics.training.experiment import differences

    experiment = small(tmp_path).changed(model={"cutoffs": (10, 20)}, recipe={"betas": (0.5, 0.6)})
    stored = Experiment.from_json(json.loads(json.dumps(experiment.as_json())))
    assert differences(stored, experiment) == []
    assert stored.recipe == experiment.recipe


def test_a_process_of_its_own_says_what_is_wrong_in_one_line(
    begun: tuple[Experiment, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, folder = begun
    assert main([str(folder)]) == 0  # it has ended
    assert capsys.readouterr() == ("", "")
    for arguments, code, text in (
        ([], 2, "arguments: expected the folder of one run, got nothing"),
        ([str(tmp_path / "none")], 1, "folder: expected a"),
    ):
        assert main(arguments) == code
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(text)
        assert err.count("\n") == 1
    (tmp_path / "experiment.json").write_text(json.dumps({**experiment.as_json(), "data": "/nowhere"}))
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("data: expected a file of text such as enwik8")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root makes a small file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def filled(disk: Path, left: int = 0) -> Callable[..., None]:
    def fill(*_: Any) -> None:
        with (disk / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                file.truncate(max(file.tell() - left, 0))

    return fill


class AtTheEnd(TrainerCallback):
    def __init__(self, what: Callable[..., None]) -> None:
        self._what = what

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._what()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "left", [20_000, pytest.param(0, marks=pytest.mark.slow), pytest.param(90_000, marks=pytest.mark.slow)]
)
def test_a_disk_that_is_full_during_a_checkpoint_keeps_the_last_one_and_the_run_goes_on_when_there_is_room(
    disk: Path, left: int, tmp_path: Path
) -> None:
    experiment = small(tmp_path, recipe={"averaging": 0.9})
    with pytest.raises(StorageError) as refused:
        run(experiment, disk / "run", callbacks=[At(3, filled(disk, left))])
    words = str(refused.value)
    assert "\n" not in words
    assert "expected room for the results, got no space left on device" in words
    assert "the last checkpoint is whole: continue with --resume" in words
    assert [path.name for path in (disk / "run" / "checkpoints").iterdir()] == ["checkpoint-2"]
    (disk / "filler").unlink()
    run(experiment, disk / "run", resume=True)
    run(experiment, tmp_path / "whole")
    assert_same(disk / "run", tmp_path / "whole")


@pytest.mark.slow
def test_a_disk_that_is_full_before_the_first_checkpoint_is_not_said_to_hold_one(disk: Path, tmp_path: Path) -> None:
    experiment = small(tmp_path)
    with pytest.raises(StorageError) as refused:
        run(experiment, disk / "run", callbacks=[At(1, filled(disk))])
    assert "there is no checkpoint: start again with --resume" in str(refused.value)
    assert list((disk / "run" / "checkpoints").iterdir()) == []
    (disk / "filler").unlink()
    assert run(experiment, disk / "run", resume=True).status == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("left", [pytest.param(0, marks=pytest.mark.slow), 20_000])
def test_a_disk_that_is_full_at_the_end_leaves_no_half_of_a_network(disk: Path, left: int, tmp_path: Path) -> None:
    experiment = small(tmp_path, recipe={"steps": 2})
    with pytest.raises(StorageError, match=r"free space .* continue with --resume"):
        run(experiment, disk / "run", callbacks=[AtTheEnd(filled(disk, left))])
    assert sorted(path.name for path in (disk / "run").iterdir()) == ["checkpoints", "experiment.json"]
    (disk / "filler").unlink()
    assert run(experiment, disk / "run", resume=True).finished
    assert weights(disk / "run" / "model")


def test_no_number_of_the_folder_is_lost_to_a_run_that_is_refused(begun: tuple[Experiment, Path]) -> None:
    experiment, folder = begun
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ArgumentValueError, match=r"folder: expected a name where nothing is, got .*resume=True"):
        run(experiment, folder, callbacks=[At(1, interrupt)])
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_limit_of_file_size_is_named_where_pytorch_names_no_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(*_: object) -> int:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(Path, "write_bytes", limited)
    with (
        pytest.raises(StorageError, match=r"got file too large; raise the limit of a file's size"),
        into_room(tmp_path),
    ):
        raise RuntimeError("unexpected pos 64 vs 0")
