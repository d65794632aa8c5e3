"""A comparison says "all" only of what it compared: tensors in both networks, layers of both, tokens that count."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tokendynamics as td
from diagnosis.located_damage import healthy, without_layer
from diagnosis.planted_damage import network
from tokendynamics.diagnosis import Comparison
from tokendynamics.diagnosis.comparing._first_difference import Difference, Parting
from tokendynamics.diagnosis.comparing._tensors import block_differences
from tokendynamics.diagnosis.comparing._weight_words import tensors_finding, where_differing
from tokendynamics.diagnosis.comparing.words import parting_finding

PROMPTS = {
    "one": [5, 9, 33, 21, 7, 50], "two": [12, 3, 44, 18, 40],
    "three": [20, 31, 8, 6, 11, 2, 55], "four": [9, 9, 41, 30],
}  # fmt: skip


class Packed(nn.Module):
    """A projection of integers in a buffer, and their scale."""

    codes: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.scale = nn.Parameter(linear.weight.data.abs().max() / 127)
        self.register_buffer("codes", (linear.weight.data / self.scale.detach()).round().to(torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.codes.to(x.dtype) * self.scale).T


class Adapted(nn.Module):
    """A projection with a low-rank addition of zero, as an untrained adapter is."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.base_layer, self.in_features, self.out_features = linear, linear.in_features, linear.out_features
        self.up = nn.Parameter(torch.zeros(linear.out_features, 2))
        self.down = nn.Parameter(torch.ones(2, linear.in_features))

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + (x @ self.down.T) @ self.up.T


def with_projections(form: Any, layers: tuple[int, ...] = (0, 1, 2)) -> Any:
    changed = copy.deepcopy(network("llama"))
    for layer in layers:
        changed.layers[layer].mlp.down_proj = form(changed.layers[layer].mlp.down_proj)
    return changed


def compared(one: Any, two: Any, **options: Any) -> Comparison:
    return td.compare(one, two, texts=PROMPTS, names=["a", "b"], heads=False, **options)


def on(result: Comparison, words: str) -> str:
    return next(sentence.text for sentence in result.sentences if words in sentence.text)


@pytest.mark.long
@pytest.mark.parametrize(
    ("form", "unmatched"),
    [
        (Packed, "mlp.down_proj.weight, mlp.down_proj.scale and mlp.down_proj.codes"),
        (
            Adapted,
            "mlp.down_proj.weight, mlp.down_proj.up, mlp.down_proj.down and mlp.down_proj.base_layer.weight",
        ),
    ],
)
def test_all_tensors_are_not_equal_where_some_are_in_one_network_only(form: Any, unmatched: str) -> None:
    text = on(compared(network("llama"), with_projections(form)), "tored tensors")
    assert text == (
        "The stored tensors in the blocks of both b and a are equal, including biases and norms. Not in both networks "
        f"with one name and shape: {unmatched}."
    )
    changed = with_projections(form)
    changed.layers[1].input_layernorm.weight.data[0] += 0.5
    text = on(compared(network("llama"), changed), "tored tensors")
    assert text.startswith("Stored tensors that both b and a have differ only in layer 2: input_layernorm.weight")


def test_tensors_that_one_layer_lacks_are_named_with_it() -> None:
    text = on(compared(network("llama"), with_projections(Adapted, (1,))), "tored tensors")
    assert "one name and shape: mlp.down_proj.weight in layer 2, mlp.down_proj.up" in text


@pytest.mark.long
def test_codes_of_packed_weights_are_stored_tensors() -> None:
    one, two = with_projections(Packed), with_projections(Packed)
    assert on(compared(one, two), "tored tensors") == (
        "All stored tensors of the blocks of b and a are equal, including biases and norms."
    )
    two.layers[1].mlp.down_proj.codes[0, 0] += 9
    comparison = compared(one, two)
    assert on(comparison, "tored tensors") == (
        "Apart from packed weights, all stored tensors of the blocks of b and a are equal, including biases and norms. "
        "Packed weights (integers) that differ: mlp.down_proj.codes."
    )
    assert (comparison.first_layer, comparison.first_part) == (2, "feed_forward")
    two.layers[0].input_layernorm.weight.data[0] += 0.5
    assert on(compared(one, two), "tored tensors").startswith(
        "Apart from packed weights, stored tensors of b and a differ only in layer 1: input_layernorm.weight"
    )


def test_biases_and_norms_are_named_where_there_are_some() -> None:
    matrices = [({"w": torch.eye(5)}, {"w": torch.eye(5)})]
    assert tensors_finding(("a", "b"), block_differences(matrices)).text.endswith("of the blocks of b and a are equal.")


def test_a_layer_that_was_not_compared_is_no_layer_that_differs() -> None:
    known = np.array([True, False, True])
    assert where_differing([1, 3], known) == "in every compared layer"
    assert where_differing([3], known) == "among the compared layers only in layer 3"
    assert where_differing([1], np.array([True])) == "in the only layer"
    assert where_differing([1, 3], np.array([True, True, True])) == "only in layers 1, 3"


@pytest.mark.long
@pytest.mark.parametrize("weights", [True, False])
def test_states_are_equal_up_to_the_depth_of_both(weights: bool) -> None:
    whole = healthy("gpt2", 1)
    shorter = without_layer(whole, 4)
    for pair in ((whole, shorter), (shorter, whole)):
        comparison = compared(*pair, weights=weights)
        assert ("vs a: all states up to layer 3 are equal to the last bit." in str(comparison)) == (not weights)
        assert "all states are equal" not in str(comparison)
    other = copy.deepcopy(shorter)
    for parameter in other.parameters():
        parameter.data += 0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    words = str(compared(whole, other, weights=False))
    assert "of their norm after layer 3" in words
    assert "at the end" not in words


@pytest.mark.long
def test_states_of_excluded_tokens_are_not_called_equal() -> None:
    """The last token of every text is massive and has another embedding: no counted token reads it."""
    one = network("gpt2")
    two = copy.deepcopy(one)
    one.wte.weight.data[60] = 300.0
    two.wte.weight.data[60] = torch.linspace(-300.0, 300.0, 40)[: one.wte.weight.shape[1]].repeat(3)[
        : one.wte.weight.shape[1]
    ]
    texts = {name: [*ids, 60] for name, ids in PROMPTS.items()}
    comparison = td.compare(one, two, texts=texts, names=["a", "b"], heads=False, weights=False)
    assert "all states of the compared tokens are equal to the last bit" in str(comparison)
    assert "4 tokens massive in one of them are excluded in all" in str(comparison)
    plain = td.compare(one, two, texts=PROMPTS, names=["a", "b"], heads=False, weights=False)
    assert "b vs a: all states are equal to the last bit" in str(plain)


def test_earlier_states_are_those_of_the_tokens_that_count() -> None:
    first = Difference(2, "attention", 0.0, 0.5, 1.0, 1e-7)
    parting = Parting("located", first, None, first, (), 0.0, 0.1)
    words = [parting_finding(("a", "b"), parting, "", "float32", left_out=count).text for count in (0, 2)]
    assert "All earlier states are equal to the last bit." in words[0]
    assert "All earlier states of the compared tokens are equal to the last bit." in words[1]


@pytest.mark.long
def test_matrices_are_equal_where_all_are() -> None:
    whole = healthy("llama", 1)
    shorter = str(compared(whole, without_layer(whole, 3)))
    assert "b lacks layer 3 of a; the matrices of its other blocks are equal." in shorter
    assert "were not compared" not in shorter
    changed = copy.deepcopy(whole)
    changed.model.layers[0].mlp.up_proj.weight.data *= 1.25
    comparison = compared(whole, without_layer(changed, 3))
    assert "other blocks are mostly equal; at most they differ by 0.25 of their norm." in str(comparison)


def test_two_networks_whose_states_are_undetermined_do_not_end_in_one_state() -> None:
    texts, names = {"one": PROMPTS["one"]}, ["a", "b"]
    comparison = td.compare(network("llama"), network("llama", 1), texts=texts, names=names, weights=False, heads=False)
    assert comparison.sentences[0].text.startswith(
        "b vs a: the end states of both are undetermined. The difference in "
    )


def test_a_factor_is_named_only_where_it_gives_the_size_of_the_tensor() -> None:
    generator = torch.Generator().manual_seed(1)
    draws = [torch.randn(40, 40, generator=generator, dtype=torch.float64) for _ in range(2)]

    def words(first: Tensor, second: Tensor) -> str:
        blocks = [({"w": first}, {"w": second}), ({"w": first}, {"w": first})]
        return tensors_finding(("a", "b"), block_differences(blocks)).text

    assert "w in layer 1, by " in words(draws[0], draws[1])
    assert "as large" not in words(draws[0], draws[1])  # as large as the first, whatever a regression's slope says
    assert "as large" not in words(draws[0], 0.1 * draws[0] + draws[1])
    assert "(0.3× as large)" in words(draws[0], 0.3 * draws[0])
    assert "(0× as large)" in words(draws[0], 0 * draws[0])
    assert "(multiplied by −2)" in words(draws[0], -2 * draws[0])
