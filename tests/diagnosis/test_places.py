"""What a place gives to a direction, neighbours that merge, and the state after the final norm, on built networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor, nn

from diagnosis import built_recipes as paint
from diagnosis.built_networks import prompts_of
from diagnosis.built_recipes import WORDS
from diagnosis.built_transformer import VOCABULARY, Canvas, Frame, Own, blank
from diagnosis.direct_criteria import units
from tokendynamics.diagnosis import diagnose, judge, trace
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.diagnosis.tracing.layer_states import State
from tokendynamics.diagnosis.tracing.words import MERGED, PLACED, determined_by_place, merging_neighbours, own_share
from tokendynamics.diagnosis.verdict import verdict_as_plain, verdict_of
from tokendynamics.pretrained import Checkpoint, load


def checkpoint_of(network: nn.Module) -> Checkpoint:
    return load(network, inputs=lambda count: {"idx": torch.randint(WORDS, VOCABULARY, (count, 9))})


def traced(network: nn.Module, population: str = "mixed") -> xr.Dataset:
    ids = prompts_of(population)
    return trace(checkpoint_of(network), [{"idx": torch.tensor([token_id])} for token_id in ids], sinks=())


def placed(size: float, common: float = 0.0) -> Canvas:
    """Words of length √d plus places and one common vector of so many times that, and blocks that do almost nothing."""
    canvas = blank(Frame(seed=0))
    assert canvas.places is not None
    canvas.words.add_(common * canvas.direction() * 64**0.5)
    canvas.places.copy_(size * torch.randn(canvas.places.shape, generator=canvas.draw))
    return canvas


def states_of(canvas: Canvas, population: str) -> list[np.ndarray]:
    with torch.no_grad():
        hidden = [canvas.network.words(torch.tensor(ids)) for ids in prompts_of(population)]  # pyright: ignore
    assert canvas.places is not None
    return [units((x + canvas.places[: len(x)]).double().numpy()) for x in hidden]


def by_hand(prompts: list[np.ndarray]) -> float:
    """The excess of the same place over different places, pair by pair of prompts."""
    values = []
    for one, u in enumerate(prompts):
        for v in prompts[:one]:
            cosines, shared = u @ v.T, min(len(u), len(v))
            same = np.diagonal(cosines)
            values.append(same.mean() - (cosines.sum() - same.sum()) / (cosines.size - shared))
    return float(np.mean(values))


@pytest.mark.long
@pytest.mark.parametrize("population", ["mixed", "even", "short"])
def test_the_share_of_a_place_is_that_of_all_pairs(population: str) -> None:
    canvas = placed(1.0)
    share = traced(canvas.network, population).share_position.sel(site="feed_forward")
    assert float(share[0]) == pytest.approx(by_hand(states_of(canvas, population)), abs=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("size", [1.0, 3.0, 8.0])
def test_places_that_take_over_are_a_share_of_their_own(size: float) -> None:
    """|word|² : |place|² : |common|² = 1 : s² : 1/4 (1 + s²), and each has its part of the sum."""
    table = traced(placed(size, 0.5 * (1 + size**2) ** 0.5).network, "even")
    site = table.sel(site="feed_forward").isel(layer=-1)
    wanted = 0.8 * size**2 / (1 + size**2)
    assert float(site.share_position) == pytest.approx(wanted, abs=0.03)
    assert own_share(site) == pytest.approx(0.8 - wanted, abs=0.06)
    low, high = site.share_position_interval.values
    assert low < float(site.share_position) < high
    verdict = judge(None, table)
    named = "Position determines most of the rest" in verdict.sentences[0].text
    whole = float(site.shares.sel(share="own"))
    assert named == (low > whole - low)
    for end, most in ((whole / 2 - 0.001, False), (whole / 2 + 0.001, True)):
        table.share_position_interval.loc[{"site": "feed_forward", "bound": "low"}] = end
        assert determined_by_place(table) == most
    shares = next(detail for detail in verdict.details if detail.figure == "shares" and "own" in detail.values)
    assert "1.00 is its own" not in shares.text
    assert "by tokens at the same place of different texts" in shares.text
    assert sum(shares.values.values()) == pytest.approx(1, abs=1e-6)
    assert shares.values["common"] == pytest.approx(0.2, abs=0.06)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("start", [0.3, 3.0])
def test_the_part_that_makes_a_place_the_most_of_a_direction_is_named(start: float) -> None:
    """Words live in the first half of the features, places in the second, which the attention of layer 3 makes larger.

    Attending to itself, every token keeps its own; where places are larger from the start, no part is the cause.
    """
    canvas = blank(Frame(dim=64, seed=308))
    assert canvas.places is not None
    canvas.words[:, 32:] = 0.0
    canvas.places[:, 32:] = start * torch.randn(len(canvas.places), 32, generator=canvas.draw)
    upper = torch.zeros(64, 64)
    upper[32:, 32:] = torch.eye(32)
    block = canvas.blocks[2]
    block.query.weight.copy_(30 * torch.eye(64))
    block.key.weight.copy_(30 * torch.eye(64))
    block.value.weight.copy_(torch.eye(64))
    block.out.weight.copy_(60.0 * upper)
    diagnosis = diagnose(
        checkpoint_of(canvas.network), [{"idx": torch.tensor([ids])} for ids in prompts_of("mixed")], baseline=None
    )
    lines, shares = dict(diagnosis.verdict.lines), diagnosis.trace.share_position.sel(site="feed_forward").values
    assert "Position determines most of the rest" in lines["What"]
    if start < 1:
        assert (
            f"goes from {shares[0]:.2f} at the embedding to {shares[-1]:.2f}. The attention of layer 3" in lines["Why"]
        )
        block.out.weight.zero_()
        edited = diagnose(
            checkpoint_of(canvas.network),
            [{"idx": torch.tensor([ids])} for ids in prompts_of("mixed")],
            baseline=None,
            levers=False,
        )
        assert "osition" not in dict(edited.verdict.lines)["Why"]
    else:
        assert lines["Why"].endswith(f"The share of position is {shares[0]:.2f} at the embedding already.")
    assert lines["What to do"].endswith(
        "Similarity does not measure the share of position, so nothing was tried for it."
    )


@pytest.mark.long
def test_words_without_places_have_no_share_of_a_place() -> None:
    table = traced(placed(0.0).network)
    assert abs(float(table.share_position.sel(site="feed_forward")[-1])) < PLACED / 3
    verdict = judge(None, table)
    assert "place" not in " ".join(finding.text for finding in verdict.findings if finding.figure == "shares")


@pytest.mark.long
def test_a_share_of_a_place_needs_two_texts() -> None:
    network = placed(1.0).network
    table = trace(checkpoint_of(network), [{"idx": torch.tensor([prompts_of("even")[0]])}], sinks=())
    assert bool(table.share_position.isnull().all())
    assert bool(table.cosine_at_distance.notnull().any())
    again = trace(checkpoint_of(network), [{"idx": torch.tensor([prompts_of("even")[0]])}] * 3, sinks=())
    assert bool(again.share_position.isnull().all())


class Windowed(Own):
    """Attention to the nearest tokens on either side."""

    reach = 1

    def forward(self, idx: Tensor) -> Tensor:
        place = torch.arange(idx.shape[-1])
        near = (place[:, None] - place).abs() <= self.reach
        x = self.words(idx) + self.places(place)
        for block in self.blocks:
            x = block(x, near)
        return self.last(x)


def windowed(reach: int, gain: float, depth: int = 16) -> nn.Module:
    canvas = blank(Frame(depth=depth, seed=3, post=True))
    paint.average(canvas, gain=gain)
    network = Windowed(canvas.frame)
    network.load_state_dict(canvas.network.state_dict())
    network.reach = reach
    return network.eval().requires_grad_(False)


@pytest.mark.long
def test_cosines_at_a_distance_are_means_over_pairs() -> None:
    canvas = placed(1.0)
    table = traced(canvas.network)
    prompts = states_of(canvas, "mixed")
    assert table.distance.values.tolist() == [1, 2, 4, 8, 16, 32]
    for distance in table.distance.values:
        wanted = np.mean([np.diagonal(u @ u.T, distance).mean() for u in prompts if len(u) > distance])
        assert float(table.cosine_at_distance[0].sel(distance=distance)) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.long
def test_neighbours_that_merge_under_a_window_are_named() -> None:
    table = traced(windowed(1, 30.0), "even")
    merged = merging_neighbours(table)
    assert 16 in merged
    near, far, distance = merged[16]
    assert near >= MERGED
    assert far < 0.5
    assert distance == 16
    what = judge(None, table).sentences[0]
    assert "Neighbouring tokens merge while distant ones do not: after layers " in what.text
    assert "tokens 16 places apart" in what.text
    assert "stay distinct" not in what.text
    assert what.values["adjacent"] == float(table.cosine_at_distance[-1].sel(distance=1))
    apart_again = table.copy(deep=True)
    apart_again.cosine_at_distance[-1] = 0.1
    what = judge(None, apart_again).sentences[0]
    assert "Neighbouring tokens merge while distant ones do not: after layers " in what.text
    assert "stay distinct" in what.text
    assert "adjacent" not in what.values


class Causal(Windowed):
    """Attention to a token and all before it, so that neighbours average nearly the same tokens."""

    def forward(self, idx: Tensor) -> Tensor:
        place = torch.arange(idx.shape[-1])
        x = self.words(idx) + self.places(place)
        for block in self.blocks:
            x = block(x, place[:, None] >= place)
        return self.last(x)


def test_beside_a_consensus_no_distant_tokens_are_called_apart() -> None:
    canvas = blank(Frame(depth=2, seed=3, post=True))
    paint.average(canvas, gain=30.0)
    network = Causal(canvas.frame)
    network.load_state_dict(canvas.network.state_dict())
    table = traced(network.eval().requires_grad_(False), "even")
    assert 2 in merging_neighbours(table)
    verdict = judge(None, table)
    assert verdict.state == "consensus"
    what = verdict.sentences[0].text
    assert "Neighbouring tokens are closer still: after layer" in what
    assert "distant ones do not" not in what


@pytest.mark.long
def test_of_neighbours_that_merge_it_is_said_that_nothing_was_tried_for_them() -> None:
    texts = [{"idx": torch.tensor([ids])} for ids in prompts_of("even")]
    for reach, merge in ((1, True), (64, False)):
        lines = dict(diagnose(checkpoint_of(windowed(reach, 30.0)), texts, baseline=None).verdict.lines)
        assert ("Neighbouring tokens merge while distant ones do not" in lines["What"]) == merge
        assert "stay distinct" not in lines["What"]
        unmeasured = "Similarity does not measure how alike neighbouring tokens are, so nothing was tried for it."
        assert lines["What to do"].endswith(unmeasured) == merge


@pytest.mark.long
@pytest.mark.parametrize(("reach", "gain"), [(1, 0.0), (64, 30.0)])
def test_tokens_that_stay_apart_or_all_meet_are_no_neighbours_that_merge(reach: int, gain: float) -> None:
    table = traced(windowed(reach, gain), "even")
    assert merging_neighbours(table) == {}
    assert "Neighbouring" not in judge(None, table).sentences[0].text


@pytest.mark.parametrize(
    ("near", "far", "named"),
    [
        (MERGED, 0.2, True),
        (MERGED - 1e-9, 0.2, False),
        (0.94, 0.88, True),
        (0.94, 0.881, False),
        (0.99, MERGED - 1e-9, True),
        (0.99, MERGED, False),
    ],
)
def test_each_threshold_of_merging_from_both_sides(near: float, far: float, named: bool) -> None:
    cosines = [[0.0, 0.0, 0.0], [near + 1e-12, 0.5, far]]
    table = xr.Dataset(
        {"cosine_at_distance": (("layer", "distance"), cosines)}, coords={"distance": [1, 4, 8], "layer": [0, 1]}
    )
    assert (merging_neighbours(table) != {}) == named


def final_norm(network: Any, kind: str) -> nn.Module:
    """Let the final norm leave one feature of each token, or add one vector that is far larger."""
    if kind == "line":
        network.last.weight.fill_(0.001)
        network.last.weight[5] = 1.0
    elif kind == "one point":
        network.last.bias[5] = 1000.0
    return network


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(("kind", "state"), [("", "spread"), ("line", "rank collapse"), ("one point", "one point")])
def test_the_final_norm_has_a_state_of_its_own(kind: str, state: State) -> None:
    verdict = judge(None, traced(final_norm(placed(0.0).network, kind)))
    assert (verdict.state, verdict.final_norm) == ("spread", state)
    words = f"The final norm changes the state to {state} ("
    assert (words in verdict.sentences[0].text) == (state != "spread")
    assert (f", {state} after the final norm" in verdict.headline) == (state != "spread")
    assert verdict_of(verdict_as_plain(verdict)) == verdict


@pytest.mark.long
def test_a_network_without_a_final_norm_has_no_such_state() -> None:
    assert judge(None, traced(blank(Frame(post=True)).network)).final_norm is None


@pytest.mark.slow
@pytest.mark.pretrained
def test_smollm2_has_the_four_shares_that_were_measured_before() -> None:
    """`mathematics` 11: 0.403, 0.003, 0.194 and 0.399 after the last layer, of the default texts."""
    table = trace(load("smollm2"), default_texts())
    site = table.sel(site="feed_forward").isel(layer=-1)
    within, elsewhere = 1 - float(site.share_own), float(site.cosine_elsewhere)
    values = [elsewhere, float(site.share_position), within - elsewhere, own_share(site) - float(site.share_position)]
    np.testing.assert_allclose(values, [0.403, 0.003, 0.194, 0.399], atol=0.01)
    assert (judge(None, table).state, judge(None, table).final_norm) == ("drawing together", "drawing together")
