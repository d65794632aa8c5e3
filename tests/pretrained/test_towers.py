"""Networks that read two sequences, by two towers or by one that runs twice, are refused with what to pass instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tokendynamics as td
from pretrained.test_axes import DIM, Block, ByHand, Series
from tokendynamics.numerics import CheckpointError


def _block() -> Block:
    return Block(ByHand(), "inputs first")


class Tower(nn.Module):
    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Linear(3, DIM), nn.ModuleList([_block() for _ in range(blocks)])

    def forward(self, series: Tensor) -> Tensor:
        states = self.embed(series)
        for block in self.blocks:
            states = block(states)
        return states


class TwoTowers(nn.Module):
    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left, self.right = left, right

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return self.left(one) - self.right(other)


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = Tower()

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return self.tower(one).mean(dim=1) - self.tower(other).mean(dim=1)


class Pairs(nn.Module):
    """Runs its own blocks twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Linear(3, DIM), nn.ModuleList([_block() for _ in range(2)])

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        states = [self.embed(one), self.embed(other)]
        for place in range(2):
            for block in self.blocks:
                states[place] = block(states[place])
        return states[0] - states[1]


class Torch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(DIM, 2, 12, batch_first=True)
        self.embed, self.encoder = nn.Linear(3, DIM), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, series: Tensor) -> Tensor:
        return self.encoder(self.embed(series))


class Lists(nn.Module):
    """Two lists of blocks that no module of their own runs, as of an encoder and a decoder beside each other."""

    def __init__(self) -> None:
        super().__init__()
        one, other = Tower(), Tower()
        self.embed, self.one, self.other = one.embed, one.blocks, other.blocks

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        states = [self.embed(one), self.embed(other)]
        for place, blocks in enumerate((self.one, self.other)):
            for block in blocks:
                states[place] = block(states[place])
        return states[0] - states[1]


AGAIN = "runs tower.blocks.0 to tower.blocks.1 again for other inputs; pass its module tower, with inputs= of that"
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "siamese": (Siamese, AGAIN),
    "two towers": (
        lambda: TwoTowers(Tower(), Tower(3)),
        "runs right.blocks.0 to right.blocks.2 on other inputs than left.blocks.0 to left.blocks.1; "
        "pass its module left or its module right, with inputs= of that",
    ),
    "torch": (lambda: TwoTowers(Torch(), Torch()), "pass its module left.encoder or its module right.encoder"),
    "two lists": (
        Lists,
        "runs other.0 to other.1 on other inputs than one.0 to one.1; "
        "wrap it in a module that runs one.0 to one.1 or other.0 to other.1 alone",
    ),
    "twice by itself": (Pairs, "runs blocks.0 to blocks.1 again for other inputs; wrap it in a module that runs them"),
}


@pytest.mark.parametrize("form", REFUSED)
def test_a_network_of_two_sequences_is_refused_with_what_to_pass(form: str) -> None:
    made, words = REFUSED[form]
    torch.manual_seed(1)
    with pytest.raises(CheckpointError, match=words):
        td.load(
            made().eval(), inputs=lambda count: {"one": torch.randn(count, 6, 3), "other": torch.randn(count, 6, 3)}
        )


def test_the_tower_itself_is_read() -> None:
    torch.manual_seed(1)
    network = Siamese().eval()
    ckpt = td.load(network.tower, inputs=lambda count: {"series": torch.randn(count, 6, 3)})
    series = torch.randn(1, 6, 3)
    torch.testing.assert_close(ckpt.states({"series": series}).feed_forward[-1], network.tower(series)[0])


class Looped(Tower):
    """Its blocks run again on what they gave, with the embedding added."""

    def forward(self, series: Tensor) -> Tensor:
        states = embedded = self.embed(series)
        for _ in range(2):
            for block in self.blocks:
                states = block(states)
            states = states + embedded
        return states


def test_blocks_that_run_again_on_what_they_gave_are_layers_of_their_own() -> None:
    torch.manual_seed(1)
    network: Any = Looped().eval()
    ckpt = td.load(network, inputs=lambda count: {"series": torch.randn(count, 6, 3)})
    series = torch.randn(1, 6, 3)
    states = ckpt.states({"series": series}).feed_forward
    assert ckpt.layout.blocks == ("blocks.0", "blocks.1") * 2
    assert [layer.joins for layer in ckpt.layout.layers] == [False, False, True, False]
    with torch.no_grad():
        wanted = network.blocks[1](network.blocks[0](network.embed(series)))
        torch.testing.assert_close(states[2], wanted[0])
        wanted = network.blocks[1](network.blocks[0](wanted + network.embed(series)))
        torch.testing.assert_close(states[4], wanted[0])


class Bypassed(Tower):
    """Calls the method of its blocks, so that no hook on them runs."""

    def forward(self, series: Tensor) -> Tensor:
        states = self.embed(series)
        for block in self.blocks:
            states = block.forward(states)
        return states


def test_blocks_that_are_not_called_as_modules_are_named() -> None:
    words = r"blocks that are called as modules, got blocks.0, whose forward method is called; call the module itself"
    with pytest.raises(CheckpointError, match=words):
        td.load(Bypassed().eval(), inputs=lambda count: {"series": torch.randn(count, 6, 3)})


@pytest.mark.long
def test_towers_of_different_lengths_are_refused_with_what_to_pass() -> None:
    class Pooled(TwoTowers):
        def forward(self, one: Tensor, other: Tensor) -> Tensor:
            return self.left(one).mean(dim=1) - self.right(other).mean(dim=1)

    network = Pooled(Tower(), Tower(3)).eval()

    def inputs(count: int) -> dict[str, Tensor]:
        return {"one": torch.randn(count, 7, 3), "other": torch.randn(count, 5, 3)}

    turned = Pooled(*(Series(lambda: Block(ByHand(), "tokens first"), "tokens first") for _ in range(2))).eval()
    words = "different numbers of tokens, .*; pass its module left or its module right, with inputs= of that"
    for several in (network, turned):
        with pytest.raises(CheckpointError, match=words):
            td.load(several, inputs=inputs)
    for tower, length in ((network.left, 2), (network.right, 3)):
        assert len(td.load(tower, inputs=torch.randn(4, 7, 3)).layout.blocks) == length


def test_a_list_in_which_tokens_are_pooled_has_no_towers() -> None:
    class Pooling(Tower):
        def forward(self, series: Tensor) -> Tensor:
            states = self.embed(series)
            for block in self.blocks:
                states = block(states)[:, ::2]
            return states

    with pytest.raises(CheckpointError, match="cannot be compared") as error:
        td.load(Pooling(3).eval(), inputs=torch.randn(4, 12, 3))
    assert "pass its module" not in str(error.value)


class Between(nn.Module):
    """Changes the states before every block, as by a time step or by the embedding."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.embed, self.factors = form, nn.Linear(3, DIM), nn.Parameter(torch.rand(4) + 0.5)
        self.blocks = nn.ModuleList([_block() for _ in range(1 if form == "one block" else 3)])

    def forward(self, series: Tensor) -> Tensor:
        first = states = self.embed(series)
        for place in range(3):
            block, factor = self.blocks[place % len(self.blocks)], self.factors[place]
            states = block(factor * states + first)
        return states


@pytest.mark.parametrize("form", ["one block", "several blocks"])
def test_blocks_that_add_to_what_they_read_are_layers_whatever_changes_between_them(form: str) -> None:
    network, handed = Between(form).eval(), list[Tensor]()
    ckpt, series = td.load(network, inputs=torch.randn(4, 7, 3)), torch.randn(1, 6, 3)
    for block in network.blocks:
        block.register_forward_hook(lambda *given: handed.append(given[2].detach().clone()))
    with torch.no_grad():
        network(series)
    by_hooks = torch.cat(handed)
    assert torch.equal(ckpt.states({"series": series}).feed_forward[1:], by_hooks)
    assert [layer.joins for layer in ckpt.layout.layers] == [False, True, True]
    assert "before layers 2–3 the network changes the states" in td.trace(ckpt, [series[0], -series[0]]).attrs["notes"]


@pytest.mark.parametrize("axes", [2, 3])
def test_states_behind_a_context_are_refused_with_what_to_do(axes: int) -> None:
    """A latent resampler calls ``block(media, latents)``, a conditioned network ``block(condition, states)``."""

    class Conditioned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = ByHand()

        def forward(self, context: Tensor, states: Tensor) -> Tensor:
            return self.inner(states) + context.mean()

    class Behind(Between):
        def forward(self, series: Tensor) -> Tensor:
            states, context = self.embed(series), series if axes == 3 else series.mean(dim=1)
            for block in self.blocks:
                states = block(context, states)
            return states

    network = Behind("several blocks").eval()
    network.blocks = nn.ModuleList([Conditioned() for _ in range(3)])
    words = (
        r"read their states as the first argument, got blocks\.1, for which what blocks\.0 gives is a later one; put"
    )
    with pytest.raises(CheckpointError, match=words):
        td.load(network, inputs=torch.randn(4, 7, 3))


def test_branches_that_are_added_outside_are_no_layers() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = ByHand()

        def forward(self, states: Tensor) -> Tensor:
            return self.inner(states)

    class Outside(Between):
        def forward(self, series: Tensor) -> Tensor:
            states = self.embed(series)
            for block, factor in zip(self.blocks, self.factors, strict=False):
                states = states + factor * block(states)
            return states

    network = Outside("several blocks").eval()
    network.blocks = nn.ModuleList([Branch() for _ in range(3)])
    with pytest.raises(CheckpointError, match="put the sum into the blocks"):
        td.load(network, inputs=torch.randn(4, 7, 3))
