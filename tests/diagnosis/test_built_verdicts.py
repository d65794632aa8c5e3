"""The verdict on networks whose true state is known by construction."""

from __future__ import annotations

import functools
import re

import pytest
import xarray as xr

from diagnosis.built_networks import BUILT, Built
from tokendynamics.diagnosis import Verdict, judge, trace
from tokendynamics.diagnosis.tracing.words import named_sink

QUICK = 8
"""Each so many-th network is judged in every run of the tests, and all of them with the slow ones."""


def some(chosen: list[Built]) -> pytest.MarkDecorator:
    quick = BUILT[::QUICK]
    entry = [pytest.param(one, id=one.name, marks=() if one in quick else pytest.mark.slow) for one in chosen]
    return pytest.mark.parametrize("built", entry)


@functools.cache
def judged(name: str) -> tuple[xr.Dataset, Verdict]:
    built = next(entry for entry in BUILT if entry.name == name)
    table = trace(built.checkpoint(), built.prompts())
    return table, judge(None, table)


@pytest.mark.long
@pytest.mark.few(8)
@some(BUILT)
def test_the_state_is_the_true_one(built: Built) -> None:
    table, verdict = judged(built.name)
    assert verdict.state in built.end
    assert verdict.worst.state in (built.worst or built.end)
    words = " ".join(finding.text for finding in verdict.sentences[:2])
    words = re.sub(r"Within the \d+ % confidence intervals the state may also be [^.]*\.", "", words)
    assert ("collapse" in words.replace("no collapse", "")) == ("rank collapse" in (verdict.state, verdict.worst.state))
    assert ("consensus" in words) >= (verdict.worst.state == "consensus")
    assert "nan" not in words.lower()
    if built.massive is not None:
        assert bool((table.massive_count.values > 0).any()) == built.massive
    if built.sink is not None:
        assert (named_sink(table) is not None) == built.sink


@pytest.mark.long
@some([entry for entry in BUILT if entry.damage])
def test_a_collapse_by_one_layer_is_placed_there(built: Built) -> None:
    _, verdict = judged(built.name)
    layer, part = built.damage
    named = {"attention": "the attention", "feed_forward": "the feed-forward part"}.get(part, part)
    assert f"{named} of layer {layer} contributes" in verdict.sentences[1].text.lower()


@some([entry for entry in BUILT if entry.collapsed])
def test_texts_that_collapse_alone_are_named(built: Built) -> None:
    _, verdict = judged(built.name)
    named = [detail.values["texts"] for detail in verdict.details if "texts" in detail.values]
    assert named == [[f"prompt {number + 1}" for number in built.collapsed]]
