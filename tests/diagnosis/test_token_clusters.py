"""Tokens in groups, layer by layer: those of the states themselves, and of a network under a variant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tokendynamics as td
from diagnosis.test_decode import _with_head
from tokendynamics.numerics.errors import ArgumentValueError
from tokendynamics.observables import direction_clusters

IDS = torch.tensor([7, 21, 3, 40, 55, 12, 9, 33, 4])


def test_groups_are_those_of_the_states_that_count() -> None:
    ckpt = td.load(_with_head("llama"))
    groups = td.token_clusters(ckpt, IDS, sinks=(0,))
    states = ckpt.states(IDS).feed_forward.double()
    assert groups.layer.values.tolist() == [1, 2, 3]
    for row, layer in enumerate((1, 2, 3)):
        direct = direction_clusters(states[layer, 1:])
        assert groups.member.values[row].tolist() == [-1, *direct.member.tolist()]
        assert int(groups["count"][row]) == direct.count
        assert float(groups.silhouette[row]) == pytest.approx(direct.silhouette)
        np.testing.assert_allclose(groups.token_silhouette.values[row, 1:], direct.silhouettes)
        assert np.isnan(groups.token_silhouette.values[row, 0])


def test_a_variant_has_groups_of_its_own() -> None:
    ckpt = td.load(_with_head("llama"))
    groups = td.token_clusters(ckpt.under("attention-only"), IDS, (3,), sinks=())
    with ckpt.varied("attention-only"):
        expected = direction_clusters(ckpt.states(IDS).feed_forward[3].double())
    assert groups.silhouette.values.tolist() == pytest.approx([expected.silhouette])
    assert abs(float(td.token_clusters(ckpt, IDS, (3,), sinks=()).silhouette[0]) - expected.silhouette) > 1e-3
    assert "without norms" in groups.attrs["model"]


def test_states_that_overflow_have_no_groups() -> None:
    network = _with_head("llama")
    ckpt = td.load(network)
    for block in network.model.layers[1:]:
        block.mlp.down_proj.weight.data *= 1e30
    groups = td.token_clusters(ckpt.under("no-norm"), IDS, sinks=())
    assert [int(groups["count"][0]) > 0, int(groups["count"][2])] == [True, 0]
    assert np.isnan(groups.silhouette.values[[0, 2]]).tolist() == [False, True]
    assert (groups.member.values[2] == -1).all()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"layers": (4,)}, "a layer from 1 to 3"),
        ({"text": IDS[:2]}, "at least three tokens"),
        ({"sinks": tuple(range(7))}, "at least three tokens"),
        ({"most": 1}, "most"),
    ],
)
def test_wrong_input(given: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"text": IDS} | given
    with pytest.raises(ArgumentValueError, match=words):
        td.token_clusters(td.load(_with_head("llama")), arguments.pop("text"), **arguments)
