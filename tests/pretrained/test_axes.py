"""The axis of the tokens is found by trying: lengths of time, channels and inputs may be equal by chance."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained.edits.repeated_stack import states_on_inputs_of

DIM, HEADS = 8, 2

TURNED: dict[str, Callable[[Tensor], Tensor]] = {
    "inputs first": lambda states: states,
    "tokens first": lambda states: states.transpose(0, 1),
    "channels first": lambda states: states.mT,
}
"""What takes (input, token, feature) to the order in which blocks hand on their states, and back."""

LAST, FIRST = "with the tokens along the last axis", "with tokens first"

REFUSED = {"channels first": LAST}


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (third.unflatten(-1, (HEADS, -1)).transpose(1, 2) for third in self.qkv(x).chunk(3, -1))
        mixed = (q @ k.mT / math.sqrt(DIM // HEADS)).softmax(dim=-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class Fused(ByHand):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (third.unflatten(-1, (HEADS, -1)).transpose(1, 2) for third in self.qkv(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class HeadsBesideInputs(ByHand):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (third.unflatten(-1, (HEADS, -1)).transpose(1, 2).flatten(0, 1) for third in self.qkv(x).chunk(3, -1))
        mixed = torch.bmm((torch.bmm(q, k.mT) / math.sqrt(DIM // HEADS)).softmax(dim=-1), v)
        return self.out(mixed.unflatten(0, (-1, HEADS)).transpose(1, 2).flatten(2))


class Torch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Channels(ByHand):
    """Channels attend to channels; of the tokens no states are compared."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (third.mT for third in self.qkv(x).chunk(3, -1))
        return self.out(((q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1) @ v).mT)


class Convolution(nn.Module):
    """Neighbours act on each other, without an attention."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(DIM, DIM, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x.mT).mT


class Block(nn.Module):
    def __init__(self, mixer: nn.Module, order: str) -> None:
        super().__init__()
        self.norm1, self.norm2, self.mixer = nn.LayerNorm(DIM), nn.LayerNorm(DIM), mixer
        self.mlp = nn.Sequential(nn.Linear(DIM, 12), nn.GELU(), nn.Linear(12, DIM))
        self.order = order

    def forward(self, states: Tensor) -> Tensor:
        turned = TURNED[self.order]
        states = states + turned(self.mixer(self.norm1(turned(states))))
        return states + turned(self.mlp(self.norm2(turned(states))))


def _block(mixer: type[nn.Module]) -> Block:
    return Block(mixer(), "inputs first")


class Series(nn.Module):
    def __init__(self, block: Callable[[], nn.Module], order: str = "inputs first") -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.places = nn.Linear(3, DIM), nn.Parameter(torch.randn(16, DIM))
        self.blocks, self.order = nn.ModuleList([block() for _ in range(2)]), order

    def forward(self, series: Tensor) -> Tensor:
        turned = TURNED[self.order]
        states = turned(self.embed(series) + self.places[: series.shape[1]])
        for block in self.blocks:
            states = block(states)
        return turned(states)


def loaded(network: nn.Module, tokens: int) -> Any:
    return td.load(network.eval(), inputs=lambda count: {"series": torch.randn(count, tokens, 3)})


MIXERS = (ByHand, Fused, HeadsBesideInputs, Torch, Channels, Convolution)


@pytest.mark.long
@pytest.mark.few(8)
@pytest.mark.parametrize("tokens", [2, 5, DIM])
@pytest.mark.parametrize("order", TURNED)
@pytest.mark.parametrize("mixer", MIXERS)
def test_states_are_those_of_tokens_or_the_order_of_their_axes_is_named(
    mixer: type[nn.Module], order: str, tokens: int
) -> None:
    network = Series(lambda: Block(mixer(), order), order)
    if order in REFUSED:
        with pytest.raises(CheckpointError, match=REFUSED[order]):
            loaded(network, tokens)
        return
    ckpt = loaded(network, tokens)
    series, outputs = torch.randn(tokens, 3), list[Tensor]()
    turned = TURNED[order]
    hooks = [block.register_forward_hook(lambda m, given, y: outputs.append(turned(y)[0])) for block in network.blocks]
    with torch.inference_mode():
        network(series[None])
    for hook in hooks:
        hook.remove()
    states = ckpt.states({"series": series[None]}).feed_forward
    torch.testing.assert_close(states[1:], torch.stack(outputs))
    norms = td.trace(ckpt, [series]).norm_median.sel(site="feed_forward", sinks="kept").values[0, 1:]
    by_token = torch.stack(outputs).double().norm(dim=-1).quantile(0.5, dim=-1)
    torch.testing.assert_close(torch.tensor(norms), by_token, rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("tokens", [5, DIM])
def test_the_order_does_not_change_which_layers_are_audited(tokens: int) -> None:
    """Attention over channels is of other places than the tokens, whatever their number is."""
    for mixer in MIXERS[:4]:
        network = Series(partial(_block, mixer))
        assert td.audit(loaded(network, tokens)).sizes["layer"] == 2
    problem = loaded(Series(lambda: Block(Channels(), "inputs first")), tokens).layout.layers[0].problem
    assert problem.startswith(f"its attention runs over {DIM} channels, not over the {tokens} tokens")


class TokensFirst(nn.Module):
    """Reads (token, input, feature), and hands on states with the inputs or the tokens first."""

    def __init__(self, order: str, mixer: type[nn.Module]) -> None:
        super().__init__()
        self.network = Series(lambda: Block(mixer(), order), order)

    def forward(self, series: Tensor) -> Tensor:
        return self.network(series.transpose(0, 1)).transpose(0, 1)


@pytest.mark.long
@pytest.mark.few(10)
@pytest.mark.parametrize("inputs", [2, 3, 7])
@pytest.mark.parametrize("order", ["inputs first", "tokens first"])
@pytest.mark.parametrize("mixer", [ByHand, HeadsBesideInputs, Channels, Convolution, Torch])
def test_a_network_that_reads_tokens_first_is_refused_with_any_example(
    mixer: type[nn.Module], order: str, inputs: int
) -> None:
    """Of its example the first axis would be taken for that of the inputs."""
    with pytest.raises(CheckpointError, match=FIRST):
        td.load(TokensFirst(order, mixer).eval(), inputs=torch.randn(7, inputs, 3))


class Plain(nn.Module):
    """As in CLIP and DETR: nothing but PyTorch's attentions knows which axis is that of the tokens.

    Positions are added to queries and keys, and a cross-attention reads another sequence, where `detr`.
    """

    def __init__(self, batch_first: bool, detr: bool) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(DIM) for _ in range(3))
        self.attention = nn.MultiheadAttention(DIM, HEADS, batch_first=batch_first)
        self.other = nn.MultiheadAttention(DIM, HEADS, batch_first=batch_first) if detr else None
        self.mlp = nn.Sequential(nn.Linear(DIM, 12), nn.GELU(), nn.Linear(12, DIM))

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor, *, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        y = self.norm1(x)
        mixed, weights = self.attention(y, y, y, attn_mask=mask, key_padding_mask=padding)
        x = x + mixed
        if self.other is not None:
            x = x + self.other(self.norm3(x), memory, memory, need_weights=False)[0]
        return x + self.mlp(self.norm2(x)), weights


class OfPlain(nn.Module):
    """A language model whose blocks have the tokens first or the inputs first; id 0 is padding."""

    def __init__(self, *, batch_first: bool, detr: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words, self.places = nn.Embedding(30, DIM), nn.Parameter(torch.randn(16, DIM))
        self.blocks = nn.ModuleList([Plain(batch_first, detr) for _ in range(3)])
        self.batch_first, self.head = batch_first, nn.Linear(DIM, 30)

    def forward(self, ids: Tensor) -> Tensor:
        turned = TURNED["inputs first" if self.batch_first else "tokens first"]
        tokens = ids.shape[1]
        x, memory = turned(self.words(ids) + self.places[:tokens]), turned(self.words(ids[:, :2]))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens)
        for block in self.blocks:
            x, _ = block(x, mask, memory, padding=None)
        return self.head(turned(x))


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("detr", [False, True])
def test_blocks_with_tokens_first_have_the_numbers_of_the_same_with_inputs_first(detr: bool) -> None:
    prompts = [torch.randint(1, 30, (tokens,)).tolist() for tokens in (9, 4, 7, 9, 6, 3, 8)]
    results: list[Any] = []
    for batch_first in (True, False):
        network = OfPlain(batch_first=batch_first, detr=detr).eval()
        for parameter in network.parameters():
            parameter.data += 0.2 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())
            )
        before = network(torch.tensor([prompts[0]]))
        ckpt = td.load(network, inputs=lambda count: {"ids": torch.randint(1, 30, (count, 7))})
        changed = ckpt.under({"layer 2 head 1": 0}).states(torch.tensor(prompts[0])).feed_forward
        results.append((
            *(td.trace(ckpt, prompts), td.audit(ckpt), td.head_effects(ckpt, prompts), td.levers(ckpt, prompts)),
            td.what_if(ckpt, prompts, {"layer 1 attention": 0.5}), td.passes(ckpt, prompts[0], 3), changed,
        ))  # fmt: skip
        assert torch.equal(network(torch.tensor([prompts[0]])), before)
        assert {type(block) for block in network.blocks} == {Plain}
        attentions = [module for module in network.modules() if isinstance(module, nn.MultiheadAttention)]
        assert {attention.batch_first for attention in attentions} == {batch_first}
    for one, other in zip(*results, strict=True):
        if isinstance(one, Tensor):
            torch.testing.assert_close(other, one)
            continue
        for name, values in one.data_vars.items():
            if values.dtype.kind == "f":
                torch.testing.assert_close(
                    torch.tensor(other[name].values), torch.tensor(values.values), rtol=1e-4, atol=1e-5, equal_nan=True,
                    msg=lambda words, name=name: f"{name}: {words}",
                )  # fmt: skip


@pytest.mark.long
def test_a_table_of_positions_is_seen_where_one_input_repeats_a_token() -> None:
    def inputs(count: int) -> dict[str, Tensor]:
        ids = torch.arange(1, 1 + 7 * count).view(count, 7) % 29
        ids[0, 2:4] = 5
        return {"ids": ids}

    ckpt = td.load(OfPlain(batch_first=False).eval(), inputs=inputs)
    assert [part.name for part in ckpt.layout.positional] == ["places"]


class InRows(Block):
    """Tokens of all inputs stand one below the other, or side by side."""

    def __init__(self, side_by_side: bool, tokens: int) -> None:
        super().__init__(ByHand(), "inputs first")
        self.side_by_side, self.tokens = side_by_side, tokens

    def forward(self, states: Tensor) -> Tensor:
        rows = states.mT if self.side_by_side else states
        rows = super().forward(rows.unflatten(0, (-1, self.tokens))).flatten(0, 1)
        return rows.mT if self.side_by_side else rows


class OfRows(Series):
    def forward(self, series: Tensor) -> Tensor:
        states = (self.embed(series) + self.places[: series.shape[1]]).flatten(0, 1)
        states = TURNED[self.order](states)
        for block in self.blocks:
            states = block(states)
        return TURNED[self.order](states)


@pytest.mark.parametrize("tokens", [DIM // 2, DIM])
def test_states_without_an_axis_of_inputs_have_a_token_in_each_row(tokens: int) -> None:
    """Of two inputs of four tokens there are as many rows as features."""
    network = OfRows(lambda: InRows(False, tokens))
    ckpt, series = loaded(network, tokens), torch.randn(tokens, 3)
    states = ckpt.states({"series": series[None]}).feed_forward
    x = network.embed(series) + network.places[:tokens]
    torch.testing.assert_close(states[2], network.blocks[1](network.blocks[0](x)))
    with pytest.raises(CheckpointError, match=LAST):
        loaded(OfRows(lambda: InRows(True, tokens), "channels first"), tokens)


class OfPlaces(nn.Module):
    """Mixes a fixed number of tokens by a matrix, and features by another one, as in MLP-Mixer."""

    def __init__(self, tokens: int, order: str) -> None:
        super().__init__()
        self.norm, self.places, self.features = nn.LayerNorm(DIM), nn.Linear(tokens, tokens), nn.Linear(DIM, DIM)
        self.order = order

    def forward(self, states: Tensor) -> Tensor:
        turned = TURNED[self.order]
        y = self.norm(turned(states))
        return states + turned(self.features(self.places(y.mT).mT).relu())


@pytest.mark.parametrize("tokens", [5, DIM])
def test_a_norm_shows_the_axis_where_neither_attention_nor_length_do(tokens: int) -> None:
    ckpt = loaded(Series(lambda: OfPlaces(tokens, "inputs first")), tokens)
    assert ckpt.states({"series": torch.randn(1, tokens, 3)}).feed_forward.shape == (3, tokens, DIM)
    with pytest.raises(CheckpointError, match=LAST):
        loaded(Series(lambda: OfPlaces(tokens, "channels first"), "channels first"), tokens)


class Unnormed(OfPlaces):
    def forward(self, states: Tensor) -> Tensor:
        return states + self.features(self.places(states.mT).mT).relu()


def test_axes_that_trying_does_not_show_are_refused_where_they_are_of_one_length() -> None:
    with pytest.raises(CheckpointError, match="trying does not show which axis is that of the tokens; make inputs of"):
        loaded(Series(lambda: Unnormed(DIM, "inputs first")), DIM)
    assert loaded(Series(lambda: Unnormed(5, "inputs first")), 5).architecture.layers == 2


class Map(Block):
    """States (input, channel, row, column), or (input, row, column, channel)."""

    def __init__(self, channels_first: bool) -> None:
        super().__init__(ByHand(), "inputs first")
        self.channels_first = channels_first

    def forward(self, states: Tensor) -> Tensor:
        grid = states.permute(0, 2, 3, 1) if self.channels_first else states
        grid = super().forward(grid.flatten(1, 2)).unflatten(1, grid.shape[1:3])
        return grid.permute(0, 3, 1, 2) if self.channels_first else grid


class OfMaps(nn.Module):
    def __init__(self, channels_first: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.channels_first = nn.Linear(3, DIM), channels_first
        self.blocks = nn.ModuleList([Map(channels_first) for _ in range(2)])

    def forward(self, pixels: Tensor) -> Tensor:
        states = self.embed(pixels)
        states = states.permute(0, 3, 1, 2) if self.channels_first else states
        for block in self.blocks:
            states = block(states)
        return states


@pytest.mark.long
@pytest.mark.parametrize("sides", [(3, 5), (DIM, DIM), (2, DIM), (DIM, 2)])
def test_maps_with_channels_first_are_refused_whatever_their_sides_are(sides: tuple[int, int]) -> None:
    def inputs(count: int) -> dict[str, Tensor]:
        return {"pixels": torch.randn(count, *sides, 3)}

    with pytest.raises(CheckpointError, match=f"{LAST}, as in .input, channel, row, column"):
        td.load(OfMaps(True).eval(), inputs=inputs)
    network = OfMaps(False).eval()
    mixer: Any = network.blocks[0].mixer
    factors = td.load(network, inputs=inputs).attention(1)
    parts = mixer.qkv.weight.detach().unflatten(0, (3, HEADS, -1))
    for factor, part in zip((factors.query, factors.key, factors.value), parts, strict=True):
        torch.testing.assert_close(factor.float(), part.mT, rtol=1e-5, atol=1e-6)


class Filled(Map):
    """Places that a window is filled up with change with no feature and no place of the states."""

    def forward(self, states: Tensor) -> Tensor:
        normed = functional.pad(self.norm1(states), (0, 0, 0, 1, 0, 1))
        mixed = self.mixer(normed.flatten(1, 2)).unflatten(1, normed.shape[1:3])
        states = states + mixed[:, : states.shape[1], : states.shape[2]]
        return states + self.mlp(self.norm2(states))


def test_places_that_a_window_is_filled_up_with_do_not_exchange_axes() -> None:
    network = OfMaps(False)
    network.blocks = nn.ModuleList([Filled(False) for _ in range(2)])
    ckpt = td.load(network.eval(), inputs=lambda count: {"pixels": torch.randn(count, 3, 3, 3)})
    with pytest.raises(CheckpointError, match=r"one state for each token, got states of shape \(1, 3, 3, 8\)"):
        td.trace(ckpt, [{"pixels": torch.randn(1, 3, 3, 3)}])


class Old(nn.Module):
    """A block by hand with the heads of all inputs below each other, as before `batch_first`; or with inputs first."""

    def __init__(self, *, first: bool) -> None:
        super().__init__()
        self.norm1, self.norm2, self.qkv = nn.LayerNorm(DIM), nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM)
        self.out, self.wide, self.back = nn.Linear(DIM, DIM), nn.Linear(DIM, 12), nn.Linear(12, DIM)
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        thirds = self.qkv(self.norm1(x)).chunk(3, -1)
        if self.first:
            tokens, inputs, _ = x.shape
            q, k, v = (third.reshape(tokens, inputs * HEADS, -1).transpose(0, 1) for third in thirds)
            mixed = torch.bmm((torch.bmm(q, k.mT) / 2).softmax(dim=-1), v).transpose(0, 1).reshape(x.shape)
        else:
            q, k, v = (third.unflatten(-1, (HEADS, -1)).transpose(1, 2) for third in thirds)
            mixed = ((q @ k.mT / 2).softmax(dim=-1) @ v).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.back(functional.gelu(self.wide(self.norm2(x))))


class Handed(Old):
    """Hands on the states behind a mask in a dictionary, which it writes into."""

    def forward(self, x: Any) -> Any:
        x["states"] = super().forward(x["states"]) + 0 * x["mask"].sum()
        return x


class InDictionaries(Series):
    def forward(self, series: Tensor) -> Tensor:
        turned, tokens = TURNED[self.order], series.shape[1]
        given = {"mask": torch.zeros(tokens, tokens)}
        given["states"] = turned(self.embed(series) + self.places[:tokens])
        for block in self.blocks:
            given = block(given)
        return turned(given["states"])


def _derivatives(ckpt: Any, prompt: Tensor) -> xr.Dataset:
    """Return those of a sum of the last states by gates on the parts and on the heads."""
    with ckpt.gated() as gated, torch.enable_grad():
        gates = [torch.ones(there.shape, dtype=torch.float64) for there in (gated.exists, gated.heads)]
        states = gated.run(ckpt.one_pack([{"series": prompt[None]}]), *(gate.requires_grad_() for gate in gates)).states
        (states[-1] * torch.arange(states[-1].numel()).sin().view_as(states[-1])).sum().backward()
    by_name = zip(("part", "head"), gates, strict=True)
    return xr.Dataset({name: (("layer", name), gate.grad.numpy()) for name, gate in by_name if gate.grad is not None})


@pytest.mark.long
def test_what_is_measured_does_not_depend_on_the_order_of_the_axes_or_on_what_holds_the_states() -> None:
    """Also where prompts and tokens are as many, so that lengths do not distinguish them."""
    generator = torch.Generator().manual_seed(4)
    prompts = [torch.randn(5, 3, generator=generator) for _ in range(5)]
    results = []
    for network in (
        Series(partial(Old, first=False)),
        InDictionaries(partial(Handed, first=True), "tokens first"),
    ):
        ckpt = loaded(network, 5)
        changed = ckpt.under({"layer 2 attention": 0.5, "layer 1 head 1": 0, "logits": 2})
        results.append(
            [
                td.audit(ckpt),
                td.trace(changed, prompts, packed=False),
                td.attention_seen(ckpt, prompts, patterns=True),
                _derivatives(ckpt, prompts[0]),
            ]
        )
    for other in results[1:]:
        for one, another in zip(results[0], other, strict=True):
            for name, values in one.data_vars.items():
                if values.dtype.kind == "f":
                    np.testing.assert_allclose(another[name], values, rtol=2e-5, atol=2e-6, err_msg=str(name))


@pytest.mark.long
def test_a_module_of_two_networks_is_seen_in_the_order_of_each() -> None:
    """Else the number of inputs and that of tokens would change places in the other one."""
    first, last = Series(partial(Old, first=False)), Series(partial(Old, first=True), "tokens first")
    for block, other in zip(first.blocks, last.blocks, strict=True):
        for name in ("norm1", "norm2", "qkv", "out", "wide", "back"):
            setattr(other, name, getattr(block, name))
    prompts = [torch.randn(5, 3) for _ in range(4)]
    usual, turned = loaded(first, 5), loaded(last, 5)
    several = [td.trace(ckpt, prompts) for ckpt in (usual, turned, usual)]
    for other in several[1:]:
        np.testing.assert_allclose(other.mean_pair_cosine, several[0].mean_pair_cosine, rtol=1e-5, atol=1e-6)
    assert td.compare(usual, turned, texts=prompts).first_layer is None  # passes of both in turn
    other = loaded(Series(partial(Old, first=False)), 5)
    pack = other.packs([{"series": prompt[None]} for prompt in prompts])[0]
    for one, another in (
        (usual, turned),
        (other, turned),
        (usual, loaded(first, 5)),
    ):  # shared modules, or another order
        assert states_on_inputs_of(one, another, pack) is None
    assert states_on_inputs_of(usual, other, pack) is not None
    assert not any("tokens_first" in name for module in last.modules() for name in vars(module))


def test_a_network_is_read_anew_while_it_runs_as_it_was_read_before() -> None:
    """A monitor reads it so: what was turned stayed turned, and was not found to be."""
    network = Series(partial(Old, first=True), "tokens first")
    prompts = [torch.randn(5, 3) for _ in range(4)]
    ckpt = loaded(network, 5)
    before = td.trace(ckpt, prompts)
    monitor = td.Monitor(prompts, inputs=lambda count: {"series": torch.randn(count, 5, 3)})
    monitor.step(network.train())
    assert monitor.status == "measured"
    xr.testing.assert_identical(td.trace(ckpt, prompts), before)


def test_half_precision_is_seen_in_the_order_that_was_found_in_single_precision() -> None:
    for network in (Series(partial(Old, first=True), "tokens first"), Series(Mixed, "tokens first")):
        ckpt = loaded(network.to(torch.bfloat16), 5)
        series, outputs = torch.randn(1, 5, 3), list[Tensor]()
        hook = network.blocks[1].register_forward_hook(partial(_keep, outputs))
        with torch.no_grad():
            network(series.bfloat16())
        hook.remove()
        states = ckpt.states({"series": series}).feed_forward[2]
        assert torch.equal(states, outputs[0][:, 0].to(states))


class Mixed(nn.Module):
    """Nothing but PyTorch's attention knows which axis is that of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(DIM), nn.MultiheadAttention(DIM, HEADS)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attention(y, y, y, need_weights=False)[0]


def _keep(outputs: list[Tensor], module: nn.Module, given: Any, output: Tensor) -> None:
    del module, given
    outputs.append(output)


class _Pool(nn.Module):
    """One token of all, as CLIP's attention pooling."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.axis, self.attention = int(batch_first), nn.MultiheadAttention(DIM, 2, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x.mean(self.axis, keepdim=True), x, x, need_weights=False)[0]


class _Pooled(OfPlain):
    """Two blocks in attributes and a list of pooling attentions behind them."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__(batch_first=batch_first)
        self.first, self.second, _ = self.blocks
        del self.blocks
        self.pools = nn.ModuleList([_Pool(batch_first)])

    def forward(self, ids: Tensor) -> Tensor:
        turned = TURNED["inputs first" if self.batch_first else "tokens first"]
        x = turned(self.words(ids) + self.places[: ids.shape[1]])
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for block in (self.first, self.second):
            x, _ = block(x, mask, x, padding=None)
        return turned(self.pools[0](x))[:, 0]


@pytest.mark.long
def test_what_pools_the_tokens_is_no_block_whichever_axis_is_first() -> None:
    states: list[Tensor] = []
    for batch_first in (True, False):
        ckpt = td.load(_Pooled(batch_first=batch_first).eval(), inputs={"ids": torch.randint(1, 30, (2, 7))})
        assert ckpt.layout.blocks == ("first", "second")
        assert ckpt.layout.outside == ("pools.0.attention",)
        states.append(ckpt.states(torch.arange(1, 8)).feed_forward)
    torch.testing.assert_close(*states)


class _OfChannels(nn.Module):
    """States (input, channel, patch, feature), as in transformers' PatchTST: the tokens stand before the features."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Linear(4, DIM), nn.Parameter(torch.randn(8, DIM))
        self.blocks = nn.ModuleList(_OfOneChannel() for _ in range(2))

    def forward(self, series: Tensor) -> Tensor:
        x = self.embed(series.mT.unflatten(-1, (-1, 4))) + self.places
        for block in self.blocks:
            x = block(x)
        return x


class _OfOneChannel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(DIM), nn.MultiheadAttention(DIM, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x).flatten(0, 1)
        return x + self.attention(h, h, h, need_weights=False)[0].view(x.shape)


@pytest.mark.parametrize("channels", [1, 3])
def test_positions_are_those_of_the_axis_before_the_features(channels: int) -> None:
    torch.manual_seed(3)
    ckpt = td.load(_OfChannels().eval(), inputs={"series": torch.randn(2, 32, channels)})
    assert ckpt.layout.positions == "learned"
    assert [part.name for part in ckpt.layout.positional] == ["places"]
    assert td.audit(ckpt).sizes["layer"] == 2
