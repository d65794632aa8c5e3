"""In a Trainer: numbers where its loggers are, checkpoints that a run goes on from, and no model that stops it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor, nn

from tokendynamics.training import Monitor
from training.monitored import Sequences, gpt2, language_model, losses_of, own_loop, texts, trainer


def _events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = EventAccumulator(str(next(folder.rglob("events.out*")).parent))
    result.Reload()
    return result


@pytest.mark.long
def test_every_number_is_in_tensorboard_under_its_name_at_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    monitor = Monitor(texts(), every=3)
    run = trainer(language_model(), tmp_path, [monitor], report_to=["tensorboard"], max_steps=4, logging_steps=100)
    run.train()
    table, events = monitor.dataset, _events(tmp_path / "logs")
    names = {f"tokens/{name}": table[name] for name in ("share_common", "share_prompt", "share_own", "centred_cos2",
             "consensus_within", "consensus_relative", "attention_sink_mass")}  # fmt: skip
    for part in ("attention", "feed_forward"):
        names[f"tokens/update_ratio_{part}"] = table.update_ratio.sel(component=part)
    wanted = set()
    for name, values in names.items():
        for layer in range(4):
            column = values.sel(layer=layer)
            if bool(column.notnull().all()):
                wanted.add(f"train/{name}/layer_{layer:02}")
                result = events.Scalars(f"train/{name}/layer_{layer:02}")
                assert [entry.step for entry in result] == table.step.values.tolist() == [0, 3, 4]
                np.testing.assert_allclose([entry.value for entry in result], column, rtol=1e-6)
    for name in ("share_common", "consensus_relative", "line_excess"):
        wanted.add(f"train/tokens/{name}/final_norm")
        values = [scalar.value for scalar in events.Scalars(f"train/tokens/{name}/final_norm")]
        np.testing.assert_allclose(values, table[f"final_norm_{name}"], rtol=1e-6)
    assert {tag for tag in events.Tags()["scalars"] if "tokens/" in tag} == wanted
    assert len(wanted) == 6 * 4 + 3 * 3 + 3  # neither updates nor attention before the first layer
    assert "tokens/" not in capsys.readouterr().out  # nobody reads hundreds of numbers a line
    assert not any("tokens" in name for line in run.state.log_history for name in line)


def test_a_writer_of_one_s_own_takes_the_same_numbers(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    message: list[tuple[str, float, int]] = []
    by_function = Monitor(texts(), every=2, writer=lambda name, value, step: message.append((name, value, step)))
    with SummaryWriter(str(tmp_path)) as writer:
        by_board = Monitor(texts(), every=2, writer=writer)
        own_loop(gpt2(), 2, lambda model: (by_function.step(model), by_board.step(model)))
    events = _events(tmp_path)
    assert sorted({step for _, _, step in message}) == [1, 2]
    for name, value, step in message:
        by_name = {scalar.step: scalar.value for scalar in events.Scalars(name)}
        assert by_name[step] == pytest.approx(value, rel=1e-6)


class _Stopped(Exception):
    pass


def _stopping(at: int) -> Any:
    from transformers import TrainerCallback

    class Stopping(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if state.global_step == at:
                raise _Stopped

    return Stopping()


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_with_what_was_measured(tmp_path: Path) -> None:
    """Steps measured after the checkpoint are measured again; nothing is lost and nothing is there twice."""
    checkpoints: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4}
    whole, first, second, third, other = (Monitor(texts(seed=seed), every=3) for seed in (0, 0, 0, 0, 1))
    trainer(language_model(), tmp_path / "whole", [whole], **checkpoints).train()
    with pytest.raises(_Stopped):
        trainer(language_model(), tmp_path / "stopped", [first, _stopping(7)], **checkpoints).train()
    assert first.dataset.step.values.tolist() == [0, 3, 6]
    for monitor, restoring in ((second, False), (third, True), (other, False)):
        checkpoints["restore_callback_states_from_checkpoint"] = restoring
        run = trainer(language_model(), tmp_path / "stopped", [monitor], **checkpoints)
        run.train(resume_from_checkpoint=str(tmp_path / "stopped" / "checkpoint-4"))
    for monitor in (second, third):
        xr.testing.assert_identical(monitor.dataset, whole.dataset)
        assert monitor.changes == whole.changes
    assert other.dataset.step.values.tolist() == [6, 8]  # numbers of other texts cannot be gone on with


@pytest.mark.long
def test_a_second_training_begins_anew(tmp_path: Path) -> None:
    monitor = Monitor(texts(), every=2)
    for steps in (3, 2):
        trainer(gpt2(), tmp_path, [monitor], max_steps=steps).train()
    assert monitor.dataset.step.values.tolist() == [0, 2]


class _Unreadable(nn.Module):
    """No blocks, and a loss all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(61, 61)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.table(input_ids)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def test_a_model_that_cannot_be_read_is_one_line_and_trains_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    computed, monitor = [], Monitor(texts(), every=2)
    for callbacks in ([], [monitor]):
        torch.manual_seed(0)
        run = trainer(_Unreadable(), tmp_path, callbacks, max_steps=4)
        run.train()
        computed.append(losses_of(run))
    assert computed[0] == computed[1]
    (line,) = (record.message for record in caplog.records if record.name == "tokendynamics")
    assert line.startswith("step 0: not measured: this needs a transformers network, or an example of its input, ")
    assert "pass inputs=" in line
    assert line.endswith("; training continues")
    assert monitor.status in line
    assert monitor.headline.endswith(f": N{monitor.status[1:]}")  # Names keep their capital letters.
    assert monitor.dataset.step.values.tolist() == [0]
    assert monitor.dataset.sizes["layer"] == 0


@pytest.mark.long
def test_texts_are_read_with_the_trainer_s_tokenizer_or_one_s_own_and_not_without(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    def letters(text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [3 + ord(letter) % 50 for letter in text]}

    class Tokenizer:
        """What of a tokenizer is asked for."""

        def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
            return letters(text, **options)

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return list(map(str, ids))

    given = ["a text of letters", "another text of letters"]
    wanted = Monitor([letters(text)["input_ids"] for text in given])
    direct, without = Monitor(given, tokenizer=Tokenizer()), Monitor(given)
    for monitor in (wanted, direct, without):
        monitor.step(gpt2())
    np.testing.assert_array_equal(direct.dataset.consensus_within, wanted.dataset.consensus_within)
    assert direct.dataset.text.values.tolist() == given
    assert without.status.startswith(
        "not measured: this needs a tokenizer that turns texts into token ids, which is missing; pass tokenizer="
    )
    monitor = Monitor(given)
    arguments = TrainingArguments(str(tmp_path), max_steps=1, report_to=[], use_cpu=True, save_strategy="no")
    run = Trainer(gpt2(), arguments, train_dataset=Sequences(), callbacks=[monitor])
    run.callback_handler.processing_class = Tokenizer()
    run.train()
    np.testing.assert_array_equal(monitor.dataset.consensus_within[0], wanted.dataset.consensus_within[0])


def test_loggers_and_writers_that_fail_are_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from transformers.integrations import TensorBoardCallback

    class Failing(TensorBoardCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
            if any(name.startswith("tokens/") for name in logs):
                raise OSError("no room")

    def full(name: str, value: float, step: int) -> None:
        raise OSError("no room either")

    monitor = Monitor(texts(), every=2, writer=full)
    run = trainer(gpt2(), tmp_path, [Failing(), monitor], max_steps=4)
    run.train()
    messages = [record.message for record in caplog.records if record.name == "tokendynamics"]
    message = [entry for entry in messages if entry not in monitor.changes]
    assert message == [
        "the writer failed: no room either; training continues",
        "Failing failed: no room; training continues",
    ]
    assert len(losses_of(run)) == 4
    assert monitor.dataset.sizes["step"] == 3


@pytest.mark.parametrize(("best", "steps"), [(False, [4]), (True, [])])
def test_the_last_look_is_not_at_weights_of_an_earlier_step(best: bool, steps: list[int]) -> None:
    """What a Trainer loads at the end, its best checkpoint, is no network after the last step."""
    monitor, state = Monitor(texts()), SimpleNamespace(global_step=4, is_world_process_zero=True)
    for _ in range(2):
        monitor.on_train_end(SimpleNamespace(load_best_model_at_end=best), state, None, model=gpt2())
    assert monitor.dataset.step.values.tolist() == steps
