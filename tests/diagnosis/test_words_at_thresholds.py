"""Sentences whose numbers lie at an edge: a threshold, a rounding, an interval that ends near 0, or no layer at all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import xarray as xr

from diagnosis.test_verdict import TEXTS, with_end
from tokendynamics.diagnosis import trace
from tokendynamics.diagnosis.comparing.words import end_finding
from tokendynamics.diagnosis.deepening.result import sentences_of
from tokendynamics.diagnosis.tracing.layer_states import State
from tokendynamics.diagnosis.tracing.words import attention_finding, detailed_findings
from tokendynamics.diagnosis.verdict import Verdict, Worst, _causes, judge
from tokendynamics.pretrained import Checkpoint


@pytest.fixture
def measured(tiny: Callable[..., Checkpoint]) -> xr.Dataset:
    return trace(tiny("gpt2"), TEXTS)


def finding(table: xr.Dataset, beginning: str) -> str:
    """The detail that begins with these words."""
    texts = [detail.text for detail in detailed_findings(table, ("spread",))]
    return next(text for text in texts if text.startswith(beginning))


def with_massive(table: xr.Dataset, norms: list[float], medians: list[float]) -> xr.Dataset:
    """The trace with token 0 of the first text standing out by these norms over layers 0 … L, NaN where it does not."""
    table = table.copy(deep=True)
    out = np.isfinite(norms)
    table.massive_count[:], table.massive_norm[:], table.massive_position[:] = 0, np.nan, -1
    table.massive_count[0], table.massive_norm[0] = out.astype(int), np.array(norms)
    table.massive_position[0] = np.where(out, 0, -1)
    table.norm_median.loc[{"sinks": "removed", "site": "feed_forward"}] = np.array(medians)
    return table


def test_no_contribution_is_larger_than_the_total() -> None:
    parts = {
        "the attention of layer 1": 0.126,
        "the feed-forward part of layer 1": -0.002,
        "the attention of layer 2": 0,
    }
    assert _causes(parts) == " The attention of layer 1 contributes +0.12 of the total +0.12."
    undone = parts | {"the feed-forward part of layer 1": -0.05}
    assert _causes(undone) == " The attention of layer 1 contributes +0.13, of which the other parts undo 0.05."


def test_parts_of_one_kind_are_named_together() -> None:
    parts = {
        f"the {part} of layer {layer}": 0.0 for layer in range(1, 7) for part in ("attention", "feed-forward part")
    }
    alike = {
        **parts,
        "the attention of layer 2": 0.3,
        "the attention of layer 3": 0.2,
        "the attention of layer 5": 0.15,
    }
    assert _causes(alike) == " The attention of layers 2–3 contributes +0.50 of the total +0.65."
    apart = {**alike, "the attention of layer 3": 0.0, "the feed-forward part of layer 5": 0.25}
    wanted = " The attention of layer 2 and the feed-forward part of layer 5 contribute +0.55 of the total +0.70."
    assert _causes(apart) == wanted
    three = {**apart, "the attention of layer 4": 0.28, "the feed-forward part of layer 5": 0.3}
    three |= {f"the feed-forward part of layer {layer}": 0.14 for layer in (1, 2, 3)}
    wanted = (
        " The attention of layers 2 and 4 and the feed-forward part of layer 5 contribute +0.88 of the total +1.45."
    )
    assert _causes(three) == wanted


@pytest.mark.long
def test_tokens_that_are_less_alike_than_at_the_embedding_are_not_close_to_it(measured: xr.Dataset) -> None:
    less = judge(None, with_end(measured, consensus_relative=-0.4)).sentences[0].text
    assert less.startswith("The tokens spread further. Within-text similarity after the last layer is −0.40 (90 % CI")
    assert "below that of the embedding (0)" in less
    same = judge(None, with_end(measured, consensus_relative=-0.04)).sentences[0].text
    assert same.startswith("The tokens stay spread. ")
    assert "close to that of the embedding (0)" in same


@pytest.mark.long
def test_an_earlier_layer_that_is_worse_is_written_with_another_number(measured: xr.Dataset) -> None:
    table = with_end(measured, width=0.0004, consensus_relative=0.0587)
    table.consensus_relative.loc[{"layer": 2, "site": "feed_forward"}] = 0.0614
    worse = judge(None, table).sentences[1].text
    assert "drawing together after layer 2 of 3 (similarity 0.061; 0.059 after the last layer)" in worse


@pytest.mark.long
def test_parts_that_each_change_little_do_not_raise_similarity_in_no_layer(measured: xr.Dataset) -> None:
    table = measured.copy(deep=True)
    table.kappa_change_sum[:], table.kappa_change_sum_interval[:] = 0.012, [0.008, 0.016]
    table.kappa_change[1:] = 0.004
    little = finding(table, "Attention raises")
    assert little.startswith(
        "Attention raises similarity κ by 0.01 (90 % CI 0.01–0.02) in total over 3 layers, in none by more than 0.005"
    )
    table.kappa_change[1:] = 0.006
    assert finding(table, "Attention raises").startswith("Attention raises similarity κ in 3 of 3 layers, by 0.01")


def test_a_massive_token_is_described_where_it_is_massive(measured: xr.Dataset) -> None:
    table = with_massive(measured, [np.nan, 40, 50, 60], [1, 1, 10, 20])
    text = finding(table, "Token 0")
    assert "its norm reaches 40 in layer 1 (median 1)" in text
    assert "has a massive token, text one in layer 1." in text


def test_a_norm_below_the_threshold_is_not_written_as_the_threshold(measured: xr.Dataset) -> None:
    table = with_massive(measured, [np.nan, 9.97, np.nan, np.nan], [1, 1, 1, 1])
    assert "with 10× the median norm of its text or more. The largest norm is 9.97× that median" in finding(
        table, "No token is massive"
    )


@pytest.mark.parametrize(("kept", "does"), [(2.0, "raise"), (1.05, "hardly affect"), (0.8, "lower"), (0.4, "dominate")])
def test_what_massive_tokens_do_to_the_rank_has_its_direction(measured: xr.Dataset, kept: float, does: str) -> None:
    table = with_massive(measured, [np.nan, 40, 40, 40], [1, 1, 1, 1])
    table.effective_rank[:] = 1.0
    table.effective_rank.loc[{"sinks": "kept"}] = kept
    assert f"with them and 1.00 without, so they {does} it." in finding(table, "Token 0")


def with_attention(table: xr.Dataset, received: float) -> xr.Dataset:
    """The trace with token 0 of every text receiving that much attention in each layer."""
    table = table.copy(deep=True)
    table.attention_received[:], table.attention_uniform[:] = 0.01, 0.05
    table.attention_received.loc[{"token": 0}] = received
    return table


def test_a_sink_that_only_stands_out_is_not_massive(measured: xr.Dataset) -> None:
    sinks = with_attention(measured, 0.8)
    assert attention_finding(with_massive(sinks, [np.nan, 4, 4, 4], [1, 1, 1, 1])).text.endswith("It is not massive.")
    assert attention_finding(with_massive(sinks, [np.nan, 40, 4, 4], [1, 1, 1, 1])).text.endswith("It is also massive.")


def test_attention_below_the_threshold_is_not_written_as_the_threshold(measured: xr.Dataset) -> None:
    assert "the most attended one receives 0.249 of" in attention_finding(with_attention(measured, 0.2492)).text


def verdict_in(state: State) -> Verdict:
    return Verdict(state, Worst(state, 1), (state,), (), ())


def end_words(ends: tuple[float, float], half: float, states: tuple[State, State] = ("consensus", "spread")) -> str:
    """The first sentence on two networks with these κ′ at the end and an interval of that half width."""
    gap = ends[1] - ends[0]
    dims = ("layer", "site")
    table = xr.Dataset(
        {
            "consensus_relative": (dims, [[gap]]),
            "consensus_relative_interval": ((*dims, "bound"), [[[gap - half, gap + half]]]),
        },
        coords={"site": ["feed_forward"]},
    )
    return end_finding(("a", "b"), (verdict_in(states[0]), verdict_in(states[1])), ends, table).text


def test_a_difference_is_that_of_the_numbers_beside_it() -> None:
    text = end_words((0.4788, 0.0049), 0.03)
    assert "a in “consensus” (κ′ 0.479) and b in “spread” (κ′ 0.005)" in text
    assert "(−0.474, 90 % CI −0.504 to −0.444) is significant" in text
    assert "(κ′ 0.50) and b in “spread” (κ′ 0.25)" in end_words((0.5, 0.25), 0.03)


def test_a_significant_difference_is_not_written_as_zero() -> None:
    same = end_words((0.301, 0.304), 0.001, ("spread", "spread"))
    assert "The difference in within-text similarity κ′ (+0.003, 90 % CI 0.002–0.004) is significant." in same
    assert "(0.00, 90 % CI −0.01 to 0.01) is not significant" in end_words((0.301, 0.304), 0.01, ("spread", "spread"))


def deeper_words(values: list[float]) -> str:
    passes = {"pass": np.arange(len(values))}
    table = xr.Dataset(
        {
            "median_consensus": (("variant", "pass"), [values]),
            "consensus": (("variant", "prompt", "pass"), [[values]]),
            "consensus_within": (("variant", "pass"), [[np.nan] * len(values)]),
            "share_common": (("variant", "pass"), [[np.nan] * len(values)]),
            "median_half_life": (("variant", "estimate"), [[5.0, 4.0, 6.0]]),
            "median_collapse_pass": (("variant", "estimate"), [[9.0, 8.0, 10.0]]),
            "fit_first": (("variant",), [1]),
            "status": (("variant", "prompt"), [["all passes done"]]),
            "log_norm": (("variant", "prompt", "pass"), [[[0.0] * len(values)]]),
        },
        coords={"variant": ["full"], **passes},
        attrs={"asked_for": len(values) - 1, "weights": "fixed", "feed_back": "after_norm", "resolution": 1e-9},
    )
    return " ".join(sentences_of(table, {}, "nothing was decoded"))


def test_what_has_not_reached_the_bound_is_not_written_as_the_bound() -> None:
    assert "E falls from 0.5 to 0.00104 in 3 passes and has not reached 0.001" in deeper_words(
        [0.5, 0.1, 0.01, 0.00104]
    )
    assert "E falls from 0.00104 to below 0.001 at pass 1" in deeper_words([0.00104, 0.0005, 0.0001])
    assert "It is 0.00101 again after pass 2" in deeper_words([0.5, 0.0005, 0.00101])
