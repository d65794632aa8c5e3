"""Networks whose loop adds up outside of modules: lists of branches, of pairs, or of norm, branch and sum."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import tokendynamics as td
from pretrained.test_own_code import DIM, VOCABULARY, Attention
from tokendynamics.pretrained.discovery._columns import LayoutNotFoundError
from tokendynamics.pretrained.edits.repeated_stack import Stack
from tokendynamics.pretrained.edits.variant import Variant

Form = Literal["pairs", "branches", "sums"]
DEPTH = 3


class Normed(nn.Module):
    """A branch that normalizes what it reads."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(DIM), inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.norm(x))


class Sum(nn.Module):
    def forward(self, branch: Tensor, state: Tensor) -> Tensor:
        return branch + state


class Gained(nn.Module):
    """A norm that calls its gain otherwise, around one without."""

    def __init__(self) -> None:
        super().__init__()
        self.ln, self.gamma = nn.LayerNorm(DIM, elementwise_affine=False), nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return self.ln(x) * (self.gamma + 1)


def _feed_forward() -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, 32), nn.GELU(), nn.Dropout(), nn.Linear(32, DIM), nn.Dropout())


class Looped(nn.Module):
    """Adds up in its own loop; `states` has the state after each part."""

    layers: Any

    def __init__(self, form: Form, form_of_attention: str = "plain", *, doubled: bool = False) -> None:
        super().__init__()
        self.form, self.doubled = form, doubled
        self.tokens, self.places = nn.Embedding(VOCABULARY, DIM), nn.Parameter(torch.randn(64, DIM))
        self.layers = nn.ModuleList()
        for _ in range(DEPTH):
            parts = [Attention(2, form_of_attention), _feed_forward()]
            if form == "pairs":
                self.layers.append(nn.ModuleList([Normed(part) for part in parts]))
            elif form == "branches":
                self.layers.extend([Normed(part) for part in parts])
            else:
                self.layers.extend([nn.ModuleList([Gained(), part, Sum()]) for part in parts])
        self.final = Gained()
        self.states: list[Tensor] = []

    def forward(self, idx: Tensor) -> Tensor:
        return self.run(self.tokens(idx) + self.places[: idx.shape[1]])

    def run(self, x: Tensor) -> Tensor:
        self.states = [x]
        for layer in self.layers:
            if self.form == "sums":
                norm, branch, total = layer
                x = total(branch(norm(x)), x)
                self.states.append(x)
                continue
            for branch in layer if self.form == "pairs" else [layer]:
                x = branch(x) + (2 * x if self.doubled else x)
                self.states.append(x)
        return self.final(x)


def looped(form: Form, **options: Any) -> Any:
    torch.manual_seed(5)
    network = Looped(form, **options).eval()
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return network


def loaded(network: nn.Module) -> Any:
    return td.load(network, inputs=lambda count: {"idx": torch.randint(0, VOCABULARY, (count, 7))})


FORMS: tuple[Form, ...] = ("pairs", "branches", "sums")
PROMPT = torch.tensor([5, 9, 33, 21, 7])


@pytest.mark.parametrize("form", FORMS)
def test_states_are_those_of_the_loop(form: Form) -> None:
    network = looped(form)
    ckpt = loaded(network)
    states = ckpt.states(PROMPT)
    expected = network(PROMPT[None]), network.states
    parts = 2 if form == "pairs" else 1
    assert ckpt.architecture.layers == DEPTH * 2 // parts
    assert len(states.feed_forward) == 1 + DEPTH * 2 // parts
    for state, by_hand in zip(states.feed_forward, expected[1][::parts], strict=True):
        assert torch.equal(state, by_hand[0])
    if form == "pairs":
        for state, by_hand in zip(states.attention[1:], expected[1][1::2], strict=True):
            assert torch.equal(state, by_hand[0])
    torch.testing.assert_close(states.final_norm, expected[0][0])
    norm = ckpt.layout.final_norm
    assert norm is not None
    assert (norm[0], norm[1].parameter, norm[1].gain) == ("final", "gamma", "1 + weight")


@pytest.mark.parametrize("form", FORMS)
def test_parts_and_factors_are_found(form: Form) -> None:
    network = looped(form)
    ckpt = loaded(network)
    attending = ckpt.layout.attending
    assert attending == ([1, 2, 3] if form == "pairs" else [1, 3, 5])
    for place, number in enumerate(attending):
        weights = ckpt.attention(number)
        block = network.layers[place if form == "pairs" else 2 * place]
        attention = block[1] if form == "sums" else (block[0] if form == "pairs" else block).inner
        rows = attention.c_attn.weight.detach()
        torch.testing.assert_close(torch.cat(list(weights.query.mT)), rows[:DIM])
        norm = block[0] if form == "sums" else (block[0] if form == "pairs" else block).norm
        gain = norm.gamma + 1 if form == "sums" else norm.weight
        torch.testing.assert_close(weights.norm_gain, gain.detach())
    others = [layer for layer in ckpt.layout.layers if not layer.attends]
    assert all(layer.mixing == "none" and layer.parts[0] is None and layer.parts[1] for layer in others)


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("form", FORMS)
def test_gates_and_heads_are_edits_of_the_weights(form: Form) -> None:
    network, changed = looped(form), looped(form)
    second = "layer 2" if form == "pairs" else "layer 3"
    block = changed.layers[1 if form == "pairs" else 2]
    attention = block[1] if form == "sums" else (block[0] if form == "pairs" else block).inner
    for changes, factor, columns in (
        ({f"{second} attention": 0.5}, 0.5, slice(None)),
        ({f"{second} head 1": 0.0}, 0.0, slice(DIM // 4, DIM // 2)),
    ):
        former = attention.c_proj.weight.detach().clone(), attention.c_proj.bias.detach().clone()
        attention.c_proj.weight.data[:, columns] *= factor
        attention.c_proj.bias.data *= factor if columns == slice(None) else 1.0
        by_hand = loaded(changed).states(PROMPT).feed_forward
        torch.testing.assert_close(loaded(network).under(changes).states(PROMPT).feed_forward, by_hand)
        attention.c_proj.weight.data, attention.c_proj.bias.data = former
    with loaded(network).gated() as gated:
        gates = torch.ones(len(gated.layout.layers), 2)
        pack = next(iter(loaded(network).packs([PROMPT])))
        states = gated.run(pack, gates).states
        torch.testing.assert_close(states[-1][0], network.states[-1][0])


@pytest.mark.parametrize("form", FORMS)
def test_directions_are_projected_out_of_the_sum(form: Form) -> None:
    network = looped(form)
    direction = torch.randn(DIM, generator=torch.Generator().manual_seed(1))
    ckpt = loaded(network)
    layers = ckpt.architecture.layers
    unit = direction / direction.norm()
    variant = Variant(removed=dict.fromkeys((0, 2, layers), (tuple(unit.double().tolist()),)))
    without = ckpt.under(variant).states(PROMPT).feed_forward
    for layer in (0, 2, layers):
        torch.testing.assert_close(without[layer] @ unit, torch.zeros(len(PROMPT)), atol=1e-5, rtol=0)
    assert float((without[1] @ unit).abs().max()) > 1e-2


@pytest.mark.parametrize("form", FORMS)
def test_blocks_run_again_on_their_own_output(form: Form) -> None:
    network = looped(form)
    ckpt = loaded(network)
    pack = next(iter(ckpt.packs([PROMPT])))
    network(PROMPT[None])
    first, last = network.states[0], network.states[-1]
    with Stack(network, ckpt.layout, pack, "it") as stack:
        torch.testing.assert_close(stack.embedded(), first)
        passed = stack.run(first)
        torch.testing.assert_close(passed.states, last)
        torch.testing.assert_close(passed.normed, network.final(last))
        # The sums of the loop are of the states that are put in.
        other = torch.randn(first.shape, generator=torch.Generator().manual_seed(4))
        torch.testing.assert_close(stack.run(other).normed, network.run(other))


def test_what_hands_on_no_states_is_refused() -> None:
    with pytest.raises(LayoutNotFoundError, match="blocks that hand on their states, got layers"):
        loaded(looped("branches", doubled=True))
