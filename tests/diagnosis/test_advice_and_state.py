"""Advice of sets, remedies and parts on built networks: never against the state, its cost named, true by hand edits."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import tokendynamics as td
from diagnosis import built_recipes as paint
from diagnosis.built_networks import WORDS, prompts_of
from diagnosis.built_transformer import VOCABULARY, Frame, blank
from diagnosis.text_halves import measuring
from tokendynamics.diagnosis import Diagnosis, Levers
from tokendynamics.diagnosis.gating.trials import Costs, EffectEstimate
from tokendynamics.pretrained import Checkpoint


def checkpoint_of(network: Any) -> Checkpoint:
    return td.load(network, inputs=lambda count: {"idx": torch.randint(WORDS, VOCABULARY, (count, 9))})


def prompts(seed: int) -> list[dict[str, torch.Tensor]]:
    return [{"idx": torch.tensor([token_ids])} for token_ids in prompts_of("mixed", seed)]


def diagnosed(network: Any, seed: int) -> Diagnosis:
    tried: dict[str, Any] = {"joint": True, "remedies": True, "heads": False, "directions": False}
    return td.diagnose(checkpoint_of(network), prompts(seed), baseline=None, **tried)


def summary(table: Any) -> str:
    assert isinstance(table, xr.Dataset)
    return table.attrs["summary"]


@pytest.mark.long
def test_a_set_at_an_unknown_cost_is_named_with_its_effect() -> None:
    """Two layers each make most of a consensus: without one of them the other is enough."""
    canvas = blank(Frame(depth=8, seed=316))
    paint.average(canvas, layers=[2, 5], gain=12.0)
    diagnosis = diagnosed(canvas.network, 316)
    words = summary(diagnosis.joint)
    assert words.startswith(
        "No change is advised because the loss of this network is unknown. Similarity κ after layer "
    )
    named = "The set found, the attention of layer 2 (α = 0) and the attention of layer 5 (α = 0), changes"
    assert named in words
    edited: Any = copy.deepcopy(canvas.network)
    for layer in (2, 5):
        edited.blocks[layer - 1].out.weight.zero_()
    assert isinstance(diagnosis.levers, Levers)
    ends = [
        td.trace(checkpoint_of(network), measuring(prompts(316)))
        .consensus_within.sel(site="feed_forward", layer=diagnosis.levers.where)
        .item()
        for network in (canvas.network, edited)
    ]
    assert f"{named} it by −{ends[0] - ends[1]:.3f} (" in words
    assert isinstance(diagnosis.joint, xr.Dataset)
    assert not bool(diagnosis.joint.reported.any())


@pytest.mark.slow
def test_low_similarity_is_no_advice_in_a_rank_collapse() -> None:
    """κ is 0 on a line whose two sides are alike in number: it says nothing of what would have to be done."""
    canvas = blank(Frame(depth=6, seed=409))
    paint.line_by_feed_forward(canvas, layer=5)
    diagnosis = diagnosed(canvas.network, 409)
    assert diagnosis.verdict.state == "rank collapse"
    why = "is recommended because κ does not measure a collapse onto a line in both directions."
    assert summary(diagnosis.joint) == f"No set of parts and heads {why} None was tried."
    assert summary(diagnosis.remedies).startswith(f"No remedy {why}")
    spread = diagnosed(blank(Frame(seed=410)).network, 410)
    assert summary(spread.joint).startswith("No change is needed to avoid consensus, as κ′ is ")
    assert summary(spread.remedies).startswith(
        "No remedy is recommended because tokens of one text share little beyond"
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("cost", "above"),
    [
        (EffectEstimate(0.5, 0.1, 0.9), True), (EffectEstimate(0.5, 0.01, 0.9), False),
        (EffectEstimate(0.021, math.nan, math.nan), True), (EffectEstimate(0.02, math.nan, math.nan), False),
        (EffectEstimate(math.nan, math.nan, math.nan), False),
    ],
)  # fmt: skip
def test_a_cost_is_above_the_budget_where_its_interval_shows_it(cost: EffectEstimate, above: bool) -> None:
    costs = Costs(checkpoint_of(blank(Frame()).network), None, 0.02)
    assert costs.above(cost) == (", which is above the budget of 0.02 nats" if above else "")


@pytest.mark.long
def test_a_part_that_is_removed_at_a_high_cost_is_said_to_cost_more_than_the_budget() -> None:
    from transformers import GPT2LMHeadModel

    canvas = blank(Frame(family="gpt2", dim=64, depth=5, seed=403))
    paint.average(canvas, layers=[3], gain=40.0)
    network = GPT2LMHeadModel(canvas.network.config).eval()  # pyright: ignore
    network.transformer = canvas.network  # pyright: ignore
    network.lm_head.weight = canvas.network.wte.weight  # pyright: ignore
    ids = prompts_of("mixed", 403)
    trials = td.levers(td.load(network), ids)
    assert trials.changes == {"layer 3 attention": 0.0}
    assert np.nanmin(trials.table.loss_interval.isel(candidate=trials.best)) > 0.02
    assert "nats, which is above the budget of 0.02 nats." in trials.text
    assert "nats, which is above the budget of 0.02 nats." in trials.advice
    free = td.levers(td.load(network), ids, budget=1000.0)
    assert free.changes == trials.changes
    assert "above the budget" not in free.text + free.advice
