"""Runs that are killed from outside, at any moment: what they leave is resumed to the same numbers and weights."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokendynamics.provenance.manifest import write_json
from tokendynamics.training import Experiment, Record
from tokendynamics.training.folder import checkpoints, last_checkpoint
from training.runs import At, assert_same, run, small

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Path]:
    folder = tmp_path_factory.mktemp("unbroken")
    model = {"regime": "divergence", "form": "solve", "dropout": 0.1}
    recipe = {"steps": 40, "averaging": 0.9, "accumulation": 2, "evaluate_every": 10, "batch": 1}
    experiment = small(folder, model=model, recipe=recipe)
    run(experiment, folder / "run")
    return experiment, folder / "run"


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(work: Callable[[], object]) -> bool:
    """Do the work in a copy of this process; return whether that was killed."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def dies_at(place: Any, name: str, count: int) -> None:
    """Have this process die at a call of a function, counted from 0."""
    genuine, calls = getattr(place, name), iter(range(10**9))

    def call(*given: Any, **options: Any) -> Any:
        if next(calls) == count:
            die()
        return genuine(*given, **options)

    setattr(place, name, call)


@SLOW
def test_killed_in_a_step_and_in_every_part_of_the_writing_a_run_gives_the_same(
    unbroken: tuple[Experiment, Path], tmp_path: Path
) -> None:
    import shutil

    import safetensors.torch
    import torch
    from transformers import PreTrainedModel

    experiment, whole = unbroken
    folder = tmp_path / "run"

    def resumed(*callbacks: Any) -> None:
        run(experiment, folder, resume=True, callbacks=callbacks)

    moments: list[Callable[[], object]] = [
        lambda: resumed(At(1, die)),
        lambda: resumed(At(5, die)),
        lambda: (dies_at(PreTrainedModel, "save_pretrained", 0), resumed()),
        lambda: (dies_at(torch, "save", 1), resumed()),  # the optimiser's state, and not yet the schedule's
        lambda: (dies_at(safetensors.torch, "save_file", 0), resumed()),  # the average
        lambda: (dies_at(os, "fsync", 4), resumed()),
        lambda: (dies_at(os, "rename", 0), resumed()),  # before the name
        lambda: (dies_at(os, "rmdir", 0), resumed()),  # after it
        lambda: (dies_at(os, "rename", 3), resumed()),  # before an older one loses its name
        lambda: (dies_at(shutil, "rmtree", 2), resumed()),
        lambda: (dies_at(PreTrainedModel, "save_pretrained", 15), resumed()),
        lambda: (dies_at(Record, "save", 0), resumed()),
    ]
    for number, moment in enumerate(moments):
        assert killed(moment), number
        last = last_checkpoint(folder / "checkpoints", 1)
        assert (last is None) == (number == 0)
        assert not (folder / "record.json").exists()
    resumed()
    assert_same(folder, whole)


@SLOW
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_calls_of_the_system_a_run_gives_the_same(
    unbroken: tuple[Experiment, Path], tmp_path: Path, seed: int
) -> None:
    experiment, whole = unbroken
    folder, draw = tmp_path / "run", random.Random(seed)  # noqa: S311

    def resumed() -> None:
        run(experiment, folder, resume=True)

    def dying() -> None:
        dies_at(os, draw.choice(("fsync", "rename", "rmdir", "unlink", "replace", "mkdir")), draw.randrange(60))
        resumed()

    for _ in range(6):
        killed(dying)
        last_checkpoint(folder / "checkpoints", 1)  # it is whole, or there is none
        draw.random()
    resumed()
    assert_same(folder, whole)


@SLOW
def test_processes_of_their_own_that_are_killed_at_random_moments_give_the_same(
    unbroken: tuple[Experiment, Path], tmp_path: Path
) -> None:
    experiment, whole = unbroken
    folder, moments = tmp_path / "run", random.Random(0)  # noqa: S311
    folder.mkdir()
    write_json(folder / "experiment.json", experiment.as_json())
    command = [sys.executable, "-m", "tokendynamics.training", str(folder)]

    def begun() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    for wanted in (2, 10, 24):
        process = begun()
        while process.poll() is None and not any(
            int(path.name.rpartition("-")[2]) >= wanted for path in checkpoints(folder / "checkpoints")
        ):
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.3))
        process.kill()
        out, text = process.communicate()
        assert process.returncode == -signal.SIGKILL, text
        assert out == b""
        assert not (folder / "record.json").exists()
    process = begun()
    out, text = process.communicate(timeout=300)
    assert (process.returncode, out) == (0, b""), text
    assert_same(folder, whole)
