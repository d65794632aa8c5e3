"""A run that was stopped anywhere and resumed gives what one gives that was not: to the last bit, and no file more."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.training import Experiment, Record, _run, _trainer, _training_run, folder
from tokendynamics.training.monitor._network import draws_kept
from training.runs import At, assert_same, files, interrupt, run, small, weights

EVERYTHING: dict[str, Any] = {
    "model": {"regime": "convergence", "dropout": 0.1, "remedy": "diagonal", "positions": "decoupled"},
    "recipe": {"averaging": 0.8, "accumulation": 2},
}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Path]:
    folder = tmp_path_factory.mktemp("unbroken")
    experiment = small(folder, **EVERYTHING)
    run(experiment, folder / "run")
    return experiment, folder / "run"


def after(function: Callable[..., Any]) -> Callable[..., Any]:
    def broken_off(*given: Any, **options: Any) -> Any:
        function(*given, **options)
        interrupt()

    return broken_off


MOMENTS: dict[str, Callable[[pytest.MonkeyPatch], list[Any]]] = {
    "before the first checkpoint": lambda _: [At(1, interrupt)],
    "in a step": lambda _: [At(3, interrupt)],
    "before a checkpoint has its name": lambda patch: patch.setattr(_trainer, "put_checkpoint", interrupt) or [],
    "after a checkpoint": lambda patch: patch.setattr(_trainer, "put_checkpoint", after(_trainer.put_checkpoint)) or [],
    "before an older checkpoint is removed": lambda patch: patch.setattr(folder, "_remove", interrupt) or [],
    "before the network has its name": lambda patch: patch.setattr(_training_run, "put_folder", interrupt) or [],
    "after the network has its name": lambda patch: (
        patch.setattr(_training_run, "put_folder", after(_training_run.put_folder)) or []
    ),
    "before the record": lambda patch: patch.setattr(_training_run.Record, "save", interrupt) or [],
}


@pytest.mark.slow
def test_stopped_again_and_again_a_run_gives_the_same(
    unbroken: tuple[Experiment, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, whole = unbroken
    for name in (
        "in a step",
        "before a checkpoint has its name",
        "before an older checkpoint is removed",
        "before the record",
    ):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            run(experiment, tmp_path / "run", resume=True, callbacks=MOMENTS[name](patch))
    record = run(experiment, tmp_path / "run", resume=True)
    assert record.finished
    assert_same(tmp_path / "run", whole)
    assert weights(whole / "model").keys() == weights(whole / "model-averaged").keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", MOMENTS)
def test_stopped_at_one_moment_a_run_gives_the_same(
    unbroken: tuple[Experiment, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    experiment, whole = unbroken
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        run(experiment, tmp_path / "run", callbacks=MOMENTS[name](patch))
    run(experiment, tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("regime", "form"),
    [("baseline", "congruence"), ("tied", "solve"), ("divergence", "solve"), ("contracting", "congruence")],
)
def test_every_way_to_make_weights_goes_on_the_same(regime: str, form: str, tmp_path: Path) -> None:
    changes = {
        "model": {"regime": regime, "form": form, "output": "free"},
        "recipe": {"schedule": "linear", "steps": 5},
    }
    experiment = small(tmp_path, **changes)
    run(experiment, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(experiment, tmp_path / "stopped", callbacks=[At(3, interrupt)])
    run(experiment, tmp_path / "stopped", resume=True)
    assert_same(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.slow
def test_images_with_drop_path_and_averages_go_on_the_same(tmp_path: Path) -> None:
    from tokendynamics.training import preset

    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "patch_size": 2,
    }
    recipe = {"steps": 5, "batch": 8, "save_every": 2, "log_every": 2, "warmup": 1, "evaluate_every": 4}
    experiment = preset("digits").changed(model={**sizes, "drop_path": 0.5, "regime": "expanding"}, recipe=recipe)
    run(experiment, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(experiment, tmp_path / "stopped", callbacks=[At(5, interrupt)])
    run(experiment, tmp_path / "stopped", resume=True)
    assert_same(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.long
def test_a_finished_run_leaves_these_files_and_no_remains(unbroken: tuple[Experiment, Path]) -> None:
    _, whole = unbroken
    network = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    values = [name for name in files(whole) if not name.startswith("checkpoints/checkpoint-")]
    wanted = [f"{folder}/{name}" for folder in ("model", "model-averaged") for name in network]
    assert values == sorted(["checkpoints", "experiment.json", "model", "model-averaged", "record.json", *wanted])
    assert sorted(path.name for path in (whole / "checkpoints").iterdir()) == ["checkpoint-4", "checkpoint-6"]


@pytest.mark.long
def test_a_run_that_has_ended_is_not_run_again(unbroken: tuple[Experiment, Path]) -> None:
    experiment, whole = unbroken
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    record = run(experiment, whole, resume=True, callbacks=[At(1, interrupt)])
    assert record.finished
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before
    assert record == Record.open(whole)


@pytest.mark.long
def test_what_a_kill_left_of_the_record_s_writing_goes(unbroken: tuple[Experiment, Path]) -> None:
    experiment, whole = unbroken
    left = whole / ".record.json.partial-0123456789ab"
    left.mkdir()
    run(experiment, whole, resume=True)
    assert not left.exists()


def test_the_generators_of_the_caller_are_left_as_they_were(unbroken: tuple[Experiment, Path], tmp_path: Path) -> None:
    def states() -> list[bytes]:  # Python's own is drawn from by the checks of types in these tests
        return [pickle.dumps(np.random.get_state()), torch.get_rng_state().numpy().tobytes()]  # noqa: NPY002

    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    before = states()
    with pytest.raises(KeyboardInterrupt):
        run(unbroken[0], tmp_path / "run", callbacks=[At(1, interrupt)])
    assert states() == before
    kept = draws_kept()  # the check of its argument's type draws, too
    python = random.getstate()
    with kept:
        random.seed(0)
    assert random.getstate() == python


def test_a_run_that_another_process_is_at_is_refused_and_one_whose_process_is_gone_is_not(
    unbroken: tuple[Experiment, Path], tmp_path: Path
) -> None:
    experiment, refusals = unbroken[0], list[str]()

    def twice(_: Any) -> None:
        with pytest.raises(ArgumentValueError) as refused:
            run(experiment, tmp_path / "run", resume=True)
        refusals.append(str(refused.value))
        interrupt()

    with pytest.raises(KeyboardInterrupt):
        run(experiment, tmp_path / "run", callbacks=[At(1, twice)])
    assert refusals == [
        f"folder: expected a run that no other process is writing, got {tmp_path / 'run'}; wait until it has ended"
    ]
    with pytest.raises(KeyboardInterrupt):
        run(experiment, tmp_path / "run", resume=True, callbacks=[At(1, interrupt)])


def test_further_processes_leave_it_to_the_first_to_look(
    unbroken: tuple[Experiment, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, whole = unbroken
    monkeypatch.setenv("RANK", "1")
    assert _run._former(whole, experiment.changed(seed=3), False) == Record.open(whole)
    (tmp_path / "letter").touch()
    assert _run._former(tmp_path, experiment, False) is None


def test_a_changed_experiment_is_refused_with_the_difference(unbroken: tuple[Experiment, Path]) -> None:
    experiment, whole = unbroken
    other = experiment.changed(regime="divergence", recipe={"steps": 7, "multipliers": {"skew": 1.0}}, seed=3)
    with pytest.raises(ArgumentValueError) as refused:
        run(other, whole, resume=True)
    words = str(refused.value)
    for part in (
        "model.regime: convergence then, divergence now",
        "recipe.steps: 6 then, 7 now",
        "recipe.multipliers.skew: 2.5 then, 1.0 now",
        "seed: 0 then, 3 now",
    ):
        assert part in words
    assert "\n" not in words


@pytest.mark.slow
def test_a_damaged_checkpoint_stops_the_run_and_without_it_the_numbers_are_the_same(
    unbroken: tuple[Experiment, Path], tmp_path: Path
) -> None:
    experiment, whole = unbroken
    with pytest.raises(KeyboardInterrupt):
        run(experiment, tmp_path / "run", callbacks=[At(5, interrupt)])
    damaged = tmp_path / "run" / "checkpoints" / "checkpoint-4" / "optimizer.pt"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"got optimizer\.pt changed; remove this checkpoint and resume"):
        run(experiment, tmp_path / "run", resume=True)
    for path in damaged.parent.iterdir():
        path.unlink()
    damaged.parent.rmdir()
    run(experiment, tmp_path / "run", resume=True)
    assert_same(tmp_path / "run", whole)
