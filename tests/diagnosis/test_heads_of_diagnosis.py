"""The effects of heads in a diagnosis: the numbers of `head_effects`, beside unchanged levers, in words and files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import tokendynamics as td
from diagnosis.test_heads import ids_of, network_of
from report.reading import page_of
from tokendynamics.diagnosis import Diagnosis, Levers
from tokendynamics.diagnosis.gating._heads import heads_findings, prediction_of_heads, strongest_heads
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.results import Refused

NOT_REQUESTED = Refused("it was not requested")


@pytest.fixture(scope="module")
def network() -> Any:
    return network_of("llama")


@pytest.fixture(scope="module")
def diagnosis(network: Any) -> Diagnosis:
    return td.diagnose(network, ids_of(), baseline=None)


def table_of(diagnosis: Diagnosis) -> xr.Dataset:
    assert isinstance(diagnosis.heads, xr.Dataset)
    return diagnosis.heads


@pytest.mark.long
def test_the_numbers_are_those_of_head_effects(network: Any, diagnosis: Diagnosis) -> None:
    alone = td.head_effects(network, ids_of())
    xr.testing.assert_allclose(table_of(diagnosis), alone, rtol=0, atol=1e-9)
    assert table_of(diagnosis).attrs == pytest.approx(alone.attrs)
    without = td.diagnose(network, ids_of(), baseline=None, levers=False)
    xr.testing.assert_allclose(table_of(without), alone, rtol=0, atol=1e-9)


@pytest.mark.long
def test_levers_are_the_same_with_and_without_heads(network: Any, diagnosis: Diagnosis) -> None:
    without = td.diagnose(network, ids_of(), baseline=None, heads=False)
    assert isinstance(diagnosis.levers, Levers)
    assert isinstance(without.levers, Levers)
    xr.testing.assert_allclose(diagnosis.levers.table, without.levers.table, rtol=0, atol=1e-12)
    assert (diagnosis.levers.text, diagnosis.levers.answer) == (without.levers.text, without.levers.answer)
    assert without.heads_refused == "it was not requested"
    assert not [detail for detail in without.verdict.details if "head" in detail.text and detail.figure == "components"]


def effects_of(significant: dict[tuple[int, int], float], layers: int = 3, heads: int = 4) -> xr.Dataset:
    """Effects of which these are significant, and one of layer 1 head 0 that is not."""
    effect = np.full((layers, heads), np.nan)
    bounds = np.full((layers, heads, 2), np.nan)
    effect[0, 0], bounds[0, 0] = 0.5, (-0.1, 1.1)
    for (layer, head), value in significant.items():
        effect[layer - 1, head], bounds[layer - 1, head] = value, (value - abs(value) / 2, value + abs(value) / 2)
    both = ("layer", "head")
    return xr.Dataset(
        {
            "consensus_sensitivity": (both, np.arange(layers * heads, dtype=float).reshape(layers, heads)),
            "consensus_effect": (both, effect),
            "consensus_effect_interval": ((*both, "bound"), bounds),
        },
        coords={"layer": np.arange(1, layers + 1), "head": np.arange(heads)},
        attrs={"where": 3, "prompts_measured": 4},
    )


TAIL = "removed one at a time on 4 texts; κ is read after layer 3."


@pytest.mark.parametrize(
    ("significant", "words"),
    [
        ({}, f"No single head that was removed changes similarity κ significantly. 1 of 12 heads was {TAIL}"),
        (
            {(2, 3): 0.0002},
            "No single head that was removed changes similarity κ significantly by 0.001 or more. "
            f"2 of 12 heads were {TAIL}",
        ),
        (
            {(2, 3): 0.02, (3, 1): -0.04},
            "Heads that make the tokens of a text more alike: layer 2 head 3 +0.020 (95 % CI 0.010–0.030). Heads that "
            f"make them less alike: layer 3 head 1 −0.040 (95 % CI −0.060 to −0.020). 3 of 12 heads were {TAIL}",
        ),
        (
            {(3, 1): -0.04},
            "Heads that make the tokens of a text less alike: layer 3 head 1 −0.040 (95 % CI −0.060 to −0.020). "
            f"2 of 12 heads were {TAIL}",
        ),
    ],
)
def test_the_sentence_names_significant_heads_by_their_sign(significant: dict[Any, float], words: str) -> None:
    (finding,) = heads_findings(effects_of(significant), NOT_REQUESTED, None, "text")
    assert finding.text == words


def test_what_contributes_most_is_so_in_the_table() -> None:
    effects = effects_of({(2, 3): 0.02})
    among = "Of the heads removed one at a time with a significant effect, layer 2 head 3 (+0.020) contributes most."
    assert strongest_heads(effects) == among  # layer 1 head 0 has 0.5, which is not significant
    effects.consensus_effect[0, 0] = 0.01
    assert strongest_heads(effects) == among.replace(" with a significant effect", "")


def test_at_most_four_heads_are_named_the_largest_first() -> None:
    chosen = {(1, 1): 0.02, (1, 2): 0.05, (2, 1): 0.03, (2, 2): 0.04, (3, 0): 0.01, (3, 3): 0.06}
    (finding,) = heads_findings(effects_of(chosen), NOT_REQUESTED, None, "text")
    named = [finding.text.index(f"layer {layer} head {head}") for layer, head in ((3, 3), (1, 2), (2, 2), (2, 1))]
    assert named == sorted(named)
    assert "layer 1 head 1" not in finding.text
    assert "A significant effect was also measured for 2 more heads." in finding.text


def test_whether_the_balances_predict_is_said_as_it_is() -> None:
    effects = effects_of({})
    order = effects.consensus_sensitivity.values
    ones = xr.ones_like(effects.consensus_sensitivity)
    for values, words in (
        (order, "predict its effect (Spearman ρ = 1.00"),
        (-order, "predict the opposite of its effect ("),
    ):
        audit = xr.Dataset({"qk_balance": ones, "ov_balance": ones.copy(data=values)})
        (finding,) = prediction_of_heads(effects, audit)
        assert finding.text.startswith(f"The QK and OV balances of a head {words}")
    many = effects_of({}, layers=5, heads=8)
    weak = np.arange(40.0) + 35 * np.random.default_rng(2).normal(size=40)
    wide = xr.ones_like(many.consensus_sensitivity)
    audit = xr.Dataset({"qk_balance": wide, "ov_balance": wide.copy(data=weak.reshape(5, 8))})
    (finding,) = prediction_of_heads(many, audit)
    assert finding.text.startswith("The QK and OV balances of a head partly predict its effect (Spearman ρ = 0.")
    mixed = np.random.default_rng(1).permutation(12).reshape(3, 4)
    audit = xr.Dataset({"qk_balance": ones, "ov_balance": ones.copy(data=mixed)})
    (finding,) = prediction_of_heads(effects, audit)
    assert finding.text.startswith("The QK and OV balances of a head do not predict its effect (Spearman ρ = ")
    audit = xr.Dataset({"qk_balance": ones, "ov_balance": ones}).isel(layer=[1])
    assert prediction_of_heads(effects, audit) == ()  # four heads, of one audited layer


@pytest.mark.long
def test_the_details_and_the_page_have_them(diagnosis: Diagnosis) -> None:
    texts = [detail.text for detail in diagnosis.verdict.details]
    assert any("of 12 heads were removed one at a time on 4 " in text for text in texts)
    assert any(text.startswith("The QK and OV balances of a head ") for text in texts)
    page = page_of(diagnosis)
    assert "Which heads make the tokens alike, to first order?" in page
    assert "Which heads make the tokens alike, when removed?" in page


@pytest.mark.long
def test_too_few_texts_are_refused_once(network: Any) -> None:
    diagnosis = td.diagnose(network, ids_of()[:2], baseline=None)
    assert diagnosis.heads_refused == diagnosis.levers_refused
    assert "at least 5 texts" in diagnosis.heads_refused
    assert not any("removed" in detail.text for detail in diagnosis.verdict.details)


def test_without_known_heads_parts_are_tried_alone(
    network: Any, diagnosis: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tokendynamics.pretrained.edits.gates.existing_heads", lambda layout: table_heads(len(layout.layers))
    )
    other = td.diagnose(network, ids_of(), baseline=None)
    assert isinstance(other.levers, Levers)
    assert isinstance(diagnosis.levers, Levers)
    xr.testing.assert_allclose(other.levers.table, diagnosis.levers.table, rtol=0, atol=1e-12)
    assert "an attention whose heads are known" in other.heads_refused
    assert any(detail.text.startswith("No single head was removed: ") for detail in other.verdict.details)


def table_heads(layers: int) -> Any:
    import torch

    return torch.zeros((layers, 3), dtype=torch.bool)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["zarr", "netcdf"])
def test_they_are_saved_and_older_folders_open(diagnosis: Diagnosis, tmp_path: Path, format: Any) -> None:
    diagnosis.save(tmp_path, format=format)
    xr.testing.assert_identical(table_of(td.Diagnosis.open(tmp_path)), table_of(diagnosis))
    summary = json.loads((tmp_path / "diagnosis.json").read_text())
    del summary["heads"], summary["heads_refused"]
    (tmp_path / "diagnosis.json").write_text(json.dumps(summary))
    (tmp_path / "manifest.json").unlink()  # it has the checksum of the file before
    assert td.Diagnosis.open(tmp_path).heads is None


@pytest.mark.long
def test_a_folder_without_their_file_is_refused(diagnosis: Diagnosis, tmp_path: Path) -> None:
    diagnosis.save(tmp_path)
    shutil.rmtree(tmp_path / "heads.zarr")
    with pytest.raises(ArgumentValueError, match=r"without heads\.zarr"):
        td.Diagnosis.open(tmp_path)


def test_images_have_an_article_of_their_own() -> None:
    for sign in (1, -1):
        effects = effects_of({(1, 2): 0.02 * sign})
        (finding, *_) = heads_findings(effects, NOT_REQUESTED, None, "image")
        assert "the tokens of an image" in finding.text
        assert "a image" not in finding.text
