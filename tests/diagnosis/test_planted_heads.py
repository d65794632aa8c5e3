"""Networks in which one head alone makes the tokens alike: the diagnosis names its layer, its part and the head."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import tokendynamics as td
from diagnosis.built_networks import prompts_of
from diagnosis.built_recipes import average
from diagnosis.built_transformer import Canvas, Frame, blank
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


def planted(family: str, layer: int, head: int) -> Canvas:
    """All weights small but for one head, which brings every token the mean of its text, many times as large."""
    canvas = blank(Frame(family, dim=64, heads=HEADS, depth=DEPTH, seed=100 * layer + head))
    average(canvas, layers=[layer], gain=40.0)
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


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_where_no_head_acts_none_is_named(family: str) -> None:
    canvas = blank(Frame(family, dim=64, heads=HEADS, depth=DEPTH, seed=7, noise=0.0))
    ckpt, prompts = td.load(canvas.network), prompts_of("mixed", 7)
    effects = td.head_effects(ckpt, prompts, candidates=3)
    assert strongest_heads(effects) == ""
    assert "head" not in judge(None, td.trace(ckpt, prompts), causes=strongest_heads(effects)).lines[1][1]
