"""Networks in which one head alone makes the tokens alike: the diagnosis names its layer, its part and the head."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

import tokendynamics as td
from diagnosis.built_networks import prompts_of
from diagnosis.built_recipes import average
from diagnosis.built_transformer import Canvas, Frame, blank
from diagnosis.text_halves import measuring
from tokendynamics.diagnosis import judge
from tokendynamics.diagnosis.gating._heads import strongest_heads

HEADS, DEPTH = 4, 5

QUICK = ((3, 2),)
"""Layer and head that every run of the tests has; the slow ones have all."""

PLANTED = [
    pytest.param(family, layer, head, marks=() if (layer, head) in QUICK else pytest.mark.slow)
    for family in ("llama", "gpt2", "bert")
    for layer in range(1, DEPTH + 1)
    for head in range(HEADS)
]


def planted(family: str, layer: int, head: int, gain: float = 40.0) -> Canvas:
    """All weights small but for one head, which brings every token the mean of its text, many times as large."""
    canvas = blank(Frame(family, dim=64, heads=HEADS, depth=DEPTH, seed=100 * layer + head))
    average(canvas, layers=[layer], gain=gain)
    block, width = canvas.blocks[layer - 1], canvas.frame.dim // HEADS
    of_head = slice(head * width, (head + 1) * width)
    kept = block.out.weight[:, of_head].clone()
    block.out.weight.zero_()
    block.out.weight[:, of_head] = 2 * kept
    return canvas


@functools.cache
def measured(family: str, layer: int, head: int) -> tuple[Any, list[list[int]]]:
    canvas = planted(family, layer, head)
    return td.load(canvas.network), prompts_of("mixed", canvas.frame.seed)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(("family", "layer", "head"), PLANTED)
def test_the_head_is_named_with_its_layer_and_part(family: str, layer: int, head: int) -> None:
    ckpt, prompts = measured(family, layer, head)
    causes = strongest_heads(td.head_effects(ckpt, prompts, candidates=3))
    assert causes.startswith(f"Of the heads removed one at a time, layer {layer} head {head} (+")
    verdict = judge(None, td.trace(ckpt, prompts), causes=causes)
    assert verdict.worst.layers[0] == layer
    why = verdict.lines[1][1]
    assert f"The attention of layer {layer} contributes +" in why
    assert why.endswith(causes)


@pytest.mark.long
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_where_no_head_acts_none_is_named(family: str) -> None:
    canvas = blank(Frame(family, dim=64, heads=HEADS, depth=DEPTH, seed=7, noise=0.0))
    ckpt, prompts = td.load(canvas.network), prompts_of("mixed", 7)
    effects = td.head_effects(ckpt, prompts, candidates=3)
    assert strongest_heads(effects) == ""
    assert "head" not in judge(None, td.trace(ckpt, prompts), causes=strongest_heads(effects)).lines[1][1]


FLAT = [("gpt2", 5, 3), ("llama", 5, 0), ("bert", 2, 1)]


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(("family", "layer", "head"), FLAT)
def test_a_head_without_a_derivative_is_named(family: str, layer: int, head: int) -> None:
    """It writes so far beyond the states that a little less of it changes no direction."""
    network = planted(family, layer, head, gain=2e4).network
    effects = td.head_effects(network, prompts_of("mixed", 100 * layer + head), candidates=2)
    assert float(abs(effects.consensus_sensitivity).max()) < 1e-3
    assert strongest_heads(effects).startswith(f"Of the heads removed one at a time, layer {layer} head {head} (+")
    assert int(effects.consensus_effect.notnull().sum()) <= 2 + HEADS


def undone(family: str, layer: int, head: int, back: int) -> Canvas:
    """One head writes the mean of the text into the half of the features where words have nothing: a point per text.

    The feed-forward part of a later layer makes the other half 300 times as large: what distinguishes words outgrows
    what they share.
    """
    canvas = blank(Frame(family, dim=64, heads=HEADS, depth=DEPTH, seed=7))
    half, width = canvas.frame.dim // 2, canvas.frame.dim // HEADS
    canvas.words[:, half:] = 0.0
    block, of_head = canvas.blocks[layer - 1], slice(head * width, (head + 1) * width)
    block.value.weight[of_head] = torch.eye(canvas.frame.dim)[:width]
    block.out.weight[:, of_head] = 60.0 * torch.eye(canvas.frame.dim)[:, half : half + width]
    later = canvas.blocks[back - 1]
    later.up.weight.copy_(torch.cat([torch.eye(64), -torch.eye(64)]))
    lower = torch.diag((torch.arange(64) < half).float())
    later.down.weight.copy_(300.0 * torch.cat([lower, -lower], dim=1))
    return canvas


def without_its_head(family: str) -> Canvas:
    canvas, width = undone(family, 2, 1, 4), 64 // HEADS
    canvas.blocks[1].out.weight[:, width : 2 * width] = 0.0
    return canvas


def as_read(prompts: list[list[int]], family: str) -> list[Any]:
    return prompts if family != "own" else [{"idx": torch.tensor([ids])} for ids in prompts]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["own", "bert"])
def test_the_head_of_a_consensus_that_is_undone_is_named_by_its_effect_there(family: str) -> None:
    def traced(canvas: Canvas) -> Any:
        return td.trace(loaded(canvas), as_read(others, family))

    def loaded(canvas: Canvas) -> Any:
        if family != "own":
            return td.load(canvas.network)
        return td.load(canvas.network, inputs=lambda count: {"idx": torch.randint(8, 200, (count, 9))})

    prompts = prompts_of("mixed", 7)
    others = measuring(prompts)
    diagnosis = td.diagnose(loaded(undone(family, 2, 1, 4)), as_read(prompts, family), baseline=None, directions=False)
    assert (diagnosis.verdict.worst.state, diagnosis.verdict.worst.layers) == ("consensus", (2, 3))
    assert diagnosis.verdict.state != "consensus"
    effects: Any = diagnosis.heads
    assert effects.attrs["where"] in (2, 3)
    states = [
        traced(canvas).consensus_within.sel(site="feed_forward", layer=effects.attrs["where"])
        for canvas in (undone(family, 2, 1, 4), without_its_head(family))
    ]
    assert float(effects.consensus_effect.sel(layer=2, head=1)) == pytest.approx(float(states[0] - states[1]), abs=1e-6)
    why = dict(diagnosis.verdict.lines)["Why"]
    assert "layer 2 head 1 (+" in why
    assert "to similarity after layer" not in why
    # Parts are judged after another layer than heads: their numbers are those of `levers` alone.
    alone = td.levers(loaded(undone(family, 2, 1, 4)), as_read(prompts, family))
    assert isinstance(diagnosis.levers, td.Levers)
    assert diagnosis.levers.where == alone.where != effects.attrs["where"]
    assert diagnosis.levers.kappa == alone.kappa
    np.testing.assert_array_equal(diagnosis.levers.table.kappa_change, alone.table.kappa_change)


@pytest.mark.long
def test_heads_read_after_another_layer_than_the_worst_one_say_so() -> None:
    ckpt, prompts = measured("llama", 3, 2)
    effects = td.head_effects(ckpt, prompts, candidates=2)
    assert effects.attrs["where"] == DEPTH
    assert strongest_heads(effects, (2, 3)).endswith(f"contributes most to similarity after layer {DEPTH}.")
    assert strongest_heads(effects, (3, 4, DEPTH)).endswith("contributes most.")
