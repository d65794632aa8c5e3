"""The loss with a part at a half: computed as it is defined, sees damage that gradients of κ do not, claims no more."""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import tokendynamics as td
from diagnosis.damaged_networks import llama_like, louder_attention, silenced_head
from diagnosis.planted_damage import network
from report.reading import page_of
from tokendynamics.diagnosis import Comparison
from tokendynamics.diagnosis.comparing.effects import HalvedParts, halved_finding, halved_parts
from tokendynamics.diagnosis.gating.sensitivities import sensitivities
from tokendynamics.pretrained.inputs import prepared
from tokendynamics.provenance.progress import silent

LAYERS, TEXTS, TOKENS = 4, 60, 40


def dependent() -> Any:
    """A network in whose texts the next token hangs on what every attention adds, and not on the last token alone."""
    made: Any = llama_like(seed=0, depth=LAYERS)
    for block in made.model.layers:
        block.self_attn.o_proj.weight.mul_(12.0)
        block.mlp.down_proj.weight.mul_(5.0)
    made.model.norm.weight.mul_(0.3)
    return made


def written_by(made: Any, count: int, length: int) -> dict[str, list[int]]:
    """Texts drawn from a network itself: any change of it costs loss on them."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(200, (count, 1), generator=draw)
    with torch.no_grad():
        for _ in range(length - 1):
            law = made(ids).logits[:, -1].double().softmax(dim=-1)
            ids = torch.cat([ids, torch.multinomial(law, 1, generator=draw)], dim=1)
    return {f"text {place}": row.tolist() for place, row in enumerate(ids)}


WHOLE = "whole"


@pytest.fixture(scope="module")
def whole() -> Any:
    return dependent()


@pytest.fixture(scope="module")
def texts(whole: Any) -> dict[str, list[int]]:
    return written_by(whole, TEXTS, TOKENS)


def halved_of(networks: list[Any], texts: dict[str, Any]) -> HalvedParts:
    ckpts = [td.load(entry) for entry in networks]
    given = [[prepared(ckpt, ids, truncate=False, argument=name) for name, ids in texts.items()] for ckpt in ckpts]
    return halved_parts(ckpts, given, True, silent)


@pytest.fixture(scope="module")
def result(whole: Any, texts: dict[str, list[int]]) -> HalvedParts:
    loud, silenced = louder_attention(whole, 2, 3)[0], silenced_head(whole, 2, 3)[0]
    return halved_of([whole, loud, silenced, copy.deepcopy(whole)], texts)


@pytest.mark.slow
def test_the_change_is_that_of_a_network_whose_part_adds_half(
    whole: Any, result: HalvedParts, texts: dict[str, list[int]]
) -> None:
    ids = torch.tensor(list(texts.values()))

    def losses(made: Any) -> np.ndarray:
        with torch.no_grad():
            logs = made(ids).logits.double().log_softmax(dim=-1)
        return -logs[:, :-1].gather(-1, ids[:, 1:, None]).squeeze(-1).mean(dim=-1).numpy()

    np.testing.assert_allclose(result.table.loss[0], losses(whole), atol=1e-5)
    for layer, part, name in ((2, "attention", "self_attn.o_proj"), (4, "feed_forward", "mlp.down_proj")):
        halved = copy.deepcopy(whole)
        halved.model.layers[layer - 1].get_submodule(name).weight.data *= 0.5
        selected = result.table.loss_change.isel(model=0).sel(layer=layer, part=part)
        np.testing.assert_allclose(selected, losses(halved) - losses(whole), atol=1e-5)
    gaps = result.table.loss_change[1] - result.table.loss_change[0]
    np.testing.assert_allclose(result.table.difference[0], gaps.mean("prompt"), atol=1e-12)
    half = 1.6710930 * gaps.std("prompt", ddof=1) / TEXTS**0.5  # Student's with 59 degrees of freedom
    width = result.table.difference_interval[0, ..., 1] - result.table.difference_interval[0, ..., 0]
    np.testing.assert_allclose(width, 2 * half, rtol=1e-5)


@pytest.mark.long
def test_damage_is_seen_where_it_is(result: HalvedParts) -> None:
    louder = halved_finding((WHOLE, "louder"), result, 0, 1e-7)
    assert louder.values["layer"] in (2, 3)
    assert (
        f"of louder and whole most differently for the attention of layer {louder.values['layer']}: by " in louder.text
    )
    silenced = halved_finding((WHOLE, "silenced"), result, 1, 1e-7)
    assert (silenced.values["layer"], silenced.values["part"]) == (2, "attention")
    low, high = silenced.values["interval"]
    assert low <= silenced.values["difference"] <= high < 0  # a part with one head less is worth less
    same = halved_finding((WHOLE, "the same"), result, 2, 1e-7)
    assert same.text == "Halving one part changes the loss of the same and whole equally, to the last bit."


@pytest.mark.long
def test_the_largest_gradient_of_consensus_is_elsewhere(whole: Any, texts: dict[str, list[int]]) -> None:
    ckpt = td.load(silenced_head(whole, 2, 3)[0])
    packs = ckpt.packs([torch.tensor(ids) for ids in list(texts.values())[:20]])
    with ckpt.gated() as gated:
        kappa = np.abs(sensitivities(gated, packs, 4.0, silent, LAYERS).kappa)
    assert (kappa > 1.1 * kappa[1, 0]).any()


def noise(seed: int, parts: int = 60, texts: int = 14) -> HalvedParts:
    """Of two networks whose changes differ by chance alone."""
    draws = torch.randn(texts, parts // 2, 2, generator=torch.Generator().manual_seed(seed)).double()
    from tokendynamics.diagnosis.comparing.effects import _difference, _Losses

    plain = torch.full((texts,), 3.0).double()
    row = _difference(
        _Losses(plain, torch.zeros_like(draws)), _Losses(plain, draws), parts // 2, torch.ones(texts, dtype=torch.bool)
    )
    dims = {"difference": 3, "difference_interval": 4, "difference_surely": 4, "other_layer": 2}
    axes = ("other", "layer", "part", "bound")
    table: dict[str, Any] = {name: (axes[:count], row[name][None]) for name, count in dims.items()}
    table["loss"] = (("model", "prompt"), np.full((2, texts), 3.0))
    table["loss_change"] = (("model", "prompt", "layer", "part"), np.stack([0 * draws.numpy(), draws.numpy()]))
    coords = {"layer": np.arange(1, parts // 2 + 1), "part": ["attention", "feed_forward"], "bound": ["low", "high"]}
    return HalvedParts(xr.Dataset(table, coords=coords), ("", ""), ("",))


@pytest.mark.long
def test_chance_is_seldom_called_a_difference() -> None:
    """The largest of 60 differences by chance leaves nought out of its own 90 % interval nearly always."""
    drawn = [noise(seed) for seed in range(200)]
    entry = [float(one.table.difference_interval.sel(bound="low").max()) > 0 for one in drawn]
    sentences = ["most differently" in halved_finding(("a", "b"), one, 0, 1e-7).text for one in drawn]
    assert np.mean(entry) > 0.8
    assert np.mean(sentences) < 0.16
    quiet = halved_finding(("a", "b"), drawn[sentences.index(False)], 0, 1e-7).text
    assert quiet.startswith(
        "Halving one part changes the loss of b and a without significant differences. The largest is "
    )


@pytest.fixture(scope="module")
def compared(whole: Any, texts: dict[str, list[int]]) -> Comparison:
    shorter = llama_like(seed=1, depth=2)
    few = dict(list(texts.items())[:4])
    names = ["whole", "short", "headless"]
    return td.compare(whole, shorter, whole.model, texts=few, names=names, halved=True, weights=False)


def said(comparison: Comparison) -> list[str]:
    return [sentence.text for sentence in comparison.sentences if sentence.figure == "halved"]


@pytest.mark.slow
def test_without_a_language_head_nothing_is_claimed(compared: Comparison) -> None:
    _, headless = said(compared)
    assert headless == (
        "The effect of halving parts was not compared between headless and whole because the loss of headless is "
        "unknown (no head that predicts the next token was found)."
    )
    assert compared.halved is not None
    assert bool(compared.halved.difference.sel(other="headless").isnull().all())
    encoder = network("bert")
    both = td.compare(encoder, encoder, texts=[[5, 9, 33], [12, 3, 44]], halved=True, weights=False)
    assert (
        "neither has a known loss (the network is not known to predict the next token from earlier ones alone)."
        in said(both)[0]
    )


@pytest.mark.long
def test_depths_that_differ_are_held_against_each_other_by_relative_depth(compared: Comparison) -> None:
    table = compared.halved
    assert table is not None
    assert table.other_layer.sel(other="short").values.tolist() == [1, 1, 2, 2]
    changes = table.loss_change.mean("prompt")
    gap = changes.sel(model="short", layer=[1, 1, 2, 2]).values - changes.sel(model="whole").values
    np.testing.assert_allclose(table.difference.sel(other="short"), gap, atol=1e-12)
    place = re.search(r"of layer (\d)( \(layer (\d) in the other\))?", said(compared)[0])
    assert place is not None
    other = int(place[3] or place[1])
    assert other == table.other_layer.sel(other="short", layer=int(place[1]))


def test_the_page_shows_curves_of_the_models_that_have_a_loss(compared: Comparison) -> None:
    page = page_of(compared)
    for ident in ("halved-attention", "halved-feed-forward", "halved-difference-attention"):
        assert f'id="{ident}"' in page
    direct = page[page.index('id="halved-attention"') :]
    assert direct.index("short") < direct.index("halved-feed-forward")
    assert "How important is each part?" in page
    text = re.sub(r"(?s)<script.*?</script>|<style.*?</style>|<[^>]*>", " ", page)
    assert not re.search(r"\b(nan|inf|None)\b", text)


def test_texts_of_one_token_have_no_loss_and_spoil_none(whole: Any) -> None:
    some = {"one": [5], "two": [7, 9, 11], "three": [2, 4, 8, 16]}
    mixed, pure = (
        halved_of([whole, llama_like(1, 4)], some),
        halved_of([whole, llama_like(1, 4)], dict(list(some.items())[1:])),
    )
    assert bool(mixed.table.loss.isel(prompt=0).isnull().all())
    np.testing.assert_allclose(mixed.table.difference, pure.table.difference, atol=1e-5)
    assert "too few texts for a confidence interval" in halved_finding(("a", "b"), mixed, 0, 1e-7).text
    alone = halved_of([whole, whole], {"one": [5]})
    assert halved_finding(("a", "b"), alone, 0, 1e-7).text.endswith("a because no text has a second token to predict.")


def test_parts_at_a_half_are_run_only_when_asked_for(whole: Any) -> None:
    comparison = td.compare(whole, whole, texts=[[5, 9, 33], [12, 3, 44]], weights=False)
    assert comparison.halved is None
    assert not said(comparison)
    assert "halved" not in page_of(comparison)


@pytest.mark.slow
def test_copies_of_a_text_make_nothing_surer(whole: Any) -> None:
    texts = {name: [5, 9, 33, 21, 60, 7] for name in "abc"}
    comparison = td.compare(whole, llama_like(1, LAYERS), texts=texts, halved=True, weights=False, names=["a", "b"])
    assert "too few texts for a confidence interval" in said(comparison)[0]
    assert "κ′ is undefined because κ′ is not defined in both" in str(comparison)
    assert "“b” and “c” repeat other texts and do not count" in str(comparison)
    two = texts | {"b": [40, 2, 17]}
    comparison = td.compare(whole, llama_like(1, LAYERS), texts=two, halved=True, weights=False)
    without = td.compare(
        whole, llama_like(1, LAYERS), texts={name: two[name] for name in "ab"}, halved=True, weights=False
    )
    assert comparison.halved is not None
    assert without.halved is not None
    np.testing.assert_allclose(comparison.halved.difference, without.halved.difference, atol=1e-6)
    np.testing.assert_allclose(
        comparison.difference.update_quotient, without.difference.update_quotient, rtol=1e-4, equal_nan=True
    )
    assert bool(comparison.difference.consensus_relative_interval.isnull().all())
