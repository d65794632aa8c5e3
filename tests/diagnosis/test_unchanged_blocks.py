"""Passes that begin behind blocks without gates leave the numbers of whole passes, or are not taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diagnosis.test_heads import ids_of, network_of
from diagnosis.test_levers import Averaging, _Block, _Mean, _prompts
from tokendynamics.diagnosis.gating.trials import Reading, Trials
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained.edits.gates import GatedNetwork, Gates, HeadGates, PartAndHeadGates
from tokendynamics.pretrained.packs import Pack
from tokendynamics.provenance.progress import silent


def assert_the_same(one: Reading, other: Reading) -> None:
    for name in ("means", "within", "losses"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=0, equal_nan=True)


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", [GatedNetwork, HeadGates, PartAndHeadGates])
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "albert"])
def test_they_leave_the_same_numbers(family: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt = load(network_of(family, **({"embedding_size": 16} if family == "albert" else {})))
    packs = ckpt.packs([torch.tensor(ids) for ids in ids_of(5)])
    with ckpt.gated() as gated:
        gates: Gates = gated if kind is GatedNetwork else kind(gated)
        trials = Trials(gates, packs, 4, 1e6)
        readings = [trials.reading({(layer, 0): 0.5}) for layer in (4, 3, 2, 1)]
        assert trials._begins == {3: True, 2: True, 1: True}
        monkeypatch.setattr(Trials, "_outputs", lambda trials, pack, blocks: ())
        for layer, reading in zip((4, 3, 2, 1), readings, strict=True):
            assert_the_same(reading, trials.reading({(layer, 0): 0.5}))


def test_blocks_in_front_are_not_run_again() -> None:
    network = network_of("llama")
    calls: list[int] = []
    ckpt = load(network)
    packs = ckpt.packs([torch.tensor(ids) for ids in ids_of(5)])
    with ckpt.gated() as gated:
        trials = Trials(gated, packs, 4, 1e6)
        trials.reading({(3, 0): 0.5})
        hooks = [
            layer.mlp.register_forward_hook(lambda *_, place=place: calls.append(place))
            for place, layer in enumerate(network.model.layers, start=1)
        ]
        trials.reading({(3, 0): 0.2, (4, 1): 0.0})
        for hook in hooks:
            hook.remove()
    assert calls == [3, 4] * len(packs)
    assert not any("forward" in vars(layer) for layer in network.model.layers)


def test_one_pass_with_all_gates_is_enough_for_trials_from_the_last_layer_to_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ckpt = load(network_of("llama"))
    packs = [pack for ids in ids_of(5) for pack in ckpt.packs([torch.tensor(ids)])]
    gates = [(3, 0, 0.5), (4, 1, 0.0), (2, 0, 0.0), (3, 1, 0.0)]
    started: list[tuple[int, bool]] = []
    run = GatedNetwork.run

    def counted(gated: GatedNetwork, pack: Any, values: Tensor, *more: Any, known: Any = ()) -> Any:
        started.append((len(known), bool((values == 0.5).all())))
        return run(gated, pack, values, *more, known=known)

    with ckpt.gated() as gated:
        trials = Trials(gated, packs, 4, 1e6)
        monkeypatch.setattr(GatedNetwork, "run", counted)
        tried = trials.of_each(gates, silent, "trying")
        # Of each layer the pass that tells whether it can begin there: a whole one and one with all gates come first.
        assert [blocks for blocks, _ in started] == [0, 0, *[3] * 6, *[2] * 11, *[1] * 6]
        assert [every for _, every in started] == [False, True] + [False] * 23
        assert [(trial.layer, trial.part, trial.alpha) for trial in tried] == gates
        monkeypatch.setattr(Trials, "_outputs", lambda trials, pack, blocks: ())
        for gate, trial in zip(gates, tried, strict=True):
            assert trial == trials.of_each([gate], silent, "trying")[0]


class _Remembering(_Mean):
    """An attention that also reads what that of another block left on it, past what blocks return."""

    other: Any = None

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        object.__setattr__(self, "left", y.mean())
        return y if self.other is None else y * (1 + self.other.left)


def _remembering() -> Checkpoint:
    network = Averaging([0.1] * 4)
    for block in network.blocks:
        block.attention = _Remembering(0.1, 32)
    object.__setattr__(network.blocks[2].attention, "other", network.blocks[1].attention)
    return load(network, inputs=lambda count: {"idx": torch.randint(0, 500, (count, 7))})


@pytest.mark.parametrize("texts", [1, 5])
def test_where_blocks_pass_on_more_than_they_return_every_pass_is_whole(
    texts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ckpt = _remembering()
    packs = ckpt.packs(_prompts(5)) if texts == 1 else [pack for one in _prompts(5) for pack in ckpt.packs([one])]
    with ckpt.gated() as gated:
        trials = Trials(gated, packs, 4, 1e6)
        order = [(4, 0), (1, 0), (3, 0), (4, 1)]
        readings = [trials.reading({place: 0.5}) for place in order]
        assert trials._begins[2] is False
        monkeypatch.setattr(Trials, "_outputs", lambda trials, pack, blocks: ())
        for place, reading in zip(order, readings, strict=True):
            assert_the_same(reading, trials.reading({place: 0.5}))


def test_one_prompt_tells_where_passes_can_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt = load(network_of("bert"))
    (pack,) = ckpt.packs([torch.tensor(ids[: 9 - place]) for place, ids in enumerate(ids_of(4))])
    trying: list[Pack] = []
    run = GatedNetwork.run

    def noted(gated: GatedNetwork, pack: Pack, *more: Any, **named: Any) -> Any:
        trying.append(pack)
        return run(gated, pack, *more, **named)

    with ckpt.gated() as gated:
        trials = Trials(gated, [pack], 4, 1e6)
        monkeypatch.setattr(GatedNetwork, "run", noted)
        trials.reading({(3, 0): 0.5})
    assert [len(tried.places) for tried in trying] == [1, 1, 1, 4]
    shortest = pack.lengths.index(min(pack.lengths))  # filled up with what the pass has behind its end
    assert trying[0].lengths == (min(pack.lengths),)
    assert trying[0].places == (pack.places[shortest],)
    for name, value in pack.arguments.items():
        assert torch.equal(trying[0].arguments[name], value[[shortest]])


def test_an_output_that_a_later_block_writes_into_is_kept_as_it_was() -> None:
    class Writing(_Block):
        def forward(self, x: Tensor) -> Tensor:
            x += self.attention(x)
            return x + self.feed_forward(x)

    network = Averaging([0.1] * 4)
    network.blocks = nn.ModuleList(Writing(0.1, 32) for _ in range(4))
    ckpt = load(network, inputs=lambda count: {"idx": torch.randint(0, 500, (count, 7))})
    packs = ckpt.packs(_prompts(5))
    with ckpt.gated() as gated:
        trials = Trials(gated, packs, 4, 1e6)
        first, second = (trials.reading({(3, 1): 0.5}) for _ in range(2))
    assert trials._begins[2]
    assert_the_same(first, second)


@pytest.mark.parametrize("output", [{"x": torch.ones(2)}, [torch.ones(2)], (torch.ones(2), {"more": 1})])
def test_other_outputs_than_tensors_are_not_kept(output: Any) -> None:
    from tokendynamics.pretrained.edits import gates

    assert gates._copied(output) is gates._UNKNOWN


class _Rolling(nn.Module):
    """Mixes neighbours without heads."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(32, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(torch.roll(x, 1, dims=1))


class _Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(32, 32, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part(x).unflatten(-1, (4, 8)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        mixed = torch.softmax(query @ key.mT / 8**0.5, dim=-1) @ value
        return self.output(mixed.transpose(1, 2).flatten(2))


def test_gates_on_heads_do_not_answer_for_parts_in_front_of_the_first_head() -> None:
    """Block 4 reads what the feed-forward part of block 2 left; no head is in front of that."""
    network = Averaging([0.1] * 4)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        for place, block in enumerate(network.blocks):
            block.attention = _Rolling() if place < 2 else _Attending()
    left: list[Tensor] = []
    leaving, reading = (network.get_submodule(f"blocks.{place}.feed_forward") for place in (1, 3))

    def grown(module: nn.Module, given: Any, output: Tensor) -> Tensor:
        return output * (1 + left[-1])

    leaving.register_forward_hook(lambda module, given, output: left.append(output.mean()))
    reading.register_forward_hook(grown)
    ckpt = load(network, inputs=lambda count: {"idx": torch.randint(0, 500, (count, 7))})
    packs = ckpt.packs(_prompts(5))
    with ckpt.gated() as gated:
        assert gated.heads.any(dim=-1).tolist() == [False, False, True, True]
        of_heads = Trials(HeadGates(gated), packs, 4, 1e6)
        of_heads.reading({(4, 0): 0.5})
        assert of_heads._begins == {3: True}  # no gate on a head changes what block 2 leaves
        every = Trials(PartAndHeadGates(gated), packs, 4, 1e6)
        every.of_gates(HeadGates(gated)).reading({(4, 0): 0.5})
        assert every._begins == {3: False}
        parts = every.of_gates(gated)
        parts.reading({(1, 0): 0.0})
        assert_the_same(parts.reading({(4, 1): 0.5}), Trials(gated, packs, 4, 1e6).reading({(4, 1): 0.5}))
