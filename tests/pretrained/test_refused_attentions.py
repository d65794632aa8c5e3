"""What an attention that is not read is refused for: heads before inputs, and convolutions over tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tokendynamics as td
from tokendynamics.numerics import AttentionFactorsError, CheckpointError
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError

DIM, HEADS = 16, 4


class SetAttention(nn.Module):
    """As in set transformers: heads are cut from the features and put one behind the other, each with all inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        query = self.q(x)
        q, k, v = (torch.cat(part.split(DIM // HEADS, 2), 0) for part in (query, self.k(x), self.v(x)))
        weights = torch.softmax(q.bmm(k.mT) / math.sqrt(DIM), 2)
        y = torch.cat((q + weights.bmm(v)).split(len(x), 0), 2)
        y = self.norm(y)
        return y + functional.relu(self.o(y))


class ConvolvedQueries(nn.Module):
    """As in networks that let queries and keys see the tokens just before them."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.convolution = nn.Conv1d(DIM, DIM, 3, padding=2, groups=DIM)

    def forward(self, x: Tensor) -> Tensor:
        q, k = (self.convolution(part(x).mT)[..., : x.shape[1]].mT for part in (self.q, self.k))
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k, self.v(x)))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.o(y.transpose(1, 2).flatten(2))


class Chain(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Changed(nn.Module):
    """An attention whose logits or weights are changed in a way that is not followed."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.mixing, self.form = nn.Parameter(torch.rand(DIM // HEADS)), form

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        logits = q @ k.mT / 2 if self.form != "three" else torch.einsum("bhid,bhjd,d->bhij", q, k, self.mixing)
        if self.form == "order":  # as in Transformer-XL
            logits = torch.einsum("bhid,bhjd->ijbh", q, k) + torch.einsum("bhid,jhd->ijbh", q, k[0].transpose(0, 1))
            y = torch.einsum("ijbh,bhjd->bihd", logits.softmax(dim=1), v)
            return x + self.o(y.flatten(2))
        weights = logits.softmax(dim=-1)
        if self.form == "top":
            largest = weights.topk(3, dim=-1)
            weights = torch.zeros_like(weights).scatter(-1, largest.indices, largest.values)
        elif self.form == "difference":
            weights = (weights[:, ::2] - 0.3 * weights[:, 1::2]).repeat_interleave(2, dim=1)
        elif self.form == "output":
            return x + torch.einsum("bhij,bhjd,hdo->bio", weights, v, self.o.weight.view(HEADS, -1, DIM))
        return x + self.o((weights @ v).transpose(1, 2).flatten(2))


class Attending(nn.Module):
    """One attention over one set by another, as in set transformers, with the usual axes."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q, k, v = (
            part(z).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part, z in ((self.q, x), (self.k, y), (self.v, y))
        )
        return x + self.o(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Induced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.points, self.gather, self.spread = nn.Parameter(torch.randn(1, 3, DIM)), Attending(), Attending()

    def forward(self, x: Tensor) -> Tensor:
        return self.spread(x, self.gather(self.points.expand(len(x), -1, -1), x))


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seed, self.attending = nn.Parameter(torch.randn(1, 1, DIM)), Attending()

    def forward(self, x: Tensor) -> Tensor:
        return self.attending(self.seed.expand(len(x), -1, -1), x)


class Sets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Sequential(Induced(), Induced()), nn.Sequential(Pooled(), nn.Linear(DIM, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


class SharedKeys(nn.Module):
    """The second block attends to the keys and values of the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([SharingBlock(), SharingBlock()])

    def forward(self, x: Tensor) -> Tensor:
        pair = None
        for layer in self.layers:
            x, pair = layer(x, pair)
        return x


class SharingBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor, pair: Any) -> tuple[Tensor, Any]:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        k, v = pair = (k, v) if pair is None else pair
        return x + self.o(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)), pair


def loaded(block: type[nn.Module]) -> Any:
    torch.manual_seed(2)
    return td.load(nn.Sequential(block(), block(), block()).eval(), inputs=torch.randn(1, 7, DIM))


class Stationary(nn.Module):
    """As in the non-stationary transformer: each input has a factor of its logits and a term of its own."""

    def __init__(self, by: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.factor, self.by = nn.Linear(DIM, 1), by

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        factor = self.factor(x.mean(dim=1) if self.by == "input" else x).exp().unflatten(-1, (1, -1))
        logits = q @ k.mT * (factor[:, None] if self.by == "input" else factor[:, None, :, :, 0])
        return x + self.o((logits.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.long
def test_a_factor_of_each_input_is_named_as_such() -> None:
    """One of each token is another thing."""
    for by in ("input", "token"):
        network = Chain(Stationary(by), Stationary(by)).eval()
        ckpt = td.load(network, inputs=lambda count: {"x": torch.randn(count, 9, DIM)})
        problem = ckpt.layout.layers[0].problem
        assert ("a factor of its logits is another one for each input" in problem) == (by == "input"), problem


class Sparse(nn.Module):
    """As in Informer: the queries with the largest logits alone attend, as many as a head has features."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        chosen = (q @ k.mT).amax(dim=-1).topk(DIM // HEADS).indices[..., None].expand(-1, -1, -1, q.shape[-1])
        weights = (q.gather(2, chosen) @ k.mT).softmax(dim=-1)
        y = v.mean(dim=2, keepdim=True).expand_as(v).scatter(2, chosen, weights @ v)
        return x + self.o(y.transpose(1, 2).flatten(2))


def test_an_attention_of_some_tokens_is_none_over_channels() -> None:
    ckpt = td.load(Chain(Sparse(), Sparse()).eval(), inputs=lambda count: {"x": torch.randn(count, 9, DIM)})
    layout = ckpt.layout.layers[0]
    assert "not one for each token, in the order of the tokens (4 queries, 9 keys)" in layout.problem
    assert "channels" not in layout.problem
    assert not layout.shows


@pytest.mark.long
def test_heads_before_inputs_are_named() -> None:
    ckpt = loaded(SetAttention)
    words = "each of its heads stands with all inputs behind the last one"
    assert ckpt.layout.layers[1].problem.startswith(words)
    with pytest.raises(CheckpointError, match=words):
        td.attention_seen(ckpt, [torch.randn(7, DIM)])
    with pytest.raises(AttentionFactorsError, match=words):
        td.audit(ckpt)


def test_a_convolution_of_queries_is_no_vector_added_to_them() -> None:
    ckpt = loaded(ConvolvedQueries)
    words = "convolution, a convolution over several tokens, runs in it, and no module gives its queries and keys"
    with pytest.raises(AttentionFactorsError, match=words):
        td.audit(ckpt)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("three", "its logits are one product of 3 tensors"),
        ("order", "its logits do not end in the axes of queries and keys"),
        ("top", "topk acts on the weights that its softmax gives"),
        ("difference", "the weights that its softmax gives are not followed to a product with values"),
        ("output", "einsum of 3 tensors acts on the weights that its softmax gives"),
        ("plain", ""),
    ],
)
def test_what_happens_to_logits_and_weights_is_named(form: str, words: str) -> None:
    torch.manual_seed(2)
    network = Chain(Changed(form), Changed(form)).eval()
    layer = td.load(network, inputs=torch.randn(1, 7, DIM)).layout.layers[1]
    assert (f"({words})" in layer.problem) if words else (layer.attention is not None and not layer.problem)


def test_two_attentions_of_a_block_are_told_by_their_queries_and_keys() -> None:
    torch.manual_seed(2)
    network, x = Sets().eval(), torch.randn(4, 7, DIM)
    with pytest.raises(
        LayoutNotFoundError, match=r"\(7, 16\) after encoder.1 and \(1, 16\) after decoder.0.* module encoder"
    ):
        td.load(network, inputs=x)
    problem = td.load(network.encoder, inputs=x).layout.layers[0].problem
    assert "2 attentions (gather of 3 queries and 7 keys, spread of 7 queries and 3 keys)" in problem


def test_keys_of_a_block_before_are_none_of_another_sequence() -> None:
    torch.manual_seed(2)
    ckpt = td.load(SharedKeys().eval(), inputs=torch.randn(1, 7, DIM))
    assert ckpt.layout.layers[0].attention is not None
    assert ckpt.layout.layers[1].problem == "its keys are those of an attention before it (layers.0)"


class InOwnFormat(nn.Module):
    """An attention whose code asks for a number format, whatever the network is in."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part(x).to(self.dtype).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        weights = (q @ k.mT / 2).softmax(dim=-1)
        return x + self.o((weights @ v).transpose(1, 2).flatten(2).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_attention_with_a_number_format_of_its_own_is_audited(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    network = nn.Sequential(InOwnFormat(dtype), InOwnFormat(dtype)).eval()
    weights = td.load(network, inputs=torch.randn(1, 7, DIM)).attention(2)
    for head in range(HEADS):
        rows = slice(head * DIM // HEADS, (head + 1) * DIM // HEADS)
        qk = network[1].q.weight[rows].mT @ network[1].k.weight[rows]
        torch.testing.assert_close(weights.query[head] @ weights.key[head].mT, qk.detach())


def test_a_buffer_that_is_not_finite_is_refused_where_the_states_are_needed() -> None:
    torch.manual_seed(2)
    network = nn.Sequential(SetAttention(), ConvolvedQueries(), ConvolvedQueries()).eval()
    del network[1].convolution.bias
    network[1].convolution.register_buffer("bias", torch.full((DIM,), torch.nan))
    ckpt = td.load(network, inputs=torch.randn(1, 7, DIM))
    assert "its keys or values are not finite" in ckpt.layout.layers[1].problem
    with pytest.raises(CheckpointError, match="expected finite states"):
        td.trace(ckpt, [{"input": torch.randn(1, 7, DIM)}])


def test_weights_that_are_spread_over_processes_are_refused() -> None:
    store = pytest.importorskip("torch.testing._internal.distributed.fake_pg").FakeStore()
    torch.distributed.init_process_group("fake", store=store, rank=0, world_size=2)
    try:
        network = nn.Sequential(SetAttention(), SetAttention())
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
        torch.distributed.fsdp.fully_shard(network, mesh=mesh)
        with pytest.raises(CheckpointError, match=r"0\.q\.weight, which is spread over processes"):
            td.load(network, inputs=torch.randn(1, 7, DIM))
    finally:
        torch.distributed.destroy_process_group()
