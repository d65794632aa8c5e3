"""Samples of text during training: what the network itself would say, and a training that knows nothing of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tokendynamics.modules.language_model import LanguageModel
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.printable import printable
from tokendynamics.training import Experiment, Samples, preset
from tokendynamics.training.networks import network_of, task_of
from tokendynamics.training.tasks import Task
from tokendynamics.training.tasks._texts import Bytes, Words
from training.monitored import language_model, trainer
from training.runs import CONTEXT, MODEL, At, assert_same, interrupt, run, small

TOKENS = 24
"""More than the network has positions for after a piece of text."""
MARK = "\n\n--- continuation ---\n\n"
CHANGES: dict[str, Any] = {
    "model": {"regime": "convergence", "dropout": 0.1, "positions": "learned"},
    "recipe": {"accumulation": 2, "learning_rate": 0.05},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Path]:
    """One experiment without samples, with them, and with them where it was stopped after step 5."""
    folder = tmp_path_factory.mktemp("samples")
    experiment = small(folder, seed=3, **CHANGES)
    run(experiment, folder / "plain")
    run(experiment, folder / "sampled", callbacks=[Samples(4, TOKENS)], loggers=("tensorboard",))
    with pytest.raises(KeyboardInterrupt):
        run(experiment, folder / "stopped", callbacks=[Samples(4, TOKENS), At(5, interrupt)])
    (folder / "stopped" / "samples" / "step-000006.txt").write_text("of a run that was killed at the end")
    run(experiment, folder / "stopped", callbacks=[Samples(4, TOKENS)], resume=True)
    return experiment, folder


def read(path: Path) -> tuple[str, str]:
    """The piece of text, and what the network said after it."""
    given, _, text = path.read_text().partition(MARK)
    return given.partition("\n\n")[2], text[:-1]


@pytest.mark.slow
def test_a_training_with_samples_is_the_one_without_to_the_last_bit(runs: tuple[Experiment, Path]) -> None:
    _, folder = runs
    samples = folder / "sampled" / "samples"
    kept = {path: path.read_text() for path in samples.iterdir()}
    assert {path.name for path in kept} == {"step-000004.txt", "step-000006.txt"}  # every fourth, and the last
    hidden = samples.rename(folder / "apart")
    assert_same(folder / "sampled", folder / "plain")
    hidden.rename(samples)
    assert_same(folder / "stopped", folder / "sampled")
    for path, text in kept.items():
        assert (folder / "stopped" / "samples" / path.name).read_text() == text


@pytest.mark.slow
def test_a_sample_is_drawn_from_the_probabilities_of_the_network_that_was_trained(
    runs: tuple[Experiment, Path],
) -> None:
    """Drawn here again, from whole passes of the network as it was saved."""
    experiment, folder = runs
    path = folder / "sampled" / "samples" / "step-000006.txt"
    assert path.read_text().startswith(f"Step 6: {CONTEXT} tokens of the validation split, then {TOKENS} of the net")
    piece, text = read(path)
    task = task_of(experiment, 1)
    assert isinstance(task, Bytes)
    assert piece.encode() in [bytes(window["ids"])[:CONTEXT] for window in task.validation]
    model, ids = LanguageModel.from_pretrained(folder / "sampled" / "model").eval(), list(piece.encode())
    generator = torch.Generator().manual_seed(experiment.seed)
    for _ in range(TOKENS):
        with torch.no_grad():
            logits = model(torch.tensor([ids[-CONTEXT:]])).logits[0, -1]
        ids += torch.multinomial(torch.softmax(logits.double(), -1), 1, generator=generator).tolist()
    assert text == printable(task.tokenizer().decode(ids[CONTEXT:]), keep="\n\t")


@pytest.mark.slow
def test_tensorboard_has_every_sample_once_where_the_run_writes_curves(runs: tuple[Experiment, Path]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = runs[1] / "sampled"
    events = EventAccumulator(str(folder / "logs"))
    events.Reload()
    by_name = {
        tensor.step: tensor.tensor_proto.string_val[0].decode() for tensor in events.Tensors("samples/text_summary")
    }
    assert by_name.keys() == {4, 6}
    for step, text in by_name.items():
        lines = (folder / "samples" / f"step-{step:06}.txt").read_text().splitlines(keepends=True)
        assert text == "".join(f"    {line}" for line in lines)


def sampled(experiment: Experiment, place: Path, change: Any = None, **state: Any) -> tuple[Path, Task]:
    """Have a network that is not trained asked for samples at step 1 and 2; return their folder."""
    task = task_of(experiment, 1)
    model: nn.Module = network_of(experiment, task)
    if change is not None:
        change(model)
    samples = Samples(1, TOKENS)
    samples.of_run(experiment, task, place)
    for step in (1, 2):
        at = {"global_step": step, "max_steps": 9, "is_world_process_zero": True}
        samples.on_step_end(None, SimpleNamespace(**{**at, **state}), None, model=model)
    return place / "samples", task


def test_words_go_on_with_words_of_the_vocabulary_after_as_many_as_are_seen_in_training(tmp_path: Path) -> None:
    experiment = small(tmp_path)
    words = preset("words-small").changed(
        data=experiment.data,
        model={**MODEL, "cutoffs": [4, 8]},
        options={"context": 8, "evaluation_context": 12, "least": 1},
    )
    folder, task = sampled(words, tmp_path)
    piece, text = (part.split() for part in read(folder / "step-000001.txt"))
    assert isinstance(task, Words)
    assert (len(piece), len(text)) == (8, TOKENS)
    assert {*piece, *text} <= set(task.vocabulary)
    assert len(set(text)) > 3


@pytest.mark.long
def test_the_seed_chooses_the_piece_and_what_is_drawn(tmp_path: Path) -> None:
    """Of one untrained network, whose samples can differ by nothing else."""
    by_name = {}
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        experiment = small(tmp_path, seed=seed)
        folder, _ = sampled(experiment, tmp_path / name)
        by_name[name] = read(folder / "step-000001.txt")
        assert by_name[name] == read(folder / "step-000002.txt")
    assert by_name["one"] == by_name["again"]
    assert by_name["one"][0] != by_name["other"][0]
    assert by_name["one"][1] != by_name["other"][1]


def test_what_a_network_says_acts_on_no_terminal(tmp_path: Path) -> None:
    data = tmp_path / "escapes.txt"
    data.write_bytes(b"\x1b[31m\r" * 300)
    folder, _ = sampled(small(tmp_path).changed(data=str(data)), tmp_path)
    text = (folder / "step-000001.txt").read_bytes().decode()
    assert "␛[31m␍" in text
    assert not {*map(chr, range(32))} & {*text} - {"\n", "\t"}


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "tokendynamics"]


def test_logits_that_are_not_finite_are_a_line_and_no_sample(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken(model: nn.Module) -> None:
        with torch.no_grad():
            next(model.parameters()).fill_(float("nan"))

    folder, _ = sampled(small(tmp_path), tmp_path / "sound")
    assert len(list(folder.iterdir())) == 2
    assert lines(caplog) == []
    folder, _ = sampled(small(tmp_path), tmp_path / "broken", broken)
    assert not folder.exists()
    assert lines(caplog) == ["step 1: no sample: the logits are not finite; training continues"]


def test_weights_that_are_spread_are_a_line_and_no_sample(
    group: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Passes of one process alone would wait for the others, for ever."""
    from torch.distributed.fsdp import fully_shard

    folder, _ = sampled(small(tmp_path), tmp_path, fully_shard)
    assert not folder.exists()
    assert lines(caplog) == ["no samples: its weights are spread over several processes; training continues"]
    folder, _ = sampled(small(tmp_path), tmp_path, is_world_process_zero=False)
    assert not folder.exists()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A group of one process."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_what_cannot_be_sampled_is_refused_in_words(tmp_path: Path, unchecked: None) -> None:
    for arguments, error, text in (
        ({"every": 0}, ArgumentValueError, "every: expected at least 1, got 0"),
        ({"tokens": 0}, ArgumentValueError, "tokens: expected at least 1, got 0"),
        ({"tokens": "many"}, ArgumentTypeError, "tokens: expected an integer"),
    ):
        with pytest.raises(error, match=text):
            Samples(**arguments)
    with pytest.raises(ArgumentValueError, match="samples: expected a task of text: bytes or words, got digits"):
        run(preset("digits"), tmp_path / "run", callbacks=[Samples()])
    assert not (tmp_path / "run").exists()
    with pytest.raises(ArgumentValueError, match=r"callbacks: expected Samples only among .*, got another Trainer's"):
        trainer(language_model(), tmp_path, [Samples()]).train()
