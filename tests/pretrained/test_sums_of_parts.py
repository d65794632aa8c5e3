"""Blocks that add their parts in other ways than x + f(x): states, gates and words against edits of the weights."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from tokendynamics.diagnosis.tracing.layer_states import layer_states
from tokendynamics.diagnosis.tracing.words import detailed_findings
from tokendynamics.numerics import CheckpointError
from tokendynamics.pretrained.discovery.words import block_in_words

DIM, HEADS, VOCABULARY = 16, 4, 40


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, width), nn.Linear(width, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x)))


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.down = nn.Conv1d(DIM, DIM, 3, padding=1), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.inner(x.mT).mT)


class Block(nn.Module):
    """One way of adding up; `middle` keeps the state after the attention, where there is one."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.middle = form, torch.empty(0)
        self.n0, self.n1, self.n2, self.n3 = (nn.LayerNorm(DIM) for _ in range(4))
        self.attn, self.ff, self.ff0, self.conv = Attention(), FeedForward(), FeedForward(8), Convolution()
        self.skips = nn.Parameter(torch.tensor([0.9, 1.1, 0.8, 1.2]))
        self.gate0, self.gate1, self.gate2 = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, 2)

    def keep(self, x: Tensor) -> Tensor:
        self.middle = x.detach().clone()
        return x

    def forward(self, x: Tensor) -> Tensor:
        attn, ff, ff0, s = self.attn, self.ff, self.ff0, self.skips
        match self.form:
            case "deep norm":
                x = self.keep(self.n1(1.7 * x + attn(x)))
                return self.n2(1.7 * x + ff(x))
            case "learned deep norm":
                x = self.keep(self.n1(s[0] * x + attn(x)))
                return self.n2(s[1] * x + ff(x))
            case "halved":
                x = self.keep((x + attn(self.n1(x))) * 0.5**0.5)
                return (x + ff(self.n2(x))) * 0.5**0.5
            case "learned":
                x = self.keep(s[0] * x + s[1] * attn(self.n1(x)))
                return s[2] * x + s[3] * ff(self.n2(x))
            case "parallel, times 0.7":
                n = self.n1(x)
                return 0.7 * (x + attn(n) + ff(n))
            case "attention alone":
                return self.keep(0.8 * x + attn(self.n1(x)))
            case "macaron":
                x = x + 0.5 * ff0(self.n0(x))
                x = x + attn(self.n1(x))
                return x + 0.5 * ff(self.n2(x))
            case "macaron with a norm":
                x = x + 0.5 * ff0(self.n0(x))
                x = x + attn(self.n1(x))
                return self.n3(x + 0.5 * ff(self.n2(x)))
            case "feed-forward first":
                x = x + ff(self.n2(x))
                return x + attn(self.n1(x))
            case "feed-forward first, norms by functions":
                x = x + ff(functional.layer_norm(x, (DIM,)))
                return x + attn(functional.layer_norm(x, (DIM,)))
            case "norms by functions":
                x = self.keep(x + attn(functional.layer_norm(x, (DIM,))))
                return x + ff(functional.layer_norm(x, (DIM,)))
            case "parallel, feed-forward first":
                n = functional.layer_norm(x, (DIM,))
                m, a = ff(n), attn(n)
                self.keep(x + a)
                return x + a + m
            case "shared expert":
                x = self.keep(x + attn(self.n1(x)))
                n = self.n2(x)
                return x + ff(n) + 0.5 * ff0(n)
            case "adapter behind":
                x = self.keep(x + attn(self.n1(x)))
                x = x + ff(self.n2(x))
                return x + ff0(x)
            case "conformer":
                x = x + 0.5 * ff0(self.n0(x))
                x = x + attn(self.n1(x))
                x = x + self.conv(self.n3(x))
                return x + 0.5 * ff(self.n2(x))
            case "norm behind a convolution":
                x = x + attn(self.n1(x))
                x = x + self.n3(self.conv(x))
                return x + ff(self.n2(x))
            case "adapter of a part":
                a = attn(self.n1(x))
                x = x + a + self.conv.down(a)
                return x + ff(self.n2(x))
            case "macaron, norms by functions":
                x = x + 0.5 * ff0(functional.layer_norm(x, (DIM,)))
                x = x + attn(functional.layer_norm(x, (DIM,)))
                return x + 0.5 * ff(functional.layer_norm(x, (DIM,)))
            case "macaron, sums by hand":
                x = x + 0.5 * ff0(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))
                x = x + attn(functional.rms_norm(x, (DIM,)))
                return x + 0.5 * ff(functional.rms_norm(x, (DIM,)))
            case "macaron, another function":
                x = x + 0.5 * ff0(torch.tanh(x))
                x = x + attn(torch.tanh(x))
                return x + 0.5 * ff(torch.tanh(x))
            case "attention of a highway":
                gate = self.gate0(x).sigmoid()
                x = self.keep((1 - gate) * x + gate * attn(self.n1(x)))
                return x + ff(self.n2(x))
            case "highway":
                gate = self.gate0(x).sigmoid()
                x = self.keep((1 - gate) * x + gate * attn(self.n1(x)))
                gate = self.gate1(x).sigmoid()
                return (1 - gate) * x + gate * ff(self.n2(x))
            case "interpolated":
                x = self.keep(torch.lerp(x, attn(self.n1(x)), self.skips.tile(4) / 2))
                return torch.lerp(x, ff(self.n2(x)), self.gate1(x).sigmoid())
            case "gates of parts":
                x = self.keep(x + self.gate0(x) * attn(self.n1(x)))
                return x + self.gate2(x)[..., :1].tanh() * ff(self.n2(x))
            case "parallel, gated":
                n = self.n1(x)
                gate = self.gate2(n)[..., :1].sigmoid()
                return x + gate * attn(n) + (1 - gate) * ff(n)
            case "experts weighted in the block":
                x = self.keep(x + attn(self.n1(x)))
                n = self.n2(x)
                weights = self.gate2(n).softmax(dim=-1)
                return x + weights[..., :1] * ff(n) + weights[..., 1:] * ff0(n)
            case "norm behind the attention alone":
                x = self.keep(self.n1(x + attn(x)))
                return x + ff(self.n2(x))
            case "norms behind, by functions":
                x = self.keep(functional.layer_norm(x + attn(x), (DIM,)))
                return functional.layer_norm(x + ff(x), (DIM,))
            case "from its norm":
                x = self.n1(x)
                x = self.keep(x + attn(x))
                return x + ff(self.n2(x))
            case "normalized interpolation":
                x = self.keep(functional.normalize(torch.lerp(x, self.n1(attn(x)), s[:1] / 2), dim=-1))
                return functional.normalize(torch.lerp(x, self.n2(ff(x)), s[1:2] / 2), dim=-1)
            case "gate of a part by itself":
                a = attn(self.n1(x))
                gate = (self.gate0(x) + self.gate1(a)).sigmoid()
                x = (1 - gate) * x + gate * a
                return x + ff(self.n2(x))
            case "normalized by a function":
                x = functional.normalize(x + s[0] * functional.normalize(attn(x), dim=-1), dim=-1)
                return functional.normalize(x + s[1] * functional.normalize(ff(x), dim=-1), dim=-1)
            case "highway and weights of the block":
                gate = self.gate0(x).sigmoid()
                x = (1 - gate) * x + gate * attn(self.n1(x))
                return x + functional.tanh(self.n2(x) @ ff.up.weight.mT) @ ff.up.weight
            case "highway and a convolution":
                gate = self.gate0(x).sigmoid()
                x = (1 - gate) * x + gate * attn(self.n1(x))
                x = x + self.conv(x)
                return x + ff(self.n2(x))
            case "norms behind and weights of the block":
                x = functional.layer_norm(x + attn(x), (DIM,))
                return functional.layer_norm(x + functional.tanh(x @ ff.up.weight.mT) @ ff.up.weight, (DIM,))
        raise ValueError(self.form)


class Network(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, DIM), nn.Embedding(32, DIM)
        self.blocks, self.norm = nn.ModuleList([Block(form) for _ in range(3)]), nn.LayerNorm(DIM)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def network_of(form: str) -> Any:
    torch.manual_seed(0)
    network = Network(form).eval()
    for parameter in network.parameters():
        parameter.data += 0.15 * torch.randn_like(parameter)
    return network


@cache
def read(form: str) -> tuple[Any, Any]:
    """Return a network and its checkpoint, which no test changes."""
    network = network_of(form)
    return network, td.load(network, inputs=lambda count: {"ids": torch.randint(0, VOCABULARY, (count, 7))})


IDS = torch.randint(0, VOCABULARY, (9,), generator=torch.Generator().manual_seed(1))

KEPT = "what is kept of the state + "

FORMS = {
    "deep norm": ("n2(1.7 · (n1(1.7 · state + attn)) + ff)", ("ff",)),
    "learned deep norm": ("n2(a learned factor · (n1(a learned factor · state + attn)) + ff)", ("ff",)),
    "halved": (
        "0.707107 · (0.707107 · state + 0.707107 · attn) + 0.707107 · ff, one after the other",
        ("ff",),
    ),
    "learned": (
        "a learned factor · (a learned factor · state + a factor of each feature, or a learned one · attn) + a factor "
        "of each feature, or a learned one · ff, one after the other",
        ("ff",),
    ),
    "parallel, times 0.7": ("0.7 · state + 0.7 · attn + 0.7 · ff, both read the same state", ("ff",)),
    "attention alone": ("0.8 · state + attn", ()),
    "macaron": ("state + 0.5 · ff0 + attn + 0.5 · ff, one after the other", ("ff0", "ff")),
    "macaron, norms by functions": ("state + 0.5 · ff0 + attn + 0.5 · ff, one after the other", ("ff0", "ff")),
    "macaron, sums by hand": ("state + 0.5 · ff0 + attn + 0.5 · ff, one after the other", ("ff0", "ff")),
    "macaron with a norm": ("n3(state + 0.5 · ff0 + attn + 0.5 · ff)", ("ff0", "ff")),
    "feed-forward first": ("state + ff + attn, one after the other", ("ff",)),
    "feed-forward first, norms by functions": ("state + ff + attn, one after the other", ("ff",)),
    "norms by functions": ("state + attn + ff, one after the other", ("ff",)),
    "parallel, feed-forward first": ("state + attn + ff, both read the same state", ("ff",)),
    "shared expert": ("state + attn + ff + 0.5 · ff0, one after the other", ("ff", "ff0")),
    "attention of a highway": (KEPT + "attn + ff, with factors by token, one after the other", ("ff",)),
    "highway": (KEPT + "attn + ff, with factors by token, one after the other", ("ff",)),
    "interpolated": (KEPT + "attn + ff, with factors by token, one after the other", ("ff",)),
    "gates of parts": ("state + attn + ff, with factors by token, one after the other", ("ff",)),
    "parallel, gated": ("state + attn + ff, with factors by token, both read the same state", ("ff",)),
    "experts weighted in the block": (
        "state + attn + ff + ff0, with factors by token, one after the other",
        ("ff", "ff0"),
    ),
    "norm behind the attention alone": (f"n1({KEPT}attn) + ff, one after the other", ("ff",)),
    "norms behind, by functions": (KEPT + "attn + ff, with factors by token, one after the other", ("ff",)),
    "from its norm": (KEPT + "attn + ff, one after the other", ("ff",)),
    "normalized interpolation": (KEPT + "n1 + n2, with factors by token, one after the other", ("n2",)),
    "adapter behind": ("state + attn + ff + ff0, one after the other", ("ff", "ff0")),
}
"""How a sum is described, and the modules of its feed-forward part."""


def states_of(network: Any) -> tuple[Tensor, Tensor]:
    """Return the states before and after all blocks by hooks, and those that the blocks kept after their attention."""
    states: list[Tensor] = []
    hooks = [
        block.register_forward_hook(lambda *given: states.append(given[2].detach().clone())) for block in network.blocks
    ]
    hooks.append(
        network.blocks[0].register_forward_pre_hook(lambda *given: states.append(given[1][0].detach().clone()))
    )
    with torch.no_grad():
        network(IDS[None])
    for hook in hooks:
        hook.remove()
    return torch.cat(states), torch.stack([block.middle for block in network.blocks])


@pytest.mark.few(9)
@pytest.mark.parametrize("form", FORMS)
def test_states_and_sums_are_those_of_the_block(form: str) -> None:
    network, ckpt = read(form)
    states, middle = states_of(network)
    traced_states = ckpt.states(IDS)
    assert torch.equal(traced_states.feed_forward, states)
    if middle.numel():
        torch.testing.assert_close(traced_states.attention[1:], middle[:, 0])
    else:  # no state of the network is one after the attention alone
        assert traced_states.attention.isnan().all()
    assert dict(block_in_words(ckpt.layout.layers[1]))["sum"] == FORMS[form][0]


@pytest.mark.long
@pytest.mark.few(54)
@pytest.mark.parametrize("gate", [0.5, 0.0, -1.3])
@pytest.mark.parametrize(
    ("form", "part"),
    [(form, part) for form, (_, names) in FORMS.items() for part in ("attention", "feed_forward")[: 1 + len(names)]],
)
def test_a_gate_is_an_edit_of_the_weights(form: str, part: str, gate: float) -> None:
    network, ckpt = read(form)
    edited = copy.deepcopy(network)
    names = FORMS[form][1] if part == "feed_forward" else ("n1" if form == "normalized interpolation" else "attn",)
    writers = [{"attn": "attn.o", "n1": "n1", "n2": "n2"}.get(name, f"{name}.down") for name in names]
    for name in writers:
        for parameter in edited.blocks[1].get_submodule(name).parameters():
            parameter.data *= gate
    wanted = states_of(edited)[0]
    with ckpt.varied({f"layer 2 {part}": gate}):
        varied = ckpt.states(IDS).feed_forward
    assert float((varied - wanted).abs().max()) < 1e-6 * float(wanted.abs().max())
    with ckpt.gated() as gated, torch.no_grad():
        gates = torch.ones(gated.exists.shape, dtype=torch.float64)
        gates[1, ["attention", "feed_forward"].index(part)] = gate
        passed = gated.run(ckpt.one_pack([IDS]), gates)
    assert float((torch.stack(passed.states)[:, 0] - wanted).abs().max()) < 1e-6 * float(wanted.abs().max())


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("conformer", "it adds the outputs of 4 modules (ff0, attn, conv, ff), of which conv may act on other tokens"),
        (
            "norm behind a convolution",
            "it adds the outputs of 3 modules (attn, n3, ff), of which n3 may act on other tokens",
        ),
        ("adapter of a part", "conv.down acts on|is no sum of its input and of outputs of its modules"),
        ("macaron, another function", "ff0 acts on further parts of the sum, and no module reads the state after it"),
        ("gate of a part by itself", "what attn adds to it is not proportional to what it gives"),
        ("normalized by a function", "what attn adds to it is not proportional to what it gives"),
        ("highway and weights of the block", "is no sum of its input and of outputs of its modules"),
        ("highway and a convolution", "is no sum of its input and of outputs of its modules"),
        ("norms behind and weights of the block", "what attn adds to it is not proportional to what it gives"),
    ],
)
def test_other_sums_have_no_gates(form: str, words: str) -> None:
    network, ckpt = read(form)
    assert torch.equal(ckpt.states(IDS).feed_forward, states_of(network)[0])
    with pytest.raises(CheckpointError) as error:
        ckpt.gated()
    assert any(clause in str(error.value) for clause in words.split("|"))
    assert ("proportional" in str(error.value)) == ("proportional" in words)


TEXTS = [torch.randint(0, VOCABULARY, (9,), generator=torch.Generator().manual_seed(seed)) for seed in range(6)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("form", "ahead", "measured"),
    [
        ("macaron", True, False),
        ("feed-forward first", True, False),
        ("conformer", False, False),
        ("halved", False, True),
    ],
)
def test_what_is_not_measured_between_the_parts_is_said(form: str, ahead: bool, measured: bool) -> None:
    trace = td.trace(read(form)[1], TEXTS)
    words = [finding.text for finding in detailed_findings(trace, layer_states(trace))]
    assert ("Updates are not measured because no state shows between the parts of a layer." in words) != measured
    note = "acts before the attention, so what each of them changes by itself is not measured"
    assert (note in trace.attrs.get("notes", "")) == ahead
    assert bool(trace.update_ratio.isel(layer=1, component=0).isnull().all()) != measured


def test_what_heads_add_is_not_read_where_the_state_is_multiplied() -> None:
    for form, there in (("halved", False), ("norms by functions", True)):
        shared = td.shared_directions(read(form)[1], TEXTS)
        words = "a norm, or a factor that is learned, of each feature or of the state, follows the heads in every layer"
        assert shared.attrs["no_heads"] == ("" if there else words)
        assert ("written_by_head" in shared) == there


class Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mT


class BatchNormed(nn.Module):
    """Batch norms behind both sums, between modules that turn the axes, as in PatchTST."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.ff = Attention(), FeedForward()
        self.n1, self.n2 = (nn.Sequential(Turned(), nn.BatchNorm1d(DIM), Turned()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.n1(x + self.attn(x))
        return self.n2(x + self.ff(x))


class OfBatchNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks: Any = nn.ModuleList(BatchNormed() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_gates_stand_before_batch_norms_as_before_other_norms() -> None:
    torch.manual_seed(3)
    network, x = OfBatchNormed(), torch.randn(1, 9, DIM)
    network(torch.randn(40, 9, DIM))  # running means and variances
    network.eval()
    for tensor in (*network.parameters(), *(buffer for _, buffer in network.named_buffers() if buffer.ndim)):
        tensor.data += 0.2 * torch.rand_like(tensor)
    ckpt = td.load(network, inputs=lambda count: {"x": torch.randn(count, 9, DIM)})
    residual = ckpt.layout.layers[1].residual
    assert residual is not None, ckpt.layout.layers[1].problem
    assert (residual.kind, ckpt.layout.layers[1].parts) == ("norm after", ("attn", "ff"))
    sites = ckpt.states({"x": x}).attention[2]
    torch.testing.assert_close(sites, (lambda y, b: b.n1(y + b.attn(y)))(network.blocks[0](x), network.blocks[1])[0])
    for part, writer in (("attention", "attn.o"), ("feed_forward", "ff.down")):
        edited = copy.deepcopy(network)
        for parameter in edited.blocks[1].get_submodule(writer).parameters():
            parameter.data *= -0.7
        varied = ckpt.under({f"layer 2 {part}": -0.7}).states({"x": x}).feed_forward[3]
        torch.testing.assert_close(varied, edited(x)[0].detach())


class Both(nn.Module):
    """One module gives what the attention adds and what a feed-forward part adds, in parallel or in turn."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.attn, self.ff = form, Attention(), FeedForward()
        self.norm, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        added = self.attn(self.norm(x))
        return added + self.ff(self.n2(x + added if self.form == "in turn" else x))


class AroundBoth(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.fn, self.norm, self.last = form, Both(form), nn.LayerNorm(DIM), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        if self.form == "norm behind":
            return self.norm(x + self.fn(x))
        x = x + self.fn(x)
        return x + self.last(self.norm(x)) if self.form == "a further part" else x


class HeadsInBlock(nn.Module):
    """The block itself runs a linear map of each head, and one of all of them."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.conv, self.ff, self.out = form, Convolution(), FeedForward(), nn.Linear(DIM, DIM)
        self.norm, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.q, self.k, self.v = (nn.ModuleList(nn.Linear(DIM, DIM // HEADS) for _ in range(HEADS)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        heads = [(q(y) @ k(y).mT / 2).softmax(dim=-1) @ v(y) for q, k, v in zip(self.q, self.k, self.v, strict=True)]
        if "in another order" in self.form:
            heads.reverse()
        if "times a feature" in self.form:
            heads = [head * y[..., :1] for head in heads]
        if self.form == "heads plus what they read":  # as fused outputs of both parts have it (ViT-22B)
            return x + self.out(torch.cat(heads, dim=-1) + y)
        if "and a convolution" in self.form:
            return x + self.conv(self.n2(x)) + self.out(torch.cat(heads, dim=-1))
        if self.form == "heads, feed-forward first":
            return x + self.ff(self.n2(x)) + self.out(torch.cat(heads, dim=-1))
        x = x + self.out(torch.cat(heads, dim=-1))
        return x + self.ff(self.n2(x))


def _of_blocks(form: str) -> tuple[Any, Any]:
    torch.manual_seed(3)
    network = OfBatchNormed()
    network.blocks = nn.ModuleList((HeadsInBlock if "heads" in form else AroundBoth)(form) for _ in range(3))
    return network.eval(), td.load(network, inputs=lambda count: {"x": torch.randn(count, 9, DIM)})


@pytest.mark.long
@pytest.mark.parametrize(
    "form", ["parallel", "in turn", "heads", "heads in another order", "heads, feed-forward first"]
)
def test_gates_stand_on_one_part_each_where_one_module_holds_both_or_none_holds_the_attention(form: str) -> None:
    """The gate of the attention multiplied both, as if all that such a module gives were its attention's."""
    network, ckpt = _of_blocks(form)
    inner = "" if "heads" in form else "fn."
    writers = {"attention": "out" if "heads" in form else "fn.attn.o", "feed_forward": f"{inner}ff.down"}
    assert ckpt.layout.layers[1].problem == ""
    assert ckpt.layout.layers[1].runs == (HEADS if "heads" in form else 1)
    x = torch.randn(1, 9, DIM)
    for part, writer in writers.items():
        edited = copy.deepcopy(network)
        for parameter in edited.blocks[1].get_submodule(writer).parameters():
            parameter.data *= -0.7
        varied = ckpt.under({f"layer 2 {part}": -0.7}).states({"x": x}).feed_forward[3]
        torch.testing.assert_close(varied, edited(x)[0].detach())


@pytest.mark.long
@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("norm behind", "what fn adds is the sum of its attention's part and of fn.ff's"),
        (
            "heads times a feature and a convolution",
            "it adds the outputs of conv and out, and which of them is its attention is not known",
        ),
        ("heads plus what they read", "it adds the output of out, and whether that is its attention is not known"),
        ("a further part", "fn.attn acts on further parts of the sum, and no module reads the state after it"),
    ],
)
def test_parts_that_cannot_be_taken_apart_have_no_gates(form: str, words: str) -> None:
    with pytest.raises(CheckpointError) as error:
        _of_blocks(form)[1].gated()
    assert words in str(error.value)
