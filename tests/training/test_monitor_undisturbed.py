"""A training that is watched is the training that is not: the same numbers to the last bit, and nothing left behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tokendynamics.training import Monitor
from tokendynamics.training.monitor._network import undisturbed
from training.monitored import NETWORKS, WORDS, gpt2, language_model, losses_of, own_loop, texts, trainer


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_a_loop_of_ones_own_gives_the_same_losses_and_weights_to_the_last_bit(name: str) -> None:
    plain, watched, monitor = NETWORKS[name](), NETWORKS[name](), Monitor(texts(), every=2)
    assert own_loop(plain, 6) == own_loop(watched, 6, monitor.step)
    assert monitor.dataset.status.values.tolist() == ["measured"] * 4
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["a regime", "GPT-2"])
def test_a_trainer_gives_the_same_losses_to_the_last_bit(name: str, tmp_path: Path) -> None:
    """With accumulation, where the weights of a regime are kept from one batch to the next."""
    values = []
    for callbacks in ([], [Monitor(texts(), every=3)]):
        run = trainer(NETWORKS[name](), tmp_path / str(len(callbacks)), callbacks, gradient_accumulation_steps=2)
        run.train()
        values.append(losses_of(run))
        for monitor in callbacks:
            assert monitor.dataset.step.values.tolist() == [0, 3, 6, 8]
            assert set(monitor.dataset.status.values) == {"measured"}
    assert len(values[0]) == 8
    assert values[0] == values[1]


@pytest.mark.slow
def test_mixed_precision_gives_the_same_losses_and_is_measured_in_single(tmp_path: Path) -> None:
    computed, monitor = [], Monitor(texts(), every=2)
    for callbacks in ([], [monitor]):
        run = trainer(language_model(), tmp_path / str(len(callbacks)), callbacks, bf16=True, max_steps=4)
        run.train()
        computed.append(losses_of(run))
    assert computed[0] == computed[1]
    alone, ends = Monitor(texts()), []
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            alone.measure(run.model, len(ends) + 1)
        ends.append(alone.dataset.consensus_within.values[-1])
    assert np.array_equal(ends[0], ends[1])
    assert np.array_equal(ends[0], monitor.dataset.consensus_within.values[-1])
    assert monitor.dataset.attrs["precision"].startswith("forward pass in float32, without autocast")


class _Block(nn.Module):
    """Keeps a table for each number of tokens that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 12)
        self.tables: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        table = self.tables.setdefault(x.shape[1], torch.linspace(0.5, 1.0, x.shape[1])[:, None])
        return x + self.linear(x) * table


class _Own(nn.Module):
    """A network of one's own, which draws from every generator that there is."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 12)
        self.blocks = nn.ModuleList(_Block() for _ in range(2))

    def forward(self, idx: Tensor) -> Tensor:
        x = self.table(idx)
        for block in self.blocks:
            x = block(x)
        return x + 0 * (torch.rand(()) + random.random() + np.random.rand())  # noqa: NPY002, S311


def own_monitor(**options: Any) -> Monitor:
    given = [{"idx": torch.tensor([text])} for text in texts()]
    return Monitor(given, inputs=lambda count: {"idx": torch.randint(0, WORDS, (count, 7))}, **options)


@pytest.mark.long
def test_an_example_stands_for_a_function_that_makes_inputs() -> None:
    torch.manual_seed(0)
    model, example = _Own(), torch.randint(0, WORDS, (2, 7))
    given = [{"idx": torch.tensor([text])} for text in texts()]
    looks = []
    for inputs in (lambda count: {"idx": torch.randint(0, WORDS, (count, 7))}, example, (example,), {"idx": example}):
        monitor = Monitor(given, inputs=inputs)
        monitor.step(model)
        assert monitor.status == "measured"
        looks.append(monitor.dataset)
    for look in looks[1:]:
        for name in ("consensus_relative", "share_common", "update_ratio"):
            np.testing.assert_array_equal(look[name].values, looks[0][name].values)
    failing = Monitor(given, inputs={"ids": example})
    failing.step(model)
    assert "none for idx" in failing.status


def test_what_a_network_keeps_of_a_look_can_be_trained_with() -> None:
    """A table that is made in inference mode could not."""
    torch.manual_seed(0)
    model, monitor = _Own(), own_monitor()
    monitor.step(model)
    assert monitor.status == "measured"
    ids = torch.tensor([texts()[0]])
    assert ids.shape[1] in model.blocks[0].tables
    model(ids).sum().backward()


def _left(model: nn.Module) -> list[Any]:
    modules = list(model.modules())
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules]
    configs = [vars(module.config).copy() for module in modules if hasattr(module, "config")]
    parameters = [(parameter.requires_grad, parameter._version, parameter.grad) for parameter in model.parameters()]
    return [[module.training for module in modules], hooks, configs, parameters]


@pytest.mark.long
@pytest.mark.parametrize("make", [NETWORKS["GPT-2"], lambda: language_model(regime="contracting"), _Own])
def test_modes_hooks_gradients_and_random_numbers_are_as_they_were(make: Callable[[], nn.Module]) -> None:
    model, monitor = make(), own_monitor() if make is _Own else Monitor(texts())
    model(torch.tensor(texts()[:1]))[0].sum().backward()
    model.train()
    next(iter(model.children())).eval()  # a part that is frozen stays so, and the rest goes on training
    next(model.parameters()).requires_grad_(False)
    before, drawn = _left(model), (torch.get_rng_state(), np.random.get_state())  # noqa: NPY002
    monitor.step(model)
    assert monitor.status == "measured"
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert np.array_equal(np.random.get_state()[1], drawn[1][1])  # noqa: NPY002
    for former, now in zip(before[:3], _left(model)[:3], strict=True):
        assert former == now
    for (required, version, gradient), now in zip(before[3], _left(model)[3], strict=True):
        assert (required, version) == now[:2]
        assert gradient is now[2]
    assert torch.is_grad_enabled()


@pytest.mark.usefixtures("unchecked")
def test_python_s_own_random_numbers_go_on_as_if_nothing_had_been() -> None:
    """Of the block alone: what checks types while tests run draws from them, too."""
    network = gpt2()
    with undisturbed(network):
        random.seed(1)
        before = random.getstate()
    wanted = random.getstate()
    with undisturbed(network):
        random.random()  # noqa: S311
    assert random.getstate() == wanted != before
