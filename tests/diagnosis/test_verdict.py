"""The verdict says what the numbers say: each sentence, and the case in which it must say the opposite."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

from diagnosis.function_preserving import network_of
from tokendynamics.diagnosis import audit, diagnose, judge, trace
from tokendynamics.diagnosis.tracing.layer_states import State
from tokendynamics.diagnosis.tracing.words import (
    ATTENTION_SINK,
    LEAST_UPDATE,
    NEIGHBOURS,
    TIMES_UNIFORM,
    UPDATE_JUMP,
    attention_finding,
    attention_sinks,
    detailed_findings,
    jumps,
)
from tokendynamics.diagnosis.verdict import _causes, _continued
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.words import Finding

TEXTS = {
    "one": "a cat sat on the mat",
    "two": "0123456789",
    "three": "Why, thought the quick brown fox?",
    "four": "x = [y for y in z if y]",
}


@pytest.fixture
def measured(tiny: Callable[..., Checkpoint]) -> xr.Dataset:
    return trace(tiny("gpt2"), TEXTS)


def with_end(table: xr.Dataset, width: float = 0.02, **values: float) -> xr.Dataset:
    """The trace with measures that go evenly to `values` at the end, each with an interval of that half width."""
    layers = table.sizes["layer"]
    table = table.assign(share_position=table.share_position * 0).copy(deep=True)
    for name, end in {"consensus_relative": 0.0, "line_excess": 0.0, "common": 0.1, **values}.items():
        ramp = np.linspace(0, end, layers)[:, None] + np.where(np.isnan(table.consensus_within.values), np.nan, 0)
        if name == "common":
            table.shares.loc[{"share": "common"}] = ramp
            table.shares_interval.loc[{"share": "common"}] = ramp[..., None] + np.array([-width, width])
        else:
            table[name] = (("layer", "site"), ramp)
            table[f"{name}_interval"] = (("layer", "site", "bound"), ramp[..., None] + np.array([-width, width]))
    return table


@pytest.mark.parametrize(
    ("end", "state", "words"),
    [
        (
            {"consensus_relative": 0.01},
            "spread",
            "The tokens stay spread. Within-text similarity after the last layer is 0.01 (90 % CI −0.01 to 0.03), ",
        ),
        (
            {"consensus_relative": 0.3},
            "drawing together",
            "The tokens of each text draw together but stay distinct. Within-text similarity after the last layer is "
            "0.30 (90 % CI 0.28",
        ),
        ({"consensus_relative": 0.9}, "consensus", "The tokens of each text end in consensus"),
        ({"line_excess": 0.9}, "rank collapse", "The tokens of each text end in rank collapse"),
        (
            {"common": 0.97},
            "anisotropic",
            "Tokens of all texts point one way: the common share of their directions is 0.97 (90 % CI 0.95–0.99)",
        ),
        (
            {"common": 0.9999},
            "one point",
            "The tokens of all texts end at one point: the common share of their directions",
        ),
    ],
)
def test_the_first_sentence_is_the_state(measured: xr.Dataset, end: dict[str, float], state: str, words: str) -> None:
    verdict = judge(None, with_end(measured, **end))
    assert verdict.state == state
    assert verdict.layers[-1] == state
    assert verdict.sentences[0].text.startswith(words)
    assert [name for name, _ in verdict.lines] == ["What", "Why"]
    assert not re.search("[κα′∂σ]", str(verdict))


@pytest.mark.long
def test_words_of_collapse_stand_where_a_collapse_is_measured_and_nowhere_else(measured: xr.Dataset) -> None:
    for end in ({"consensus_relative": 0.01}, {"consensus_relative": 0.3}, {"common": 0.97}):
        words = str(judge(None, with_end(measured, **end)))
        assert "consensus" not in words
        assert "rank collapse" not in words


@pytest.mark.long
def test_what_is_undone_by_the_end_is_named_where_it_was(measured: xr.Dataset) -> None:
    table = with_end(measured, consensus_relative=0.1)
    table.consensus_relative.loc[{"layer": 2, "site": ["attention", "feed_forward"]}] = 0.9
    verdict = judge(None, table)
    assert (verdict.state, verdict.worst.state, verdict.worst.layer) == ("drawing together", "consensus", 2)
    where = verdict.sentences[1].text
    assert where.startswith(
        "An earlier layer is worse: consensus after layer 2 of 3 (similarity 0.90; 0.10 after the last layer)"
    )
    assert "The attention of layer 2 contributes +0.87 of the total +0.90." in where
    table.consensus_relative.loc[{"layer": 3, "site": ["attention", "feed_forward"]}] = 0.95
    assert judge(None, table).sentences[1].text.startswith("Similarity peaks after the last layer (0.95)")


def test_a_rise_that_all_layers_make_is_credited_to_none(measured: xr.Dataset) -> None:
    table = with_end(measured, consensus_relative=0.6)
    steps = np.concatenate([[0], np.linspace(0, 0.6, 7)[1:]])
    table.consensus_relative.loc[{"site": "attention"}] = [np.nan, *steps[1::2]]
    table.consensus_relative.loc[{"site": "feed_forward"}] = steps[::2]
    words = " No small set of parts causes it; the largest contribution is +0.10 ("
    assert words in judge(None, table).sentences[1].text
    table.consensus_relative.loc[{"layer": 1, "site": "attention"}] = 0.2
    table.consensus_relative.loc[{"layer": 1, "site": "feed_forward"}] = 0.5
    assert (
        "The feed-forward part of layer 1 contributes +0.30 of the total +0.60" in judge(None, table).sentences[1].text
    )


def test_a_part_that_causes_most_of_a_small_rise_does_not_read_zero() -> None:
    few = {"the attention of layer 1": 0.004, "the feed-forward part of layer 1": 0.0003}
    few |= {f"the attention of layer {layer}": 0.0002 for layer in range(2, 8)}
    assert _causes(few) == " The attention of layer 1 contributes +0.004 of the total +0.006."
    even = {f"the attention of layer {layer}": 0.003 for layer in range(1, 9)}
    words = " No small set of parts causes it; the largest contribution is +0.003 (attention, layer 8)."
    assert _causes(even) == words
    assert _causes({**few, "the attention of layer 1": 0.04}).startswith(" The attention of layer 1 contributes +0.04 ")


@pytest.mark.long
def test_how_sure_it_is_follows_the_intervals_and_names_the_texts(measured: xr.Dataset) -> None:
    sure = judge(None, with_end(measured, consensus_relative=0.3)).details[0].text
    assert sure.startswith("Based on 4 texts (“one”, “two”, “three” and “four”); the verdict is the same throughout")
    assert "may also be" not in judge(None, with_end(measured, consensus_relative=0.3)).sentences[0].text
    wide = judge(None, with_end(measured, consensus_relative=0.7, width=0.1))
    assert "Within the 90 % confidence intervals the state may also be consensus." in wide.sentences[0].text
    assert "the verdict is not the same throughout" in wide.details[0].text
    undefined = with_end(measured, consensus_relative=0.3, width=np.nan)
    words = "Based on 4 texts (“one”, “two”, “three” and “four”), with no confidence interval because a measure is"
    assert judge(None, undefined).details[0].text.startswith(words)
    undefined["repeats"] = ("prompt", [-1, -1, 0, 0])
    assert "too few for a confidence interval." in judge(None, undefined).details[0].text


def test_the_symbol_of_the_similarity_is_defined_with_its_numbers(measured: xr.Dataset) -> None:
    table = with_end(measured, consensus_relative=0.3)
    table.consensus_within.loc[{"site": "feed_forward"}] = [0.1, 0.2, 0.3, 0.37]
    meaning = "Within-text similarity is κ′: κ is 0.10 at the embedding and 0.37 after the last layer, and κ′ is "
    assert meaning in judge(None, table).details[0].text


@pytest.mark.long
def test_texts_that_repeat_others_are_named(measured: xr.Dataset) -> None:
    table = with_end(measured, consensus_relative=0.3)
    assert "repeat" not in judge(None, table).details[0].text
    table["repeats"] = ("prompt", [-1, -1, -1, 0])
    words = "of which “four” enters the network exactly as another does and does not count"
    assert words in judge(None, table).details[0].text  # its tokens are others
    table["token_text"] = table.token_text.isel(prompt=[0, 1, 2, 0]).assign_coords(prompt=table.prompt)
    assert "of which “four” repeats another and does not count" in judge(None, table).details[0].text


@pytest.mark.long
@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ("a cat sat on the mat", "one text cannot show"),
        (["the same"] * 3, "all texts are identical"),
        (["x", "y"], "fewer than two tokens count"),
    ],
)
def test_what_is_not_determined_says_why(tiny: Callable[..., Checkpoint], texts: object, why: str) -> None:
    verdict = diagnose(tiny("gpt2"), texts).verdict
    assert verdict.state == "undetermined"
    assert why in verdict.sentences[0].text
    assert [name for name, _ in verdict.lines] == ["What", "What to do"]
    assert "nan" not in (str(verdict) + " ".join(entry.text for entry in verdict.details)).lower()


@pytest.mark.parametrize("change", [nn.Module.float, nn.Module.double])
def test_a_text_repeats_another_only_if_all_its_tokens_do(change: Callable[[nn.Module], nn.Module]) -> None:
    """In double precision too, where a cosine with itself is not always 1; the same tokens in another order differ."""
    checkpoint = load(change(network_of("llama", layers=2)))
    texts = [[7, 8, 9, 10], [9, 8, 10, 7], [7, 8, 9, 10], [7, 8, 9], [11, 12, 13, 14], [7, 8, 9]]
    assert trace(checkpoint, texts).repeats.values.tolist() == [-1, -1, 0, -1, -1, 3]


class _Latents(nn.Module):
    """States begin as a table that is the same for all prompts, which the blocks read beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.read = nn.Parameter(torch.randn(5, 16)), nn.Linear(3, 16)
        self.blocks = nn.ModuleList(nn.TransformerDecoderLayer(16, 2, 24, 0.0, batch_first=True) for _ in range(2))

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        states, memory = self.latents.expand(len(series), -1, -1), self.read(series)
        for block in self.blocks:
            states = block(states, memory)
        return states


@pytest.mark.long
def test_prompts_are_no_copies_where_the_states_of_all_begin_alike() -> None:
    torch.manual_seed(2)
    network = _Latents()
    series = [{"series": torch.randn(1, 4, 3)} for _ in range(3)]
    prompts = [*series, series[1]]
    measured = trace(load(network, inputs=lambda count: {"series": torch.randn(count, 4, 3)}), prompts)
    assert measured.repeats.values.tolist() == [-1, -1, -1, 1]
    assert judge(None, measured).state != "undetermined"


@pytest.mark.long
def test_copies_of_a_text_change_no_number_and_no_interval() -> None:
    checkpoint = load(network_of("llama", layers=3))
    texts = [[7, 8, 9, 10, 11], [20, 21, 30, 22], [5, 6, 40, 41, 42, 9], [33, 34, 50, 12]]
    once = trace(checkpoint, texts)
    again = trace(checkpoint, [texts[place] for place in (0, 0, 1, 2, 1, 3)])
    assert again.repeats.values.tolist() == [-1, 0, -1, -1, 2, -1]
    for name in once:
        if "prompt" not in once[name].dims:
            np.testing.assert_allclose(again[name].values, once[name].values, rtol=1e-6, atol=1e-9, err_msg=str(name))
    values = again.kappa_of_prompt.values
    np.testing.assert_allclose(values[[0, 2, 3, 5]], once.kappa_of_prompt.values, atol=1e-9)
    np.testing.assert_array_equal(values[[1, 4]], values[[0, 2]])


def test_one_word_repeated_agrees_before_the_first_layer(tiny: Callable[..., Checkpoint]) -> None:
    table = trace(tiny("llama"), {name: [number] * 6 for number, name in enumerate("abcd", start=5)})
    verdict = judge(None, table)
    assert verdict.state == "undetermined"
    assert "already agree before the first layer" in verdict.sentences[0].text


def test_a_part_is_credited_only_where_its_interval_leaves_out_nought(measured: xr.Dataset) -> None:
    table = measured.copy(deep=True)
    table["kappa_change_sum"] = ("component", [0.3, -0.2, 0.001])
    table["kappa_change_sum_interval"] = (("component", "bound"), [[0.2, 0.4], [-0.3, -0.1], [-0.1, 0.1]])
    table["kappa_change"] = (
        ("layer", "component"),
        [[np.nan] * 3, [0.1, -0.1, np.nan], [0.2, -0.1, np.nan], [0, 0.001, 0.001]],
    )
    text = next(finding.text for finding in detailed_findings(table, ()) if finding.figure == "components")
    assert text.startswith(
        "Attention raises similarity κ in 2 of 3 layers, by 0.30 (90 % CI 0.20–0.40) in total; the feed-forward part"
    )
    assert "lowers similarity κ in 2 of 3 layers, by 0.20 (90 % CI 0.10–0.30)" in text
    table["kappa_change_sum_interval"] = (("component", "bound"), [[-0.1, 0.7], [-0.3, -0.1], [-0.1, 0.1]])
    text = next(finding.text for finding in detailed_findings(table, ()) if finding.figure == "components")
    assert "Attention changes similarity κ by +0.30 (90 % CI −0.10 to 0.70) in total, which is not significant" in text


def test_a_single_text_that_collapses_is_named(measured: xr.Dataset) -> None:
    table = with_end(measured, consensus_relative=0.25)
    table.kappa_of_prompt.loc[{"layer": 3, "site": "feed_forward"}] = [0.0, 0.0, 0.97, 0.0]
    words = "In 1 of 4 texts the tokens converge to one direction: “three” (κ of that text alone is 0.97)."
    assert any(words in entry.text for entry in judge(None, table).details)
    both = table.copy(deep=True)
    both.kappa_of_prompt.loc[{"layer": 3, "site": "feed_forward"}] = [0.0, 0.99, 0.97, 0.0]
    words = (
        "In 2 of 4 texts the tokens converge to one direction: “two” and “three” (κ of each alone is at least 0.97)."
    )
    assert any(words in entry.text for entry in judge(None, both).details)
    table.kappa_of_prompt.loc[{"layer": 0, "site": "feed_forward"}] = [0.0, 0.0, 0.95, 0.0]
    assert not any("converge" in entry.text for entry in judge(None, table).details)  # it was so from the start
    table.kappa_of_prompt.loc[{"layer": 3, "site": "feed_forward"}] = [0.0, 0.0, 0.92, 0.0]
    for start, named in ((0.83, True), (0.85, False)):
        table.kappa_of_prompt.loc[{"layer": 0, "site": "feed_forward"}] = [0.0, 0.0, start, 0.0]
        assert any("converge" in entry.text for entry in judge(None, table).details) == named
    table.kappa_of_prompt.loc[{"layer": 0, "site": "feed_forward"}] = 0.0
    table.kappa_of_prompt.loc[{"layer": 3, "site": "feed_forward"}] = [0.0, 0.0, 0.5, 0.0]
    assert not any("converge" in entry.text for entry in judge(None, table).details)


def test_an_update_counts_as_a_jump_from_four_times_its_neighbours() -> None:
    sizes = np.array([1.0, 1.2, 1.0, UPDATE_JUMP * 1.1, 1.0, 1.2, 1.2, 9.0])
    assert jumps(sizes) == [3, 7]
    sizes[3] -= 1e-9
    assert jumps(sizes) == [7]
    assert NEIGHBOURS == 3
    assert jumps(np.array([5.0])) == []


def test_an_attention_sink_needs_weight_beyond_uniform(measured: xr.Dataset) -> None:
    table = measured.copy(deep=True)
    table["attention_uniform"] = table.attention_uniform * 0 + 0.05
    table["attention_received"] = table.attention_received * 0 + 0.05
    assert not attention_sinks(table).any()
    text = next(finding.text for finding in detailed_findings(table, ()) if finding.figure == "attention")
    assert text.startswith(
        "No token is an attention sink: the most attended one receives 0.05 of the attention of tokens at least four"
    )
    table.attention_received.loc[{"layer": 2, "token": 1}] = ATTENTION_SINK
    result = next(finding for finding in detailed_findings(table, ()) if finding.figure == "attention")
    assert result.text.startswith("Token 1 (")
    assert result.values["layers"] == [2]
    assert not result.values["massive"]
    table["attention_uniform"] = table.attention_uniform * 0 + ATTENTION_SINK / TIMES_UNIFORM + 1e-9
    assert not attention_sinks(table).any()


def test_sinks_that_are_not_measured_have_one_reason_the_one_that_holds(tiny: Callable[..., Checkpoint]) -> None:
    """A receiver counts from four places away and a mean needs eight of them: twelve tokens."""
    begin = "Attention sinks are not measured because "
    long, short = list(range(5, 17)), list(range(5, 16))
    ckpt = tiny("gpt2")
    assert not attention_finding(trace(ckpt, [long, short])).text.startswith(begin)
    brief = trace(ckpt, [short, short[1:]])
    assert brief.attention_accessible.values.all()
    wanted = f"{begin}the longest text has 11 tokens; at least 12 are needed."
    assert attention_finding(brief).text == wanted
    assert attention_finding(brief.drop_vars("attention_accessible")).text == wanted
    windowed = trace(load(mistral(window=11)), [list(range(40))])
    assert attention_finding(windowed).text == (
        f"{begin}no token can be attended to by at least 8 tokens that are 4 or more positions away, as under a short "
        "attention window."
    )
    assert not attention_finding(trace(load(mistral(window=12)), [list(range(40))])).text.startswith(begin)
    hidden = brief.assign(attention_accessible=~brief.attention_accessible)
    assert attention_finding(hidden).text == f"{begin}the attention weights between the tokens are not accessible."
    half = brief.assign(attention_accessible=("prompt", [False, True]))
    assert attention_finding(half).text == (
        f"{begin}the attention weights of 1 text are not accessible, and the longest of the others has 10 tokens; at "
        "least 12 are needed."
    )


def mistral(window: int) -> nn.Module:
    from transformers import MistralConfig, MistralModel

    torch.manual_seed(0)
    config = MistralConfig(
        hidden_size=24, num_attention_heads=2, num_key_value_heads=2, intermediate_size=32, num_hidden_layers=2,
        vocab_size=60, sliding_window=window,
    )  # fmt: skip
    return MistralModel(config).eval()


@pytest.mark.parametrize(("times", "named"), [(4.1, False), (12.0, True)])
def test_an_outlier_that_is_not_massive_is_said_to_be_left_out(measured: xr.Dataset, times: float, named: bool) -> None:
    table = measured.copy(deep=True)
    table["massive_count"], table["massive_norm"] = table.massive_count * 0, table.massive_norm.astype(float) * np.nan
    place = {"prompt": "two", "layer": 2}
    table.massive_count.loc[place] = 1
    median = table.norm_median.sel(sinks="removed", site="feed_forward", **place)
    table.massive_norm.loc[place] = times * float(median)
    text = next(
        finding.text
        for finding in detailed_findings(table, ())
        if finding.figure == "norms" and "massive" in finding.text
    )
    below = (
        "No token is massive, with 10× the median norm of its text or more. The largest norm is 4.1× that median: an "
        "outlier, which the other measures leave out all the same."
    )
    assert (text != below) == named


def test_a_massive_token_is_no_attention_sink_by_its_norm(measured: xr.Dataset) -> None:
    table = measured.copy(deep=True)
    table["massive_count"] = table.massive_count * 0
    assert any(finding.text.startswith("No token is massive") for finding in detailed_findings(table, ()))
    table.massive_count.loc[{"prompt": "two", "layer": 2}] = 1
    table["massive_norm"] = table.massive_norm.astype(float) * np.nan
    table.massive_norm.loc[{"prompt": "two", "layer": 2}] = 99.0
    table["massive_position"] = table.massive_position * 0 - 1
    table.massive_position.loc[{"prompt": "two", "layer": 2}] = 3
    result = next(finding for finding in detailed_findings(table, ()) if finding.figure == "norms")
    assert result.text.startswith("Token 3 (“3” in text two) is massive: its norm reaches 99 in layer 2")
    assert result.values["layers"] == [2]


def detail(table: xr.Dataset, figure: str, place: int = 0) -> str:
    return [finding.text for finding in detailed_findings(table, ()) if finding.figure == figure][place]


@pytest.mark.long
def test_a_plateau_has_no_single_worst_layer(measured: xr.Dataset) -> None:
    """Equal as written, or within the interval; a layer outside it, or of another state, is not named."""
    table = with_end(measured, consensus_relative=0.9)
    for values, layers, where in (
        ([0.0, 0.904, 0.9, 0.9], (1, 2, 3), "is highest after layers 1–3 of 3, equal to within the interval (0.90)"),
        ([0.0, 0.9, 0.8, 0.904], (1, 3), "is highest after layers 1, 3 of 3, equal to within the interval (0.90)"),
        ([0.0, 0.8, 0.95, 0.9], (2,), "peaks after layer 2 of 3 (0.95)"),
        ([0.0, 0.8, 0.9, 0.95], (3,), "peaks after the last layer (0.95)"),
    ):
        for site in ("attention", "feed_forward"):
            table.consensus_relative.loc[{"site": site}] = values
        ends = np.array(values)[:, None, None] + np.array([-0.02, 0.02])
        table["consensus_relative_interval"] = (("layer", "site", "bound"), np.repeat(ends, 3, axis=1))
        verdict = judge(None, table)
        assert verdict.worst.layers == layers
        assert verdict.worst.layer == 1 + int(np.argmax(values[1:]))
        assert f"Similarity {where}" in verdict.sentences[1].text
    for site in ("attention", "feed_forward"):
        table.consensus_relative.loc[{"site": site}] = [0.0, 0.95, 0.2, 0.949]
    few = table.assign(consensus_relative_interval=table.consensus_relative_interval * np.nan)
    text = judge(None, few).sentences[1].text
    assert "Similarity is highest after layers 1, 3 of 3, equal when rounded (0.95)" in text
    narrow = table.assign(consensus_relative_interval=table.consensus_relative_interval * 0.0 + 0.95)
    assert "layers 1, 3 of 3, equal when rounded" in judge(None, narrow).sentences[1].text
    for site in ("attention", "feed_forward"):
        table.consensus_relative.loc[{"site": site}] = [0.0, 0.8, 0.9, 0.95]
    table["consensus_relative_interval"] = table.consensus_relative_interval + np.array([-0.1, 0.1])
    table["kappa_of_prompt"] = table.kappa_of_prompt * 0.0
    assert judge(None, table).worst.layers == (2, 3)  # 0.8 is drawing together, whatever the interval holds
    apart = np.zeros(table.kappa_of_prompt.shape)
    apart[:, 3] = 0.2 + 0.001 * np.arange(len(apart))[:, None]  # in each prompt more after layer 3 than after layer 2
    table["kappa_of_prompt"] = (table.kappa_of_prompt.dims, apart)
    assert judge(None, table).worst.layers == (3,)


@pytest.mark.long
def test_a_collapse_to_a_line_has_a_plateau_too(measured: xr.Dataset) -> None:
    table = with_end(measured, line_excess=0.9, width=0.0)
    table.line_excess.loc[{"layer": [2, 3]}] = 0.9
    verdict = judge(None, table)
    assert (verdict.worst.layers, str(verdict.worst)) == ((2, 3), "rank collapse, layers 2–3")
    assert "The line excess is highest after layers 2–3 of 3, equal when rounded (0.90)" in verdict.sentences[1].text
    common = judge(None, with_end(measured, common=0.97, width=0.0))
    assert "The common share peaks after the last layer (0.97)" in common.sentences[1].text
    assert str(common.worst) == "anisotropic, layer 3"


@pytest.mark.long
def test_where_nothing_rises_no_layer_is_named(measured: xr.Dataset) -> None:
    none = "In no layer are the tokens of one text significantly more similar than at the embedding "
    assert (
        judge(None, with_end(measured, consensus_relative=0.004, width=0.001)).sentences[1].text
        == f"{none}(similarity at most 0.00)."
    )
    assert (
        judge(None, with_end(measured, consensus_relative=0.04, width=0.05)).sentences[1].text
        == f"{none}(similarity at most 0.04)."
    )
    sure_before = with_end(measured, consensus_relative=0.04, width=0.05)
    sure_before.consensus_relative.loc[{"layer": 2}] = 0.03
    for bound, end in enumerate((0.02, 0.04)):
        sure_before.consensus_relative_interval[{"layer": 2, "bound": bound}] = end
    assert "In no layer" not in judge(None, sure_before).sentences[1].text
    higher_before = with_end(measured, consensus_relative=-0.04, line_excess=0.02, width=0.05)
    higher_before.consensus_relative.loc[{"layer": [1, 2]}] = [[-0.03], [-0.01]]
    assert judge(None, higher_before).worst.layer == 3  # by the line excess
    assert judge(None, higher_before).sentences[1].text == f"{none}(similarity at most −0.01)."
    rising = judge(None, with_end(measured, consensus_relative=0.04, width=0.01)).sentences[1].text
    assert rising.startswith("Similarity peaks after the last layer (0.04)")


def test_parts_that_others_undo_are_not_a_share_of_the_rise(measured: xr.Dataset) -> None:
    table = with_end(measured, consensus_relative=0.3)
    for layer, (attention, feed_forward) in enumerate(((0.32, 0.30), (0.30, 0.30), (0.30, 0.30)), start=1):
        table.consensus_relative.loc[{"layer": layer, "site": "attention"}] = attention
        table.consensus_relative.loc[{"layer": layer, "site": "feed_forward"}] = feed_forward
    text = judge(None, table).sentences[1].text
    assert text.endswith(" The attention of layer 1 contributes +0.32, of which the other parts undo 0.02.")
    assert " of the total " not in text
    table.consensus_relative.loc[{"layer": 1, "site": "attention"}] = 0.28
    assert (
        judge(None, table).sentences[1].text.endswith("The attention of layer 1 contributes +0.28 of the total +0.30.")
    )


def test_a_rise_that_ends_before_the_number_beside_it_is_said_to(measured: xr.Dataset) -> None:
    """All layers are equal to within the interval; the largest value is that of the last, the rise ends at layer 1."""
    table = with_end(measured, consensus_relative=0.30, width=0.2)
    for layer, value in enumerate((0.22, 0.26, 0.30), start=1):
        table.consensus_relative.loc[{"layer": layer}] = value
    where = judge(None, table)
    assert where.worst.layers == (1, 2, 3)
    assert "equal to within the interval (0.30)" in where.sentences[1].text
    assert where.sentences[1].text.endswith("contributes +0.22 of the total +0.22 up to layer 1.")


@pytest.mark.parametrize("common", [-0.09, -0.006, -0.004, 0.4, 1.004, 1.09])
def test_an_estimate_outside_0_to_1_is_no_share(measured: xr.Dataset, common: float) -> None:
    table = measured.assign(share_position=measured.share_position * 0).copy(deep=True)
    shares = np.array([common, 1 - common, 0.0])
    table["shares"] = (table.shares.dims, np.broadcast_to(shares, table.shares.shape).copy())
    ends = shares[:, None] + np.array([-0.5, 1.0])
    table["shares_interval"] = (table.shares_interval.dims, np.broadcast_to(ends, table.shares_interval.shape).copy())
    text = detail(table, "shares")
    if -0.005 < common < 1.005:
        low = max(common - 0.5, 0.0)
        share = f"{min(max(common, 0), 1):.2f} (90 % CI {low:.2f}–1.00)"
        assert text.startswith(f"After the last layer, {share} of a token's direction is common")
        assert "At the embedding the shares are" in text
    else:
        assert "are not stated because an estimate lies outside 0 to 1" in text
        assert "1.09" not in text
    assert "−" not in text


def test_no_interval_of_a_share_leaves_0_to_1(measured: xr.Dataset) -> None:
    for end in ({"common": 0.97}, {"consensus_relative": 0.9}):
        text = judge(None, with_end(measured, width=0.5, **end)).sentences[0].text
        assert "–1.00)" in text
        assert "–1.4" not in text


@pytest.mark.long
def test_one_direction_for_all_texts_says_what_is_left_of_a_token(measured: xr.Dataset) -> None:
    table = with_end(measured, common=0.97)
    table.shares.loc[{"share": "own"}] = 0.02
    assert "0.02 of a direction is still a token's own, so tokens can be distinguished" in str(judge(None, table))
    table.shares.loc[{"share": "own"}] = 0.0001
    words = "Only 0.0001 of a direction is a token's own, so the texts can hardly be distinguished by direction"
    assert words in str(judge(None, table))


@pytest.mark.long
def test_updates_that_turn_nothing_are_not_named(measured: xr.Dataset) -> None:
    table = measured.copy(deep=True)
    for size, named in ((1e-8, False), (LEAST_UPDATE / 1.1, False), (LEAST_UPDATE * 1.1, True)):
        table["update_ratio"] = table.update_ratio * 0 + size / 10
        table.update_ratio.loc[{"layer": 2, "component": "attention"}] = size
        assert ("the attention of layer 2" in detail(table, "updates")) == named
        assert (
            detail(table, "updates") == "No layer's update is unusually large relative to the residual stream."
        ) != named


def massive_at(measured: xr.Dataset, kept: float, removed: float) -> str:
    table = measured.copy(deep=True)
    table["massive_count"] = table.massive_count * 0
    table.massive_count.loc[{"prompt": "two", "layer": 2}] = 1
    table["massive_norm"] = table.massive_norm.astype(float) * np.nan
    table.massive_norm.loc[{"prompt": "two", "layer": 2}] = 99.0
    table["effective_rank"] = table.effective_rank * 0 + 17.0
    table.effective_rank.loc[{"layer": 2, "sinks": "kept"}] = kept
    table.effective_rank.loc[{"layer": 2, "sinks": "removed"}] = removed
    return detail(table, "norms")


@pytest.mark.long
def test_the_effective_rank_is_said_to_be_theirs_only_where_it_is(measured: xr.Dataset) -> None:
    end = "In layer 2 the effective rank is {:.2f} with them and {:.2f} without, so they {} it."
    for kept, removed, does in ((1.01, 12.3, "dominate"), (9.0, 12.3, "lower"), (16.19, 17.0, "hardly affect")):
        assert massive_at(measured, kept, removed).endswith(end.format(kept, removed, does))


def with_sinks(measured: xr.Dataset, *sinks: tuple[str, int, int]) -> xr.Dataset:
    """The trace in which these tokens alone, each by text, layer and place, receive attention."""
    table = measured.copy(deep=True)
    table["attention_uniform"] = table.attention_uniform.fillna(0) * 0 + 0.05
    table["attention_received"] = table.attention_received.fillna(0) * 0 + 0.05
    for text, layer, place in sinks:
        table.attention_received.loc[{"prompt": text, "layer": layer, "token": place}] = 0.5
    return table


def test_sinks_are_counted_layer_by_layer(measured: xr.Dataset) -> None:
    """A token that is one in another layer of each text is the network's in none of them."""
    spread_out = with_sinks(measured, ("one", 1, 0), ("two", 1, 0), ("three", 2, 0), ("four", 3, 0))
    text = detail(spread_out, "attention")
    assert text.startswith("No single token or word is an attention sink in most texts")
    assert text.endswith("In any one layer, at most 2 of 4 texts have a sink.")
    together = with_sinks(measured, ("one", 1, 0), ("two", 1, 0), ("three", 1, 0), ("four", 3, 0))
    text = detail(together, "attention")
    assert text.startswith("Token 0 (“a” in text one) is an attention sink in 3 of 4 texts, in layer 1: ")
    together["repeats"] = ("prompt", [-1, 0, 0, -1])  # a text and its copies are one
    assert detail(together, "attention").startswith("No single token or word")
    both = with_sinks(measured, ("one", 1, 0), ("two", 1, 0))
    assert detail(both, "attention").startswith("No single token or word")
    both["repeats"] = ("prompt", [-1, -1, 0, 1])  # two different texts, both with the sink
    assert "is an attention sink in 2 of 2 texts, in layer 1: " in detail(both, "attention")


@pytest.mark.long
def test_a_word_that_is_a_sink_at_other_places_is_one_sink(measured: xr.Dataset) -> None:
    table = with_sinks(measured, ("one", 2, 3), ("two", 2, 5), ("three", 2, 7), ("four", 2, 0))
    words = table.token_text.values.copy()
    for row, place in enumerate((3, 5, 7)):
        words[row, place] = "."
    table["token_text"] = (table.token_text.dims, words)
    text = detail(table, "attention")
    assert text.startswith("“.”, at several positions, is an attention sink in 3 of 4 texts, in layer 2: ")
    assert text.endswith("Other tokens are attention sinks in 1 text.")
    words[:, 0] = "."
    table = with_sinks(measured, *((text, 2, 0) for text in TEXTS)).assign(token_text=(table.token_text.dims, words))
    assert detail(table, "attention").startswith("Token 0 (“.” in text one) is an attention sink in 4 of 4 texts")


@pytest.mark.slow
@pytest.mark.pretrained
def test_smollm2_draws_together_and_its_first_token_is_both_massive_and_an_attention_sink() -> None:
    from tokendynamics.diagnosis.texts import default_texts

    ckpt = load("smollm2")
    five = dict(list(default_texts().items())[:5])
    table = trace(ckpt, five)
    verdict = judge(audit(ckpt, layers=[1]), table)
    assert (verdict.state, verdict.worst.state) == ("drawing together", "drawing together")
    end = table.sel(site="feed_forward").isel(layer=[0, -1])
    # Published for these five texts: κ 0.04 → 0.34 and centred cos² 0.09 → 0.23.
    assert end.consensus_within.values == pytest.approx([0.04, 0.34], abs=0.03)
    assert end.centred_cos2.values == pytest.approx([0.09, 0.23], abs=0.03)
    details = {entry.figure: entry for entry in verdict.details}
    assert details["norms"].values["position"] == 0
    # In layers 3 to 9 its norm, or that of another token, is up to 10 times the median, which is not massive yet.
    assert details["norms"].values["layers"] == [*range(12, 30)]
    assert details["attention"].values["massive"]
    assert (details["attention"].values["position"], details["attention"].values["largest"]) == (
        0,
        pytest.approx(0.89, abs=0.02),
    )


@pytest.mark.long
@pytest.mark.pretrained
def test_minilm_draws_together() -> None:
    from tokendynamics.diagnosis.texts import default_texts

    table = trace(load("minilm"), dict(list(default_texts().items())[:5]))
    assert judge(None, table).state == "drawing together"
    end = table.sel(site="feed_forward").isel(layer=[0, -1])
    assert end.consensus_within.values == pytest.approx([0.04, 0.32], abs=0.03)
    assert end.centred_cos2.values == pytest.approx([0.03, 0.19], abs=0.03)


@pytest.mark.parametrize(
    ("text", "continued"),
    [
        ("They stay spread. Within-text similarity is 0.1.", "This is higher than usual."),
        (
            "Within-text similarity is 0.1. Position determines the rest.",
            "The within-text similarity is higher than usual.",
        ),
        ("The line excess is 0.9, within-image similarity 0.1.", "The within-image similarity is higher than usual."),
        ("They stay spread.", "This is higher than usual."),
    ],
)
def test_what_is_usual_names_the_similarity_unless_it_was_the_last_word(text: str, continued: str) -> None:
    usual = Finding("This is higher than usual.", "shares", {})
    assert _continued(Finding(text, "shares", {}), usual).text == f"{text} {continued}"


def test_two_massive_tokens_of_a_text_are_both_counted(measured: xr.Dataset) -> None:
    table = measured.copy(deep=True)
    table["massive_count"] = table.massive_count * 0
    table["massive_norm"] = table.massive_norm.astype(float) * np.nan
    table["massive_position"] = table.massive_position * 0 - 1
    for count, words in (
        (2, "Up to 2 tokens of one text stand out by their norm and are excluded"),
        (1, "Massive tok"),
    ):
        table.massive_count.loc[{"prompt": "two", "layer": 2}] = count
        table.massive_norm.loc[{"prompt": "two", "layer": 2}] = 99.0
        table.massive_position.loc[{"prompt": "two", "layer": 2}] = 3
        assert words in detail(table, "norms")


def test_the_shares_are_said_not_to_show_a_line(measured: xr.Dataset) -> None:
    words = "count as a token's own, so the shares do not show the rank collapse."
    whole = measured.copy(deep=True)
    whole.shares.loc[{"share": "common"}], whole.shares.loc[{"share": "prompt"}] = 0.1, 0.2
    whole.shares.loc[{"share": "own"}] = 0.7
    whole["share_position"] = whole.share_position * 0.0
    states: tuple[State, ...] = ("rank collapse", "consensus", "spread")
    for state in states:
        (text,) = (finding.text for finding in detailed_findings(whole, (state,)) if "its own" in finding.text)
        assert (words in text) == (state == "rank collapse")


@pytest.mark.long
def test_tokens_of_all_texts_in_one_direction_are_not_said_to_stay_distinct(measured: xr.Dataset) -> None:
    """κ′ is what is left beside the common direction: it says little of tokens that nearly agree in all texts."""
    table = with_end(measured, consensus_relative=0.45, common=0.997)
    table.shares.loc[{"share": "own"}] = 0.002
    what = judge(None, table).sentences[0].text
    assert what.startswith("The tokens of each text draw together. Within-text similarity after the last layer is 0.45")
    assert "Besides, tokens of all texts point one way: the common share of their directions is 1.00 (90 % CI" in what
    assert "Only 0.002 of a direction is a token's own, so the texts can hardly be distinguished by direction." in what
    table.shares.loc[{"share": "own"}] = 0.05
    what = judge(None, with_end(table, consensus_relative=0.45, common=0.9)).sentences[0].text
    assert what.startswith("The tokens of each text draw together but stay distinct.")
    assert "0.05 of a direction is still a token's own, so tokens can be distinguished." in what
    for values in ({"consensus_relative": 0.45, "common": 0.8}, {"common": 0.9}, {"common": 0.9999}):
        assert "Besides" not in judge(None, with_end(table, **values)).sentences[0].text


def test_a_layer_is_not_worse_for_a_direction_that_grows_after_it(measured: xr.Dataset) -> None:
    """A common share of 0.9 without, then of 0.95 with tokens that draw together: the later layer is the worse one."""
    table = with_end(measured, consensus_relative=0.45, common=0.95)
    for site in ("attention", "feed_forward"):
        table.shares.loc[{"share": "common", "site": site}] = [0.1, 0.9, 0.92, 0.95]
        table.consensus_relative.loc[{"site": site}] = [0.0, 0.01, 0.2, 0.45]
    ends = table.consensus_relative.values[..., None] + np.array([-0.02, 0.02])
    table["consensus_relative_interval"] = (("layer", "site", "bound"), ends)
    verdict = judge(None, table)
    assert verdict.layers == ("anisotropic", "drawing together", "drawing together")
    assert (verdict.worst.state, verdict.worst.layer) == ("drawing together", 3)
    assert "An earlier layer is worse" not in verdict.sentences[1].text
    for site in ("attention", "feed_forward"):
        table.shares.loc[{"share": "common", "site": site}] = [0.1, 0.97, 0.5, 0.2]
    assert judge(None, table).worst.state == "anisotropic"


def test_the_final_norm_changes_no_state_within_the_intervals(measured: xr.Dataset) -> None:
    table = with_end(measured, consensus_relative=0.058)
    for value, words in (
        (0.061, "After the final norm the state is drawing together (similarity 0.06), a difference within the"),
        (0.3, "The final norm changes the state to drawing together (similarity 0.30)."),
    ):
        table.consensus_relative.loc[{"site": "final_norm"}] = value
        table.consensus_relative_interval.loc[{"site": "final_norm"}] = [value - 0.02, value + 0.02]
        verdict = judge(None, table)
        assert (verdict.state, verdict.final_norm) == ("spread", "drawing together")
        assert words in verdict.sentences[0].text
