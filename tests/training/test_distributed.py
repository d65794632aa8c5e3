"""Two processes that train together give what one gives with twice the batch, one set of files, and can be stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tokendynamics.modules.language_model import LanguageModel
from tokendynamics.provenance.manifest import write_json
from tokendynamics.training import Experiment, Record
from tokendynamics.training.folder import checkpoints
from tokendynamics.training.networks import task_of
from training.runs import assert_same, files, run, small, weights
from training.test_accumulation import decoder, largest_difference, texts, trained
from training.test_evaluation import nats

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
CHANGES: dict[str, Any] = {
    "model": {"regime": "convergence", "remedy": "identity"},
    "recipe": {"batch": 2, "accumulation": 2, "averaging": 0.8, "steps": 8, "evaluate_every": 4, "clip": 0.3},
}


def together(*command: str, processes: int = 2) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [*launcher, "--no-python", sys.executable, *command]


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `several_processes.py` made, and beside it what one process makes with twice the batch."""
    place = tmp_path_factory.mktemp("several")
    experiment = small(place, size=2000, **CHANGES)
    write_json(place / "experiment.json", experiment.as_json())
    script = str(TESTS / "training" / "several_processes.py")
    done = subprocess.run(
        together(script, str(place)), capture_output=True, text=True, env=environment(), check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    run(experiment.changed(recipe={"batch": 4}), place / "alone")
    return place


def assert_close(one: Path, other: Path) -> None:
    """Hold that two runs gave the same up to the order in which sums were taken."""
    first, second = Record.open(one), Record.open(other)
    assert (first.status, first.steps) == (second.status, second.steps) == ("finished", 8)
    for actual, reference in zip(first.history, second.history, strict=True):
        assert actual["loss"] == pytest.approx(reference["loss"], rel=1e-4)
        assert actual["grad_norm"] == pytest.approx(reference["grad_norm"], rel=1e-2)
        assert actual["learning_rate"] == reference["learning_rate"]
    for actual, reference in zip(first.validation, second.validation, strict=True):
        assert (actual["step"], actual.keys()) == (reference["step"], reference.keys())
        assert actual["loss"] == pytest.approx(reference["loss"], rel=1e-4)
    for split, values in first.measures.items():
        assert values["loss"] == pytest.approx(second.measures[split]["loss"], rel=1e-4)
    for kind, values in first.layers.items():
        for name, depths in values.items():
            assert depths == pytest.approx(second.layers[kind][name], rel=1e-2)
    for name in ("model", "model-averaged"):
        actual, reference = weights(one / name), weights(other / name)
        assert actual.keys() == reference.keys()
        for part, value in actual.items():  # Adam makes a full step of a gradient near zero; most gradients are larger
            assert float((value - reference[part]).abs().median()) < 1e-4


@pytest.mark.parametrize("name", ["together", "sharded"])
def test_two_processes_give_what_one_gives_with_twice_the_batch(folder: Path, name: str) -> None:
    assert_close(folder / name, folder / "alone")
    assert Record.open(folder / name).manifest["parameters"]["processes"] == 2
    shifted = weights(folder / name / "model")
    started = weights(folder / name / "model-averaged")
    assert max(float((shifted[part] - started[part]).abs().max()) for part in shifted) > 1e-3


def test_two_processes_with_unequal_numbers_of_labels_give_what_one_gives(folder: Path, tmp_path: Path) -> None:
    alone = trained(decoder(), texts(), 4, tmp_path)
    assert largest_difference(alone, torch.load(folder / "unequal.pt", weights_only=True)) < 2e-6


def test_the_weights_were_sharded_where_that_was_asked_for(folder: Path) -> None:
    for rank in (0, 1):
        assert json.loads((folder / f"found-{rank}.json").read_text())["sharded"] == [True]


def test_sharded_weights_in_half_precision_have_a_loss_in_single(folder: Path) -> None:
    wanted = Record.open(folder / "alone").history[0]["loss"]
    for rank in (0, 1):
        computed = json.loads((folder / f"found-{rank}.json").read_text())["half"]
        assert 1e-7 < abs(computed / wanted - 1) < 1e-3  # another precision, and finer than the 2⁻⁸ that bfloat16 has
    layers = Record.open(folder / "half and sharded").layers["full"]["norm"]
    assert layers[0] != pytest.approx(float(torch.tensor(layers[0]).bfloat16()), rel=1e-6)


@pytest.mark.parametrize(("stopped", "whole"), [("stopped", "together"), ("sharded and stopped", "sharded")])
def test_stopped_and_resumed_they_give_the_same_to_the_last_bit(folder: Path, stopped: str, whole: str) -> None:
    assert_same(folder / stopped, folder / whole)


def test_there_is_one_set_of_files(folder: Path) -> None:
    actual, alone = files(folder / "together"), files(folder / "alone")
    generators = {f"checkpoints/checkpoint-{step}/rng_state_{rank}.pth" for step in (6, 8) for rank in (0, 1)}
    assert set(actual) - set(alone) == generators
    assert len(list((folder / "together" / "logs").iterdir())) == 1
    assert not list(folder.rglob("*.partial*"))


def test_the_first_process_writes_samples_unless_weights_are_sharded(folder: Path) -> None:
    assert [path.name for path in (folder / "planted" / "samples").iterdir()] == ["step-000002.txt"]
    assert not (folder / "sharded" / "samples").exists()


def test_every_item_of_a_split_counts_once_however_many_there_are(folder: Path) -> None:
    experiment = Experiment.from_json(json.loads((folder / "experiment.json").read_text()))
    from tokendynamics.training.networks import network_of

    task = task_of(experiment, 1)
    model = network_of(experiment, task).double().eval()
    assert isinstance(model, LanguageModel)
    items: Any = task.validation
    with torch.no_grad():
        losses = [nats(model, torch.tensor(items[number]["ids"].tolist())).mean() for number in range(7)]
    wanted = [float(torch.stack(losses[:count]).mean()) for count in range(1, 8)]
    for rank in (0, 1):
        computed = json.loads((folder / f"found-{rank}.json").read_text())["lengths"]
        assert computed == pytest.approx(wanted, rel=2e-6)


@pytest.mark.parametrize(
    ("name", "seen", "steps"),
    [
        ("planted", ["the loss is nan in step 4"] * 2, 3),
        ("sharded and planted", ["the loss is nan in step 4"] * 2, 3),
        (
            "planted apart",
            [
                f"the weight {name} is not finite after step 4"
                for name in ("of another process", "model.embed_tokens.weight")
            ],
            4,
        ),
    ],
)
def test_what_is_no_number_in_one_process_stops_all(folder: Path, name: str, seen: list[str], steps: int) -> None:
    for rank in (0, 1):
        status, first, *_ = json.loads((folder / f"found-{rank}.json").read_text())[name]
        assert status == "not finite"
        assert first == f"{seen[rank]}; the last checkpoint is from before that: checkpoint-2"
    assert Record.open(folder / name).steps == steps


def test_killed_and_launched_anew_they_give_the_same_and_another_number_of_them_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    place = tmp_path / "run"
    place.mkdir()
    (place / "experiment.json").write_text((folder / "experiment.json").read_text())
    command = ("-m", "tokendynamics.training", str(place))

    def begun(processes: int) -> subprocess.Popen[str]:
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(together(*command, processes=processes), env=environment(), **options)

    process = begun(2)
    while process.poll() is None and not checkpoints(place / "checkpoints"):
        time.sleep(0.005)
    every = [process, *psutil.Process(process.pid).children(recursive=True)]
    for entry in every:
        entry.send_signal(signal.SIGKILL)
    process.communicate()
    assert checkpoints(place / "checkpoints")
    assert not (place / "record.json").exists()
    alone = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environment(), check=False, timeout=300
    )
    assert alone.returncode == 1
    assert alone.stderr.startswith("processes: expected 2, with which the run was started: others would use other data")
    process = begun(2)
    out, text = process.communicate(timeout=300)
    assert (process.returncode, out) == (0, ""), text
    assert_same(place, folder / "together")
