"""A training that cannot fit into memory is refused with the number, before anything of that size is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import call
from tokendynamics.modules._regimes import REGIMES
from tokendynamics.numerics import ArgumentTypeError, MemoryLimitError
from tokendynamics.training import networks as size
from tokendynamics.training import preset
from tokendynamics.training.networks import _classes, network_of, task_of
from training.runs import small

HUGE = 10**9


@pytest.mark.few(8)
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("changes", [{}, {"form": "solve"}, {"positions": "decoupled", "remedy": "diagonal"}])
def test_weights_are_counted_as_the_network_has_them(regime: str, changes: dict[str, Any], tmp_path: Path) -> None:
    experiment = small(tmp_path, model={"num_hidden_layers": 3, "regime": regime, **changes})
    task = task_of(experiment, 4)
    counted = size._weights(experiment.model, task.fitted(), *_classes("decoder"))
    assert counted == sum(parameter.numel() for parameter in network_of(experiment, task).parameters())


def test_the_weights_of_images_are_counted_too() -> None:
    experiment = preset("digits")
    task = task_of(experiment, 4)
    counted = size._weights(experiment.model, task.fitted(), *_classes("vision"))
    assert counted == sum(parameter.numel() for parameter in network_of(experiment, task).parameters())


def test_what_is_needed_at_least_is_less_than_what_a_step_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that nothing is refused that fits: held against the tensors that autograd keeps for one batch."""
    seen: dict[str, int] = {}
    monkeypatch.setattr(size, "check_fits", lambda needed, *_: seen.update(needed=needed))  # the last is all
    experiment = small(tmp_path, recipe={"batch": 8})
    task = task_of(experiment, 8)
    model = network_of(experiment, task)
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    batch = task.training_batch([task.training[number] for number in range(8)])
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(**batch).loss
    assert loss.requires_grad
    weights = sum(parameter.nbytes for parameter in model.parameters())
    direct = {parameter.data_ptr() for parameter in model.parameters()}
    activations = sum(count for place, count in kept.items() if place not in direct)
    assert 0.1 * (4 * weights + activations) < seen["needed"] < 4 * weights + 2 * activations


@pytest.mark.parametrize(
    ("setting", "argument"),
    [
        *((f"model.{name}", "model") for name in ("num_hidden_layers", "hidden_size", "intermediate_size")),
        ("recipe.batch", "recipe.batch"),
        ("recipe.accumulation", "recipe.accumulation"),
    ],
)
@pytest.mark.parametrize("value", [10**9, 10**15])
def test_a_size_beyond_the_memory_is_refused_with_the_number(
    setting: str, argument: str, value: int, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert call(["train", "bytes-small", "--set", f"{setting}={value}", "--out", "run"]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert f"{argument}: expected what fits into the " in line
    assert "GiB needed at least" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("setting", ["recipe.batch", "model.num_hidden_layers", "model.hidden_size"])
def test_images_are_estimated_too(setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, name = setting.split(".")
    changes: dict[str, Any] = {part: {name: HUGE}}
    experiment = preset("digits").changed(**changes)
    with pytest.raises(MemoryLimitError, match="needed at least"):
        network_of(experiment, task_of(experiment, 4))


def test_a_study_is_refused_before_its_runs_with_the_line() -> None:
    from tokendynamics.specification.examples import example_text
    from tokendynamics.specification.section import SpecificationError
    from tokendynamics.sweeps.study import parse_plan

    text = example_text("table1", "study").replace('form = "solve"', f'num_hidden_layers = {HUGE}\nform = "solve"')
    with pytest.raises(SpecificationError, match=r"table1\.toml.*needed at least"):
        parse_plan(text, "table1.toml").check()


def test_a_size_that_is_no_whole_number_is_refused(tmp_path: Path) -> None:
    experiment = small(tmp_path, model={"num_hidden_layers": 1e9})
    with pytest.raises(ArgumentTypeError, match="num_hidden_layers"):
        network_of(experiment, task_of(experiment, 4))
