"""What was measured is kept: in files, in a state for one's own checkpoints; and what is no monitor's is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import xarray as xr

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.training import Monitor
from training.monitored import drive_together, gpt2, language_model, of_one_topic_each, own_loop, texts


@pytest.fixture(scope="module")
def watched() -> Monitor:
    """Of a training that drives the tokens of each text together, with a look that found no number."""
    model, monitor = language_model(dropout=0.0, norms="none"), Monitor(of_one_topic_each(), every=10)
    drive_together(model, 20, monitor.step)
    with torch.no_grad():
        model.model.layers[1].feed_forward.fall.weight.fill_(torch.nan)
    monitor.measure(model, 25)
    return monitor


@pytest.mark.long
def test_what_is_saved_is_what_is_opened(watched: Monitor, tmp_path: Path) -> None:
    for _ in range(2):  # a second time over the first
        assert watched.save(tmp_path / "seen") == tmp_path / "seen"
    opened = Monitor.open(tmp_path / "seen")
    xr.testing.assert_identical(opened.dataset, watched.dataset)
    assert tuple(change.text for change in opened.changes) == watched.changes != ()
    assert opened.status == watched.status == "not finite at layer 2"
    message = json.loads((tmp_path / "seen" / "monitor.json").read_text(encoding="utf-8"))
    assert message["changes"] == list(watched.changes)
    opened.save(tmp_path / "again")
    xr.testing.assert_identical(Monitor.open(tmp_path / "again").dataset, watched.dataset)


@pytest.mark.long
def test_every_variable_and_the_conventions_are_described(watched: Monitor) -> None:
    table = watched.dataset
    assert all(variable.attrs["description"] for variable in table.data_vars.values())
    assert {"model", "every", "tokenization", "sinks", "intervals", "precision", "sites", "lengths"} <= set(table.attrs)
    assert table.attrs["tokenization"] == "none: no input is a text"
    assert (table.attrs["layers"], table.attrs["dim"], table.attrs["every"]) == (3, 24, 10)


@pytest.mark.long
def test_a_foreign_file_is_not_overwritten(watched: Monitor, tmp_path: Path) -> None:
    (tmp_path / "monitor.json").write_text("mine")
    with pytest.raises(ArgumentValueError, match="no file in the way"):
        watched.save(tmp_path)
    assert (tmp_path / "monitor.json").read_text() == "mine"
    watched.save(tmp_path, overwrite=True)
    assert Monitor.open(tmp_path).status == watched.status


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "monitor.json").unlink(),
        lambda folder: (folder / "monitor.zarr").rename(folder / "other.zarr"),
        lambda folder: (folder / "monitor.zarr" / "consensus_relative" / ".zarray").unlink(),
        lambda folder: (folder / "monitor.zarr" / "status" / ".zarray").write_text("{"),
    ],
)
def test_what_is_damaged_is_refused_by_name(spoil: Callable, watched: Monitor, tmp_path: Path) -> None:
    watched.save(tmp_path / "seen")
    spoil(tmp_path / "seen")
    with pytest.raises(ArgumentValueError, match=r"what a monitor saved|axes|status"):
        Monitor.open(tmp_path / "seen")


def test_nothing_is_saved_and_opened_as_nothing(tmp_path: Path) -> None:
    Monitor(texts()).save(tmp_path / "seen")
    opened = Monitor.open(tmp_path / "seen")
    assert (opened.status, dict(opened.dataset.sizes)["step"]) == ("nothing measured yet", 0)


def test_a_loop_of_ones_own_goes_on_with_its_state() -> None:
    """Through JSON, as checkpoints may hold it: every number to the last bit."""
    whole, first, second = (Monitor(texts(), every=2) for _ in range(3))
    model = gpt2()
    own_loop(model, 3, lambda trained: (whole.step(trained), first.step(trained)))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    own_loop(model, 3, lambda trained: (whole.step(trained), second.step(trained)))
    assert whole.dataset.step.values.tolist() == [1, 2, 4, 6]
    xr.testing.assert_identical(second.dataset, whole.dataset)
    assert first.dataset.step.values.tolist() == [1, 2]


@pytest.mark.parametrize("state", [{}, {"calls": 3}, {"facts": {}, "texts": [], "looks": ["{}"], "calls": 1}, 5])
def test_another_state_is_refused(state: Any) -> None:
    with pytest.raises((ArgumentValueError, ArgumentTypeError)):
        Monitor(texts()).load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"texts": "one text"}, "texts: expected at least two different texts, got one"),
        ({"texts": ["one text"]}, "texts: expected at least two different texts, got one"),
        ({"texts": ["the same", "the same"]}, "texts: expected at least two different texts, got 2 copies of one"),
        ({"texts": []}, "texts: expected at least one prompt, got none"),
        ({"texts": 5}, "texts: expected a text"),
        ({"every": 0}, "every"),
        ({"every": True}, "every"),
        ({"every": 2.5}, "every"),
        (
            {"tokenizer": "gpt2"},
            "tokenizer: expected a tokenizer: one of transformers, an object with encode, or a function of a text, got",
        ),
        (
            {"inputs": {"idx": 5}},
            "inputs: expected an example (a tensor, or a tuple or a mapping with tensors), a function or None",
        ),
        ({"writer": 5}, "writer: expected a SummaryWriter, or a function of name, value and step, got 5"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises((ArgumentValueError, ArgumentTypeError)) as refusal:
        Monitor(**{"texts": texts(), **arguments})
    assert words in str(refusal.value)


def test_steps_only_rise(watched: Monitor) -> None:
    for step in (25, 3, -1):
        with pytest.raises(ArgumentValueError, match="step"):
            watched.measure(gpt2(), step)
    with pytest.raises(ArgumentTypeError, match="model"):
        Monitor(texts()).measure("gpt2", 1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentTypeError, match="model"):
        Monitor(texts()).step("gpt2")  # pyright: ignore[reportArgumentType]


def test_a_loop_that_counts_from_below_what_was_measured_is_not_stopped() -> None:
    monitor = Monitor(texts(), every=2)
    monitor.measure(gpt2(), 3)
    for _ in range(4):
        monitor.step(gpt2())
    assert monitor.dataset.step.values.tolist() == [3, 4]


def test_states_that_do_not_fit_into_the_memory_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokendynamics.numerics.resources.free_memory", lambda: 1000)
    monitor = Monitor(texts())
    monitor.step(gpt2())
    assert monitor.status.startswith("not measured: this needs what fits into ")
    assert "use fewer or shorter texts" in monitor.status


def test_images_of_one_name_in_several_folders_are_different_texts(tmp_path: Path) -> None:
    Monitor([tmp_path / "a" / "image.png", tmp_path / "b" / "image.png"])
    with pytest.raises(ArgumentValueError, match="2 copies of one"):
        Monitor([tmp_path / "image.png", tmp_path / "image.png"])


@pytest.mark.long
def test_a_network_of_another_depth_is_told_and_not_mixed_in() -> None:
    monitor = Monitor(texts())
    monitor.measure(gpt2(), 1)
    monitor.measure(language_model(), 2)
    assert monitor.status == "not measured: this needs 2 layers, as before, not 3"
    assert monitor.dataset.sizes["layer"] == 3
