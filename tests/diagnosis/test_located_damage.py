"""Small damage of one head, part, norm or bias is located beneath changes of all weights; nothing is where none is."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tokendynamics as td
from diagnosis import function_preserving
from diagnosis.located_damage import (
    BACKGROUNDS,
    DAMAGES,
    FAMILIES,
    HEADS,
    LAYERS,
    PROMPTS,
    UNLIKE_NOISE,
    Planted,
    blocks_of,
    healthy,
    noise,
    planted,
    rounded,
    without_layer,
)
from pretrained import families
from report.reading import page_of
from tokendynamics.diagnosis import Comparison
from tokendynamics.diagnosis.comparing._first_difference import Difference, Parting
from tokendynamics.diagnosis.comparing._outliers import standing_out
from tokendynamics.diagnosis.comparing._tensors import block_differences
from tokendynamics.diagnosis.comparing.words import _by_weights

SEEDS = range(9)

TOO_SMALL = {(damage, background) for damage in DAMAGES for background in ("int4", "LoRA") if "1.01" in damage}
TOO_SMALL |= {("part in int4", "int4"), ("part in int4", "LoRA")}
TOO_SMALL |= {("layer in int8", background) for background in ("int8", "int4", "LoRA")}
"""Damage that is smaller than the changes around it: integers of 4 bits change a matrix by a tenth, LoRA by 5 %."""


def compared(case: Planted) -> Comparison:
    return td.compare(case.whole, case.other, texts=PROMPTS, heads=False)


def located(result: Comparison) -> tuple[int | None, str | None, int | None]:
    return result.first_layer, result.first_part, result.first_head


def is_located(case: Planted) -> bool:
    return located(compared(case)) == (case.layer, case.part, case.head)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_located_in_at_least_95_of_100(damage: str) -> None:
    """Layer and part, and the head where there is one: in 45 to 63 networks of three families."""
    cases = [
        planted(FAMILIES[seed // 2 % 3], damage, background, seed)
        for background in BACKGROUNDS
        if (damage, background) not in TOO_SMALL
        for seed in SEEDS
    ]
    missed = [case for case in cases if not is_located(case)]
    assert len(missed) <= 0.05 * len(cases), [(case.layer, case.part, case.head) for case in missed]


QUICK = [
    ("gpt2", "head × 1.01", "noise of 1 %"), ("bert", "bias × 1.1", "int8"),
    ("llama", "head silenced", "LoRA"), ("llama", "norm × 1.1", "frozen embeddings"),
    ("gpt2", "layer in int8", "noise of 1 %"), ("llama", "entry of a norm × 1.2", "noise of 1 %"),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize(("family", "damage", "background"), QUICK)
def test_damage_is_located_beneath_what_changes_all_weights(family: str, damage: str, background: str) -> None:
    case = planted(family, damage, background, 1)
    assert located(compared(case)) == (case.layer, case.part, case.head)


def test_the_head_that_differs_alone_is_named_by_its_circuits() -> None:
    case = planted("gpt2", "head × 1.1", "noise of 0.2 %", 3)
    comparison = compared(case)
    assert comparison.first_head == case.head == 3
    assert f"head 3 of the attention of layer {case.layer} stands out" in str(comparison)
    assert "Head 3 alone differs unlike the heads around it: OV by 0.1 of its norm (1.1× as large)" in str(comparison)
    assert comparison.weights is not None
    one, two = (td.load(network).attention(case.layer) for network in (case.whole, case.other))
    gain = [weights.norm_gain.double()[:, None] for weights in (one, two) if weights.norm_gain is not None]
    values = [entry * weights.value_per_head.double() for entry, weights in zip(gain, (one, two), strict=True)]
    products = [
        (value - value.mean(dim=-2, keepdim=True)) @ weights.output.double()
        for value, weights in zip(values, (one, two), strict=True)
    ]
    for head in range(HEADS):
        a, b = (product[head] for product in products)
        selected = comparison.weights.isel(other=0).sel(layer=case.layer, head=head)
        assert float(selected.head_ov_difference) == pytest.approx(float((b - a).norm() / a.norm()), rel=1e-8)
        assert float(selected.head_ov_scale) == pytest.approx(float((a * b).sum() / a.square().sum()), rel=1e-8)
    assert "In which heads does OV of" in page_of(comparison)


@pytest.mark.long
def test_a_head_that_was_replaced_by_a_much_larger_one_is_named() -> None:
    """Its distances to all heads are nearly one and the same: they must not decide which of the others match."""
    whole = healthy("bert", 0)
    other = copy.deepcopy(whole)
    attention = other.encoder.layer[1].attention
    for matrix in (attention.self.value.weight.data, attention.output.dense.weight.data.T):
        heads = matrix.unflatten(0, (HEADS, -1))
        heads[7] = 10 * heads[4]  # in the product a hundredfold, nearer to head 4 than to what head 7 was
    comparison = td.compare(whole, other, texts=PROMPTS, heads=False)
    assert located(comparison) == (2, "attention", 7)
    assert comparison.weights is not None
    np.testing.assert_array_equal(comparison.weights.head_matched.sel(layer=2).squeeze(), np.arange(HEADS))


@pytest.mark.long
def test_damage_of_all_heads_names_the_part() -> None:
    comparison = compared(planted("bert", "part × 1.1", "noise of 1 %", 2))
    assert (comparison.first_part, comparison.first_head) == ("attention", None)
    assert "alone differs" not in str(comparison)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_one_layer_in_another_basis_is_no_damage(family: str) -> None:
    """Heads in another order and basis, hidden units in another order, beneath noise on all weights."""
    whole = function_preserving.network_of(family, 5, LAYERS).float()
    changed: Any = whole
    for change in ("permuted heads", "W_V S, S^-1 W_O", "hidden units"):
        changed = function_preserving.CHANGES[change][0](changed.double(), 4).float()
    other: Any = copy.deepcopy(whole.float())
    other.load_state_dict({name: value for name, value in changed.state_dict().items() if ".1." in name}, strict=False)
    comparison = td.compare(whole, other, texts=PROMPTS, heads=False)
    assert comparison.first_difference is None
    assert comparison.weights is not None
    assert float(comparison.weights.head_ov_difference.max()) < 1e-4
    matched = comparison.weights.head_matched.isel(other=0).sel(layer=2).values
    order = np.argsort(matched)
    assert sorted(order.tolist()) == [0, 1, 2, 3]
    assert matched.tolist() == np.argsort(function_preserving.head_order(whole, 4)).tolist()
    noise(0.01)(other, torch.Generator().manual_seed(3))
    assert td.compare(whole, other, texts=PROMPTS, heads=False).first_part == "embedding"


def move_value_biases(network: Any, seed: int) -> Any:
    """Move what the values' biases give to the output's: attention adds up to 1."""
    del seed
    changed = copy.deepcopy(network)
    for layer in changed.encoder.layer:
        value, output = layer.attention.self.value, layer.attention.output.dense
        output.bias.data += output.weight.data @ value.bias.data
        value.bias.data.zero_()
    return changed


def move_factors(network: Any, seed: int) -> Any:
    """Move a factor of 1.02 from the values to the output in one layer, and one of a half beside the gates.

    GPT-2 has no gates, and its values are a third of one matrix.
    """
    changed = copy.deepcopy(network)
    if changed.config.model_type == "gpt2":
        attention = changed.h[seed % LAYERS].attn
        values = slice(2 * changed.config.n_embd, None)
        for tensor in (attention.c_attn.weight.data, attention.c_attn.bias.data):
            tensor[..., values] *= 1.02
        attention.c_proj.weight.data /= 1.02
        return changed
    layer = changed.model.layers[seed % LAYERS]
    for module, factor in (
        (layer.self_attn.v_proj, 1.02), (layer.self_attn.o_proj, 1 / 1.02),
        (layer.mlp.up_proj, 0.5), (layer.mlp.down_proj, 2.0),
    ):  # fmt: skip
        module.weight.data *= factor
        if module.bias is not None and module is layer.self_attn.v_proj:
            module.bias.data *= factor
    return changed


def move_channels(network: Any, seed: int) -> Any:
    """Move a factor of each feature, of a tenth, from the gain of one norm to the columns of what reads it."""
    changed = copy.deepcopy(network)
    draw = torch.Generator().manual_seed(seed)
    if changed.config.model_type == "gpt2":
        block = changed.h[seed % LAYERS]
        norm, readers = block.ln_1, [block.attn.c_attn.weight.data.T]
    else:
        block = changed.model.layers[seed % LAYERS]
        norm, readers = block.input_layernorm, [
            getattr(block.self_attn, f"{name}_proj").weight.data for name in ("q", "k", "v")
        ]  # fmt: skip
    factors = 1 + 0.05 * torch.randn(len(norm.weight), generator=draw, dtype=norm.weight.dtype)
    norm.weight.data *= factors
    if getattr(norm, "bias", None) is not None:
        norm.bias.data *= factors
    for matrix in readers:
        matrix /= factors
    return changed


PRESERVING = {name: change for name, (change, _) in function_preserving.CHANGES.items()} | {
    "values' biases": move_value_biases, "factors": move_factors, "channels": move_channels,
}  # fmt: skip
PRESERVED = [(name, family) for name, (_, families) in function_preserving.CHANGES.items() for family in families]
PRESERVED += [("values' biases", "bert"), ("factors", "llama"), ("factors", "gpt2")]
PRESERVED += [("channels", "llama"), ("channels", "gpt2")]
ONCE = [("signs of heads", "bert", 1), ("W_Q R, W_K R^-T", "gpt2", 0), ("gains moved", "llama", 1)]
ONCE += [("values' biases", "bert", 2), ("factors", "llama", 0), ("factors", "gpt2", 3), ("channels", "llama", 1)]


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("change", "family", "seed"),
    ONCE + [pytest.param(*case, seed, marks=pytest.mark.slow) for case in PRESERVED for seed in range(3)],
)
def test_what_keeps_the_function_is_no_damage_beneath_noise(change: str, family: str, seed: int) -> None:
    whole = function_preserving.network_of(family, seed, LAYERS).float()
    other = copy.deepcopy(whole)
    noise(0.01)(other, torch.Generator().manual_seed(1000 + seed))
    other = PRESERVING[change](other.double(), seed).float()
    comparison = td.compare(whole, other, texts=PROMPTS, heads=False)
    assert comparison.first_part in (None, "embedding")
    assert "No layer stands out" in str(comparison)
    if change in OTHER_ORDER_OR_BASIS:
        assert "; none differs unlike those of other layers. The matrices of the " in str(comparison)


OTHER_ORDER_OR_BASIS = ("permuted heads", "W_Q R, W_K R^-T", "W_V S, S^-1 W_O", "signs of heads", "hidden units")


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("change", "family", "part", "size"),
    [
        ("permuted heads", "gpt2", "attention", 0.002), ("permuted heads", "llama", "attention", 0.01),
        ("permuted heads", "bert", "attention", 0.01), ("hidden units", "bert", "feed-forward part", 0.01),
    ],
)  # fmt: skip
def test_one_layer_in_another_order_beneath_noise_names_no_tensor(
    change: str, family: str, part: str, size: float
) -> None:
    """The tensors of that layer differ by their whole norm, those of others by noise: it is the order that differs."""
    whole: Any = function_preserving.network_of(family, 1, LAYERS).float()
    other: Any = copy.deepcopy(whole)
    changed = PRESERVING[change](whole.double(), 2).state_dict()
    other.load_state_dict({name: value for name, value in changed.items() if ".2." in name}, strict=False)
    noise(size)(other, torch.Generator().manual_seed(50))
    comparison = td.compare(whole.float(), other, texts=PROMPTS, heads=False)
    assert comparison.first_part == "embedding"
    text = next(finding.text for finding in comparison.sentences if finding.text.startswith("Stored tensors"))
    assert "none differs unlike those of other layers." in text
    assert (
        f"The matrices of the {part} in layer 3 differ mainly in the order, basis or scale in which they are " in text
    )
    computed = re.findall(r"what they compute differs by at most (0\.\d+) of its norm", text)
    assert size / 2 < float(computed[0]) < 4 * size
    blocks_of_other = {"gpt2": "h", "llama": "model.layers", "bert": "encoder.layer"}[family]
    output = other.get_submodule(blocks_of_other)[2]
    modules = {"gpt2": "attn.c_proj", "llama": "self_attn.o_proj", "bert": "attention.output.dense"}
    output.get_submodule(modules[family]).weight.data *= 3.0
    damaged = td.compare(whole.float(), other, texts=PROMPTS, heads=False)
    assert (damaged.first_layer, damaged.first_part) == (3, "attention")


@pytest.mark.long
def test_damage_is_located_beside_what_keeps_the_function() -> None:
    whole = function_preserving.network_of("bert", 1, LAYERS).float()
    other: Any = copy.deepcopy(whole)
    noise(0.01)(other, torch.Generator().manual_seed(3))
    other = PRESERVING["signs of heads"](other.double(), 1).float()
    other.encoder.layer[2].output.dense.weight.data *= 1.05
    assert located(td.compare(whole, other, texts=PROMPTS, heads=False)) == (3, "feed_forward", None)


@pytest.mark.parametrize(("layers", "times", "named"), [((5,), 1.2, 1), ((2, 5, 9), 1.2, 0), ((2, 5, 9), 2.5, 3)])
def test_noise_that_varies_over_several_layers_locates_nothing(
    layers: tuple[int, ...], times: float, named: int
) -> None:
    """Rounding errors are larger where a few elements are: integers of 8 bits of SmolLM2 named its first attention."""
    draw, pairs = torch.Generator().manual_seed(0), []
    for layer in range(12):
        tensors = {name: torch.randn(60, 60, generator=draw) for name in ("one.weight", "two.weight", "three.weight")}
        size = {name: 0.01 * (times if layer in layers and name == "one.weight" else 1.0) for name in tensors}
        noisy = {name: x + size[name] * torch.randn(x.shape, generator=draw) for name, x in tensors.items()}
        pairs.append((tensors, noisy))
    outliers = standing_out(block_differences(pairs).table)
    assert len(outliers) == named
    assert {layer for layer, _ in outliers} <= set(layers)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [8, 4])
def test_a_real_network_in_integers_names_no_layer(bits: int) -> None:
    whole = td.load("smollm2")
    other: Any = copy.deepcopy(whole.with_head)
    rounded(bits)(other, torch.Generator())
    texts = ["The dog sleeps in the sun all day.", "It rains a lot in May.", "Two and two make four, they say."]
    comparison = td.compare(whole, td.load(other, tokenizer=whole.tokenizer), texts=texts, heads=False)
    assert comparison.first_layer == 0
    assert "none differs unlike those of other layers" in str(comparison)


@pytest.mark.long
def test_a_norm_is_named_in_words() -> None:
    whole = healthy("bert", 1)
    other = copy.deepcopy(whole)
    other.encoder.layer[2].attention.output.LayerNorm.weight.data.mul_(3.0)
    words = str(td.compare(whole, other, texts=PROMPTS, heads=False))
    assert (
        "the first difference is in the norm of the attention of layer 3: the update of this attention differs" in words
    )
    whole = healthy("gpt2", 1)
    other = copy.deepcopy(whole)
    other.transformer.ln_f.weight.data.mul_(3.0)
    other.transformer.ln_f.bias.data.mul_(3.0)
    words = str(td.compare(whole, other, texts=PROMPTS, heads=False))
    assert "the first difference is in the final norm: its states differ by 2× their norm and are 3× as large." in words


@pytest.mark.long
def test_images_are_called_images() -> None:
    networks = [families.network_of("vit")[0] for _ in range(2)]
    draw = torch.Generator().manual_seed(0)
    images = [{"pixel_values": torch.randn(1, 3, 12, 12, generator=draw)} for _ in range(3)]
    assert "ithin-image similarity" in str(td.compare(*networks, texts=images, heads=False))


@pytest.mark.long
def test_a_final_norm_is_located_by_its_weights() -> None:
    case = planted("gpt2", "final norm × 1.01", "noise of 1 %", 1)
    comparison = compared(case)
    assert located(comparison) == (LAYERS, "norm", None)
    assert "the final norm stands out by its weights. Its output does not stand out: the states differ" in str(
        comparison
    )


def test_updates_that_differ_more_than_those_around_them_are_not_said_not_to_stand_out() -> None:
    start = Difference(0, "embedding", 0.0, 0.1, 1.0, 1e-7)
    parting = Parting("by weights", None, start, None, (), 0.1, 0.4)
    first = Difference(3, "feed-forward part", 0.2, 1.3, 2.2, 1e-7, 1.2, 0.254)
    assert _by_weights(parting, first, "by much") == (
        "the feed-forward part of layer 3 stands out by its weights. On identical inputs its update differs by 1.2× "
        "its norm; the median of the same part in neighbouring layers is 0.25. The states differ from the embedding "
        "on, by much."
    )
    unmeasured = replace(first, own=math.nan, beside=math.nan)
    assert " by its weights. Its update is 2.2× as large. The states " in _by_weights(parting, unmeasured, "by much")
    for like_others in (replace(first, own=0.49, size=1.9), replace(unmeasured, size=0.51)):
        text = _by_weights(parting, like_others, "by much")
        assert " by its weights. Its update does not stand out: the states differ from the embedding on, by" in text


@pytest.mark.slow
@pytest.mark.parametrize("background", BACKGROUNDS)
def test_changes_of_all_weights_alone_name_no_layer(background: str) -> None:
    alarms = []
    for seed in SEEDS:
        whole = healthy(FAMILIES[seed % 3], seed)
        other = copy.deepcopy(whole)
        BACKGROUNDS[background](other, torch.Generator().manual_seed(seed))
        comparison = td.compare(whole, other, texts=PROMPTS, heads=False)
        alarms += [seed] if comparison.first_layer not in (None, 0) else []
    assert not alarms


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("family", "layer", "background"), [("llama", 3, "frozen embeddings"), ("gpt2", LAYERS, "int8")]
)
def test_a_layer_that_one_of_them_lacks_is_named(family: str, layer: int, background: str) -> None:
    whole = healthy(family, 2)
    other = copy.deepcopy(whole)
    BACKGROUNDS[background](other, torch.Generator().manual_seed(1))
    comparison = td.compare(whole, without_layer(other, layer), texts=PROMPTS, names=["a", "b"], heads=False)
    assert (comparison.first_layer, comparison.first_part) == (layer, "attention")
    assert f"b lacks layer {layer} of a; the matrices of its other blocks are the same up to 0.0" in str(comparison)
    back = td.compare(without_layer(other, layer), whole, texts=PROMPTS, names=["b", "a"], heads=False)
    assert f"b lacks layer {layer} of a; " in str(back)
    assert "Relative to the residual stream" not in str(comparison)  # layers of one relative depth are different ones


@pytest.mark.long
def test_a_network_of_another_depth_lacks_no_layer_of_an_unlike_one() -> None:
    comparison = td.compare(healthy("gpt2", 1), without_layer(healthy("gpt2", 2), 2), texts=PROMPTS, heads=False)
    assert "lacks layer" not in str(comparison)
    assert comparison.partings[0] is not None
    assert comparison.partings[0].missing == ()


@pytest.mark.slow
@pytest.mark.parametrize("background", UNLIKE_NOISE)
def test_changes_that_are_no_even_noise_name_no_layer(background: str) -> None:
    alarms = []
    for seed in SEEDS:
        whole = healthy(FAMILIES[seed % 3], seed)
        for depth, block in enumerate(blocks_of(whole) if seed % 2 else []):
            for tensor in block.parameters():
                tensor.data *= 1 + 0.1 * depth
        other = copy.deepcopy(whole)
        UNLIKE_NOISE[background](other, torch.Generator().manual_seed(5000 + seed))
        comparison = td.compare(whole, other, texts=PROMPTS, heads=False)
        alarms += [seed] if comparison.first_layer not in (None, 0) else []
    assert not alarms
