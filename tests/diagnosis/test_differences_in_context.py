"""A difference of two networks is named by the differences around it: damage of one tensor, with noise and without."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.stats import norm as normal

import tokendynamics as td
from diagnosis.planted_damage import FAMILIES, LAYERS, blocks_of, network
from tokendynamics.diagnosis import Comparison
from tokendynamics.diagnosis.comparing._first_difference import Difference, Parting, _without_moved_factors
from tokendynamics.diagnosis.comparing._outliers import FALSE_ALARMS, standing_out
from tokendynamics.diagnosis.comparing._tensors import block_differences
from tokendynamics.diagnosis.comparing.words import parting_finding, updates_finding

PROMPTS = {
    "one": [5, 9, 33, 21, 7, 50], "two": [12, 3, 44, 18, 40],
    "three": [20, 31, 8, 6, 11, 2, 55], "four": [9, 9, 41, 30],
}  # fmt: skip

TENSORS = {
    "llama": {
        "self_attn.v_proj.weight": "attention", "self_attn.o_proj.weight": "attention",
        "input_layernorm.weight": "attention", "mlp.up_proj.weight": "feed-forward part",
        "mlp.down_proj.weight": "feed-forward part", "post_attention_layernorm.weight": "feed-forward part",
    },
    "gpt2": {
        "attn.c_attn.bias": "attention", "attn.c_proj.bias": "attention", "ln_1.weight": "attention",
        "ln_1.bias": "attention", "mlp.c_fc.bias": "feed-forward part", "mlp.c_proj.bias": "feed-forward part",
        "ln_2.weight": "feed-forward part", "ln_2.bias": "feed-forward part",
    },
    "bert": {
        "attention.output.dense.bias": "attention", "attention.output.LayerNorm.weight": "attention",
        "attention.output.LayerNorm.bias": "attention", "output.dense.bias": "feed-forward part",
        "output.LayerNorm.weight": "feed-forward part", "output.LayerNorm.bias": "feed-forward part",
    },
}  # fmt: skip
"""Tensors of a block, and the part whose update they change."""

ALL = [(family, name) for family, names in TENSORS.items() for name in names]
QUICK = [("llama", "post_attention_layernorm.weight"), ("gpt2", "mlp.c_proj.bias"), ("gpt2", "ln_1.bias")]
QUICK += [("bert", "attention.output.LayerNorm.weight")]


def with_noise(original: Any, size: float, *, embedding: bool) -> Any:
    """A copy with noise on each tensor, as rounding or a little more training leaves it."""
    noisy, generator = copy.deepcopy(original), torch.Generator().manual_seed(5)
    for name, parameter in noisy.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if embedding or not any(word in name for word in ("emb", "wte", "wpe")):
            parameter.data += size * (float(parameter.data.norm()) / parameter.numel() ** 0.5 + 0.01) * noise
    return noisy


def damaged(original: Any, name: str, layer: int) -> Any:
    changed = copy.deepcopy(original)
    tensor = dict(blocks_of(changed)[layer - 1].named_parameters())[name].data
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(9))
    tensor += noise * max(float(tensor.std()), 0.5 if tensor.ndim == 1 else 0.0)
    return changed


def said_of_tensors(result: Comparison) -> str:
    return next(sentence.text for sentence in result.sentences if "tored tensor" in sentence.text)


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.every_value_once
@pytest.mark.parametrize("size", [0.0, 1e-3])
@pytest.mark.parametrize(
    ("family", "name"), [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in ALL]
)
def test_one_damaged_tensor_is_found_whatever_noise_there_is(family: str, name: str, size: float) -> None:
    whole = network(family)
    other = damaged(with_noise(whole, size, embedding=False) if size else whole, name, 2)
    comparison = td.compare(whole, other, texts=PROMPTS)
    first = comparison.first_difference
    assert first is not None
    assert (first.layer, first.part) == (2, TENSORS[family][name])
    assert f"Tensors whose difference stands out from that in other layers: {name}" in str(comparison)
    words = said_of_tensors(comparison)
    kind = " (a bias or norm)" if name.endswith("bias") or "orm" in name or "ln_" in name else ""
    assert f"{name}{kind} in layer 2, by " in words
    assert ("differ in every layer. Unlike those of other layers: " in words) == (size > 0)
    assert ("differ only in layer 2: " in words) == (size == 0)
    assert (first.beside > 0) == (size > 0)
    assert ("the median of the same part in neighbouring layers is " in str(comparison)) == (size > 0)


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.every_value_once
@pytest.mark.parametrize("embedding", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_noise_on_every_layer_names_none(family: str, embedding: bool) -> None:
    """Also with equal embeddings, whose layer 1 reads equal states: adapters, frozen embeddings, quantised blocks."""
    whole = network(family)
    comparison = td.compare(whole, with_noise(whole, 1e-2, embedding=embedding), texts=PROMPTS)
    assert comparison.partings[0] is not None
    assert comparison.partings[0].kind == ("from the start" if embedding else "gradual")
    assert comparison.first_part == ("embedding" if embedding else None)
    assert "No layer stands out" in str(comparison)
    words = said_of_tensors(comparison)
    assert words.endswith("of their norm in the median; none differs unlike those of other layers.")


@pytest.mark.long
def test_a_change_of_every_layer_names_no_first_one() -> None:
    whole, tuned = network("gpt2"), network("gpt2")
    generator = torch.Generator().manual_seed(2)
    for block in tuned.h:
        weight = block.attn.c_attn.weight.data
        low = torch.randn(len(weight), 2, generator=generator) @ torch.randn(2, weight.shape[1], generator=generator)
        weight += 0.02 * low * weight.norm() / low.norm()
    comparison = td.compare(whole, tuned, texts=PROMPTS)
    assert comparison.first_difference is None
    assert "the states diverge gradually" in str(comparison)
    only = network("gpt2")
    only.h[1].attn.c_attn.weight.data.copy_(tuned.h[1].attn.c_attn.weight.data)
    comparison = td.compare(whole, only, texts=PROMPTS)
    assert (comparison.first_layer, comparison.first_part) == (2, "attention")
    assert "All earlier states are equal to the last bit" in str(comparison)


@pytest.mark.long
def test_of_two_that_are_the_same_no_tensor_differs() -> None:
    whole = network("bert")
    comparison = td.compare(whole, copy.deepcopy(whole), texts=PROMPTS)
    assert comparison.first_difference is None
    assert said_of_tensors(comparison).startswith(
        "All stored tensors of the blocks of BertModel [2] and BertModel [1] are equal, incl"
    )
    assert comparison.gaps is not None
    assert float(np.nanmax(comparison.gaps.own_difference)) == 0


@pytest.mark.long
def test_a_changed_bias_is_a_difference_of_weights() -> None:
    whole, other = network("gpt2"), network("gpt2")
    other.h[2].mlp.c_proj.bias.data += 0.3
    comparison = td.compare(whole, other, texts=PROMPTS)
    assert "feed-forward weights" not in str(comparison)
    assert "The feed-forward matrices of GPT2Model [2] and GPT2Model [1] are equal in all compared layers" in str(
        comparison
    )
    words = said_of_tensors(comparison)
    assert words.startswith(
        "Stored tensors of GPT2Model [2] and GPT2Model [1] differ only in layer 3: mlp.c_proj.bias (a bias or"
    )
    assert (comparison.first_layer, comparison.first_part) == (3, "feed_forward")


@pytest.mark.long
def test_differences_on_the_same_inputs_are_those_of_the_blocks_by_hand() -> None:
    whole, other = network("gpt2"), with_noise(network("gpt2"), 0.05, embedding=True)
    comparison = td.compare(whole, other, texts=PROMPTS, sinks=())
    assert comparison.gaps is not None
    ids = torch.tensor([PROMPTS["one"]])
    with torch.no_grad():
        states = whole(ids, output_hidden_states=True).hidden_states
        for layer in range(1, LAYERS + 1):
            x, (a, b) = states[layer - 1], (whole.h[layer - 1], other.h[layer - 1])
            one, two = (block.attn(block.ln_1(x))[0] for block in (a, b))
            rest = [block.mlp(block.ln_2(x + update)) for block, update in ((a, one), (b, two))]
            selected = comparison.gaps.own_difference.isel(other=0).sel(prompt="one", layer=layer)
            assert float(selected.sel(component="attention")) == pytest.approx(
                float((two - one).norm() / one.norm()), rel=1e-3
            )
            expected = float((rest[1] - rest[0]).norm() / rest[0].norm())
            assert float(selected.sel(component="feed_forward")) == pytest.approx(expected, rel=1e-3)


def test_a_network_in_another_format_has_no_differences_on_the_same_inputs() -> None:
    whole = network("gpt2")
    comparison = td.compare(whole, copy.deepcopy(whole).to(torch.bfloat16), texts=PROMPTS, weights=False)
    assert comparison.gaps is not None
    assert bool(comparison.gaps.own_difference.isnull().all())


def table_of(differences: np.ndarray, scales: np.ndarray | None = None, elements: int = 100) -> xr.Dataset:
    """Differences of tensors over layers, as `block_differences` returns them; by default none changes its scale."""
    values = {"difference": differences, "scale": np.ones_like(differences) if scales is None else scales}
    values["scale_error"] = differences / elements**0.5
    values |= {"noise": differences, "noise_error": np.full_like(differences, (2 * elements) ** -0.5)}
    values |= {"channels": np.zeros_like(differences), "size": np.ones_like(differences)}
    return xr.Dataset({f"tensor_{name}": (("layer", "tensor"), array) for name, array in values.items()})


def test_tensors_stand_out_against_those_of_their_name() -> None:
    alike = np.array([[0.01, 0.3], [0.012, 0.31], [0.011, 0.29], [0.013, 0.28]])
    assert standing_out(table_of(alike)) == []
    alike[2, 0] = 0.2
    assert standing_out(table_of(alike)) == [(2, 0)]
    alike[3, 1] = np.nan
    assert standing_out(table_of(alike)) == [(2, 0)]
    assert standing_out(table_of(np.array([[0.5, 0.1]]))) == []  # one layer has nothing to be compared with


def test_a_factor_as_large_as_the_noise_stands_out_by_the_scale() -> None:
    """Noise of 1 % changes the scale of 100 elements by 0.001; a factor of 1.01 by ten times that."""
    differences, scales = np.full((4, 1), 0.01), np.array([[1.001], [0.999], [1.0], [1.01]])
    assert standing_out(table_of(differences, scales)) == [(3, 0)]
    assert standing_out(table_of(differences, scales, elements=4)) == []  # there noise alone gives 0.005
    spread = np.array([[1.008], [0.992], [1.0], [1.01]])  # layers whose scales differ anyway, as after training
    assert standing_out(table_of(differences, spread)) == []
    many = np.array([[1.006], [0.994], [1.004], [0.996], [1.0], [1.002], [0.998], [1.01]])
    assert standing_out(table_of(np.full((8, 1), 0.01), many)) == []


def test_the_error_of_a_scale_is_that_of_the_noise_beside_it() -> None:
    """Computed again with numpy: noise across the tensor, wider where the noise stands on its largest entries."""
    rng = np.random.default_rng(4)
    first = [rng.normal(size=(6, 8)) for _ in range(3)]
    noise = [0.01 * rng.normal(size=(6, 8)) * (1 + 4 * np.abs(tensor)) for tensor in first]
    other = [1.25 * tensor + entry for tensor, entry in zip(first, noise, strict=True)]
    pairs = [({"w": torch.tensor(one)}, {"w": torch.tensor(two)}) for one, two in zip(first, other, strict=True)]
    table = block_differences(pairs).table
    errors, widths = [], []
    for one, two in zip(first, other, strict=True):
        scale = (one * two).sum() / (one**2).sum()
        rest, size = two - scale * one, np.linalg.norm(one)
        errors.append(np.linalg.norm(rest) / np.sqrt(one.size - 1) / size)
        widths.append(np.sqrt(one.size) * np.linalg.norm(rest * one) / (np.linalg.norm(rest) * size))
    assert np.median(widths) > 1.2
    np.testing.assert_allclose(table.tensor_scale_error[:, 0], np.median(widths) * np.array(errors), rtol=1e-6)
    np.testing.assert_allclose(table.tensor_scale[:, 0], 1.25, rtol=0.02)


def test_only_reciprocal_scales_undo_each_other() -> None:
    errors = np.full(4, 0.001)
    assert _without_moved_factors([0, 1], np.array([0.02, -0.02, 0, 0]), errors) == []
    assert _without_moved_factors([0, 1], np.array([0.02, -0.03, 0, 0]), errors) == [0, 1]
    assert _without_moved_factors([0, 1], np.array([0.001, 0.001, 0, 0]), errors) == [0, 1]


NOISE, NAMES, DEPTH = 0.01, 12, 4


def drawn_table(generator: np.random.Generator, elements: int) -> xr.Dataset:
    """Tensors of so many elements that differ by independent noise alone: what `block_differences` makes of them."""
    shape, error = (DEPTH, NAMES), NOISE / elements**0.5
    sizes = (generator.chisquare(elements - 1, shape) / (elements - 1)) ** 0.5
    table = table_of(NOISE * sizes, 1 + error * generator.standard_normal(shape), elements)
    return table.assign(tensor_scale_error=(("layer", "tensor"), error * sizes))


def damaged_table(table: xr.Dataset, factor: float) -> xr.Dataset:
    scales = table.tensor_scale.values.copy()
    scales[2, 5] *= factor
    return table.assign(tensor_scale=(("layer", "tensor"), scales))


def best_power(elements: int, places: int) -> float:
    """Share in which the likelihood ratio of a factor of 1.01 beneath noise of 1 %, both known, locates it.

    At one false alarm in 1,000 comparisons of so many places.
    """
    return float(normal.sf(normal.isf(FALSE_ALARMS / (2 * places)) - elements**0.5 * 0.01 / NOISE))


@pytest.mark.long
def test_noise_alone_names_a_tensor_in_at_most_one_of_1000_comparisons() -> None:
    generator = np.random.default_rng(0)
    alarms = sum(bool(standing_out(drawn_table(generator, elements))) for elements in (16, 48) for _ in range(400))
    assert alarms <= 4  # at most one is expected; five or more are in one of 250 runs


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(("elements", "least"), [(96, 0.99), (48, 0.9), (24, 0.3)])
def test_a_small_factor_is_located_nearly_as_often_as_the_best_test_does(elements: int, least: float) -> None:
    """Beneath noise that is as large it shows from about 38 elements on, whatever the test."""
    generator = np.random.default_rng(1)
    places = [standing_out(damaged_table(drawn_table(generator, elements), 1.01)) for _ in range(150)]
    share, best = places.count([(2, 5)]) / len(places), best_power(elements, DEPTH * NAMES)
    assert least <= share <= best + 0.05, (share, best)
    assert share >= best - 0.4
    assert best_power(37, 144) < 0.95 < best_power(38, 144)


def noisier(table: xr.Dataset, factor: float) -> xr.Dataset:
    noise = table.tensor_noise.copy()
    noise[2, 5] *= factor
    return table.assign(tensor_noise=noise)


@pytest.mark.parametrize(
    ("elements", "factor", "expected"), [(4000, 1.1, [(2, 5)]), (400, 1.1, []), (400, 1.4, [(2, 5)])]
)
def test_more_noise_is_located_as_far_as_its_size_is_known(elements: int, factor: float, expected: list[Any]) -> None:
    """The size of noise of n elements is known to 1/√(2n): to 0.011 and 0.035."""
    generator = np.random.default_rng(3)
    tables = [drawn_table(generator, elements) for _ in range(20)]
    assert sum(standing_out(noisier(table, factor)) == expected for table in tables) >= 19
    assert not any(standing_out(noisier(table, 1 / factor)) for table in tables)  # less noise is no damage


def test_noise_that_varies_by_more_than_chance_locates_nothing() -> None:
    generator = np.random.default_rng(4)
    for _ in range(20):
        table = drawn_table(generator, 4000)
        varying = table.assign(
            tensor_noise=table.tensor_noise * np.exp(0.05 * generator.standard_normal((DEPTH, NAMES)))
        )
        assert standing_out(noisier(varying, 1.3)) == []
        # Noise of one absolute size is more, relatively, in the one tensor that is smaller.
        assert (
            standing_out(
                noisier(table, 1.3).assign(tensor_size=noisier(table, 1 / 1.3).tensor_noise / table.tensor_noise)
            )
            == []
        )


def test_factors_of_a_gain_that_its_reader_undoes_are_no_noise() -> None:
    """The gain is a vector, NaN in ``tensor_channels``; the matrix in which its factors show is 1."""
    table = noisier(drawn_table(np.random.default_rng(5), 4000), 1.5)
    channels = table.tensor_channels.copy()
    channels[:, 5] = np.nan
    assert standing_out(table.assign(tensor_channels=channels)) == [(2, 5)]
    channels[2, 7] = 1.0
    assert standing_out(table.assign(tensor_channels=channels)) == []
    channels[2, 7], channels[1, 7] = 0.0, 1.0  # of another layer
    assert standing_out(table.assign(tensor_channels=channels)) == [(2, 5)]


@pytest.mark.long
def test_names_with_a_scale_of_their_own_are_compared_among_themselves() -> None:
    """As after weight decay of matrices alone: it is no damage, and hides none."""
    generator, decayed = np.random.default_rng(2), np.where(np.arange(NAMES) < 6, 0.99, 1.0)
    tables = [drawn_table(generator, 400) for _ in range(60)]
    tables = [table.assign(tensor_scale=table.tensor_scale * xr.DataArray(decayed, dims="tensor")) for table in tables]
    assert not any(standing_out(table) for table in tables)
    assert all(standing_out(damaged_table(table, 1.01)) == [(2, 5)] for table in tables)


@pytest.mark.parametrize(("others", "words"), [(7, "and 1 more part."), (8, "and 2 more parts."), (6, "(3×).")])
def test_one_more_part_is_one(others: int, words: str) -> None:
    first = Difference(1, "attention", 0.0, 2.0, 3.0, 1e-7)
    rest = tuple(Difference(layer, "attention", 0.5, 2.0, 3.0, 1e-7) for layer in range(2, 2 + others))
    parting = Parting("located", first, None, first, (first, *rest), 0.1, 0.2)
    assert words in parting_finding(("a", "b"), parting, "", "float32").text


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        (
            (1.1, 1.3),
            "differ most in the attention of layer 1: those of b are 1.2× as large (90 % CI 1.10–1.30).",
        ),
        ((1.1, 739.45), "those of b are 1.2× as large (90 % CI 1.10–740)."),
        ((0.9, 1.3), "no updates of b and a differ significantly in size."),
        ((np.nan, np.nan), "differ most in the attention of layer 1: those of b are 1.2× as large."),
    ],
)
def test_updates_of_another_size_are_named_where_that_is_significant(ends: tuple[float, float], words: str) -> None:
    quotient = np.array([[np.nan, np.nan], [1.2, 1.0], [1.0, 1.01]])
    interval = np.stack([quotient, quotient], axis=-1) + (0.0 if np.isfinite(ends[0]) else np.nan)
    interval[1, 0] = ends
    table = xr.Dataset(
        {
            "update_quotient": (("layer", "component"), quotient),
            "update_quotient_interval": (("layer", "component", "bound"), interval),
        },
        coords={"component": ["attention", "feed_forward"], "bound": ["low", "high"]},
    )
    result = updates_finding(("a", "b"), table)
    assert result is not None
    assert result.text.endswith(words)
    assert updates_finding(("a", "b"), table.assign(update_quotient=table.update_quotient * 0 + 1.0)) is None
