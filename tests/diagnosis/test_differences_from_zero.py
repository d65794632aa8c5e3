"""Comparisons with a network of which a part, a tensor or a product is zero: no size is relative to that."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

import tokendynamics as td
from diagnosis.test_heads import ids_of
from tokendynamics.diagnosis import Comparison


def network(layers: int = 3) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_layer": layers, "n_head": 2, "n_embd": 16, "n_positions": 64, "vocab_size": 61}
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        made: Any = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)).eval()
        for block in made.transformer.h:
            for weight in (block.attn.c_attn.weight, block.attn.c_proj.weight, block.mlp.c_proj.weight):
                weight.mul_(3)
    return made


def changed(base: Any, change: Callable[[Any], object]) -> Any:
    other = deepcopy(base)
    with torch.no_grad():
        change(other.transformer)
    return other


def compared(one: Any, two: Any) -> Comparison:
    return td.compare(one, two, texts=ids_of(4))


def words(result: Comparison, beginning: str) -> str:
    return next(finding.text for finding in result.sentences if beginning in finding.text)


def without_part(name: str) -> Callable[[Any], object]:
    def change(network: Any) -> None:
        last = getattr(network.h[1], name).c_proj
        last.weight.zero_()
        last.bias.zero_()

    return change


@pytest.mark.long
@pytest.mark.parametrize(("name", "part"), [("mlp", "feed-forward part"), ("attn", "attention")])
def test_a_part_that_is_zero_in_one_network_is_the_first_difference_both_ways(name: str, part: str) -> None:
    base = network()
    bare = changed(base, without_part(name))
    gone, added = compared(base, bare), compared(bare, base)
    assert (
        f"the first difference is in the {part} of layer 2: its update differs by 1× its norm and is 0× as large"
        in (words(gone, "first difference"))
    )
    first, second = added.models
    assert (
        f"the first difference is in the {part} of layer 2: its update is zero in {first}. All earlier states are "
        in (words(added, "first difference"))
    )
    for result, bare_name in ((gone, gone.models[1]), (added, first)):
        sizes = words(result, "Relative to the residual stream")
        assert sizes.endswith(f"differ most in the {part} of layer 2: those of {bare_name} are zero.")
    quotient = gone.difference.update_quotient.isel(other=0).sel(layer=2, component=part.split()[0].replace("-", "_"))
    assert float(quotient) == 0
    assert f"where it is zero in {first}" in words(added, "tored tensors of")
    assert "undefined" not in " ".join(finding.text for finding in added.sentences)
    assert second != first


@pytest.mark.long
def test_directions_of_zeros_are_not_compared() -> None:
    base = network()
    bare = changed(base, without_part("mlp"))
    assert "with 0° between their leading directions" in words(compared(base, bare), "feed-forward matrices")
    attention = changed(base, without_part("attn"))
    weights = compared(attention, base).weights
    assert weights is not None
    assert np.isnan(weights.ov_angle.sel(layer=2)).all()
    assert np.isfinite(weights.ov_angle.sel(layer=1)).all()
    assert "(by more than its norm of 0)" in words(compared(attention, base), "products of")


@pytest.mark.long
def test_a_bias_that_was_zero_has_no_size_of_its_own() -> None:
    base = network()
    biased = changed(base, lambda network: network.h[2].ln_1.bias.add_(3))
    added = compared(base, biased)
    assert words(added, "tored tensors of").endswith(
        f"ln_1.bias (a bias or norm) in layer 3, where it is zero in {added.models[0]}."
    )


@pytest.mark.long
def test_one_layer_has_one_end() -> None:
    one = network(1)
    two = changed(one, lambda network: network.wte.weight.mul_(1.5))
    assert "after layer 1" not in words(compared(one, two), "differ from the embedding on")


@pytest.mark.long
def test_an_angle_of_rounding_is_zero() -> None:
    base = network()
    scaled = changed(base, lambda network: [block.mlp.c_proj.weight.mul_(1.01) for block in network.h])
    assert "with 0° between" in words(compared(base, scaled), "feed-forward matrices")


@pytest.mark.long
def test_a_head_that_is_zero_in_one_network_is_named_both_ways() -> None:
    base = network()
    pruned = changed(base, lambda network: network.h[1].attn.c_proj.weight[:8].zero_())
    for result in (compared(base, pruned), compared(pruned, base)):
        assert "the first difference is in head 0 of the attention of layer 2" in words(result, "first difference")
    assert "OV by more than its norm of 0, theirs by 0 in the median" in words(result, "first difference")
