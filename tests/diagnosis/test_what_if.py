"""What a change does: against a copy of the network whose weights are changed, and against passes of its own."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tokendynamics as td
from diagnosis.test_decode import _with_head
from diagnosis.test_heads import ids_of as of_heads_ids
from diagnosis.test_heads import network_of as of_heads
from pretrained.families import network_of
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, CheckpointError
from tokendynamics.observables import shares
from tokendynamics.pretrained import load
from tokendynamics.pretrained.edits.variant import Variant


def _texts(count: int = 6) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {f"text {n}": torch.randint(3, 60, (8 + n,), generator=generator) for n in range(count)}


@pytest.mark.slow
def test_a_gate_is_a_change_of_the_output_projection() -> None:
    network = _with_head("llama")
    changed = copy.deepcopy(network)
    changed.model.layers[1].self_attn.o_proj.weight.data *= 0.25
    changed.model.layers[2].mlp.down_proj.weight.data *= 0.0
    result = td.what_if(td.load(network), _texts(), {"layer 2 attention": 0.25, "layer 3 feed_forward": 0})
    other = td.compare(network, changed, texts=_texts())
    for name in ("consensus_within", "consensus_relative", "centred_cos2", "shares"):
        for end in ("", "_interval"):
            actual, reference = result[f"{name}_difference{end}"], other.difference[f"{name}{end}"].isel(other=0)
            np.testing.assert_allclose(actual.transpose(*reference.dims).values, reference.values, atol=1e-5)
    np.testing.assert_allclose(
        result.consensus_relative.sel(model="changed"), other.table.consensus_relative.isel(model=1), atol=1e-5
    )
    ranks = [
        td.trace(td.load(entry), _texts()).effective_rank_unit_rows.sel(sinks="removed") for entry in (network, changed)
    ]
    np.testing.assert_allclose(result.effective_rank_difference, (ranks[1] - ranks[0]).mean("prompt"), atol=1e-3)
    losses = [[_loss(entry, ids) for ids in _texts().values()] for entry in (network, changed)]
    np.testing.assert_allclose(result.loss.values, np.mean(losses, axis=1), rtol=1e-5)
    gaps = np.subtract(losses[1], losses[0])
    assert float(result.loss_difference) == pytest.approx(gaps.mean(), abs=1e-5)
    half = 2.0150483733330233 * gaps.std(ddof=1) / np.sqrt(len(gaps))  # Student's t, 5 degrees of freedom, 90 %
    np.testing.assert_allclose(result.loss_difference_interval, [gaps.mean() - half, gaps.mean() + half], atol=1e-5)
    assert result.attrs["changes"] == "layer 2 attention × 0.25, layer 3 feed_forward × 0"


def _loss(network: Any, ids: torch.Tensor) -> float:
    with torch.no_grad():
        logits = network(input_ids=ids[None]).logits[0]
    return float(nn.functional.cross_entropy(logits[:-1], ids[1:]))


def test_a_checkpoint_under_a_variant_is_one_more_model() -> None:
    network = _with_head("gpt2")
    ckpt = td.load(network)
    ids = torch.arange(3, 14)
    plain = ckpt.states(ids).feed_forward
    under = ckpt.under("no-ffn")
    assert under.name == "GPT2LMHeadModel, feed_forward × 0"
    with ckpt.varied("no-ffn"):
        expected = ckpt.states(ids).feed_forward
    assert torch.equal(under.states(ids).feed_forward, expected)
    assert torch.equal(ckpt.states(ids).feed_forward, plain)
    assert not torch.equal(expected, plain)
    seen: list[Any] = []
    under.watch_attention(ids, lambda call: seen.append(call.kept()))
    ckpt.watch_attention(ids, lambda call: seen.append(call.kept()))
    assert torch.equal(seen[0].query, seen[3].query)
    assert not torch.allclose(seen[1].query, seen[4].query, atol=1e-3)
    assert torch.equal(under.attention(1).query, ckpt.attention(1).query)
    assert under.under(None).name == "GPT2LMHeadModel, as it is"
    assert torch.equal(under.under(None).states(ids).feed_forward, plain)
    page = td.compare(ckpt, under, texts=_texts())
    assert page.first_layer == 1
    assert page.first_part == "feed_forward"


@pytest.mark.long
def test_a_change_of_a_changed_network_keeps_what_was_changed() -> None:
    ckpt, texts = td.load(_with_head("llama")), _texts()
    table = td.what_if(ckpt.under({"layer 1 feed_forward": 0.5}), texts, {"feed_forward": 0.5})
    both = {"layer 1 feed_forward": 0.25, "layers 2-3 feed_forward": 0.5}
    for model, changes in (("as it is", {"layer 1 feed_forward": 0.5}), ("changed", both)):
        expected = td.trace(ckpt.under(changes), texts).consensus_within
        np.testing.assert_allclose(table.consensus_within.sel(model=model), expected, atol=1e-6)
    assert table.attrs["changes"] == "feed_forward × 0.5"


def test_gates_weight_a_variant_and_not_the_network() -> None:
    ckpt = td.load(_with_head("llama"))
    ids = torch.arange(3, 14)
    pack = ckpt.packs([ids])[0]
    gates = torch.ones(3, 2, dtype=torch.float64)
    gates[1, 0] = 0.5
    with ckpt.under({"layer 2 attention": 0.5, "layer 1 feed_forward": 0}).gated() as gated:
        one = gated.run(pack, gates)
    with ckpt.varied({"layer 2 attention": 0.25, "layer 1 feed_forward": 0}):
        expected = ckpt.states(ids).feed_forward
    torch.testing.assert_close(torch.stack(one.states)[:, 0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("family", ["gpt2", "gemma2", "cohere"])
def test_passes_with_logits_have_the_states_of_passes_without(family: str) -> None:
    network = _with_head(family)
    ckpt, prompts = td.load(network), list(_texts().values())
    for packed in (True, False):
        without, given = (ckpt.states_in_packs(prompts, packed=packed, logits=kept) for kept in (False, True))
        for plain, passed in zip(without, given, strict=True):
            assert plain.logits is None
            assert passed.logits is not None
            assert torch.equal(plain.feed_forward, passed.feed_forward)
            assert torch.equal(plain.attention[1:], passed.attention[1:])
            for number, place in enumerate(passed.places):
                with torch.no_grad():
                    alone = network(input_ids=prompts[place][None]).logits[0]
                torch.testing.assert_close(passed.logits[number, : len(alone)], alone, atol=3e-5, rtol=3e-5)


@pytest.mark.long
def test_without_a_head_there_is_no_loss_and_the_result_says_why() -> None:
    changed = td.what_if(td.load(network_of("gpt2")[0]), _texts(), "no-norm")
    assert np.isnan(changed.loss.values).all()
    assert changed.attrs["no_loss"] == "no head that predicts the next token was found"
    assert np.isfinite(changed.consensus_relative_difference.sel(site="feed_forward")).all()


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({}, ArgumentValueError, "at least one"),
        ("full", ArgumentValueError, "at least one"),
        ({"layer 4 attention": 0}, ArgumentValueError, "layers from 1 to 3"),
        ({"mlp": 0}, ArgumentValueError, "changes: expected"),
        (0.5, ArgumentTypeError, "changes: expected"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_is_no_change_is_refused(changes: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        td.what_if(td.load(_with_head("llama")), _texts(3), changes)


@pytest.mark.long
def test_a_variant_that_the_layout_cannot_express_is_refused() -> None:
    network, _ = network_of("deberta")
    with pytest.raises(CheckpointError, match="positions that can be taken away"):
        td.what_if(td.load(network), _texts(3), {"positions": 0})


class _AttentionAlone(nn.Module):
    """Adds the mean of the tokens; no feed-forward part."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attention(x.mean(dim=1, keepdim=True).expand_as(x))


class _OneStep(_AttentionAlone):
    """The sum goes through one more function: what the parts add does not show."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * torch.tanh(super().forward(x))


class _Two(nn.Module):
    def __init__(self, kind: type[_AttentionAlone]) -> None:
        super().__init__()
        self.table = nn.Embedding(60, 16)
        self.blocks = nn.ModuleList([kind(16), kind(16)])

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        x = self.table(idx)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.long
@pytest.mark.parametrize("changes", ["no-ffn", {"feed_forward": 0.5}, {"layer 2 feed_forward": 0}])
def test_a_network_without_a_feed_forward_part_to_hold_is_refused_by_name(changes: Any) -> None:
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    texts = [{"idx": torch.randint(0, 60, (1, 9), generator=draw)} for _ in range(3)]
    alone, folded = (
        td.load(_Two(kind), inputs=lambda count: {"idx": torch.randint(0, 60, (count, 7))})
        for kind in (_AttentionAlone, _OneStep)
    )
    with pytest.raises(CheckpointError, match="_Two: layer 1: expected a block whose attention and feed-forward parts"):
        td.what_if(folded, texts, changes)
    with pytest.raises(ArgumentValueError, match=r"feed_forward, which no layer has|feed_forward of layer 2: none"):
        td.what_if(alone, texts, changes)
    assert np.isfinite(td.what_if(alone, texts, {"attention": 0.5}).consensus_within_difference[-1, 1])


def removed_by_hand(network: Any, layer: int, basis: np.ndarray, ids: list[int]) -> list[np.ndarray]:
    """States after each layer of a LLaMA, with directions projected out after one, by hooks of the test's own."""
    rows, model = torch.from_numpy(basis), network.model
    states: list[np.ndarray] = []

    def project(x: torch.Tensor) -> torch.Tensor:
        return x - (x @ rows.T) @ rows

    def enter(_: Any, given: Any) -> Any:
        x = project(given[0]) if layer == 0 else given[0]
        states.append(x[0].detach().numpy())
        return (x, *given[1:])

    def leave(number: int) -> Any:
        def hook(_: Any, __: Any, out: Any) -> Any:
            x = out if isinstance(out, torch.Tensor) else out[0]
            x = project(x) if number == layer else x
            states.append(x[0].detach().numpy())
            return x if isinstance(out, torch.Tensor) else (x, *out[1:])

        return hook

    hooks = [model.layers[0].register_forward_pre_hook(enter)]
    hooks += [block.register_forward_hook(leave(number)) for number, block in enumerate(model.layers, 1)]
    with torch.no_grad():
        network(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return states


@pytest.mark.long
@pytest.mark.parametrize("layer", [0, 1, 4])
def test_directions_are_projected_out_as_by_hand(layer: int) -> None:
    network, prompts = of_heads("llama"), of_heads_ids(5)
    directions = np.random.default_rng(layer).normal(size=(2, 24))
    basis = np.linalg.qr(directions.T)[0].T
    changed = td.what_if(network, prompts, project_out={layer: directions}, sinks=())
    states = [removed_by_hand(network, layer, basis, ids) for ids in prompts]
    for depth in range(5):
        wanted = shares([state[depth] for state in states])
        site = changed.sel(model="changed", site="feed_forward", layer=depth)
        assert float(site.consensus_within) == pytest.approx(float(wanted.kappa), abs=1e-6)
        assert float(site.shares.sel(share="common")) == pytest.approx(float(wanted.common), abs=1e-6)
    assert float(abs(changed.loss_difference)) > 0
    before = changed.shares_difference.sel(layer=slice(0, layer - 1)) if layer else changed.shares_difference[:0]
    assert not bool((abs(before) > 1e-9).any())
    assert changed.attrs["changes"] == f"without 2 directions after layer {layer}"
    with torch.no_grad():
        again = network(torch.tensor([prompts[0]])).logits
    assert not any(module._forward_hooks for module in network.modules())
    assert bool(again.isfinite().all())


@pytest.mark.long
def test_the_common_direction_projected_out_leaves_little_common() -> None:
    network, prompts = of_heads("llama"), of_heads_ids(6)
    direction = td.shared_directions(network, prompts, sinks=()).vector.sel(direction="common", layer=3)
    changed = td.what_if(network, prompts, project_out={3: direction}, sinks=())
    common = changed.shares.sel(site="feed_forward", layer=3, share="common")
    assert abs(float(common.sel(model="changed"))) < abs(float(common.sel(model="as it is")))
    both = td.what_if(network, prompts, {"layer 1 attention": 0.5}, project_out={3: direction}, sinks=())
    assert both.attrs["changes"] == "layer 1 attention × 0.5, without 1 direction after layer 3"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({1: np.ones(23)}, r"project_out\[1\]: expected directions of 24 features, got shape \(1, 23\)"),
        ({1: np.zeros(24)}, r"project_out\[1\]: expected directions other than zero"),
        ({1: np.full(24, np.nan)}, r"project_out\[1\].*finite"),
        ({9: np.ones(24)}, "project_out: expected layers from 0 to 4, got 9"),
        ({"one": np.ones(24)}, "project_out"),
        (np.ones(24), "project_out: expected"),
        ({}, "changes: expected at least one"),
    ],
)
def test_a_wrong_direction_is_refused_by_name(given: Any, words: str) -> None:
    with pytest.raises((ArgumentTypeError, ArgumentValueError), match=words):
        td.what_if(of_heads("llama"), of_heads_ids(3), project_out=given)


def test_a_removed_direction_is_no_weight(tmp_path: Path) -> None:
    checkpoint = load(of_heads("llama"))
    removed = checkpoint.under(Variant(removed={1: ((1.0, *[0.0] * 23),)}))
    with pytest.raises(ArgumentValueError, match="removed norms, positions and directions are not weights"):
        removed.save(tmp_path / "saved")
