"""Measures of a split are those that its items give one by one in float64, the last batch that is not full too."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tokendynamics.modules.language_model import LanguageModel
from tokendynamics.modules.vision import VisionModel
from tokendynamics.training import Record, preset
from tokendynamics.training._trainer import RunTrainer, trainer_arguments
from tokendynamics.training.networks import network_of, task_of
from tokendynamics.training.tasks import Task
from training.runs import run, small


def nats(model: LanguageModel, ids: Tensor) -> Tensor:
    """−log p of every token but the first, from the logits, in float64; (token,)."""
    logits = model(input_ids=ids[None]).logits[0, :-1].double()
    log_p = logits - logits.exp().sum(-1, keepdim=True).log()
    return -log_p.gather(-1, ids[1:, None])[:, 0]


def of_every_token(folder: Path, task: Task, split: str) -> list[Tensor]:
    model, items = LanguageModel.from_pretrained(folder).double().eval(), getattr(task, split)
    ids = [torch.tensor(items[number]["ids"].tolist()) for number in range(len(items))]
    with torch.no_grad():
        return [nats(model, row) for row in ids]


def unequal(losses: list[Tensor], batch: int) -> float:
    """By how much it would be wrong to weigh the last batch like the others."""
    means = [torch.cat(losses[start : start + batch]).mean() for start in range(0, len(losses), batch)]
    return abs(float(torch.stack(means).mean() - torch.cat(losses).mean()))


@pytest.mark.long
def test_bits_per_byte_are_the_mean_over_all_foretold_bytes(tmp_path: Path) -> None:
    experiment = small(tmp_path, model={"dropout": 0.2}, recipe={"batch": 4, "averaging": 0.5, "learning_rate": 2e-2})
    record, task = run(experiment, tmp_path / "run"), task_of(experiment, 1)
    for kind, folder in (("", "model"), (", averaged", "model-averaged")):
        for split in ("validation", "test"):
            losses = of_every_token(tmp_path / "run" / folder, task, split)
            assert len(losses) % 4
            computed, wanted = record.measures[split + kind], float(torch.cat(losses).mean())
            assert computed["loss"] == pytest.approx(wanted, rel=2e-6)
            assert computed["bits_per_byte"] == pytest.approx(wanted / math.log(2), rel=2e-6)
            assert unequal(losses, 4) > 1e-4
    assert record.measures["test"]["loss"] != record.measures["test, averaged"]["loss"]
    last = record.validation[-1]
    assert last["step"] == 6
    assert last["loss"] == record.measures["validation"]["loss"]


@pytest.mark.parametrize(
    ("remainder", "rank", "items"), [(3, 0, 2), (3, 1, 1), (1, 0, 1), (2, 0, 2), (0, 0, 2), (0, 1, 2)]
)
def test_items_that_only_fill_the_last_batch_of_a_process_are_in_no_loss(
    remainder: int, rank: int, items: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two processes with two items each, where so many are left; what repeats others is at the end."""
    experiment = small(tmp_path)
    task = task_of(experiment, 4)
    arguments = trainer_arguments(experiment.recipe, tmp_path / "checkpoints", 0, [], {"use_cpu": True})
    trainer = RunTrainer(network_of(experiment, task), task, experiment.recipe, arguments)
    for name, value in (("world_size", 2), ("process_index", rank)):
        monkeypatch.setattr(type(arguments), name, property(lambda _, value=value: value))
    state = SimpleNamespace(end_of_dataloader=True, remainder=remainder)
    monkeypatch.setattr(trainer, "accelerator", SimpleNamespace(gradient_state=state))
    batch = task.evaluation_batch([task.training[0], task.training[1]])
    kept = batch["input_ids"].clone()
    loss, *_ = trainer.prediction_step(trainer.model, batch, True)
    wanted = [nats(trainer.model, row).mean() for row in kept[:items]]
    assert float(loss) == pytest.approx(float(torch.stack(wanted).mean().detach()), rel=1e-6)
    assert torch.equal(batch["labels"], kept)
    state.end_of_dataloader = False
    loss, *_ = trainer.prediction_step(trainer.model, batch, True)
    assert float(loss) == pytest.approx(
        float(torch.stack([nats(trainer.model, row).mean() for row in kept]).mean().detach()), rel=1e-6
    )


def test_perplexity_is_of_all_words_with_the_context_of_evaluations(tmp_path: Path) -> None:
    words = preset("words-small").changed(
        data=str(tmp_path / "text"),
        model={"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16, "cutoffs": [5, 9]},
        options={"context": 6, "evaluation_context": 9, "held_out": 0.2, "least": 2},
        recipe={"steps": 3, "batch": 4, "save_every": 3, "log_every": 1, "evaluate_every": 3, "warmup": 0},
    )
    small(tmp_path, size=2000)
    (tmp_path / "text-2000.txt").rename(tmp_path / "text")
    record, task = run(words, tmp_path / "run"), task_of(words, 1)
    losses = of_every_token(tmp_path / "run" / "model", task, "test")
    assert {len(loss) for loss in losses} == {9}
    wanted = float(torch.cat(losses).mean())
    assert record.measures["test"]["loss"] == pytest.approx(wanted, rel=2e-6)
    assert record.measures["test"]["perplexity"] == pytest.approx(math.exp(wanted), rel=1e-5)


def test_accuracies_count_every_image_once(tmp_path: Path) -> None:
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "patch_size": 4,
    }
    recipe = {"steps": 6, "batch": 50, "save_every": 6, "log_every": 1, "evaluate_every": 6, "warmup": 0}
    experiment = preset("digits").changed(model=sizes, recipe={**recipe, "learning_rate": 1e-2, "averaging": 0.5})
    record, task = run(experiment, tmp_path / "run"), task_of(experiment, 1)
    items: Any = task.test
    batch = task.evaluation_batch([items[number] for number in range(len(items))])
    for kind, folder in (("", "model"), (", averaged", "model-averaged")):
        model = VisionModel.from_pretrained(tmp_path / "run" / folder).double().eval()
        with torch.no_grad():
            logits = model(pixel_values=batch["pixel_values"].double()).logits
        direct = logits.gather(-1, batch["labels"][:, None])
        better = (logits > direct).sum(-1)
        computed = record.measures["test" + kind]
        assert computed["top1"] == pytest.approx(100 * float((better == 0).double().mean()), abs=1e-9)
        assert computed["top5"] == pytest.approx(100 * float((better < 5).double().mean()), abs=1e-9)
        assert computed["loss"] == pytest.approx(float((logits.logsumexp(-1) - direct[:, 0]).mean()), rel=2e-6)
        assert 10 < computed["top1"] < computed["top5"] < 100
    assert record == Record.open(tmp_path / "run")
