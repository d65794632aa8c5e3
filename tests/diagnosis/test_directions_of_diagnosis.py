"""Shared directions and source tokens in a diagnosis: the numbers of the two functions, in words and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import tokendynamics as td
from diagnosis import built_recipes as paint
from diagnosis.built_networks import prompts_of
from diagnosis.built_recipes import WORDS
from diagnosis.built_transformer import VOCABULARY, Frame, blank
from diagnosis.test_heads import ids_of, network_of
from tokendynamics.diagnosis import Diagnosis
from tokendynamics.diagnosis.tracing.direction_words import (
    directions_findings,
    source_in_short,
    source_of,
    summary_of,
)
from tokendynamics.diagnosis.verdict import Verdict
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.results import Refused

ALONE: dict[str, Any] = {"levers": False, "heads": False, "baseline": None}


@pytest.fixture(scope="module")
def network() -> Any:
    return network_of("llama")


@pytest.fixture(scope="module")
def diagnosis(network: Any) -> Diagnosis:
    return td.diagnose(network, ids_of(), **ALONE)


def tables_of(result: Diagnosis) -> tuple[xr.Dataset, xr.Dataset]:
    assert isinstance(result.directions, xr.Dataset)
    assert isinstance(result.sources, xr.Dataset)
    return result.directions, result.sources


def words_of(verdict: Verdict) -> list[str]:
    return [detail.text for detail in verdict.details if detail.figure == "directions"]


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_the_numbers_are_those_of_the_two_functions(family: str) -> None:
    model = network_of(family)
    directions, sources = tables_of(td.diagnose(model, ids_of(), **ALONE))
    alone = td.shared_directions(model, ids_of())
    read = [name for name in ("token_id", "token_text") if name in alone]
    xr.testing.assert_allclose(directions.drop_vars(read), alone.drop_vars(read), rtol=0, atol=1e-9)
    for name in read:
        assert (directions[name].isel(layer=-1) == alone[name].isel(layer=-1)).all()
    assert "token_id" not in directions or bool((directions.token_id.isel(layer=slice(0, -1)) == -1).all())
    xr.testing.assert_allclose(sources, td.source_tokens(model, ids_of()), rtol=0, atol=1e-9)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_texts_that_share_a_pass_are_measured_as_alone(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the end of a shorter text stand tokens of no text."""
    model = network_of(family)
    together = td.shared_directions(model, ids_of()), td.source_tokens(model, ids_of())
    packs = Checkpoint.packs
    monkeypatch.setattr(Checkpoint, "packs", lambda ckpt, several, packed=True: packs(ckpt, several, packed=False))
    alone = td.shared_directions(model, ids_of()), td.source_tokens(model, ids_of())
    for one, other in zip(together, alone, strict=True):
        numbers = [name for name in one if one[name].dtype.kind == "f"]
        xr.testing.assert_allclose(one[numbers], other[numbers], rtol=0, atol=1e-6)  # softmax in float32


@pytest.mark.long
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_texts_run_once_more_only_where_their_attentions_were_not_kept(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, watched = load(network_of(family)), []
    watch = Checkpoint.watch_pack
    monkeypatch.setattr(Checkpoint, "watch_pack", lambda *given: watched.append(given) or watch(*given))
    kept = td.source_tokens(model, ids_of()), td.shared_directions(model, ids_of())
    assert not watched
    monkeypatch.setattr("tokendynamics.diagnosis.tracing.measure.free_memory", lambda: 0)
    again = td.source_tokens(model, ids_of()), td.shared_directions(model, ids_of())
    assert len(watched) == (1 if family == "bert" else 2)  # a norm follows the sum of BERT's heads
    for one, other in zip(kept, again, strict=True):
        read = [name for name in one.data_vars if one[name].dtype.kind not in "fi"]
        xr.testing.assert_allclose(one.drop_vars(read), other.drop_vars(read), rtol=0, atol=1e-6)  # softmax in float32


def test_of_a_text_and_its_copies_one_counts(network: Any, diagnosis: Diagnosis) -> None:
    ids = ids_of()
    again, sources = tables_of(td.diagnose(network, [*ids[:3], ids[1], *ids[3:], ids[0]], **ALONE))
    np.testing.assert_allclose(again.vector, tables_of(diagnosis)[0].vector, atol=1e-9)
    assert sources.sizes["prompt"] == len(ids)


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 2])
def test_too_few_different_texts_are_refused_not_an_error(network: Any, count: int) -> None:
    few = td.diagnose(network, [ids_of()[0]] * count, **ALONE)
    assert few.directions_refused == few.sources_refused
    assert "at least two texts, all different, not " in few.directions_refused
    assert words_of(few.verdict) == []


@pytest.mark.long
def test_what_is_not_requested_is_not_measured(network: Any) -> None:
    without = td.diagnose(network, ids_of(), directions=False, **ALONE)
    assert without.directions_refused == without.sources_refused == "it was not requested"
    assert words_of(without.verdict) == []


@pytest.mark.long
def test_without_known_heads_sources_alone_are_refused() -> None:
    model = network_of("deberta")
    part = td.diagnose(model, ids_of(), **ALONE)
    assert isinstance(part.directions, xr.Dataset)
    assert "heads are known" in part.sources_refused
    assert "written_by_head" not in part.directions
    assert words_of(part.verdict)
    assert not [text for text in words_of(part.verdict) if "where heads add" in text or "single heads" in text]


@pytest.mark.slow
def test_they_are_saved_and_older_folders_open(diagnosis: Diagnosis, tmp_path: Path) -> None:
    diagnosis.save(tmp_path, format="netcdf")
    back = td.Diagnosis.open(tmp_path)
    for one, other in zip(tables_of(back), tables_of(diagnosis), strict=True):
        xr.testing.assert_identical(one, other)
    summary = json.loads((tmp_path / "diagnosis.json").read_text())
    for name in ("directions", "sources"):
        del summary[name], summary[f"{name}_refused"]
    (tmp_path / "diagnosis.json").write_text(json.dumps(summary))
    (tmp_path / "manifest.json").unlink()  # it has the checksums of the files before
    assert td.Diagnosis.open(tmp_path).directions is None
    summary |= {"directions": None, "directions_refused": "too few", "sources": None, "sources_refused": "no heads"}
    (tmp_path / "diagnosis.json").write_text(json.dumps(summary))
    assert td.Diagnosis.open(tmp_path).sources_refused == "no heads"


def built(recipe: Any, frame: Frame | None = None, **settings: Any) -> list[str]:
    """What the details say of a built network."""
    canvas = blank(frame or Frame(depth=4, seed=2))
    recipe(canvas, **settings)
    ckpt = load(canvas.network, inputs=lambda count: {"idx": torch.randint(WORDS, VOCABULARY, (count, 9))})
    texts = [{"idx": torch.tensor([entry])} for entry in prompts_of("even")]
    made = td.diagnose(ckpt, texts, sinks=(), **ALONE)
    words = words_of(made.verdict)
    short = source_in_short(made.sources)
    return [*words, *([short] if short else [])]


@pytest.mark.long
def test_a_bias_is_named_as_what_writes_the_common_direction() -> None:
    def shift(canvas: Any) -> None:
        canvas.blocks[2].down.bias.copy_(40.0 * canvas.direction())

    words = built(shift)
    assert any(
        text.startswith("The feed-forward part of layer 3 (+") and "the common direction." in text for text in words
    )
    assert not any("own direction" in text or "its text's own" in text for text in words)
    assert not any("heads add most" in text for text in words)


@pytest.mark.long
def test_an_averaging_layer_is_named_as_what_writes_the_direction_of_a_text() -> None:
    words = built(paint.average, layers=[3], gain=40.0)
    assert any(text.startswith("The attention of layer 3 (+") and "a text's own direction." in text for text in words)
    assert any(
        "heads add most to the direction that the tokens of a text share in layer 3. No position stands out" in text
        for text in words
    )
    assert not any("of what heads add to" in text for text in words)  # no short sentence for many sources


@pytest.mark.long
def test_the_first_token_is_named_where_all_attend_to_it() -> None:
    words = built(paint.first_place, Frame(depth=3, heads=2, seed=4, causal=True))
    assert any(text.endswith("of it comes from its first token.") for text in words)
    assert words[-1].endswith("of what heads add to what the tokens of a text share comes from its first token.")


def test_nothing_is_said_to_be_shared_where_nothing_is() -> None:
    """The embeddings alone: unlike words have nothing in common."""
    words = built(lambda canvas: None)
    assert words[0] == (
        "After the last layer, the directions of tokens hardly have a mean, over all texts or within one: less than "
        "0.05 of a token's direction lies along it."
    )
    assert len(words) == 1


def table(written: dict[tuple[int, str], float], layers: int = 6, text: float = 0.01) -> xr.Dataset:
    """A direction common to all with these signed shares after the last layer; the rest comes from the embedding."""
    parts, count = ["attention", "feed_forward"], layers + 1
    shares = np.zeros((3, count, count, 2))
    shares[:, :, :, 0] = np.where(np.arange(count) > 0, 1e-9, 0.0)
    for (source, part), value in written.items():
        shares[:, -1, source, parts.index(part)] = value
    shares[:, -1, 0, 1] = 1 - shares[0, -1].sum()
    similarity = np.array([[0.4], [text], [text]]).repeat(count, axis=1)
    variables: dict[str, Any] = {
        "similarity": (("direction", "layer"), similarity),
        "written": (("direction", "layer", "source", "component"), shares),
        "token_id": (("direction", "layer", "rank"), np.tile([5, 6, 7, 8], (3, count, 1))),
        "token_text": (("direction", "layer", "rank"), np.tile(["\n", " a\u202e", "<b>", "x"], (3, count, 1))),
    }
    coords = {"direction": ["common", "one", "two"], "component": parts, "source": np.arange(count)}
    return xr.Dataset(variables, coords=coords, attrs={"prompt_noun": "text"})


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (
            {(2, "attention"): 1.3, (5, "feed_forward"): -0.5},
            "The attention of layer 2 (+1.30) writes most of the common direction. The other parts undo 0.30 of it.",
        ),
        (
            {(2, "attention"): 0.4, (5, "feed_forward"): 0.3},
            "The attention of layer 2 (+0.40) and the feed-forward part of layer 5 (+0.30) write most of the common "
            "direction.",
        ),
        ({}, "The embedding (+1.00) writes most of the common direction."),
        (
            {(layer, part): 0.08 + 0.001 * layer for layer in range(1, 7) for part in ("attention", "feed_forward")},
            "No small set of parts writes the common direction; the attention of layer 6 writes the largest share "
            "(+0.09).",
        ),
    ],
)
def test_writers_are_named_if_they_are_few(written: dict[tuple[int, str], float], words: str) -> None:
    amounts, writers, reading = directions_findings(table(written), Refused("no heads"))
    assert (
        amounts.text == "After the last layer, 0.40 of a token's direction lies along a direction common to all texts."
    )
    assert writers.text == words
    assert list(writers.values["parts"].values()) == sorted(writers.values["parts"].values(), reverse=True)
    words = "The final norm and the language head map the common direction to the tokens “␊”, “a‹U+202E›” and “<b>”."
    assert reading.text == words


def test_a_layer_without_a_known_attention_is_one_part() -> None:
    directions = table({(4, "feed_forward"): 0.9})
    directions.written.loc[{"source": 4, "component": "attention"}] = 0.0
    _, writers, _ = directions_findings(directions, None)
    assert writers.text.startswith("Layer 4 (+0.90) writes most of the common direction.")


@pytest.mark.parametrize("diagnosis", [None, Refused("it was not requested")])
def test_no_short_sentence_without_source_tokens(diagnosis: Any) -> None:
    assert source_in_short(diagnosis) == ""
    assert directions_findings(diagnosis, diagnosis) == ()


def sources_of(contribution: list[list[float]], component: float = 0.8) -> xr.Dataset:
    """What each token of several texts brings along the direction of its text in the one layer; NaN beyond its end."""
    values = np.array(contribution)[:, None, None, :].repeat(2, axis=1)
    added = np.nansum(values, axis=-1)
    dims = ("prompt", "kind", "layer")
    variables: dict[str, Any] = {
        "contribution": ((*dims, "token"), values),
        "added": (dims, added),
        "component": (dims, np.full_like(added, component)),
        "by_position": (("kind", "layer", "token"), np.nansum(values, axis=0) / added.sum(axis=0)[..., None]),
    }
    coords = {"kind": ["common", "text"], "layer": [1]}
    return xr.Dataset(variables, coords=coords, attrs={"prompt_noun": "text"})


def test_a_position_is_a_source_only_beyond_what_all_tokens_bring_alike() -> None:
    nan = float("nan")
    alike = sources_of([[0.2, 0.2, 0.2], [0.3, 0.3, nan]])
    source = source_of(alike, "text")
    assert source is not None
    assert source.even == pytest.approx(source.share) == pytest.approx(0.5 / 1.2)
    assert source_in_short(alike) == ""
    assert "No position stands out there: the largest contribution of one is 42 %" in summary_of(alike)
    first = sources_of([[0.5, 0.05, 0.05], [0.5, 0.1, nan]])
    assert "In layer 1, 83 % of what heads add to what the tokens of a text share" in source_in_short(first)
    assert summary_of(first).endswith(" There, 83 % of it comes from its first token.")


def test_one_token_is_no_position_among_others() -> None:
    alone = sources_of([[0.2], [0.3]])
    assert summary_of(alone).endswith("All of it comes from the only token that attention reads there.")
    assert source_in_short(alone) == ""
    apart = sources_of([[0.7, -0.1], [0.6, -0.1]])  # shares add up to 1, of which one position brings more
    assert "adds more than the total" in summary_of(apart)


def test_a_direction_that_no_head_writes_has_no_source() -> None:
    contribution = [[0.03, 0.0, 0.0], [0.03, 0.0, 0.0]]
    assert source_in_short(sources_of(contribution, component=0.9)) == ""
    assert source_in_short(sources_of(contribution, component=0.5)) != ""
    findings = directions_findings(table({(2, "attention"): 0.9}, text=0.4), sources_of(contribution, component=0.9))
    assert not any("where heads add" in finding.text for finding in findings)


def test_images_have_an_article_of_their_own() -> None:
    directions, sources = table({(2, "attention"): 0.9}, text=0.4), sources_of([[0.5, 0.05, 0.05], [0.5, 0.1, 0.0]])
    for dataset in (directions, sources):
        dataset.attrs["prompt_noun"] = "image"
    words = " ".join(finding.text for finding in directions_findings(directions, sources))
    words += source_in_short(sources) + summary_of(sources)
    assert "an image's own direction" in words
    assert "the tokens of an image share" in words
    assert "a image" not in words
