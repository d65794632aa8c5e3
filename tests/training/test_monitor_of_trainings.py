"""Trainings whose outcome is known: one drives the tokens of each text together, one turns all texts to one side, one
leaves them apart; and each is called what it is."""

from __future__ import annotations

import inspect
import math
import re

import numpy as np
import pytest
import torch
from torch import nn

from tokendynamics.diagnosis import judge, trace
from tokendynamics.modules.language_model import LanguageModel
from tokendynamics.pretrained import load
from tokendynamics.training import Monitor
from tokendynamics.training.monitor.series import answer
from training.monitored import drive_together, language_model, of_one_topic_each, own_loop, t5, texts


def _lines(caplog: pytest.LogCaptureFixture) -> tuple[str, ...]:
    return tuple(record.message for record in caplog.records if record.name == "tokendynamics")


def _verdict(model: LanguageModel, given: list[list[int]]) -> list[str]:
    return list(judge(None, trace(load(model.base_model), given)).layers)


@pytest.mark.long
def test_a_training_that_collapses_is_called_a_collapse(caplog: pytest.LogCaptureFixture) -> None:
    model, monitor = language_model(dropout=0.0, norms="none"), Monitor(of_one_topic_each(), every=5)
    drive_together(model, 40, monitor.step)
    table = monitor.dataset
    assert set(table.state.values[0, 1:]) <= {"spread", "drawing together"}
    assert table.state.values[-1, 1:].tolist() == ["consensus"] * 3 == _verdict(model, of_one_topic_each())
    assert float(table.consensus_relative[-1, -1]) > 0.95
    for layer in (1, 2, 3):
        assert [change.state for change in monitor.series.changes if layer in change.layers][-1] == "consensus"
    assert _lines(caplog) == monitor.changes != ()
    assert monitor.changes[-1].startswith("step ")
    assert "to consensus (κ′ 0." in monitor.changes[-1]


@pytest.mark.long
def test_a_training_that_turns_all_texts_to_one_side_is_called_anisotropic(caplog: pytest.LogCaptureFixture) -> None:
    """A vector that is added to every token is what all share, and no collapse."""
    model, monitor = language_model(dropout=0.0), Monitor(texts(5), every=5)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    last = model.model.layers[2].feed_forward
    assert last is not None
    optimizer = torch.optim.SGD([last.fall.bias.requires_grad_(True)], lr=1.0)
    for _ in range(20):
        optimizer.zero_grad()
        (-nn.functional.linear(torch.ones(24), last.fall.bias[None])).backward()
        optimizer.step()
        monitor.step(model)
    assert _verdict(model, texts(5)) == ["spread", "spread", "anisotropic"] == monitor.series.states[-1]
    (line,) = monitor.changes
    assert line.startswith("step 5: layer 3 went from spread to anisotropic (common share ")
    assert _lines(caplog) == (line,)


@pytest.mark.long
def test_a_training_that_leaves_tokens_apart_has_no_line(caplog: pytest.LogCaptureFixture) -> None:
    model, monitor = language_model(), Monitor(texts(5), every=5)
    losses = own_loop(model, 15, monitor.step)
    assert losses[-1] < losses[0]
    assert set(monitor.dataset.state.values[:, 1:].flat) == {"spread"}
    assert monitor.changes == _lines(caplog) == ()
    assert _verdict(model, texts(5)) == ["spread"] * 3


@pytest.mark.slow
def test_the_headline_is_what_a_diagnosis_says_of_the_network_at_every_look() -> None:
    """While the tokens draw together, so that the state changes on the way and some changes are within intervals."""
    model, monitor, given = language_model(dropout=0.0, norms="none"), Monitor(of_one_topic_each(), every=2), []

    def compare(_: nn.Module) -> None:
        monitor.step(model)
        if monitor.series.looks[-1].step == monitor._calls:
            state = _verdict(model, of_one_topic_each())[-1]
            given.append(state)
            assert answer(monitor.series).lower() == state

    drive_together(model, 14, compare)
    assert given[0] in ("spread", "drawing together")
    assert given[-1] == "consensus"


@pytest.mark.long
def test_a_network_of_two_halves_is_measured_by_the_half_that_is_named() -> None:
    model = t5()
    unnamed, named = Monitor(texts()), Monitor(texts(), half="encoder")
    alone = Monitor(texts())
    for monitor, network in ((unnamed, model), (named, model), (alone, model.encoder)):
        monitor.measure(network, 1)
    message = "not measured: this needs 'encoder' or 'decoder', not None for T5ForConditionalGeneration, "
    assert unnamed.status.startswith(message)
    assert "half" in inspect.signature(Monitor).parameters  # what the message tells to pass is an argument
    assert named.status == alone.status == "measured"
    assert named.dataset.sizes["layer"] == 3
    assert named.dataset.share_common.values.tolist() == alone.dataset.share_common.values.tolist()
    wrong = Monitor(texts(), half="encoder")
    wrong.measure(language_model(), 1)
    assert wrong.status.startswith("not measured: this needs None, not 'encoder'")


@pytest.mark.parametrize("network", [nn.Linear(2, 2), nn.Transformer(8, 2, 1, 1, 8)])
def test_an_error_names_arguments_that_a_monitor_has(network: nn.Module) -> None:
    monitor = Monitor(texts())
    monitor.measure(network, 1)
    reason = monitor.status.removeprefix("not measured: this needs ")
    assert "expected" not in reason
    advised = re.findall(r"pass (\w+)=", reason)
    arguments = {*inspect.signature(Monitor).parameters, *inspect.signature(Monitor.measure).parameters}
    assert {*advised} <= arguments
    assert type(network).__name__ in reason


@pytest.mark.long
def test_two_texts_have_one_line_that_states_need_three(caplog: pytest.LogCaptureFixture) -> None:
    monitor = Monitor(texts(2), every=2)
    own_loop(language_model(), 5, monitor.step)
    assert _lines(caplog) == ("step 1: states and their changes need three different texts: only numbers follow",)
    assert set(monitor.dataset.state.values[:, 1:].flat) == {"undetermined"}
    assert np.isfinite(monitor.dataset.consensus_relative.values).all()


@pytest.mark.long
def test_the_cost_is_what_later_looks_took_of_the_time_since_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that shows these times: the first look from 0 to 10, which finds the layout, and two of 1 and 2."""
    shown = iter([0.0, 10.0, 19.0, 20.0, 28.0, 30.0])
    monkeypatch.setattr("tokendynamics.training.monitor._monitor.perf_counter", lambda: next(shown))
    monitor, model, computed = Monitor(texts()), language_model(), []
    for step in range(3):
        monitor.measure(model, step)
        computed.append(monitor.cost)
    assert math.isnan(computed[0])
    assert computed[1:] == pytest.approx([1 / 10, 3 / 20])
