"""What a monitor measures is what a trace measures, at every step; and what it says of states that are not finite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tokendynamics.diagnosis import trace
from tokendynamics.pretrained import load
from tokendynamics.training import Monitor
from tokendynamics.training.monitor.looks import BEFORE_NORM
from tokendynamics.training.monitor.series import Series, answer
from training.monitored import CONTEXT, NETWORKS, gpt2, language_model, look, own_loop, texts


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 3}
    return BertForMaskedLM(BertConfig(vocab_size=61, max_position_embeddings=CONTEXT, **sizes))


def _massive() -> nn.Module:
    """Texts begin with a token whose norm is twenty times the others': it does not count."""
    model = gpt2()
    with torch.no_grad():
        model.get_input_embeddings().weight[4] *= 20
    return model


def _given() -> list[list[int]]:
    return [[4, *ids] for ids in texts(5)]


_WATCHED: dict[str, Callable[[], nn.Module]] = {
    "a regime": NETWORKS["a regime"], "LLaMA": NETWORKS["LLaMA"], "post-norm": _bert, "massive tokens": _massive,
}  # fmt: skip


def _traced(model: nn.Module, given: Any) -> dict[str, np.ndarray]:
    """The same numbers from a trace of its own, taken after each block."""
    table = trace(load(model.base_model), given).sel(site="feed_forward")
    names = ("share_common", "share_prompt", "share_own", "consensus_within", "consensus_relative", "centred_cos2",
             "line_excess", "share_common_interval", "consensus_relative_interval", "line_excess_interval")  # fmt: skip
    most = table.attention_sink_position.clip(min=0)
    return {name: table[name].values for name in names} | {
        "update_ratio": table.update_ratio.median("prompt").values,
        "attention_sink_mass": table.attention_sink_mass.mean("prompt").values,
        "attention_sink_uniform": table.attention_uniform.isel(token=most).mean("prompt").values,
    }


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("name", _WATCHED)
def test_a_look_is_a_trace_of_the_weights_as_they_are(name: str) -> None:
    model, monitor = _WATCHED[name](), Monitor(_given(), every=2)
    traces = []

    def after(trained: nn.Module) -> None:
        monitor.step(trained)
        if monitor.dataset.sizes["step"] > len(traces):
            traces.append(_traced(trained, _given()))

    own_loop(model, 3, after)
    assert monitor.dataset.step.values.tolist() == [1, 2]
    for place, wanted in enumerate(traces):
        result = monitor.dataset.isel(step=place)
        for measure, values in wanted.items():
            # The centred cosine of a trace may come from float64 cosines, ours from float32 directions.
            np.testing.assert_allclose(result[measure].values, values, rtol=1e-9, atol=2e-6, err_msg=measure)
    assert not np.allclose(traces[0]["consensus_within"], traces[1]["consensus_within"], rtol=1e-3)


def test_a_copy_of_a_text_does_not_count() -> None:
    once, twice = Monitor(texts()), Monitor([*texts(), texts()[0]])
    for monitor in (once, twice):
        monitor.step(gpt2().eval())
    for measure in ("share_common", "consensus_relative", "consensus_relative_interval"):
        np.testing.assert_allclose(once.dataset[measure], twice.dataset[measure], atol=1e-9)


@pytest.mark.long
def test_texts_that_are_too_long_are_cut_and_that_is_noted() -> None:
    long = [ids * 3 for ids in texts()]
    cut, whole = Monitor(long), Monitor([ids[:CONTEXT] for ids in long])
    for monitor in (cut, whole):
        monitor.step(language_model())
    np.testing.assert_array_equal(cut.dataset.consensus_within, whole.dataset.consensus_within)
    assert (
        cut.dataset.attrs["lengths"]
        == f"4 of 4 are longer than the {CONTEXT} tokens that the network reads, and were cut"
    )
    assert whole.dataset.attrs["lengths"] == "every text is whole"


def test_texts_that_are_one_after_the_cut_are_told() -> None:
    same = texts(1, longest=CONTEXT)[0]
    monitor = Monitor([same + [5] * 20, same + [6] * 20])
    monitor.step(language_model())
    assert monitor.status.startswith("not measured: this needs at least two different texts, not 2 that begin")


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        (lambda model: model.model.layers[1].feed_forward, "layer 2"),
        (lambda model: model.model.layers[2].attention, "layer 3"),
        (lambda model: model.model.embed_tokens, "the embedding"),
    ],
)
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_states_that_are_not_finite_are_located_and_training_goes_on(
    spoil: Callable, where: str, number: float, caplog: pytest.LogCaptureFixture
) -> None:
    model, monitor = language_model(), Monitor(texts())
    monitor.measure(model, 0)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for parameter in spoil(model).parameters():
            parameter.fill_(number)
    for step in (1, 2):
        monitor.measure(model, step)
        assert monitor.status == f"not finite at {where}"
    model.load_state_dict(kept)
    monitor.measure(model, 3)
    message = [line for line in caplog.messages if "finite" in line]
    assert message == [f"step 1: not finite at {where}; training continues"]  # once, not at every look
    table = monitor.dataset
    assert table.status.values.tolist() == ["measured", *[f"not finite at {where}"] * 2, "measured"]
    assert bool(table.consensus_within.isel(step=[1, 2]).isnull().all())
    np.testing.assert_array_equal(table.consensus_within[0], table.consensus_within[3])


@pytest.mark.parametrize(
    ("network", "place"), [(gpt2, "the last layer and after the final norm"), (_bert, "the last layer")]
)
def test_the_state_after_the_final_norm_is_named_where_there_is_a_norm(network: Any, place: str) -> None:
    monitor = Monitor(texts())
    monitor.measure(network(), 1)
    state = monitor.dataset.state.values[0, -1]
    assert monitor.series.findings[0].startswith(f"At step 1 the state after {place} is {state}, with a ")
    assert answer(monitor.series) == state.capitalize()
    reopened = Series.of_plain(monitor.series.plain())
    assert reopened.findings == monitor.series.findings
    assert (monitor.summary(), monitor._repr_html_()) == (monitor.series.summary(), monitor.series._repr_html_())
    assert repr(monitor) == f"<Monitor: {monitor.series.headline}>"
    assert ("final_norm_state" in monitor.dataset) == ("norm" in place)


_AFTER_NORM = ("share_common", "consensus_relative", "line_excess")


@pytest.mark.parametrize("network", [gpt2, _massive])
def test_measures_after_the_final_norm_are_those_of_a_trace(network: Any) -> None:
    model, monitor, sent = network().eval(), Monitor(_given()), {}
    with torch.no_grad():
        model.transformer.ln_f.weight.mul_(torch.linspace(0.1, 3, 24))
        model.transformer.ln_f.bias.add_(torch.linspace(-1, 1, 24))
    monitor._write = lambda name, value, step: sent.update({name: value})
    monitor.measure(model, 1)
    traced = trace(load(model.base_model), _given()).isel(layer=-1).sel(site="final_norm")
    for name in (*_AFTER_NORM, *(f"{name}_interval" for name in _AFTER_NORM)):
        values = monitor.dataset[f"final_norm_{name}"].isel(step=0).values
        np.testing.assert_allclose(values, traced[name].values, rtol=1e-9, atol=2e-6, err_msg=name)
    for name in _AFTER_NORM:
        assert sent[f"tokens/{name}/final_norm"] == monitor.dataset[f"final_norm_{name}"].item()
    before = monitor.dataset.share_common.isel(step=0, layer=-1).item()
    assert abs(monitor.dataset.final_norm_share_common.item() - before) > 0.05  # it is not that before the norm


def _with_offset(model: Any, size: float) -> None:
    """Let the final norm add one vector to every token: of size 300 the states of all texts are one point."""
    with torch.no_grad():
        model.transformer.ln_f.bias.fill_(size)


@pytest.mark.long
def test_a_final_norm_that_makes_all_texts_one_point_is_a_change_and_the_headline(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    model, monitor = gpt2().eval(), Monitor(texts())
    for step, size in enumerate((0.0, 0.0, 300.0, 300.0)):
        _with_offset(model, size)
        monitor.measure(model, step)
    states = monitor.dataset.final_norm_state.values.tolist()
    layers = monitor.dataset.state.values[:, -1].tolist()
    assert states == ["spread", "spread", "one point", "one point"]
    assert layers == ["spread"] * 4
    (line,) = (line for line in caplog.messages if line.startswith("step"))
    assert line.startswith("step 2: the state after the final norm went from spread to one point (common share ")
    assert list(monitor.changes) == [line]
    assert answer(monitor.series) == "Spread, one point after the final norm"
    first, of_layers, second, *_ = monitor.series.findings
    assert first.startswith("At step 3 the state after the last layer is spread, with")
    assert of_layers == "All 2 layers are in this state."  # the spread one
    assert second.startswith("The final norm changes the state to one point (common share ")
    assert second.endswith(" → 1.00).")
    monitor.save(tmp_path / "kept")
    reopened = Monitor.open(tmp_path / "kept")
    assert reopened.findings == monitor.series.findings
    assert [change.text for change in reopened.changes] == [line]


def test_a_difference_of_the_final_norm_within_the_intervals_is_called_one() -> None:
    series = Series()
    series.add(look(1, (0.1, 0.055, 0.0), half=0.03, after_norm=(0.1, 0.07, 0.0)))
    assert series.findings[1] == (
        "After the final norm the state is drawing together (κ′ 0.06 → 0.07), a difference within the confidence "
        "intervals."
    )
    clear = Series()
    clear.add(look(1, (0.1, 0.01, 0.0), half=0.02, after_norm=(0.1, 0.4, 0.0)))
    assert clear.findings[1] == "The final norm changes the state to drawing together (κ′ 0.01 → 0.40)."
    near = Series()
    near.add(look(1, (0.9971, 0.01, 0.0), half=1e-5, after_norm=(0.9996, 0.01, 0.0)))
    assert near.findings[1].startswith("The final norm changes the state to one point (common share 0.997 → 1.000)")


@pytest.mark.long
def test_files_of_before_the_final_norm_was_measured_still_open(tmp_path: Path) -> None:
    monitor = Monitor(texts())
    monitor.measure(gpt2(), 1)
    facts = monitor.series.facts | {"sites": BEFORE_NORM}
    (look_now,) = monitor.series.looks
    kept = {name: value for name, value in look_now.values.items() if not name.startswith("final_norm_")}
    older = Series(facts, monitor.series.texts)
    older.add(replace(look_now, values=kept))
    older.save(tmp_path / "older")
    reopened = Monitor.open(tmp_path / "older")
    assert "final_norm_state" not in reopened.dataset
    assert reopened.findings == older.findings
    state = monitor.dataset.state.values[0, -1]
    assert older.findings[0].startswith(f"At step 1 the state after the last layer, before the final norm, is {state}")
    assert answer(older) == state.capitalize()
    assert reopened.add(replace(look_now, step=2)) == []  # nothing before it was measured after the norm
    assert "final_norm_state" in reopened.dataset


def test_a_final_norm_that_is_not_finite_is_said() -> None:
    model, monitor = gpt2(), Monitor(texts())
    for step, size in enumerate((0.0, float("nan"), 0.0)):
        _with_offset(model, size)
        monitor.measure(model, step)
    states = monitor.dataset.final_norm_state.values.tolist()
    assert monitor.dataset.status.values.tolist() == ["measured", "not finite after the final norm", "measured"]
    assert states == ["spread", "undetermined", "spread"]
