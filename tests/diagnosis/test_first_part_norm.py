"""`first_part` is "norm" where only norms of the first differing part were changed, and not where anything else was."""

from __future__ import annotations

from pathlib import Path

import pytest

import tokendynamics as td
from diagnosis.planted_damage import FAMILIES, blocks_of, damaged, network
from diagnosis.test_differences_in_context import with_noise
from tokendynamics.diagnosis import Comparison

PROMPTS = {"one": [5, 9, 33, 21, 7, 50], "two": [12, 3, 44, 18, 40], "three": [20, 31, 8, 6, 11, 2, 55]}
NORMS = ("attention norm × 10", "feed-forward norm × 10")


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.every_value_once
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_that_alone_was_changed_is_named(family: str, name: str, weights: bool, tmp_path: Path) -> None:
    whole = network(family)
    comparison = td.compare(whole, damaged(whole, name, (2,)), texts=PROMPTS, weights=weights)
    assert (comparison.first_layer, comparison.first_part) == (2, "norm")
    first = comparison.first_difference
    assert first is not None
    assert len(first.norms) == 1
    assert first.part == ("attention" if name.startswith("attention") else "feed-forward part")
    if (family, name) == (FAMILIES[0], NORMS[0]):  # a result of hundreds of files is written slowly
        comparison.save(tmp_path / "saved")
        opened = Comparison.open(tmp_path / "saved")
        assert (opened.first_part, opened.first_difference) == ("norm", first)


@pytest.mark.few(2)
@pytest.mark.every_value_once
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", NORMS)
def test_it_is_named_among_networks_that_differ_everywhere(family: str, name: str) -> None:
    whole = network(family)
    other = with_noise(damaged(whole, name, (2,)), 1e-3, embedding=True)
    comparison = td.compare(whole, other, texts=PROMPTS, weights=False)
    assert (comparison.first_layer, comparison.first_part) == (2, "norm")


CHANGES = [
    (NORMS[0], "o_proj × 6", "attention"),
    (NORMS[1], "o_proj × 6", "attention"),
    (NORMS[1], "down_proj × 3", "feed_forward"),
]


@pytest.mark.long
@pytest.mark.every_value_once
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("changed", CHANGES)
def test_a_part_whose_matrix_was_changed_as_well_is_no_norm(family: str, changed: tuple[str, str, str]) -> None:
    norm, matrix, part = changed
    whole = network(family)
    other = damaged(damaged(whole, norm, (2,)), matrix, (2,))
    comparison = td.compare(whole, other, texts=PROMPTS, weights=False)
    assert (comparison.first_layer, comparison.first_part) == (2, part)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_a_change_of_the_later_part_of_the_layer_does_not_hide_the_norm(family: str) -> None:
    whole = network(family)
    other = damaged(damaged(whole, NORMS[0], (2,)), "down_proj × 3", (2,))
    comparison = td.compare(whole, other, texts=PROMPTS, weights=False)
    assert (comparison.first_layer, comparison.first_part) == (2, "norm")


@pytest.mark.long
def test_a_bias_of_a_projection_is_no_norm() -> None:
    whole, other = network("gpt2"), network("gpt2")
    blocks_of(other)[1].attn.c_proj.bias.data += 0.3
    comparison = td.compare(whole, other, texts=PROMPTS, weights=False)
    assert (comparison.first_layer, comparison.first_part) == (2, "attention")
