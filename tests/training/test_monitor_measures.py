"""What a monitor measures is what a trace measures, at every step; and what it says of states that are not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tokendynamics.diagnosis import trace
from tokendynamics.pretrained import load
from tokendynamics.training import Monitor
from tokendynamics.training.monitor.series import Series
from training.monitored import CONTEXT, NETWORKS, gpt2, language_model, own_loop, texts


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
        found = monitor.dataset.isel(step=place)
        for measure, values in wanted.items():
            # The centred cosine of a trace may come from float64 cosines, ours from float32 directions.
            np.testing.assert_allclose(found[measure].values, values, rtol=1e-9, atol=2e-6, err_msg=measure)
    assert not np.allclose(traces[0]["consensus_within"], traces[1]["consensus_within"], rtol=1e-3)


def test_a_copy_of_a_text_does_not_count() -> None:
    once, twice = Monitor(texts()), Monitor([*texts(), texts()[0]])
    for monitor in (once, twice):
        monitor.step(gpt2().eval())
    for measure in ("share_common", "consensus_relative", "consensus_relative_interval"):
        np.testing.assert_allclose(once.dataset[measure], twice.dataset[measure], atol=1e-9)


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
    assert monitor.status.startswith("not measured: texts: expected at least two different texts, got 2 that begin")


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
    told = [line for line in caplog.messages if "finite" in line]
    assert told == [f"step 1: not finite at {where}; training continues"]  # once, not at every look
    table = monitor.dataset
    assert table.status.values.tolist() == ["measured", *[f"not finite at {where}"] * 2, "measured"]
    assert bool(table.consensus_within.isel(step=[1, 2]).isnull().all())
    np.testing.assert_array_equal(table.consensus_within[0], table.consensus_within[3])


@pytest.mark.parametrize(
    ("network", "place"), [(gpt2, "the last layer, before the final norm,"), (_bert, "the last layer")]
)
def test_a_state_that_a_final_norm_can_change_is_named_as_before_it(network: Any, place: str) -> None:
    monitor = Monitor(texts())
    monitor.measure(network(), 1)
    state = monitor.dataset.state.values[0, -1]
    assert monitor.series.findings[0].startswith(f"At step 1 the state after {place} is {state}, with a ")
    reopened = Series.of_plain(monitor.series.plain())
    assert reopened.findings == monitor.series.findings
