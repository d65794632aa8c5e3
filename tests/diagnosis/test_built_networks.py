"""The built networks are what they are said to be, as seen in raw states without any measure of the library."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from diagnosis.built_networks import BUILT, PROMPTS, Built
from diagnosis.direct_criteria import angles_to_others, has_massive_tokens, has_sink, holds, that_count, widest_angles
from diagnosis.plain_shares import numbers
from tokendynamics.observables.directions import unit_rows
from tokendynamics.observables.share_decomposition import centred_cosines, mean_of_others, shares

pytestmark = pytest.mark.slow  # the recipes, seen directly: they change only when a recipe does

BY_NAME = {built.name: built for built in BUILT}


def each_built(*, when=lambda built: True):
    chosen = [built for built in BUILT if when(built)]
    return pytest.mark.parametrize("built", chosen, ids=[built.name for built in chosen])


@functools.cache
def states_of(name: str) -> list[list[np.ndarray]]:
    return BY_NAME[name].states()


def holds_one_of(built: Built, states: tuple[str, ...], layer: int) -> bool:
    layers = states_of(built.name)
    return any(holds(state, layers[layer], layers[0], built.axes) for state in states)


def test_names_are_different_and_every_kind_is_there():
    assert len(BY_NAME) == len(BUILT) >= 30
    assert {state for built in BUILT for state in built.end} == {
        "spread", "drawing together", "consensus", "rank collapse", "anisotropic", "one point",
    }  # fmt: skip
    assert {built.frame.family for built in BUILT} == {"own", "gpt2", "llama", "bert"}


@each_built()
def test_the_state_at_the_end_is_seen_directly(built):
    assert holds_one_of(built, built.end, -1)


@each_built(when=lambda built: built.worst is not None)
def test_the_worst_state_is_seen_on_the_way_and_not_at_the_end(built):
    assert any(holds_one_of(built, built.worst, layer) for layer in range(1, built.frame.depth))
    assert not holds_one_of(built, built.worst, -1)


@each_built(when=lambda built: built.damage is not None)
def test_one_layer_makes_the_damage(built):
    """Before it nothing has happened to the angles of tokens with their prompt; behind it the state is there."""
    layer, _ = built.damage
    layers = states_of(built.name)
    assert np.abs(widest_angles(layers[layer - 1]) - widest_angles(layers[0])).max() < 10
    assert holds_one_of(built, built.end, layer)


@each_built(when=lambda built: built.collapsed)
def test_only_the_prompts_that_are_named_collapse(built):
    """Angles as they are: where most prompts collapse to one point, that is what is common."""
    widest = np.array([angles_to_others(that_count(prompt)).max() for prompt in states_of(built.name)[-1]])
    assert set(np.flatnonzero(widest < 30)) == set(built.collapsed)


@each_built(when=lambda built: built.massive is not None)
def test_massive_tokens_are_there_or_not(built):
    assert has_massive_tokens(states_of(built.name)) == built.massive


@each_built(when=lambda built: built.sink is not None)
def test_attention_sinks_are_there_or_not(built):
    assert has_sink(built.network(), built.ids()) == built.sink


@pytest.mark.parametrize(
    "name", ["random 0.2", "line, texts of one topic", "massive sink, LLaMA", "nothing, few words"]
)
def test_plain_numbers_are_those_of_the_library(name):
    start, end = ([that_count(prompt) for prompt in states_of(name)[layer]] for layer in (0, -1))
    computed, at_start = (shares([torch.tensor(prompt) for prompt in states]) for states in (end, start))
    plain = numbers(end, start)
    assert plain.common == pytest.approx(float(computed.common), abs=1e-9)
    assert plain.kappa == pytest.approx(float((computed.kappa - at_start.kappa) / (1 - at_start.kappa)), abs=1e-9)
    assert plain.cos2 == pytest.approx((_cos2(end) - _cos2(start)) / (1 - _cos2(start)), abs=1e-9)


@each_built()
def test_the_plain_numbers_tell_them_apart(built):
    """With the variance of the centred cosine, and a point only above what a running mean comes to."""
    layers = states_of(built.name)
    start, end = ([that_count(prompt) for prompt in layers[layer]] for layer in (0, -1))
    result = numbers(end, start)
    assert result.state_by_variance in built.end, result


def _cos2(states: list[np.ndarray]) -> float:
    directions = [unit_rows(torch.tensor(prompt), "states") for prompt in states]
    others = mean_of_others(torch.stack([direction.mean(dim=-2) for direction in directions]))
    each_prompt = [centred_cosines(*pair, 0.0)[1] for pair in zip(directions, others, strict=True)]
    return float(torch.stack(each_prompt).mean())


def test_the_same_seed_builds_the_same_network_and_prompts():
    built = BY_NAME["random 0.2"]
    assert built.ids() == built.ids()
    assert len(built.ids()) == PROMPTS
    for (name, first), (_, second) in zip(
        built.network().named_parameters(), built.network().named_parameters(), strict=True
    ):
        assert torch.equal(first, second), name
