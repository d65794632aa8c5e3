"""A variant in the weights of an ordinary checkpoint: it says what the variant said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tokendynamics as td
from diagnosis.test_decode import _with_head
from pretrained.families import network_of
from tokendynamics.numerics.errors import ArgumentValueError, CheckpointError

IDS = torch.arange(3, 13)
GATES = {"layer 2 attention": 0.25, "layer 3 feed_forward": -0.5, "layer 1 feed_forward": 0.0}
GATES |= {"layer 2 head 1": 0.5, "layer 3 head 0": 0.0}


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "olmo2", "phi", "gpt_neox", "opt", "bert", "glm4"])
def test_what_is_saved_is_the_variant(family: str, tmp_path: Path) -> None:
    """Gates in the projections; in the norm behind them where one ends a part (Gemma 2's gain is 1 + weight)."""
    from transformers import AutoModel

    network, _ = network_of(family)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    ckpt = td.load(network)
    result = ckpt.under(GATES)
    expected = result.states(IDS).feed_forward
    result.save(tmp_path / "changed")
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    again = td.load(AutoModel.from_pretrained(tmp_path / "changed", use_safetensors=True)).states(IDS).feed_forward
    torch.testing.assert_close(again, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    stored = td.load(str(tmp_path / "changed")).states(IDS).feed_forward
    torch.testing.assert_close(stored, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    assert float((expected - ckpt.states(IDS).feed_forward).abs().max()) > 1e-3


def test_the_language_head_is_saved_with_it(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    network = _with_head("llama")
    ckpt = td.load(network).under(GATES)
    ckpt.save(tmp_path / "new" / "changed")
    with ckpt.as_varied(), torch.no_grad():
        expected = network(input_ids=IDS[None]).logits
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "new" / "changed", use_safetensors=True)
    with torch.no_grad():
        torch.testing.assert_close(again(input_ids=IDS[None]).logits, expected, rtol=1e-4, atol=1e-4)
    twice = td.load(str(tmp_path / "new" / "changed")).under({"layer 1 attention": 0})
    twice.save(tmp_path / "twice")
    assert td.decode(td.load(str(tmp_path / "twice")), IDS, (1,)).sizes["token"] == len(IDS)


@pytest.mark.long
@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("family", "variant", "error", "words"),
    [
        ("llama", "no-norm", ArgumentValueError, "are not weights"),
        ("gpt2", {"positions": 0}, ArgumentValueError, "are not weights"),
        ("llama", {"logits": 0.5}, ArgumentValueError, "are not weights"),
        ("llama", {"remedy": -0.1}, ArgumentValueError, "are not weights"),
        ("mixtral", {"feed_forward": 0.5}, CheckpointError, "one matrix that writes"),
        ("albert", {"layer 2 attention": 0.5}, CheckpointError, "several layers of different gates"),
        ("albert", {"layer 2 head 1": 0.5}, CheckpointError, "several layers of different gates"),
        ("deberta", {"layer 2 attention": 0.5}, CheckpointError, "output projection"),
        ("deberta", {"layer 2 head 1": 0.5}, ArgumentValueError, "in which none was found"),
    ],
)
def test_what_no_weight_says_is_refused(
    family: str, variant: Any, error: type[Exception], words: str, tmp_path: Path
) -> None:
    network, _ = network_of(family)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(error, match=words):
        td.load(network).under(variant).save(tmp_path / "changed")
    assert not list(tmp_path.iterdir())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_one_gate_for_all_layers_of_a_shared_block_is_one_weight(tmp_path: Path) -> None:
    ckpt = td.load(network_of("albert")[0]).under({"attention": 0.5, "layers 1-3 head 2": 0.0})
    ckpt.save(tmp_path / "changed")
    again = td.load(str(tmp_path / "changed")).states(IDS).feed_forward
    torch.testing.assert_close(again, ckpt.states(IDS).feed_forward, rtol=1e-4, atol=1e-5)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    ckpt = td.load(network_of("gpt2")[0])
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "notes.txt").write_text("mine")
    with pytest.raises(ArgumentValueError, match="not there yet"):
        ckpt.save(tmp_path / "there")
    assert [entry.name for entry in tmp_path.rglob("*")] == ["there", "notes.txt"]


def test_a_network_of_ones_own_is_not_saved(tmp_path: Path) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.map(x)

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    ckpt = td.load(Own(), inputs=lambda count: {"x": torch.randn(count, 5, 8)})
    with pytest.raises(CheckpointError, match="a network that transformers can save"):
        ckpt.save(tmp_path / "changed")


@pytest.mark.long
def test_a_projection_that_two_layers_share_is_not_scaled_for_one(tmp_path: Path) -> None:
    network, _ = network_of("gpt2")
    network.h[2].attn.c_proj = network.h[1].attn.c_proj
    ckpt = td.load(network)
    with pytest.raises(CheckpointError, match=r"h\.1\.attn\.c_proj\.weight and h\.2\.attn\.c_proj\.weight"):
        ckpt.under({"layer 2 attention": 0.5}).save(tmp_path / "changed")
