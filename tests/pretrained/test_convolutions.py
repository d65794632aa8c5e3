"""Convolutions of one place are linear maps of its channels: networks with them measure as those with `nn.Linear`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tokendynamics as td
from tokendynamics.numerics import AttentionFactorsError
from tokendynamics.pretrained.discovery._calls import Hooks
from tokendynamics.pretrained.discovery._maps import axes_of_places, map_of
from tokendynamics.pretrained.edits.scaled_states import ScaledBlocks, why_not_scaled

DIM, HEADS, WIDE = 8, 2, 12


class Places(nn.Module):
    """A linear map, or a convolution that reads its tokens along one or two axes behind the channels."""

    def __init__(self, given: int, made: int, axes: int, groups: int = 1) -> None:
        super().__init__()
        self.axes = axes
        convolution: Any = (nn.Linear, nn.Conv1d, nn.Conv2d)[axes]
        self.map = convolution(given, made, 1, groups=groups) if axes else nn.Linear(given, made)

    def forward(self, x: Tensor) -> Tensor:
        if self.axes == 0:
            return self.map(x)
        states = x.mT if self.axes == 1 else x.mT.unsqueeze(2)
        return self.map(states).flatten(2).mT


class Attention(nn.Module):
    def __init__(self, axes: int, groups: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (Places(DIM, DIM, axes, groups) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        maps = (self.query, self.key, self.value)
        q, k, v = (entry(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for entry in maps)
        mixed = (q @ k.mT / math.sqrt(DIM // HEADS)).softmax(dim=-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class ChannelsFirst(Attention):
    """Reads and gives (input, channel, token), with convolutions along one axis."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (entry.map(x).unflatten(1, (HEADS, -1)).mT for entry in (self.query, self.key, self.value))
        mixed = torch.einsum("bhij,bhjd->bhdi", (q @ k.mT / math.sqrt(DIM // HEADS)).softmax(dim=-1), v)
        return self.out.map(mixed.flatten(1, 2))


class Block(nn.Module):
    def __init__(self, axes: int, groups: int, parallel: bool, channels_first: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attention = (ChannelsFirst if channels_first else Attention)(axes, groups)
        self.up, self.down = Places(DIM, WIDE, axes), Places(WIDE, DIM, axes)
        self.parallel, self.channels_first = parallel, channels_first

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        mixed = self.attention(normed.mT).mT if self.channels_first else self.attention(normed)
        state = x if self.parallel else x + mixed
        wide = self.down(self.up(self.norm2(state)).relu())
        return x + mixed + wide


class Series(nn.Module):
    def __init__(self, axes: int, groups: int = 1, *, parallel: bool = False, channels_first: bool = False) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.embed, self.places = nn.Linear(3, DIM), nn.Parameter(torch.randn(16, DIM))
        self.blocks = nn.ModuleList([Block(axes, groups, parallel, channels_first) for _ in range(2)])

    def forward(self, series: Tensor) -> Tensor:
        states = self.embed(series) + self.places[: series.shape[1]]
        for block in self.blocks:
            states = block(states)
        return states


def both(tokens: int, groups: int = 1, **options: Any) -> Callable[[int], Any]:
    """Return what loads the same network with convolutions along one or two axes, or with matrices (no axis)."""

    def loaded(axes: int) -> Any:
        network = Series(axes, groups if axes else 1, **options | ({} if axes else {"channels_first": False})).eval()
        convolved = Series(max(axes, 1), groups, **options)
        held, state = network.state_dict(), convolved.state_dict()
        for name, tensor in held.items():
            given = state[name]
            if given.ndim > 2 and given.shape[1] != held[name].shape[1]:  # in groups: blocks of the matrix
                given = torch.block_diag(*given.flatten(1).chunk(groups))
            tensor.copy_(given.reshape(tensor.shape))
        return td.load(network, inputs=lambda count: {"series": torch.randn(count, tokens, 3)})

    return loaded


FORMS: dict[str, tuple[int, dict[str, Any]]] = {
    "along one axis": (1, {}),
    "along two axes": (2, {}),
    "in groups": (1, {"groups": 2}),
    "parallel": (1, {"parallel": True}),
    "channels first": (1, {"channels_first": True}),
    "parallel, channels first": (1, {"parallel": True, "channels_first": True}),
}


@pytest.mark.long
@pytest.mark.few(2)
@pytest.mark.parametrize("tokens", [5, DIM])
@pytest.mark.parametrize("form", FORMS)
def test_all_numbers_are_those_of_the_network_with_matrices(form: str, tokens: int) -> None:
    axes, options = FORMS[form]
    matrices, convolutions = (both(tokens, **options)(number) for number in (0, axes))
    assert [layer.problem for layer in convolutions.layout.layers] == ["", ""]
    one, other = td.audit(matrices), td.audit(convolutions)
    for name in one.data_vars:
        np.testing.assert_allclose(other[name], one[name], rtol=1e-6, atol=1e-6) if one[
            name
        ].dtype.kind == "f" else None
    several = [torch.randn(tokens, 3) for _ in range(2)]
    for gates in ({}, {"layer 1 attention": 0.0}, {"layer 2 feed_forward": 0.5}, {"layer 2 head 1": 0.0}):
        states = [ckpt.under(gates).states({"series": several[0][None]}) for ckpt in (matrices, convolutions)]
        for part in ("attention", "feed_forward"):
            torch.testing.assert_close(getattr(states[1], part), getattr(states[0], part), equal_nan=True)
    one, other = td.trace(matrices, several), td.trace(convolutions, several)
    for name in one.data_vars:
        if one[name].dtype.kind == "f":
            np.testing.assert_allclose(other[name], one[name], rtol=1e-3, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("form", ["along one axis", "parallel, channels first"])
def test_gates_on_parts_and_heads_are_those_of_the_network_with_matrices(form: str) -> None:
    axes, options = FORMS[form]
    several = [torch.randn(DIM, 3) for _ in range(5)]
    both_of = [both(DIM, **options)(number) for number in (0, axes)]
    for measured in (td.levers, td.head_effects):
        one, other = (measured(ckpt, several).consensus_sensitivity.values for ckpt in both_of)
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-5)


def test_feed_forward_matrices_are_those_of_the_network_with_matrices() -> None:
    matrices, convolutions = both(5)(0).feed_forward(1), both(5)(1).feed_forward(1)
    assert matrices.roles == convolutions.roles
    assert set(matrices.roles.values()) == {"reads", "writes"}
    for name, matrix in matrices.matrices.items():
        torch.testing.assert_close(convolutions.matrices[name], matrix)


@pytest.mark.parametrize("form", ["along one axis", "along two axes", "channels first"])
def test_states_that_are_divided_by_a_scale_have_their_biases_divided(form: str) -> None:
    axes, options = FORMS[form]
    ckpt = both(5, **options)(axes).under({"feed_forward": 0, "norms": False, "attention": 2.0**22})
    assert why_not_scaled(ckpt.layout, ckpt.variant) == ""
    pack = ckpt.one_pack([{"series": torch.randn(1, 5, 3)}])
    plain, scaled = list[Tensor](), list[Tensor]()
    network = ckpt.model
    with ckpt.as_varied(), torch.no_grad():
        with Hooks() as hooks:
            hooks.after(network.blocks[1], plain.append)
            network(**pack.arguments)
        with ScaledBlocks(network, ckpt.layout) as scaling, Hooks() as hooks:
            hooks.after(network.blocks[1], lambda states: scaled.append(states * scaling.log_scale.exp().float()))
            network(**pack.arguments)
            assert float(scaling.log_scale) > 10
    torch.testing.assert_close(scaled[0], plain[0], rtol=1e-5, atol=1e-5 * float(plain[0].abs().max()))


def test_a_wider_convolution_is_no_map_of_each_token() -> None:
    network: Any = Series(1)
    for block in network.blocks:
        block.attention.query.map = nn.Conv1d(DIM, DIM, 3, padding=1)
    ckpt = td.load(network.eval(), inputs=lambda count: {"series": torch.randn(count, 6, 3)})
    with pytest.raises(AttentionFactorsError, match="query is neither an affine map nor a normalization"):
        td.audit(ckpt)


MAPS: dict[str, tuple[nn.Module, int]] = {
    "plain": (nn.Conv1d(4, 6, 1), 1),
    "flat": (nn.Conv2d(4, 6, 1, bias=False), 2),
    "deep": (nn.Conv3d(4, 6, 1), 3),
    "in groups": (nn.Conv2d(4, 6, 1, groups=2), 2),
    "chain": (nn.Sequential(nn.Dropout(), nn.Conv1d(4, 5, 1), nn.Conv1d(5, 6, 1)).eval(), 1),
    "normed weight": (nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 6, 1)), 1),
    "stride": (nn.Conv1d(4, 6, 1, stride=2), 0),
    "padding": (nn.Conv1d(4, 6, 1, padding=1), 0),
    "matrix": (nn.Linear(4, 6), 0),
    "mixed": (nn.Sequential(nn.Conv1d(4, 6, 1), nn.Linear(3, 3)), 0),
}


@pytest.mark.parametrize("form", MAPS)
def test_a_map_of_channels_is_read_as_it_acts_on_each_place(form: str) -> None:
    module, axes = MAPS[form]
    assert axes_of_places(module) == axes
    if axes:
        x = torch.randn(2, 4, *(3,) * axes)
        with torch.no_grad():
            affine, wanted = map_of(module, 4), module(x)
        given = x.flatten(2).mT @ affine.weight + (0.0 if affine.bias is None else affine.bias)
        torch.testing.assert_close(given.mT.reshape(wanted.shape), wanted)
