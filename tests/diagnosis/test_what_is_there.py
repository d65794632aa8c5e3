"""Sentences call prompts what they are, and speak of no part that a layer does not have."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from PIL import Image

from tokendynamics.diagnosis import trace
from tokendynamics.diagnosis._diagnose import conventions_of
from tokendynamics.diagnosis.auditing._words import _of
from tokendynamics.diagnosis.network import norms_there, parts_there
from tokendynamics.diagnosis.tracing.measure import _sites_in_words
from tokendynamics.diagnosis.tracing.prompts import noun_in, noun_of
from tokendynamics.diagnosis.tracing.words import detailed_findings
from tokendynamics.diagnosis.verdict import FigureName, judge
from tokendynamics.pretrained import Checkpoint
from tokendynamics.report.diagnosis._weights import _summary

TEXTS = {"one": "a cat sat on the mat", "two": "0123456789", "three": "Why, thought the quick brown fox?"}


@pytest.fixture
def measured(tiny: Callable[..., Checkpoint]) -> xr.Dataset:
    return trace(tiny("gpt2"), TEXTS)


def with_layout(table: xr.Dataset, change: Callable[[dict[str, Any]], Any]) -> xr.Dataset:
    record = json.loads(table.attrs["layout"])
    change(record)
    return table.assign_attrs(layout=json.dumps(record))


def alone_in(table: xr.Dataset, *layers: int) -> xr.Dataset:
    """The trace with the record of a network of which these layers are an attention alone."""

    def change(record: dict[str, Any]) -> None:
        kind = deepcopy(record["kinds"][0])
        kind["residual"]["feed_forward"] = None
        record["kinds"] = [record["kinds"][0], kind]
        record["layers"] = [int(layer in layers) for layer in range(1, table.sizes["layer"])]

    return with_layout(table, change)


def said(table: xr.Dataset, figure: FigureName) -> str:
    return next(finding.text for finding in detailed_findings(table, ()) if finding.figure == figure)


PICTURE = torch.zeros(1, 3, 8, 8)
IDS = torch.tensor([[5, 9, 3]])


@pytest.mark.parametrize(
    ("prompts", "noun"),
    [
        (["some words", [5, 9], IDS[0], np.array([5, 9])], "text"),
        ([{"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}, {"idx": [[5, 9]]}], "text"),
        ([Path("a.png"), Image.new("RGB", (8, 8)), np.zeros((8, 8, 3)), {"pixel_values": PICTURE}], "image"),
        ([{"input_features": PICTURE}], "input"),
        ([{"input_features": PICTURE, "decoder_input_ids": IDS}], "input"),
        ([{"pixel_values": PICTURE, "input_ids": IDS}], "input"),
        (["some words", Path("a.png")], "input"),
    ],
)
def test_prompts_are_called_what_they_are(prompts: list[Any], noun: str) -> None:
    assert noun_of(dict(zip("abcd", prompts, strict=False))) == noun


def test_every_sentence_has_the_noun_of_the_trace(measured: xr.Dataset) -> None:
    assert noun_in(measured) == noun_in(xr.Dataset()) == "text"
    texts = judge(None, measured)
    images = judge(None, measured.assign_attrs(prompt_noun="image"))
    for one, other in zip(texts.sentences + texts.details, images.sentences + images.details, strict=True):
        assert one.text.replace("text", "image") == other.text
        assert one.values == other.values


@pytest.mark.long
def test_which_layers_have_a_feed_forward_part_is_what_the_layout_says(measured: xr.Dataset) -> None:
    assert {name: entry.tolist() for name, entry in parts_there(alone_in(measured, 2)).items()} == {
        "attention": [True] * 3, "feed_forward": [True, False, True],
    }  # fmt: skip
    unknown = with_layout(measured, lambda record: record["kinds"][0].update(residual=None))
    for table in (measured, measured.drop_attrs(), unknown):
        assert all(entry.all() and len(entry) == 3 for entry in parts_there(table).values())


def test_a_norm_is_there_if_a_layer_or_the_end_has_one(measured: xr.Dataset) -> None:
    def without(*places: str) -> xr.Dataset:
        def change(record: dict[str, Any]) -> None:
            record["final_norm"] = None if "end" in places else record["final_norm"]
            record["kinds"][0]["norms"] = [] if "layers" in places else record["kinds"][0]["norms"]

        return with_layout(measured, change)

    assert norms_there(without("end"))
    assert norms_there(without("layers"))
    assert not norms_there(without("end", "layers"))


def test_a_part_that_some_layers_have_is_counted_over_those(measured: xr.Dataset) -> None:
    table = measured.copy(deep=True)
    table["kappa_change_sum"] = ("component", [0.3, -0.2, 0.001])
    table["kappa_change_sum_interval"] = (("component", "bound"), [[0.2, 0.4], [-0.3, -0.1], [-0.1, 0.1]])
    of_layers = [[np.nan] * 3, [0.1, -0.2, np.nan], [0.2, 0.0, np.nan], [0, 0.001, 0.001]]
    table["kappa_change"] = (("layer", "component"), of_layers)
    assert "the feed-forward part lowers similarity κ in 1 of 3 layers, by" in said(table, "components")
    assert "the feed-forward part lowers similarity κ in 1 of the 2 layers that have one, by" in said(
        alone_in(table, 2), "components"
    )
    assert "the feed-forward part lowers similarity κ in the only layer that has one, by" in said(
        alone_in(table, 2, 3), "components"
    )
    assert said(alone_in(table, 1, 2, 3), "components") == (
        "Attention raises similarity κ in 2 of 3 layers, by 0.30 (90 % CI 0.20–0.40) in total."
    )


def test_an_update_is_compared_with_layers_that_have_that_part(measured: xr.Dataset) -> None:
    table = measured.copy(deep=True)
    table.update_ratio.loc[{"layer": [1, 2, 3]}] = 1.0
    for layer, size in enumerate((0.0, 1.0, 0.5), start=1):
        table.update_ratio.loc[{"component": "feed_forward", "layer": layer}] = size
    jump = "the feed-forward part of layer 2 (1; neighbouring layers 0.25)"
    assert jump in said(table, "updates")
    calm = "No layer's update is unusually large relative to the residual stream."
    assert said(alone_in(table, 1), "updates") == said(alone_in(table, 1, 2, 3), "updates") == calm
    table.update_ratio.loc[{"component": "feed_forward"}] = 0.0  # parts that are there and add nothing
    assert said(table, "updates") == calm


def test_one_layer_has_no_neighbours(tiny: Callable[..., Checkpoint]) -> None:
    text = said(trace(tiny("gpt2", n_layer=1), TEXTS), "updates")
    assert text == "Updates are not compared with neighbouring layers because there is only one layer."


@pytest.mark.long
def test_a_rise_is_credited_to_parts_that_are_there_and_only_where_it_shows(measured: xr.Dataset) -> None:
    table = measured.copy(deep=True)
    rising = np.array([[np.nan, 0, np.nan], [0.3, 0.3, np.nan], [0.3, 0.3, np.nan], [0.3, 0.3, 0.3]])
    table["consensus_relative"] = (("layer", "site"), rising)
    table["line_excess"] = (("layer", "site"), 0 * rising)
    where = judge(None, alone_in(table, 1, 2, 3)).sentences[1].text
    assert where.endswith(" The attention of layer 1 contributes +0.30 of the total +0.30.")
    table["consensus_relative"] = (("layer", "site"), rising / 100)
    assert judge(None, table).sentences[1].text == (
        "In no layer are the tokens of one text significantly more similar than at the embedding (similarity at most "
        "0.00)."
    )
    table.consensus_relative.loc[{"layer": 1, "site": ["attention", "feed_forward"]}] = [-0.5, 0.3]
    assert "The feed-forward part of layer 1" in judge(None, table).sentences[1].text
    assert "feed-forward" not in judge(None, alone_in(table, 1)).sentences[1].text.lower()


@pytest.mark.parametrize(
    ("family", "alone", "words"),
    [
        ("gpt2", (), "the residual state after the attention and after the feed-forward part of each block; the final"),
        ("gpt2", (2,), "the residual state after the attention and after the feed-forward part of each block that has"),
        ("gpt2", (1, 2, 3), "the residual state after the attention of each block; the final norm apart, behind"),
        ("bert", (), "after the attention and after the feed-forward part of each block, each with the norm behind it"),
        ("bert", (1, 2), "after the attention of each block, with the norm behind it"),
    ],
)
def test_sites_are_those_of_parts_that_are_there(
    tiny: Callable[..., Checkpoint], family: str, alone: tuple[int, ...], words: str
) -> None:
    ckpt = tiny(family)
    layers = [
        replace(layer, residual=replace(layer.residual, feed_forward=None)) if number in alone else layer
        for number, layer in enumerate(ckpt.layout.layers, start=1)
        if layer.residual is not None
    ]
    assert _sites_in_words(ckpt.architecture, replace(ckpt.layout, layers=tuple(layers))).startswith(words)


def test_other_sites_are_spoken_of_where_there_are_any(measured: xr.Dataset) -> None:
    def otherwise(table: xr.Dataset) -> str:
        return {entry.name: entry.otherwise for entry in conventions_of(None, table)}.get("Sites", "no choice")

    alone, ended = alone_in(measured, 1, 2, 3), measured.assign_attrs(sites="after each block")
    assert "hide which part changed it, and reading the last state after the final norm" in otherwise(measured)
    assert otherwise(alone).startswith("reading the last state after the final norm")
    assert otherwise(ended) == "one state per layer would hide which part changed it"
    assert otherwise(alone.assign_attrs(sites="after each block")) == "no choice"


def test_an_audit_of_one_layer_speaks_of_no_others() -> None:
    def audited(count: int) -> xr.Dataset:
        variables = {"regime": ["mixed"] * count, "A_defined": [True] * count, "V_rank": [4] * count}
        return xr.Dataset({key: ("layer", values) for key, values in variables.items()}, {"layer": range(1, count + 1)})

    begin = "By the signs of W and A (the paper’s conjecture): mixed in "
    assert _summary(audited(1), 4) == f"{begin}the only layer."
    assert _summary(audited(2), 4) == f"{begin}2 of 2 layers."
    assert (_of(1, 1), _of(2, 2), _of(1, 2)) == ("the audited layer", "all 2 layers", "1 of 2 layers")


def test_a_change_of_kappa_above_one_keeps_its_interval(measured: xr.Dataset) -> None:
    """κ lies between −1 and 1, so that its change may be 1.01: from −0.01 to 1."""
    table = measured.copy(deep=True)
    table["kappa_change_sum"] = ("component", [1.01, -1.01, 0.0])
    table["kappa_change_sum_interval"] = (("component", "bound"), [[1.001, 1.02], [-1.02, -1.001], [-0.1, 0.1]])
    table["kappa_change"] = (("layer", "component"), [[np.nan] * 3, *[[0.3, -0.3, 0.0]] * 3])
    text = said(table, "components")
    assert "Attention raises similarity κ in 3 of 3 layers, by 1.01 (90 % CI 1.00–1.02) in total" in text
    assert "the feed-forward part lowers similarity κ in 3 of 3 layers, by 1.01 (90 % CI 1.00–1.02) in total" in text
