"""Networks that hold the parts of all layers in lists beside each other, such as XLM and SASRec."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tokendynamics as td
from pretrained.test_own_code import DIM, HEADS, VOCABULARY, Attention
from tokendynamics.numerics import ArgumentValueError, AttentionFactorsError, CheckpointError
from tokendynamics.pretrained.discovery._blocks import _of_lists_beside
from tokendynamics.pretrained.discovery._calls import record
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.discovery._sequence_checks import turns

Form = Literal["before", "two in one list", "after"]
FORMS: tuple[Form, ...] = ("before", "two in one list", "after")
DEPTH = 3
PROMPT = torch.tensor([5, 9, 33, 21, 7, 12])


class Beside(nn.Module):
    """Norms before the parts or after the sums; `states` has the state after each part."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form, self.states = form, list[Tensor]()
        self.tokens, self.final = nn.Embedding(VOCABULARY, DIM), nn.LayerNorm(DIM)
        self.attentions = nn.ModuleList(Attention(2, "fused") for _ in range(DEPTH))
        self.ffns = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, 32), nn.GELU(), nn.Linear(32, DIM)) for _ in self.attentions
        )
        if form == "two in one list":
            self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2 * DEPTH))
        else:
            self.first, self.second = (nn.ModuleList(nn.LayerNorm(DIM) for _ in range(DEPTH)) for _ in range(2))

    def norm(self, layer: int, part: int) -> nn.Module:
        return (
            self.norms[2 * layer + part] if self.form == "two in one list" else (self.first, self.second)[part][layer]
        )

    def forward(self, idx: Tensor) -> Tensor:
        x = self.tokens(idx)
        self.states = [x]
        for layer, parts in enumerate(zip(self.attentions, self.ffns, strict=True)):
            for number, part in enumerate(parts):
                norm = self.norm(layer, number)
                x = norm(x + part(x)) if self.form == "after" else x + part(norm(x))
                self.states.append(x)
        return x if self.form == "after" else self.final(x)


class WithinBlocks(Beside):
    """The same parts, each layer in a block of its own."""

    def __init__(self, form: Form, like: Beside) -> None:
        super().__init__(form)
        self.load_state_dict(like.state_dict())
        self.blocks = nn.ModuleList(Block(self, layer) for layer in range(DEPTH))

    def forward(self, idx: Tensor) -> Tensor:
        x = self.tokens(idx)
        for block in self.blocks:
            x = block(x)
        return x if self.form == "after" else self.final(x)


class Block(nn.Module):
    def __init__(self, of: Beside, layer: int) -> None:
        super().__init__()
        self.attention, self.mlp, self.after = of.attentions[layer], of.ffns[layer], of.form == "after"
        self.first, self.second = (of.norm(layer, part) for part in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for norm, part in ((self.first, self.attention), (self.second, self.mlp)):
            x = norm(x + part(x)) if self.after else x + part(norm(x))
        return x


def made(form: Form) -> Beside:
    torch.manual_seed(5)
    network = Beside(form).eval()
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return network


def loaded(network: nn.Module) -> Any:
    return td.load(network, inputs=lambda count: {"idx": torch.randint(0, VOCABULARY, (count, 7))})


@pytest.mark.parametrize("form", FORMS)
def test_states_are_those_of_the_loop(form: Form) -> None:
    network = made(form)
    states = loaded(network).states(PROMPT)
    final = network(PROMPT[None])
    assert torch.equal(states.feed_forward, torch.cat(network.states[::2]))
    torch.testing.assert_close(states.attention[1:], torch.cat(network.states[1::2]))
    if form != "after":
        assert torch.equal(states.final_norm, final[0])


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_numbers_are_those_of_the_same_parts_in_blocks(form: Form) -> None:
    network = made(form)
    several = [loaded(network), loaded(WithinBlocks(form, network).eval())]
    prompts = torch.randint(0, VOCABULARY, (6, 7), generator=torch.Generator().manual_seed(2)).tolist()
    audits, seen, levers, heads = (
        [measure(ckpt, *given) for ckpt in several]
        for measure, given in (
            (td.audit, ()), (td.attention_seen, (prompts,)), (td.levers, (prompts,)), (td.head_effects, (prompts,)),
        )
    )  # fmt: skip
    for pair in (audits, seen, levers, heads):
        for name, values in pair[0].data_vars.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(values, pair[1][name], rtol=1e-5, atol=1e-6, err_msg=str(name))
    assert several[0].layout.causal
    feed_forward = [ckpt.feed_forward(2).matrices for ckpt in several]
    for one, other in zip(*(matrices.values() for matrices in feed_forward), strict=True):
        assert torch.equal(one, other)


class WithHead(nn.Module):
    """A language head on a network, whose last states have no norm behind them."""

    def __init__(self, network: Beside) -> None:
        super().__init__()
        network.final = nn.Identity()  # pyright: ignore
        self.network, self.head = network, nn.Linear(DIM, VOCABULARY)

    def forward(self, idx: Tensor) -> Tensor:
        return self.head(self.network(idx))


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_states_that_are_put_in_are_those_of_the_sums(form: Form) -> None:
    several: list[Any] = []
    for blocks in (False, True):
        network = made(form)
        network = WithinBlocks(form, network).eval() if blocks else network
        torch.manual_seed(2)
        ckpt = loaded(WithHead(network).eval())
        several.append([td.passes(ckpt, PROMPT.tolist(), 3), td.decode(ckpt, PROMPT.tolist())])
    for one, other in zip(*several, strict=True):
        for name, values in one.data_vars.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(values, other[name], rtol=1e-4, atol=1e-5, err_msg=str(name))


@pytest.mark.long
def test_what_is_compared_stands_in_a_layer_or_outside_and_not_in_both() -> None:
    networks = made("before"), made("before")
    networks[1].ffns[1][0].weight.data *= 1.5
    compared = td.compare(*map(loaded, networks), texts=[PROMPT.tolist(), [12, 3, 38, 2, 9]])
    assert "ffns.0.weight" in str(compared)
    assert "outside" not in str(compared)


class Sequence(nn.Module):
    """As in SASRec: the states have the tokens first until the attention has run, and the inputs first after it."""

    def __init__(self, queries_alone: bool) -> None:
        super().__init__()
        self.queries_alone, self.states = queries_alone, list[Tensor]()
        self.words, self.places = nn.Embedding(VOCABULARY, DIM), nn.Embedding(20, DIM)
        self.norms, self.forward_norms = (nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2)) for _ in range(2))
        self.attentions = nn.ModuleList(nn.MultiheadAttention(DIM, HEADS) for _ in range(2))
        self.forwards = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, DIM)) for _ in range(2)
        )
        self.last = nn.LayerNorm(DIM)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        hidden, self.states = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool(), [x]
        for norm, attention, second, forward in zip(
            self.norms, self.attentions, self.forward_norms, self.forwards, strict=True
        ):
            turned = x.transpose(0, 1)
            query = norm(turned)
            key = turned if self.queries_alone else query
            x = (turned if not self.queries_alone else query) + attention(query, key, key, attn_mask=hidden)[0]
            y = second(x.transpose(0, 1))
            x = y + forward(y) if self.queries_alone else x.transpose(0, 1) + forward(y)
            self.states.append(x)
        return self.last(x)


@pytest.mark.long
@pytest.mark.parametrize("queries_alone", [False, True])
def test_states_may_change_the_order_of_their_axes_within_a_layer(queries_alone: bool) -> None:
    torch.manual_seed(3)
    network = Sequence(queries_alone).eval()
    td.load(network, inputs={"ids": torch.randint(1, VOCABULARY, (2, 9))})
    # What the first call found is found anew.
    ckpt = td.load(network, inputs={"ids": torch.randint(1, VOCABULARY, (2, 9))})
    states = ckpt.states(PROMPT)
    final = network(PROMPT[None])
    assert torch.equal(states.feed_forward, torch.cat(network.states))
    assert torch.equal(states.final_norm, final[0])
    pattern = td.attention_seen(ckpt, [PROMPT.tolist()], patterns=True).pattern[0]
    x = network.states[0].transpose(0, 1)
    query, mask = network.norms[0](x), torch.ones(6, 6).triu(1).bool()
    key = x if queries_alone else query
    weights = network.attentions[0](query, key, key, attn_mask=mask, average_attn_weights=False)[1]
    np.testing.assert_allclose(pattern[0], weights[0].detach(), atol=1e-6)
    if queries_alone:
        with pytest.raises(
            AttentionFactorsError, match="its queries, keys and values are not projected from one tensor"
        ):
            td.audit(ckpt)
        return
    attention = network.attentions[1]
    rows = attention.in_proj_weight[:DIM].detach() / (DIM / HEADS) ** 0.5
    torch.testing.assert_close(torch.cat(list(ckpt.attention(2).query.mT)), rows)


@pytest.mark.parametrize(("queries_alone", "most"), [(False, 17), (True, 29)])
def test_tensors_of_layers_are_not_tried_as_tables_of_positions(queries_alone: bool, most: int) -> None:
    """Axes are found first; a network that cannot be audited is tried with other weights as well."""
    torch.manual_seed(3)
    network, passes = Sequence(queries_alone).eval(), list[int]()
    network.register_forward_pre_hook(lambda module, given: passes.append(1))
    ckpt = td.load(network, inputs={"ids": torch.randint(1, VOCABULARY, (2, 9))})
    assert len(passes) <= most
    assert [part.name for part in ckpt.layout.positional] == ["places.weight"]


class Masked(Sequence):
    """As in the first SASRec: what stands for padding is multiplied by 0 behind each layer, or in place."""

    def __init__(self, in_place: bool, within_blocks: bool) -> None:
        super().__init__(True)
        self.in_place = in_place
        blocks = [MaskedBlock(self, layer) for layer in range(2)]
        self.blocks = nn.ModuleList(blocks if within_blocks else [])
        self.steps = [block if within_blocks else block.forward for block in blocks]

    def forward(self, ids: Tensor) -> Tensor:
        there = (ids != 0).unsqueeze(-1)
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        self.states = [x]
        for step in self.steps:
            x = step(x)
            if self.in_place:
                x *= there
            else:
                x = x * there
            self.states.append(x)
        return self.last(x)


class MaskedBlock(nn.Module):
    def __init__(self, of: Sequence, layer: int) -> None:
        super().__init__()
        self.norm, self.attention = of.norms[layer], of.attentions[layer]
        self.second, self.further = of.forward_norms[layer], of.forwards[layer]

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        turned = x.transpose(0, 1)
        query = self.norm(turned)
        y = self.second((query + self.attention(query, turned, turned, attn_mask=hidden)[0]).transpose(0, 1))
        return y + self.further(y)


@pytest.mark.long
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("within_blocks", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_padding_that_is_multiplied_by_0_between_layers_is_no_input(
    in_place: bool, within_blocks: bool, padded: bool
) -> None:
    torch.manual_seed(3)
    network = Masked(in_place, within_blocks).eval()
    ids = torch.randint(1, VOCABULARY, (3, 9))
    ids[1:, : 3 * padded] = 0
    ckpt = td.load(network, inputs={"ids": ids})
    assert not any(layer.joins for layer in ckpt.layout.layers)
    ckpt.states(PROMPT)
    assert torch.equal(ckpt.states(PROMPT).feed_forward, torch.cat(network.states))
    for prompt in ([0, 0, 0, 5, 9, 33], [5, 9, 33, 0, 0, 0]):
        words = (
            "states: expected tokens with a direction, got a zero vector at token"
            if in_place and within_blocks
            else "ids: expected an input for which layer 2 reads the states that layer 1 gives, got one for which the "
            "network changes 3 tokens in between, as a mask of padding does; pass the tokens of the prompt alone"
        )
        with pytest.raises(ArgumentValueError, match=words):
            td.trace(ckpt, [prompt])


class MaskedAtTheEnd(Sequence):
    """What stands for padding is multiplied by 0 behind the last layer alone; a picture changes it otherwise."""

    def __init__(self, normed: bool, factor: float) -> None:
        super().__init__(True)
        self.blocks = nn.ModuleList(MaskedBlock(self, layer) for layer in range(2))
        self.normed, self.factor = normed, factor

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        x = torch.where((ids != 0).unsqueeze(-1), x, self.factor * x)
        return self.last(x) if self.normed else x


@pytest.mark.long
@pytest.mark.parametrize(("normed", "factor"), [(True, 0.0), (False, 0.0), (True, 2.0), (False, 2.0)])
def test_tokens_that_change_behind_the_last_layer_are_seen(normed: bool, factor: float) -> None:
    torch.manual_seed(3)
    ckpt = td.load(MaskedAtTheEnd(normed, factor).eval(), inputs={"ids": torch.randint(1, VOCABULARY, (3, 9))})
    assert ckpt.states(PROMPT).feed_forward.shape[0] == 3
    if not normed and factor:  # what a network does to its last states is its own affair
        assert ckpt.states(torch.tensor([5, 9, 33, 0, 0])).feed_forward.shape[1] == 5
        return
    reader = "the final norm reads" if normed else "the network's output has"
    words = f"ids: expected an input for which {reader} the states that layer 2 gives, got one for which the network "
    words += "changes 2 tokens in between"
    words += "; pass another input" if factor else ", as a mask of padding does; pass the tokens of the prompt alone"
    with pytest.raises(ArgumentValueError, match=words + "$"):
        td.trace(ckpt, [[5, 9, 33, 0, 0]])


class Pictured(MaskedAtTheEnd):
    """Adds features of a picture to some tokens between its layers, as DeepStack does."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x + (ids == 0).unsqueeze(-1))
        return self.last(x)


def test_tokens_that_a_picture_changes_are_not_called_padding() -> None:
    torch.manual_seed(3)
    ckpt = td.load(Pictured(True, 0.0).eval(), inputs={"ids": torch.randint(1, VOCABULARY, (3, 9))})
    words = "layer 2 reads the states that layer 1 gives, got one for which the network changes 1 token in between; "
    with pytest.raises(ArgumentValueError, match=words + "pass another input$"):
        td.trace(ckpt, [[5, 9, 33, 0]])


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["xlm", "flaubert"])
def test_networks_of_transformers_are_read_in_memory(family: str, tmp_path: Any) -> None:
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(3)
    config = AutoConfig.for_model(family, vocab_size=61, emb_dim=DIM, n_layers=2, n_heads=4)
    network = AutoModel.from_config(config).eval()
    ckpt = td.load(network)
    with torch.no_grad():
        outputs = network(input_ids=PROMPT[None], output_hidden_states=True, output_attentions=True)
    assert torch.equal(ckpt.states(PROMPT).feed_forward, torch.cat(outputs.hidden_states))
    pattern = td.attention_seen(ckpt, [PROMPT.tolist()], patterns=True).pattern[0]
    np.testing.assert_allclose(pattern, torch.cat(outputs.attentions), atol=1e-6)
    rows = network.attentions[1].q_lin.weight.detach()
    torch.testing.assert_close(torch.cat(list(ckpt.attention(2).query.mT)), rows / (DIM / 4) ** 0.5)
    # Prompts of several lengths share passes; behind the end of a shorter one the network has zeros.
    levers = td.levers(ckpt, [PROMPT.tolist(), [12, 3, 38, 9], [1, 30, 4, 4, 4], [7, 8, 9], [21, 22, 31, 17, 3, 5]])
    assert bool(levers.consensus_sensitivity.notnull().all())
    with pytest.raises(
        CheckpointError, match=r"layers that are modules.*got \{attentions,.*\}\.0, whose parts stand in"
    ):
        td.passes(ckpt, [PROMPT.tolist()], 2, weights="resample")
    network.save_pretrained(tmp_path)
    with pytest.raises(LayoutNotFoundError, match=r"got calls of \{attentions,.*; load the network and pass it itself"):
        td.load(tmp_path)


class Single(nn.Module):
    """One attention behind a norm, and the sum outside of both."""

    def __init__(self, further: bool) -> None:
        super().__init__()
        self.words, self.norm, self.attention = nn.Embedding(VOCABULARY, DIM), nn.LayerNorm(DIM), Attention(2, "fused")
        self.further = nn.LayerNorm(DIM) if further else None

    def forward(self, idx: Tensor) -> Tensor:
        x = self.words(idx)
        x = x + self.attention(self.norm(x))
        return x if self.further is None else self.further(x)


@pytest.mark.parametrize("further", [False, True])
def test_what_one_attention_adds_to_a_state_before_its_norm_is_no_state(further: bool) -> None:
    torch.manual_seed(3)
    with pytest.raises(LayoutNotFoundError, match="got attention, to whose output the network adds an earlier state"):
        loaded(Single(further).eval())


class InAnotherOrder(Beside):
    """All attentions run before all other parts, or the attention of a layer before the other part of the last one."""

    def __init__(self, order: str) -> None:
        super().__init__("before")
        self.order = order

    def forward(self, idx: Tensor) -> Tensor:
        x = self.tokens(idx)
        parts = list(enumerate(self.attentions)) + list(enumerate(self.ffns))
        if self.order != "one after the other":
            parts = [parts[number] for number in ((0, 3, 1, 4, 2, 5) if self.order == "usual" else (0, 1, 3, 2, 4, 5))]
        for layer, part in parts:
            x = x + part(self.norm(layer, int(not isinstance(part, Attention)))(x))
        return x


@pytest.mark.parametrize("order", ["usual", "one after the other", "overlapping"])
def test_parts_in_another_order_are_no_layers(order: str) -> None:
    torch.manual_seed(3)
    network = InAnotherOrder(order).eval()
    with torch.no_grad():
        recorded = record(network, {"idx": PROMPT[None]})
    calls, layers = _of_lists_beside(network, recorded, "attentions.0")
    if order == "usual":
        label = "{first,attentions,second,ffns}"
        assert list(layers) == [f"{label}.{layer}" for layer in range(DEPTH)]
        assert {call.name for call in calls} >= {f"{label}.1.attentions", f"{label}.2.second"}
    else:
        assert (calls, layers) == ([], {})


class Turning(nn.Module):
    """Gives what it reads with its axes in an order, cut to some places."""

    def __init__(self, order: tuple[int, ...], places: int) -> None:
        super().__init__()
        self.order, self.places = order, places

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(*self.order)[: self.places]


@pytest.mark.parametrize(
    ("order", "places", "turned"),
    [((1, 0, 2), 5, True), ((0, 1, 2), 5, False), ((1, 0, 2), 4, False), ((0, 2, 1), 5, False), ((2, 1, 0), 9, False)],
)
def test_states_are_turned_where_inputs_and_tokens_alone_change_places(
    order: tuple[int, ...], places: int, turned: bool
) -> None:
    network = nn.Sequential(Turning(order, places))
    (call,) = (call for call in record(network, {"input": torch.randn(3, 5, 8)}).calls if call.name == "0")
    assert turns(call) is turned
    (square,) = (call for call in record(network, {"input": torch.randn(5, 5, 8)}).calls if call.name == "0")
    assert not turns(square)
