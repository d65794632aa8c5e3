"""PyTorch's own attention is read like any other: `nn.MultiheadAttention` and the layers and networks made with it."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor, nn

import tokendynamics as td
from pretrained.test_refused_attentions import Chain
from tokendynamics.diagnosis.tracing.layer_states import layer_states
from tokendynamics.diagnosis.tracing.words import detailed_findings
from tokendynamics.numerics import ArgumentValueError, AttentionFactorsError, CheckpointError
from tokendynamics.pretrained._torch_attention import apart
from tokendynamics.pretrained.network import evaluating

DIM, HEADS, VOCABULARY, WIDTH = 24, 4, 40, 6
PROMPTS = [[5, 9, 33, 21, 7], [12, 3, 38, 2], [1, 30, 4, 4, 4, 9]]


def shaken(network: nn.Module) -> Any:
    """Return it in evaluation, with biases and gains that are neither 0 nor 1."""
    generator = torch.Generator().manual_seed(2)
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return network.eval()


class Encoder(nn.Module):
    """`nn.TransformerEncoder` behind an embedding; a token 0 is padding where `padded`."""

    def __init__(self, *, causal: bool = False, padded: bool = False, final: bool = True, **layer: Any) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, DIM), nn.Embedding(16, DIM)
        self.causal, self.padded = causal, padded
        named: Any = {"batch_first": True, **layer}
        layers = nn.TransformerEncoderLayer(DIM, HEADS, 32, dropout=0.3, **named)
        self.first = layer.get("batch_first", True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # which of its shortcuts are off
            self.encoder = nn.TransformerEncoder(layers, 3, nn.LayerNorm(DIM) if final else None)

    def forward(self, ids: Tensor) -> Tensor:
        tokens = ids.shape[1]
        x = self.words(ids) + self.places(torch.arange(tokens))
        mask = torch.ones(tokens, tokens, dtype=torch.bool).triu(1) if self.causal else None
        padding = ids == 0 if self.padded else None
        if self.first:
            return self.encoder(x, mask=mask, src_key_padding_mask=padding)
        return self.encoder(src=x.transpose(0, 1), mask=mask, src_key_padding_mask=padding).transpose(0, 1)


class Block(nn.Module):
    """As in vision transformers that people write with `nn.MultiheadAttention`."""

    def __init__(self, form: str, **attention: Any) -> None:
        super().__init__()
        self.norm1, self.norm2, self.form = nn.LayerNorm(DIM), nn.LayerNorm(DIM), form
        self.attn = nn.MultiheadAttention(DIM, HEADS, **{"batch_first": True} | attention)
        self.mlp = nn.Sequential(nn.Linear(DIM, 32), nn.GELU(), nn.Linear(32, DIM))
        self.reduced = nn.Linear(DIM, 12)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        if self.form == "by name":
            z = self.attn(query=y, key=y, value=y)[0]
        elif self.form == "tokens first":
            z = self.attn(y.transpose(0, 1), y.transpose(0, 1), y.transpose(0, 1), need_weights=False)[0].transpose(
                0, 1
            )
        elif self.form == "other widths":
            z = self.attn(y, self.reduced(y), self.reduced(y), need_weights=False)[0]
        else:
            z = self.attn(y, y, y, need_weights=self.form == "weights")[0]
        x = x + z
        return x + self.mlp(self.norm2(x))


class Stacked(nn.Module):
    def __init__(self, form: str = "plain", **attention: Any) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, DIM), nn.Embedding(16, DIM)
        self.blocks = nn.Sequential(*(Block(form, **attention) for _ in range(2)))

    def forward(self, ids: Tensor) -> Tensor:
        return self.blocks(self.words(ids) + self.places(torch.arange(ids.shape[1])))


def network_of(kind: type[nn.Module], *form: str, **named: Any) -> Any:
    torch.manual_seed(5)
    return shaken(kind(*form, **named))


def loaded(network: nn.Module) -> Any:
    return td.load(network, inputs=lambda count: {"ids": torch.randint(1, VOCABULARY, (count, 7))})


def by_hand(attention: Any, x: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return output and weights of one input (token, dim) from the attention's own tensors, head by head."""
    outputs, weights = [], []
    bias = torch.zeros(3 * DIM) if attention.in_proj_bias is None else attention.in_proj_bias
    for head in range(HEADS):
        rows = [slice(third * DIM + head * WIDTH, third * DIM + (head + 1) * WIDTH) for third in range(3)]
        q, k, v = (x @ attention.in_proj_weight[some].T + bias[some] for some in rows)
        if attention.bias_k is not None:
            k, v = (torch.cat([k, attention.bias_k[0, :, rows[0]]]), torch.cat([v, attention.bias_v[0, :, rows[0]]]))
        if attention.add_zero_attn:
            k, v = torch.cat([k, torch.zeros(1, WIDTH)]), torch.cat([v, torch.zeros(1, WIDTH)])
        logits = q @ k.T / math.sqrt(WIDTH)
        if hidden is not None:
            logits[:, : len(x)] = logits[:, : len(x)].masked_fill(hidden, -torch.inf)
        weights.append(logits.softmax(dim=-1)[:, : len(x)])
        outputs.append(logits.softmax(dim=-1) @ v)
    return attention.out_proj(torch.cat(outputs, dim=-1)), torch.stack(weights)


MASKS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "none": lambda inputs, tokens: {},
    "bool": lambda inputs, tokens: {"attn_mask": torch.ones(tokens, tokens, dtype=torch.bool).triu(1)},
    "float": lambda inputs, tokens: {"attn_mask": torch.randn(tokens, tokens)},
    "of each head": lambda inputs, tokens: {"attn_mask": torch.randn(inputs * HEADS, tokens, tokens)},
    "hint": lambda inputs, tokens: {
        "attn_mask": nn.Transformer.generate_square_subsequent_mask(tokens),
        "is_causal": True,
    },
    "padding": lambda inputs, tokens: {"key_padding_mask": torch.arange(tokens).expand(inputs, -1) >= tokens - 2},
    "both": lambda inputs, tokens: {
        "key_padding_mask": torch.arange(tokens).expand(inputs, -1) >= tokens - 2,
        "attn_mask": torch.ones(tokens, tokens, dtype=torch.bool).triu(1),
    },
}


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize(
    "named",
    [{}, {"bias": False, "batch_first": False}, {"add_bias_kv": True, "add_zero_attn": True}, {"kdim": 12, "vdim": 10}],
    ids=str,
)
def test_an_attention_apart_gives_what_it_gives_whole(named: dict[str, Any], masks: str) -> None:
    attention = shaken(nn.MultiheadAttention(DIM, HEADS, dropout=0.5, **{"batch_first": True} | named))
    for inputs, tokens in ((1, 9), (3, 5)):
        masked = MASKS[masks](inputs, tokens)
        x, key, value = (torch.randn(inputs, tokens, width) for width in (DIM, attention.kdim, attention.vdim))
        given = [(x, key, value), (x, x, x), (x, key, key)] if attention.kdim == DIM else [(x, key, value)]
        for several in given:
            if not attention.batch_first:
                turned = {id(entry): entry.transpose(0, 1) for entry in several}
                several = tuple(turned[id(entry)] for entry in several)
            for wanted in ({"need_weights": False}, {}, {"average_attn_weights": False}):
                whole = attention(*several, **masked, **wanted)  # with gradients: no fused path
                calls: list[Tensor] = []
                with apart(attention):
                    hook = attention.out_proj.register_forward_pre_hook(
                        lambda module, x, calls=calls: calls.append(x[0])
                    )
                    in_parts = attention(*several, **masked, **wanted)
                hook.remove()
                assert len(calls) == 1
                assert calls[0].shape[:2] == (inputs, tokens)
                for one, other in zip(whole, in_parts, strict=True):
                    if one is None:
                        assert other is None
                    elif inputs == 1:
                        assert torch.equal(one, other)
                    else:  # the output projection takes the rows in another order
                        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_network_is_as_it_was_after_an_error_and_with_several_threads(batch_first: bool) -> None:
    network = network_of(Encoder, padded=True, batch_first=batch_first)
    before = [dict(vars(module)) for module in network.modules()]
    with pytest.raises(RuntimeError, match="within"), apart(network), apart(network):
        raise RuntimeError("within")
    ids = torch.tensor([PROMPTS[0], PROMPTS[2][:5]])
    with torch.no_grad():
        expected = network(ids)

    def run(number: int) -> Tensor:
        del number
        with apart(network), torch.no_grad():
            return network(ids)

    with ThreadPoolExecutor(4) as pool:
        for output in pool.map(run, range(20)):
            torch.testing.assert_close(output, expected)
    for module, attributes in zip(network.modules(), before, strict=True):
        assert vars(module).keys() == attributes.keys()
        assert all(vars(module)[name] is value for name, value in attributes.items())


def test_a_subclass_with_its_own_forward_pass_keeps_it() -> None:
    class Doubled(nn.MultiheadAttention):
        def forward(self, *positional: Any, **named: Any) -> Any:
            output, weights = super().forward(*positional, **named)
            return 2 * output, weights

    x, attention = torch.randn(1, 4, DIM), Doubled(DIM, HEADS, batch_first=True)
    with apart(attention):
        torch.testing.assert_close(attention(x, x, x)[0], attention(x, x, x)[0])
        assert "forward" not in vars(attention)


def test_an_output_projection_that_does_more_when_it_is_called_is_not_called() -> None:
    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    x = torch.randn(1, 4, DIM)
    for hooked in (False, True):
        attention: Any = shaken(nn.MultiheadAttention(DIM, HEADS, batch_first=True))
        if hooked:
            attention.out_proj.register_forward_hook(lambda module, given, output: 2 * output)
        else:
            attention.out_proj = Doubled(DIM, DIM)
        whole = attention(x, x, x)[0]
        with apart(attention):
            assert torch.equal(attention(x, x, x)[0], whole)


def test_no_fused_path_runs_while_a_network_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    network, ids = network_of(Encoder, padded=True), torch.tensor([[*PROMPTS[0], 0, 0]])
    fused: list[Any] = []
    whole = torch._transformer_encoder_layer_fwd  # pyright: ignore[reportPrivateImportUsage]
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *a: (fused.append(a), whole(*a))[1])
    with torch.no_grad():
        by_itself = network(ids)
        assert len(fused) == 3
        assert fused[0][0].is_nested
        with evaluating(network):
            output = network(ids)
    assert len(fused) == 3
    torch.testing.assert_close(output[:, :5], by_itself[:, :5])


CASES: dict[str, dict[str, Any]] = {
    "norm last": {},
    "norm first": {"norm_first": True, "final": False},
    "no bias": {"bias": False, "activation": nn.SiLU()},
    "causal": {"causal": True, "norm_first": True, "activation": "gelu"},
    "tokens first": {"batch_first": False},
    "tokens first, causal": {"batch_first": False, "causal": True, "norm_first": True},
}


@pytest.mark.parametrize("case", CASES)
def test_an_encoder_is_read_by_its_own_tensors(case: str) -> None:
    network = network_of(Encoder, **CASES[case]).train()
    ckpt, layers = loaded(network), network.encoder.layers
    first, causal = CASES[case].get("norm_first", False), CASES[case].get("causal", False)
    layout = ckpt.layout.layers[1]
    assert layout.attention is not None, layout.problem
    assert (layout.attention.module, layout.attention.causal, layout.parts) == (
        "self_attn",
        causal,
        ("self_attn", "linear2"),
    )
    assert layout.residual is not None
    assert layout.residual.kind == ("added" if first else "norm after")
    assert (layout.attention.norm is not None) is first
    assert ckpt.layout.end == ("encoder.layers.2" if case == "norm first" else "encoder.norm")
    weights, attention = ckpt.attention(2), layers[1].self_attn
    assert (weights.query_bias is None) is (case == "no bias")
    for head in range(HEADS):
        for third, factor in enumerate((weights.query, weights.key, weights.value)):
            rows = slice(third * DIM + head * WIDTH, third * DIM + (head + 1) * WIDTH)
            torch.testing.assert_close(factor[head], attention.in_proj_weight.detach()[rows].T)
        columns = attention.out_proj.weight.detach()[:, head * WIDTH : (head + 1) * WIDTH]
        torch.testing.assert_close(weights.output[head], columns.T)
    ids = torch.tensor(PROMPTS[0])
    pattern = td.attention_seen(ckpt, [PROMPTS[0]], patterns=True).pattern
    states = ckpt.states(ids)
    assert network.training
    assert all(module.training for module in network.modules())
    x = network.words.weight[ids] + network.places.weight[: len(ids)]
    hidden = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1) if causal else None
    network.eval()
    for number, layer in enumerate(layers):
        torch.testing.assert_close(states.feed_forward[number], x.detach())
        output, by_head = by_hand(layer.self_attn, layer.norm1(x) if first else x, hidden)
        np.testing.assert_allclose(pattern[0, number], by_head.detach(), atol=2e-6)
        x = x + output if first else layer.norm1(x + output)
        torch.testing.assert_close(states.attention[number + 1], x.detach())
        wide = layer.linear2(layer.activation(layer.linear1(layer.norm2(x) if first else x)))
        x = x + wide if first else layer.norm2(x + wide)
    torch.testing.assert_close(states.feed_forward[3], x.detach())


@pytest.mark.long
def test_a_head_and_the_logits_of_an_encoder_are_changed_where_they_are() -> None:
    network, ids = network_of(Encoder), torch.tensor(PROMPTS[0])
    without = loaded(network).under({"layer 2 head 1": 0}).states(ids)
    hotter = loaded(network).under({"logits": 0.5}).states(ids)
    for layer in network.encoder.layers:
        for name in ("in_proj_weight", "in_proj_bias"):
            getattr(layer.self_attn, name).data[:DIM] *= 0.5
    torch.testing.assert_close(hotter.feed_forward, loaded(network).states(ids).feed_forward)
    network = network_of(Encoder)
    network.encoder.layers[1].self_attn.out_proj.weight.data[:, WIDTH : 2 * WIDTH] = 0
    torch.testing.assert_close(without.feed_forward, loaded(network).states(ids).feed_forward)


@pytest.mark.long
def test_weights_trained_in_place_are_those_that_are_read() -> None:
    network = network_of(Encoder)
    ckpt = loaded(network)
    former = ckpt.attention(1).query.clone()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    network(torch.tensor([PROMPTS[0]])).square().mean().backward()
    optimizer.step()
    again = loaded(network)
    assert not torch.equal(former, ckpt.attention(1).query)
    torch.testing.assert_close(ckpt.attention(1).query, again.attention(1).query, rtol=0, atol=0)
    ids = torch.tensor(PROMPTS[1])
    torch.testing.assert_close(ckpt.states(ids).feed_forward, again.states(ids).feed_forward, rtol=0, atol=0)


@pytest.mark.long
@pytest.mark.parametrize("form", ["weights", "by name", "tokens first"])
def test_blocks_of_ones_own_are_read_however_they_call_it(form: str) -> None:
    network, plain = network_of(Stacked, form, batch_first=form != "tokens first"), network_of(Stacked)
    ckpt, other = loaded(network), loaded(plain)
    layout = ckpt.layout.layers[0]
    assert layout.attention is not None, layout.problem
    assert layout.attention.norm is not None
    assert layout.attention.norm[0] == "norm1"
    assert layout.attention.explicit is (form != "tokens first")
    assert layout.parts == ("attn", "mlp")
    audit, expected = td.audit(ckpt), td.audit(other)
    for name, values in expected.data_vars.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(audit[name], values, rtol=1e-6, atol=1e-6, err_msg=str(name))
    seen, by_other = td.attention_seen(ckpt, PROMPTS), td.attention_seen(other, PROMPTS)
    np.testing.assert_allclose(seen.received, by_other.received, atol=1e-6)
    gated = ckpt.under({"layer 1 head 2": 0}).states(torch.tensor(PROMPTS[0]))
    expected = other.under({"layer 1 head 2": 0}).states(torch.tensor(PROMPTS[0]))
    torch.testing.assert_close(gated.feed_forward, expected.feed_forward)


@pytest.mark.parametrize("named", [{"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
@pytest.mark.parametrize("form", ["plain", "weights"])
def test_a_sender_that_is_no_token_is_named_and_takes_its_weight(form: str, named: dict[str, bool]) -> None:
    network = network_of(Stacked, form, **named)
    ckpt = loaded(network)
    layout = ckpt.layout.layers[0].attention
    assert layout is not None
    assert layout.further_senders == 1
    assert not layout.causal
    assert ckpt.attention(1).query.shape == (HEADS, DIM, WIDTH)
    seen = td.attention_seen(ckpt, [PROMPTS[0]], patterns=True)
    x = network.words.weight[PROMPTS[0]] + network.places.weight[:5]
    _, weights = by_hand(network.blocks[0].attn, network.blocks[0].norm1(x))
    np.testing.assert_allclose(seen.pattern[0, 0], weights.detach(), atol=2e-6)
    np.testing.assert_allclose(seen.to_sink[0, 0], 1 - weights.detach().sum(dim=-1).mean(dim=-1), atol=2e-6)
    assert float(seen.to_sink.min()) > 0.01
    assert td.audit(ckpt).attrs["form"].endswith("beside those of keys that come from no token")
    hotter = ckpt.under({"logits": 0.5}).states(torch.tensor(PROMPTS[0])).feed_forward
    for block in network.blocks:
        block.attn.in_proj_weight.data[:DIM] *= 0.5
        block.attn.in_proj_bias.data[:DIM] *= 0.5
    torch.testing.assert_close(hotter, ckpt.states(torch.tensor(PROMPTS[0])).feed_forward)


def test_keys_of_another_width_are_traced_and_not_audited() -> None:
    ckpt = loaded(network_of(Stacked, "other widths", kdim=12, vdim=12))
    assert td.trace(ckpt, PROMPTS).sizes["layer"] == 3
    with pytest.raises(AttentionFactorsError, match="queries, keys and values are not projected from one tensor"):
        td.audit(ckpt)


class Reading(nn.Module):
    """Blocks that attend to something beside their states: another sequence, or positions on queries and keys alone."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, width = form, 9 if form == "another sequence" else DIM
        self.words, self.memory = nn.Embedding(VOCABULARY, DIM), nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.randn(1, 6, DIM))
        self.blocks = nn.ModuleList(_ReadingBlock(form, width) for _ in range(2))

    def forward(self, ids: Tensor, source: Tensor) -> Tensor:
        x = self.words(ids) * (self.form != "positions on zeros")  # as the queries of a decoder begin
        for block in self.blocks:
            x = block(x, self.memory(source) if self.form == "another sequence" else self.places)
        return x


class _ReadingBlock(nn.Module):
    def __init__(self, form: str, width: int) -> None:
        super().__init__()
        self.form, self.norm1, self.norm2 = form, nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn = nn.MultiheadAttention(DIM, HEADS, batch_first=True, kdim=width, vdim=width)
        self.mlp = nn.Sequential(nn.Linear(DIM, 32), nn.GELU(), nn.Linear(32, DIM))
        self.query, self.key, self.value = (nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        y = self.norm1(x)
        if self.form == "another sequence":
            x = x + self.attn(y, other, other)[0]
        elif self.form in ("positions", "positions on zeros"):
            x = x + self.attn(y + other, y + other, y)[0]
        else:
            q, k, v = self.query(y + other), self.key(y + other), self.value(y)
            q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k, v))
            x = x + self.attn.out_proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


@pytest.mark.parametrize(
    ("form", "problem", "positions"),
    [
        ("another sequence", "its attention is a cross-attention: its keys come from another sequence", "none"),
        ("positions", "its queries, keys and values are not projected from one tensor", "in the blocks"),
        ("positions by hand", "query reads the state plus what is the same for all inputs", "in the blocks"),
    ],
)
def test_keys_of_another_sequence_and_positions_on_keys_alone_are_named(
    form: str, problem: str, positions: str
) -> None:
    ckpt, one = td.load(network_of(Reading, form), inputs=sequences), sequences(1)
    layout = ckpt.layout.layers[0]
    assert layout.problem.startswith(problem)
    assert ckpt.layout.positions == positions
    # Weights over another sequence are no attention among the tokens.
    assert layout.shows is (form != "another sequence")
    assert layout.residual is not None
    assert layout.parts == ("attn.out_proj" if "hand" in form else "attn", "mlp")
    with pytest.raises(AttentionFactorsError, match=problem):
        td.audit(ckpt)
    half = ckpt.under({"layer 1 attention": 0.0}).states(one).feed_forward[1]
    x = ckpt.states(one).feed_forward[0]
    block: Any = ckpt.model.get_submodule("blocks.0")
    torch.testing.assert_close(half, (x + block.mlp(block.norm2(x))).detach())


def test_blocks_that_read_zeros_first_are_tried_on_other_states() -> None:
    """Their keys stay as they are, and all tokens alike, for states that are zeros in another order."""
    ckpt = td.load(network_of(Reading, "positions on zeros"), inputs=sequences)
    for layer in ckpt.layout.layers:
        assert layer.problem.startswith("its queries, keys and values are not projected from one tensor")
        assert layer.mixing == "all tokens"
    with pytest.raises(ArgumentValueError, match="zeros for every token before the first layer; put the first layer"):
        td.trace(ckpt, [sequences(1)])


class PostNorm(nn.Module):
    """BERT's layers with the weights of a `BertModel`, by `nn.TransformerEncoder` or by hand."""

    def __init__(self, bert: Any, *, by_hand: bool) -> None:
        super().__init__()
        self.embeddings = bert.embeddings
        self.layers = nn.ModuleList(map(_ByHand if by_hand else _encoder_layer, bert.encoder.layer))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embeddings(input_ids=ids)
        for layer in self.layers:
            x = layer(x)
        return x


def _encoder_layer(bert: Any) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 32, activation="gelu", batch_first=True, layer_norm_eps=1e-12)
    attention, output = bert.attention.self, bert.attention.output
    for name in ("weight", "bias"):
        packed = torch.cat([getattr(part, name).data for part in (attention.query, attention.key, attention.value)])
        getattr(layer.self_attn, f"in_proj_{name}").data = packed
    layer.self_attn.out_proj.load_state_dict(output.dense.state_dict())
    layer.linear1, layer.linear2 = bert.intermediate.dense, bert.output.dense
    layer.norm1, layer.norm2 = output.LayerNorm, bert.output.LayerNorm
    return layer


class _ByHand(nn.Module):
    def __init__(self, bert: Any) -> None:
        super().__init__()
        names = ("query", "key", "value")
        self.projections = nn.ModuleDict({name: getattr(bert.attention.self, name) for name in names})
        self.out, self.norm1 = bert.attention.output.dense, bert.attention.output.LayerNorm
        self.wide, self.back, self.norm2 = bert.intermediate.dense, bert.output.dense, bert.output.LayerNorm

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (project(x).unflatten(-1, (HEADS, -1)) for project in self.projections.values())
        weights = (torch.einsum("bihd,bjhd->bhij", q, k) * WIDTH**-0.5).softmax(-1)
        x = self.norm1(x + self.out(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)))
        return self.norm2(x + self.back(nn.functional.gelu(self.wide(x))))


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.float64, 1e-6)])
def test_three_ways_of_writing_a_network_give_the_same_results(dtype: torch.dtype, near: float) -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    sizes: dict[str, Any] = {"hidden_size": DIM, "num_hidden_layers": 3, "num_attention_heads": HEADS}
    config = BertConfig(**sizes, intermediate_size=32, vocab_size=VOCABULARY, max_position_embeddings=16)
    bert = shaken(BertModel(config, add_pooling_layer=False)).to(dtype)
    networks = [td.load(bert), *(loaded(PostNorm(bert, by_hand=by_hand).to(dtype).eval()) for by_hand in (False, True))]
    audits, traces = [td.audit(ckpt) for ckpt in networks], [td.trace(ckpt, PROMPTS, packed=False) for ckpt in networks]
    options: dict[str, Any] = {"levers": False, "heads": False, "directions": False, "baseline": None}
    lines = {td.diagnose(ckpt, PROMPTS, **options).verdict.lines for ckpt in networks}
    assert len(lines) == 1
    for results in (audits, traces):
        for other in results[1:]:
            assert set(other.data_vars) == set(results[0].data_vars)
            for name, values in results[0].data_vars.items():
                if values.dtype.kind == "f":
                    np.testing.assert_allclose(other[name], values, rtol=near, atol=near / 10, err_msg=str(name))


class Scaled(nn.TransformerEncoderLayer):
    """A layer scale in methods that PyTorch's fused path does not call."""

    def __init__(self) -> None:
        super().__init__(DIM, HEADS, 32, batch_first=True)
        self.scale = nn.Parameter(torch.full((DIM,), 0.3))

    def _ff_block(self, x: Tensor) -> Tensor:
        return self.scale * super()._ff_block(x)


def test_layers_whose_fused_path_gives_other_states_are_named() -> None:
    """In evaluation without gradients the network itself then gives what nobody wrote."""
    usual = nn.TransformerEncoderLayer(DIM, HEADS, 32, batch_first=True)
    other = nn.TransformerEncoderLayer(DIM, HEADS, 32, batch_first=True)
    other.activation = nn.functional.silu  # the fused path stays with that of the beginning
    network, x = shaken(Chain(usual, Scaled(), other)), torch.randn(1, 5, DIM)
    for parameter in network.layers[1].norm2.parameters():  # however small its states are
        parameter.data *= 1e-3
    ckpt = td.load(network, inputs=lambda count: {"x": torch.randn(count, 5, DIM)})
    assert list(ckpt.fused_otherwise) == [2, 3]
    assert "in layers 2–3 PyTorch's fused path, which evaluation without gradients takes" in td.audit(ckpt).notes
    expected = network(x).detach()  # with gradients its modules run
    torch.testing.assert_close(ckpt.states({"x": x}).feed_forward[3], expected[0])
    with torch.no_grad():
        assert float((network(x) - expected).abs().max()) > 0.1
    plain = td.load(network_of(Encoder), inputs={"ids": torch.tensor(PROMPTS[:1])})
    assert not plain.fused_otherwise
    assert "notes" not in td.audit(plain).attrs


class Decoder(nn.Module):
    """`nn.TransformerDecoder` between an embedding and another sequence."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.words, self.batch_first = nn.Embedding(VOCABULARY, DIM), batch_first
        layer = nn.TransformerDecoderLayer(DIM, HEADS, 32, batch_first=batch_first)
        self.decoder = nn.TransformerDecoder(layer, 2)

    def forward(self, ids: Tensor, source: Tensor) -> Tensor:
        x, memory = self.words(ids), self.words(source)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        if self.batch_first:
            return self.decoder(x, memory, tgt_mask=mask)
        return self.decoder(x.transpose(0, 1), memory.transpose(0, 1), tgt_mask=mask).transpose(0, 1)


def sequences(count: int) -> dict[str, Tensor]:
    """Return arguments of a `Decoder`; both sequences are of one length, which does not tell them apart."""
    return {name: torch.randint(0, VOCABULARY, (count, 6)) for name in ("ids", "source")}


@pytest.mark.long
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_self_attention_of_a_decoder_is_read_and_its_cross_attention_named(batch_first: bool) -> None:
    network = network_of(Decoder, batch_first=batch_first)
    ckpt, one = td.load(network, inputs=sequences), sequences(1)
    layout = ckpt.layout.layers[1]
    assert layout.attention is not None, layout.problem
    assert (layout.attention.module, layout.attention.causal) == ("self_attn", True)
    assert not ckpt.layout.decoder_alone
    notes = td.audit(ckpt).attrs["notes"]
    assert "layers 1–2 have a cross-attention, which reads another sequence and is not audited; its change" in notes
    for number, layer in enumerate(network.decoder.layers, 1):
        torch.testing.assert_close(ckpt.attention(number).key[2], layer.self_attn.in_proj_weight.detach()[36:42].T)
    states, pattern = ckpt.states(one), td.attention_seen(ckpt, [one], patterns=True).pattern
    x, memory = network.words(one["ids"])[0], network.words(one["source"])[0]
    for number, layer in enumerate(network.decoder.layers):
        output, weights = by_hand(layer.self_attn, x, torch.ones(6, 6, dtype=torch.bool).triu(1))
        np.testing.assert_allclose(pattern[0, number], weights.detach(), atol=2e-6)
        x = layer.norm1(x + output)
        x = layer.norm2(x + layer.multihead_attn(x[None], memory[None], memory[None])[0][0] if batch_first else
                        x + layer.multihead_attn(x[:, None], memory[:, None], memory[:, None])[0][:, 0])  # fmt: skip
        x = layer.norm3(x + layer.linear2(torch.relu(layer.linear1(x))))
        torch.testing.assert_close(states.feed_forward[number + 1], x.detach())


class InducedBlock(nn.Module):
    """A set transformer's: learned points attend to the tokens, then the tokens to these; or the tokens to themselves.

    The tokens attend to themselves in the place of the second where `itself`.
    """

    def __init__(self, *, itself: bool) -> None:
        super().__init__()
        self.points, self.itself = nn.Parameter(torch.randn(1, 3, DIM)), itself
        self.gathers, self.spreads = (nn.MultiheadAttention(DIM, HEADS, batch_first=True) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(DIM, 32), nn.GELU(), nn.Linear(32, DIM))

    def forward(self, x: Tensor) -> Tensor:
        points = self.gathers(self.points.expand(len(x), -1, -1), x, x)[0]
        x = x + (self.spreads(x, x, x)[0] if self.itself else self.spreads(x, points, points)[0])
        return x + self.mlp(x)


class Set(nn.Module):
    def __init__(self, *, itself: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([InducedBlock(itself=itself) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_attentions_that_all_compare_two_sequences_are_named() -> None:
    network = network_of(Set, itself=False)
    ckpt = td.load(network, inputs=lambda count: {"x": torch.randn(count, 7, DIM)})
    layout = ckpt.layout.layers[0]
    assert layout.problem.startswith("each of its attentions compares two sequences (gathers, spreads)")
    assert not layout.shows
    one = {"x": torch.randn(1, 7, DIM)}
    x = one["x"]
    for number, inner in enumerate(network.blocks, 1):
        x = x + inner.spreads(x, *2 * [inner.gathers(inner.points, x, x)[0]])[0]
        torch.testing.assert_close(ckpt.states(one).attention[number], x[0].detach())
        x = x + inner.mlp(x)
    other = td.load(network_of(Set, itself=True), inputs=lambda count: {"x": torch.randn(count, 7, DIM)})
    attention = other.layout.layers[0].attention
    assert attention is not None, other.layout.layers[0].problem
    assert attention.module == "spreads"


@pytest.mark.long
def test_the_feed_forward_part_of_a_decoder_is_said_to_include_its_cross_attention() -> None:
    torch.manual_seed(8)
    network, prompts = network_of(Decoder, batch_first=True), [sequences(1) for _ in range(5)]
    trace = td.trace(td.load(network, inputs=sequences), prompts)
    (text,) = (
        finding.text for finding in detailed_findings(trace, layer_states(trace)) if "eed-forward" in finding.text
    )
    assert text.endswith("In layers 1–2 the change by the feed-forward part includes that by the cross-attention.")
    # From the state that is measured after the attention, both lead to that after the block.
    states, layer = td.load(network, inputs=sequences).states(prompts[0]), network.decoder.layers[0]
    x, memory = layer.norm1(states.attention[1])[None], network.words(prompts[0]["source"])
    crossed = layer.norm2(x + layer.multihead_attn(x, memory, memory)[0])
    expected = layer.norm3(crossed + layer.linear2(torch.relu(layer.linear1(crossed))))
    torch.testing.assert_close(states.feed_forward[1], expected[0].detach())
    alone = td.trace(td.load(network_of(Encoder), inputs={"ids": torch.tensor(PROMPTS[:1])}), PROMPTS)
    assert "cross-attention" not in " ".join(finding.text for finding in detailed_findings(alone, layer_states(alone)))


class ByHand(nn.Module):
    """What PyTorch's attention computes, as people write it; it also runs as `nn.MultiheadAttention` is called."""

    def __init__(self, attention: nn.MultiheadAttention, *, fused: bool) -> None:
        super().__init__()
        self.project, self.out, self.fused = (
            nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(3)),
            nn.Linear(DIM, DIM),
            fused,
        )
        weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
        for linear, weight, bias in zip(self.project, weights, biases, strict=True):
            linear.weight.data, linear.bias.data = weight.detach().clone(), bias.detach().clone()
        self.out.load_state_dict(attention.out_proj.state_dict())

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:
        given = zip(self.project, (query, key, value), strict=True)
        q, k, v = (linear(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for linear, x in given)
        if self.fused:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, mask)
        else:
            logits = q @ k.mT / math.sqrt(WIDTH)
            mixed = (logits if mask is None else logits + mask).softmax(dim=-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2)), None


class TwoSequences(nn.Module):
    """Decoder blocks around two attentions; the encoder's states are those of another sequence."""

    def __init__(self, *, post_norm: bool) -> None:
        super().__init__()
        self.words, self.post_norm = nn.Embedding(VOCABULARY, DIM), post_norm
        self.blocks = nn.ModuleList(DecoderBlock(post_norm=post_norm) for _ in range(2))

    def forward(self, ids: Tensor, source: Tensor) -> Tensor:
        x, memory = self.words(ids), self.words(source)
        for block in self.blocks:
            x = block(x, memory)
        return x


class DecoderBlock(nn.Module):
    def __init__(self, *, post_norm: bool) -> None:
        super().__init__()
        self.itself, self.other = (nn.MultiheadAttention(DIM, HEADS, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(3))
        self.mlp, self.post_norm = nn.Sequential(nn.Linear(DIM, 32), nn.GELU(), nn.Linear(32, DIM)), post_norm

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        named: dict[str, Any] = {} if isinstance(self.itself, ByHand) else {"need_weights": False}
        masked = {("mask" if isinstance(self.itself, ByHand) else "attn_mask"): mask}
        if self.post_norm:
            x = self.norms[0](x + self.itself(x, x, x, **masked, **named)[0])
            x = self.norms[1](x + self.other(x, memory, memory, **named)[0])
            return self.norms[2](x + self.mlp(x))
        y = self.norms[0](x)
        x = x + self.itself(y, y, y, **masked, **named)[0]
        x = x + self.other(self.norms[1](x), memory, memory, **named)[0]
        return x + self.mlp(self.norms[2](x))


def test_a_cross_attention_of_pytorch_is_told_from_an_attention_by_hand_beside_it() -> None:
    network = network_of(TwoSequences, post_norm=False)
    audits = [td.audit(td.load(network, inputs=sequences))]
    for block in network.blocks:
        block.itself = ByHand(block.itself, fused=False).eval()
    audits.append(td.audit(td.load(network, inputs=sequences)))
    assert audits[0].notes == audits[1].notes
    np.testing.assert_allclose(audits[1].ov_norm, audits[0].ov_norm, rtol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("post_norm", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_a_cross_attention_by_hand_is_told_from_the_attention_between_the_tokens(fused: bool, post_norm: bool) -> None:
    torch.manual_seed(4)
    network = network_of(TwoSequences, post_norm=post_norm)
    by_hand = copy.deepcopy(network)
    for block in by_hand.blocks:
        block.itself, block.other = (ByHand(attention, fused=fused) for attention in (block.itself, block.other))
    prompts = [sequences(1) for _ in range(5)]
    results: list[Any] = []
    for one in (network, by_hand.eval()):
        ckpt = td.load(one, inputs=sequences)
        attention = ckpt.layout.layers[1].attention
        assert attention is not None, ckpt.layout.layers[1].problem
        assert (attention.module, attention.causal) == ("itself", True)
        assert ckpt.layout.layers[1].problem == "its cross-attention reads another sequence and is not audited"
        seen = td.attention_seen(ckpt, prompts, patterns=True)
        without = ckpt.under({"layer 1 head 2": 0}).states(prompts[0]).feed_forward
        hotter = ckpt.under({"logits": 0.5}).states(prompts[0]).feed_forward
        effects = td.head_effects(ckpt, prompts)
        results.append((td.audit(ckpt), td.trace(ckpt, prompts), seen, effects, without, hotter))
        assert {type(block.other) for block in one.blocks} <= {ByHand, nn.MultiheadAttention}
    for first, second in zip(*results, strict=True):
        if isinstance(first, Tensor):
            torch.testing.assert_close(second, first, atol=2e-6, rtol=1e-5)
            continue
        for name, values in first.data_vars.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(second[name], values, rtol=1e-4, atol=1e-5, err_msg=str(name))


@pytest.mark.long
def test_a_cross_attention_by_hand_is_known_where_the_network_is_read_anew_while_it_runs() -> None:
    network = network_of(TwoSequences, post_norm=False)
    for block in network.blocks:
        block.itself, block.other = (ByHand(attention, fused=False) for attention in (block.itself, block.other))
    ckpt, prompts = td.load(network.eval(), inputs=sequences), [sequences(1) for _ in range(3)]
    before = td.attention_seen(ckpt, prompts)
    monitor = td.Monitor(prompts, inputs=sequences)
    monitor.step(network)
    assert monitor.status == "measured"
    xr.testing.assert_identical(td.attention_seen(ckpt, prompts), before)
    assert {type(block.other) for block in network.blocks} == {ByHand}


def test_the_halves_of_a_transformer_are_loaded_by_name() -> None:
    network = shaken(nn.Transformer(DIM, HEADS, 2, 3, 32, batch_first=True))
    with pytest.raises(ArgumentValueError, match="expected 'encoder' or 'decoder', got None"):
        td.load(network, inputs=lambda count: {"src": torch.randn(count, 7, DIM)})
    encoder = td.load(network, half="encoder", inputs=lambda count: {"src": torch.randn(count, 7, DIM)})
    assert encoder.layout.blocks == ("layers.0", "layers.1")

    def inputs(count: int) -> dict[str, Tensor]:
        return {"tgt": torch.randn(count, 7, DIM), "memory": torch.randn(count, 5, DIM)}

    decoder = td.load(network, half="decoder", inputs=inputs)
    assert decoder.layout.blocks == ("layers.0", "layers.1", "layers.2")
    assert not decoder.layout.decoder_alone
    one = inputs(1)
    torch.testing.assert_close(decoder.states(one).final_norm, network.decoder(**one)[0].detach())

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network

        def forward(self, src: Tensor) -> Tensor:
            return self.inner(src, src)

    with pytest.raises(CheckpointError, match=r"encoder \(inner.encoder.layers.0\) and of a decoder \(inner.decoder"):
        td.load(Around().eval(), inputs=lambda count: {"src": torch.randn(count, 7, DIM)})


class Single(nn.Module):
    """One attention of PyTorch and no block around it."""

    def __init__(self, adds: bool) -> None:
        super().__init__()
        self.embed, self.head, self.adds = nn.Linear(3, 8), nn.Linear(8, 1), adds
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, series: Tensor) -> Tensor:
        x = self.embed(series)
        y, _ = self.attention(x, x, x)
        return self.head(x + y if self.adds else y)


def test_an_attention_without_a_block_is_read_where_it_gives_the_states() -> None:
    torch.manual_seed(2)
    series = torch.randn(2, 9, 3)
    network = Single(adds=False).eval()
    ckpt = td.load(network, inputs={"series": series})
    x = network.embed(series[:1]).detach()
    torch.testing.assert_close(
        ckpt.states({"series": series[:1]}).feed_forward[1], network.attention(x, x, x)[0][0].detach()
    )
    q, k, v = (
        weight.detach().mT.unflatten(1, (2, 4)).transpose(0, 1) for weight in network.attention.in_proj_weight.chunk(3)
    )
    weights = ckpt.attention(1)
    torch.testing.assert_close(weights.scale * weights.query @ weights.key.mT, q @ k.mT / 2)
    out = network.attention.out_proj.weight.detach().mT.unflatten(0, (2, 4))
    torch.testing.assert_close(weights.value @ weights.output, v @ out)
    with pytest.raises(CheckpointError, match="to whose output the network adds the input outside of it"):
        td.load(Single(adds=True).eval(), inputs={"series": series})
