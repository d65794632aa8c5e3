"""What a run does: accumulation, precision, averages, curves, and what becomes of a loss that is no number."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

import tokendynamics as td
from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig
from tokendynamics.modules.vision import VisionConfig, VisionModel
from tokendynamics.training import Experiment, Record, _trainer
from tokendynamics.training._trainer import RunTrainer
from tokendynamics.training._training_run import through_layers
from tokendynamics.training.networks import network_of, task_of
from training.runs import At, files, interrupt, run, small, weights

SIZES: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


class Watched(TrainerCallback):
    """Keeps every weight, and every sign that stays as it is, after every step."""

    def __init__(self) -> None:
        self.weights: list[dict[str, Tensor]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        model = given["model"]
        signs = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("signs")]
        named = [*model.named_parameters(), *signs]
        self.weights.append({name: entry.detach().double().clone() for name, entry in named})


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Path, Watched, list[tuple[float, float]]]:
    """A run that was interrupted after step 5, with its curves, its weights, and what it told of its steps."""
    folder, watched, message = tmp_path_factory.mktemp("averaged"), Watched(), list[tuple[float, float]]()
    experiment = small(folder, model={"regime": "divergence"}, recipe={"averaging": 0.7, "batch": 4})
    options: dict[str, Any] = {
        "loggers": ("tensorboard",),
        "progress": lambda done, total, _: message.append((done, total)),
    }
    with pytest.raises(KeyboardInterrupt):
        run(experiment, folder / "run", callbacks=[watched, At(5, interrupt)], **options)
    del watched.weights[4:]  # the run goes on from step 4
    run(experiment, folder / "run", resume=True, callbacks=[watched], **options)
    return experiment, folder / "run", watched, message


@pytest.mark.slow
def test_the_average_is_its_recursion(averaged: tuple[Experiment, Path, Watched, Any]) -> None:
    _, folder, watched, _ = averaged
    assert len(watched.weights) == 6
    mean = watched.weights[0]
    for after in watched.weights[1:]:
        mean = {name: 0.7 * mean[name] + 0.3 * after[name] for name in mean}
    kept, last = weights(folder / "model-averaged"), weights(folder / "model")
    assert kept.keys() == mean.keys()
    for name, value in kept.items():
        torch.testing.assert_close(value.double(), mean[name], rtol=1e-5, atol=1e-7)
        assert torch.equal(last[name].double(), watched.weights[-1][name])
    shifted = max(float((kept[name] - last[name]).abs().max()) for name in kept)
    assert shifted > 1e-3
    signs = [name for name in kept if name.endswith("signs")]
    assert signs
    assert all(bool((kept[name].abs() == 1).all()) for name in signs)


@pytest.mark.long
def test_progress_is_told_from_where_the_run_goes_on(averaged: tuple[Any, Any, Any, list[tuple[float, float]]]) -> None:
    assert averaged[3] == [(done, 6) for done in (0, 1, 2, 3, 4, 5, 4, 5, 6)]


@pytest.mark.long
def test_curves_are_in_logs_once_for_every_step_and_nowhere_else(averaged: tuple[Experiment, Path, Any, Any]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, folder, _, _ = averaged
    assert not any("events" in name or name.endswith("runs") for name in files(folder))
    read = EventAccumulator(str(folder / "logs"))
    read.Reload()
    scalars = {tag: {scalar.step: scalar.value for scalar in read.Scalars(tag)} for tag in read.Tags()["scalars"]}
    record = Record.open(folder)
    assert [scalar.step for scalar in read.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6]
    for entry in record.history:
        assert scalars["train/loss"][entry["step"]] == pytest.approx(entry["loss"], rel=1e-6)
        assert scalars["train/learning_rate"][entry["step"]] == pytest.approx(
            entry["learning_rate"], rel=1e-6, abs=1e-9
        )
    names = {"bits_per_byte", "query_condition", "value_condition", "contraction_condition", "value_real_lowest"}
    for entry in record.validation:
        for name in names:
            assert scalars[f"eval/{name}"][entry["step"]] == pytest.approx(entry[name], rel=1e-6)
    assert {"test/bits_per_byte", "test/averaged_bits_per_byte", "train/validation_bits_per_byte"} <= scalars.keys()


def test_nothing_is_printed_on_standard_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(small(tmp_path, recipe={"steps": 2}), tmp_path / "run", loggers=("tensorboard",))
    assert capfd.readouterr().out == ""


def test_other_loggers_are_told_what_tensorboard_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.integrations import integration_utils

    message: list[dict[str, float]] = []

    class Recorder(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            message.append(logs)

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "mlflow", Recorder)
    run(small(tmp_path, recipe={"steps": 2}), tmp_path / "run", loggers=["mlflow"])
    assert [logs["loss"] for logs in message if "loss" in logs] == [
        entry["loss"] for entry in Record.open(tmp_path / "run").history
    ]
    assert not (tmp_path / "run" / "logs").exists()


@pytest.mark.long
def test_accumulated_batches_have_the_gradient_of_one_batch_of_all(tmp_path: Path) -> None:
    values = []
    for name, recipe in (("four", {"batch": 1, "accumulation": 4}), ("one", {"batch": 4, "accumulation": 1})):
        experiment = small(tmp_path, recipe={"steps": 2, "warmup": 0, **recipe})
        values.append(run(experiment, tmp_path / name).history)
    for actual, wanted in zip(*values, strict=True):
        assert actual["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
        assert actual["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-3)
    assert values[1][0]["grad_norm"] > 0.1


class Repeated(torch.utils.data.Dataset):
    def __init__(self, items: list[dict[str, Tensor]]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return self._items[number]


def decoder() -> tuple[nn.Module, Repeated]:
    torch.manual_seed(0)
    ids = torch.randint(20, (8, 9))
    model = LanguageModel(LanguageModelConfig(vocab_size=20, **SIZES, regime="convergence"))
    return model, Repeated([{"input_ids": row, "labels": row} for row in ids])


def vision() -> tuple[nn.Module, Repeated]:
    torch.manual_seed(0)
    model = VisionModel(VisionConfig(image_size=4, patch_size=2, num_labels=3, **SIZES, regime="tied"))
    items = [{"pixel_values": torch.rand(3, 4, 4), "labels": torch.tensor(number % 3)} for number in range(8)]
    return model, Repeated(items)


@pytest.mark.slow
@pytest.mark.parametrize("make", [decoder, vision])
def test_anybody_s_trainer_accumulates_our_losses_rightly(
    make: Callable[[], tuple[nn.Module, Repeated]], tmp_path: Path
) -> None:
    """The networks take further arguments; a Trainer that hands them the number of items must still divide."""
    values = []
    for batch in (1, 4):
        model, items = make()
        arguments = TrainingArguments(
            str(tmp_path / str(batch)), max_steps=2, per_device_train_batch_size=batch, report_to=[], use_cpu=True,
            gradient_accumulation_steps=4 // batch, optim="sgd", learning_rate=0.1, max_grad_norm=0, disable_tqdm=True,
            train_sampling_strategy="sequential", save_strategy="no", lr_scheduler_type="constant",
        )  # fmt: skip
        Trainer(model=model, args=arguments, train_dataset=items).train()
        values.append({name: value.detach() for name, value in model.named_parameters()})
    started = dict(make()[0].named_parameters())
    for name, value in values[0].items():
        torch.testing.assert_close(value, values[1][name], rtol=1e-4, atol=1e-6)
    assert max(float((value - started[name].detach()).abs().max()) for name, value in values[1].items()) > 1e-3


@pytest.mark.slow
def test_mixed_precision_learns_and_the_built_layers_keep_their_signs(tmp_path: Path) -> None:
    recipe = {
        "steps": 12,
        "precision": "bf16",
        "learning_rate": 1e-2,
        "warmup": 0,
        "evaluate_every": 12,
        "save_every": 12,
    }
    experiment = small(tmp_path, model={"regime": "convergence"}, recipe=recipe)
    record = run(experiment, tmp_path / "half")
    losses = [entry["loss"] for entry in record.history]
    assert all(loss is not None for loss in losses)
    assert losses[-1] < losses[0] - 0.5
    model = LanguageModel.from_pretrained(tmp_path / "half" / "model")
    assert model.dtype == torch.float32
    for layer in model.double().model.layers:  # A is W over V: its digits are lost in float32
        qk, ov = layer.attention.circuits()
        form = qk @ torch.linalg.inv(ov)
        assert bool((torch.linalg.eigvalsh(qk + qk.T) > 0).all())
        assert bool((torch.linalg.eigvalsh(form + form.T) < 0).all())
    full = run(experiment.changed(recipe={"precision": "float32", "steps": 1}), tmp_path / "full").history
    assert 0 < abs(full[0]["loss"] - losses[0]) < 0.05  # it was another precision, and the same network
    task = task_of(experiment, 1)
    batch = task.evaluation_batch([task.test[number] for number in range(8)])
    assert through_layers(model, batch) == record.layers  # in float64, whatever the precision of the training


def planted(model: nn.Module) -> None:
    with torch.no_grad():
        model.lm_head.weight[3, 1] = math.nan


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("changes", "callbacks", "first", "cause"),
    [
        (
            {},
            [At(3, planted)],
            "the loss is nan in step 4; the last checkpoint is from before that: checkpoint-2",
            "no cause was",
        ),
        (
            {},
            [At(4, planted)],
            "the weight lm_head.weight is not finite after step 4; "
            "the last checkpoint is from before that: checkpoint-2",
            "no cause was",
        ),
        ({}, [At(1, planted)], "the loss is nan in step 2; there is no checkpoint", "no cause was"),
        (
            {"learning_rate": 1e5, "schedule": "constant", "steps": 20},
            [],
            "",
            "the loss rose from 5.",
        ),
    ],
)
def test_a_loss_that_is_no_number_ends_the_run_and_the_last_good_checkpoint_stays(
    changes: dict[str, Any], callbacks: list[Any], first: str, cause: str, tmp_path: Path
) -> None:
    experiment, folder = small(tmp_path, recipe={"warmup": 0, **changes}), tmp_path / "run"
    record = run(experiment, folder, callbacks=callbacks)
    assert record.status == "not finite"
    assert not record.finished
    assert record.notes[0].startswith(first)
    assert any(note.startswith(cause) for note in record.notes[1:])
    assert record.steps < experiment.recipe.steps
    assert record == Record.open(folder)
    assert not (folder / "model").exists()
    for checkpoint in (folder / "checkpoints").glob("checkpoint-*"):
        assert all(bool(torch.isfinite(value).all()) for value in weights(checkpoint).values())
    assert run(experiment, folder, resume=True) == record


def test_a_loss_on_a_split_that_is_no_number_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokendynamics.training._training_run import TrainingRun

    genuine = TrainingRun._measures

    def overflown(self: TrainingRun, kind: str) -> Any:
        return {split: {**values, "loss": None} for split, values in genuine(self, kind).items()}

    monkeypatch.setattr(TrainingRun, "_measures", overflown)
    record = run(small(tmp_path, recipe={"steps": 2}), tmp_path / "run")
    assert record.status == "not finite"
    assert record.notes[0] == "the loss on validation is not finite after step 2, and every weight is"


@pytest.mark.long
def test_the_network_is_read_like_any_other(averaged: tuple[Experiment, Path, Any, Any]) -> None:
    experiment, folder, _, _ = averaged
    for name in ("model", "model-averaged"):
        assert td.load(folder / name).architecture.heads == experiment.model["num_attention_heads"]
    record = Record.open(folder)
    assert record.manifest["parameters"] == {"processes": 1, "arguments": {}}
    assert record.manifest["seed"] == 0
    assert record.seconds > 0


def test_runs_of_one_seed_see_the_same_data_and_start_alike_whatever_their_regime(tmp_path: Path) -> None:
    chosen = (("baseline", 4), ("convergence", 4), ("baseline", 5))
    every = [small(tmp_path, model={"regime": regime}, seed=seed) for regime, seed in chosen]
    tasks = [task_of(entry, 6) for entry in every]
    drawn = [[bytes(task.training[number]["ids"]) for number in range(6)] for task in tasks]
    assert drawn[0] == drawn[1] != drawn[2]
    starts = [dict(network_of(entry, task).named_parameters()) for entry, task in zip(every, tasks, strict=True)]
    apart = [name for name in starts[0] if "attention." not in name]
    assert all(torch.equal(starts[0][name], starts[1][name]) for name in apart)
    assert not torch.equal(starts[0]["lm_head.weight"], starts[2]["lm_head.weight"])


def test_weights_follow_parameters_whose_changes_pytorch_does_not_count(tmp_path: Path) -> None:
    experiment = small(tmp_path, model={"regime": "convergence"})
    task = task_of(experiment, 6)
    arguments = _trainer.trainer_arguments(experiment.recipe, tmp_path / "checkpoints", 0, [], {"use_cpu": True})
    trainer = RunTrainer(network_of(experiment, task), task, experiment.recipe, arguments)
    model, batch = trainer.model, task.evaluation_batch([task.training[0]])
    before = float(trainer.compute_loss(model, batch).detach())
    for parameter in model.parameters():
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(parameter):
            parameter.mul_(2 - parameter.abs())
    wanted = float(copy.deepcopy(model)(**batch).loss.detach())
    values = []
    for sharded in (False, True):
        trainer.is_fsdp_enabled = sharded
        values.append(float(trainer.compute_loss(model, batch).detach()))
    assert values == [wanted, wanted] != [before, before]


def test_several_devices_of_one_process_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda self: getattr(self, "_n_gpu", 4)))
    recipe = small(tmp_path).recipe
    made = _trainer.trainer_arguments(recipe, tmp_path / "checkpoints", 0, [], {"use_cpu": True})
    assert made._n_gpu <= 1
    assert made.train_batch_size == recipe.batch
