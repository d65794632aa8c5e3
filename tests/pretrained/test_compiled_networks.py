"""A network that torch.compile has compiled is read as it is, and no pass that is watched compiles it anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tokendynamics as td

pytestmark = pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="PyTorch before 2.6")

PROMPTS = torch.randint(0, 40, (6, 5), generator=torch.Generator().manual_seed(0)).tolist()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(40, 16)
        layers = (nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(2))
        self.layers = nn.ModuleList(layers)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return x


class Scored(nn.Module):
    """One of which no token sees a later one, with a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Linear(16, 40)

    def forward(self, ids: Tensor) -> Tensor:
        x, tokens = self.encoder.words(ids), ids.shape[1]
        mask = torch.full((tokens, tokens), float("-inf")).triu(1)
        for layer in self.encoder.layers:
            x = layer(x, src_mask=mask)
        return self.head(x)


def test_scores_of_a_network_that_is_compiled_as_a_whole_are_read() -> None:
    """Its wrapper asks it for a length, which it does not have."""
    plain: Any = Scored().eval()
    one, other = (td.load(network, inputs=torch.tensor(PROMPTS[:1])) for network in (plain, whole(plain, "eager")))
    with other.gated() as gated:
        assert gated.vocabulary == 40
    ids, scores = torch.tensor(PROMPTS[0]), list[Any]()
    for ckpt in (one, other):
        scores += [states.logits for states in ckpt.states_in_packs([ids], logits=True)]
    assert torch.equal(*scores)


def of_layers(network: Encoder, backend: Any) -> nn.Module:
    network.layers = nn.ModuleList(torch.compile(layer, backend=backend) for layer in network.layers)  # pyright: ignore[reportArgumentType]
    return network


def in_place(network: Encoder, backend: Any) -> nn.Module:
    network.compile(backend=backend)
    return network


def whole(network: Encoder, backend: Any) -> nn.Module:
    return torch.compile(network, backend=backend)  # pyright: ignore[reportReturnType]


@pytest.mark.long
@pytest.mark.parametrize("compiling", [whole, in_place, of_layers])
def test_the_numbers_are_those_of_the_network_and_nothing_is_compiled(compiling: Callable[..., nn.Module]) -> None:
    compilations = list[int]()

    def backend(graph: Any, inputs: Any) -> Any:
        compilations.append(len(inputs))
        return graph.forward

    ids = torch.tensor(PROMPTS[:1])
    plain, compiled = Encoder().eval(), compiling(Encoder().eval(), backend)
    with torch.no_grad():
        assert torch.equal(compiled(ids), plain(ids))
    graphs = len(compilations)
    assert graphs
    one, other = (td.load(network, inputs=ids) for network in (plain, compiled))
    assert torch.equal(one.states(ids).feed_forward, other.states(ids).feed_forward)
    assert td.trace(one, PROMPTS).consensus_relative.equals(td.trace(other, PROMPTS).consensus_relative)
    for measure in (td.levers, td.head_effects):
        first, second = (measure(ckpt, PROMPTS).consensus_sensitivity for ckpt in (one, other))
        assert first.equals(second)
    assert td.audit(other).ov_norm.equals(td.audit(one).ov_norm)
    assert len(compilations) == graphs
    with torch.no_grad():  # and it is compiled still
        compiled(ids.repeat(3, 2))
    assert len(compilations) > graphs
