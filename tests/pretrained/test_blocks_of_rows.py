"""Attention is watched in blocks of query rows: the numbers of the whole, in memory that grows with the tokens."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import xarray as xr

import tokendynamics as td
from pretrained.families import half_of_network, inputs_of, network_of
from tokendynamics.diagnosis.tracing._attention_seen import _MEASURES
from tokendynamics.pretrained import load
from tokendynamics.pretrained.discovery import attention_call as _row_mask
from tokendynamics.pretrained.discovery import attention_call as _rows
from tokendynamics.pretrained.discovery.attention_call import RowMask, attended, row_blocks

FAMILIES = ("llama", "gpt2", "gemma2", "gemma3", "gpt_oss", "bert", "t5", "modernbert")
"""Rotary with shared keys, learned positions, soft cap, sliding windows, sink logits, no causal mask, a bias."""


def _in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rows, "WHOLE_BYTES", 0)
    monkeypatch.setattr(_rows, "BLOCK_BYTES", 4 * 4 * 40 * 7)  # seven rows of 40 tokens in 4 heads
    monkeypatch.setattr(_row_mask, "MASK_BYTES", 0)


def _assert_same(one: xr.Dataset, other: xr.Dataset) -> None:
    assert set(one.data_vars) == set(other.data_vars)
    of_weights = {*_MEASURES, "pattern", "attention_received", "attention_uniform", "attention_sink_mass"}
    for name, values in ((str(name), values) for name, values in one.data_vars.items()):
        if values.dtype.kind == "f":
            size = np.nanmax(np.abs(values.values), initial=0.0)
            # What is a difference of cosines, which are of size 1, has their roundings.
            size = size if name in of_weights else max(size, 1.0)
            np.testing.assert_allclose(other[name].values, values.values, rtol=0, atol=1e-6 * size, err_msg=name)


@pytest.mark.few(3)
@pytest.mark.every_value_once
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_of_rows_give_what_the_whole_gives(
    family: str, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, half = network_of(family)
    inputs = inputs_of(half_of_network(network, half), tokens=40)
    if implementation == "sdpa" and not network._supports_sdpa:
        pytest.skip("its attention has no fused form")
    network.set_attn_implementation(implementation)
    live = load(network, half=half)
    # One of the lengths is filled up in a pass that both share, where the network takes a mask.
    prompts = [inputs, {"input_ids": inputs["input_ids"][:, :31]}]
    traced, seen = td.trace(live, prompts), td.attention_seen(live, prompts, patterns=True)
    _in_blocks(monkeypatch)
    _assert_same(traced, td.trace(live, prompts))
    _assert_same(seen, td.attention_seen(live, prompts, patterns=True))
    assert bool(np.isfinite(traced.attention_received.values[:, 1:]).any())


def test_rows_of_a_mask_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.masking_utils import eager_mask, sliding_window_causal_mask_function

    padding = torch.ones(2, 40, dtype=torch.bool)
    padding[1, 33:] = False
    named: dict[str, Any] = {
        "batch_size": 2, "q_length": 40, "kv_length": 40, "q_offset": 0, "attention_mask": padding,
        "mask_function": sliding_window_causal_mask_function(9), "dtype": torch.float32,
    }  # fmt: skip
    whole = eager_mask(**named)
    monkeypatch.setattr(_row_mask, "MASK_BYTES", 0)
    mask = _row_mask.row_mask(**named)
    assert isinstance(mask, RowMask)
    assert (mask.shape, mask.dtype) == (whole.shape, whole.dtype)
    assert torch.equal(mask.rows(slice(11, 17)), whole[:, :, 11:17])
    # What a network does to its mask is done to the mask itself.
    assert torch.equal(mask + 1.0, whole + 1.0)
    assert torch.equal(mask[:, :, :, :20], whole[:, :, :, :20])
    assert torch.equal((mask == 0).all(dim=-1), (whole == 0).all(dim=-1))
    assert torch.equal(torch.where(mask < 0, 1.0, 2.0), torch.where(whole < 0, 1.0, 2.0))
    unmasked = named | {"attention_mask": None, "allow_is_bidirectional_skip": True}
    assert _row_mask.row_mask(**unmasked) is None


def test_an_attention_whose_rows_depend_on_each_other_is_computed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1, 2, 30, 4, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(_rows, "WHOLE_BYTES", 0)
    monkeypatch.setattr(_rows, "BLOCK_BYTES", 4 * 2 * 30 * 7)

    def causal_from_the_first_row(rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        logits = x[:, :, rows] @ x.mT
        hidden = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        weights = logits.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        return (weights @ x).transpose(1, 2), weights

    blocks = row_blocks(x, x)
    assert len(blocks) == 5
    output, weights = attended(causal_from_the_first_row, blocks)
    assert weights is not None
    assert torch.equal(output, causal_from_the_first_row(slice(0, 30))[0])


_MEASURE = """
import sys
from threading import Event, Thread
import psutil, torch
from transformers import AutoConfig, AutoModel
import tokendynamics as td

torch.set_num_threads(1)
torch.manual_seed(1)
settings = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8,
            "intermediate_size": 32, "max_position_embeddings": 9000, "num_key_value_heads": 4}
network = AutoModel.from_config(AutoConfig.for_model("llama", **settings)).eval()
network.set_attn_implementation(sys.argv[1])
live = td.load(network)
process, done, most = psutil.Process(), Event(), [0]

def watch():
    while not done.is_set():
        most[0] = max(most[0], process.memory_info().rss)
        done.wait(0.001)

def run(tokens):
    ids = torch.arange(tokens) * 7 % 58 + 3
    td.trace(live, [ids]) if sys.argv[2] == "trace" else td.attention_seen(live, [ids])

run(64)
before = process.memory_info().rss
Thread(target=watch, daemon=True).start()
run(int(sys.argv[3]))
done.set()
print(most[0] - before)
"""


def _added(implementation: str, what: str, tokens: int) -> int:
    command = [sys.executable, "-c", _MEASURE, implementation, what, str(tokens)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)


@pytest.mark.skipif(psutil.virtual_memory().available < 2**31, reason="needs 2 GB")
@pytest.mark.parametrize(
    ("implementation", "what"),
    [
        pytest.param("sdpa", "trace", marks=pytest.mark.slow),
        pytest.param("eager", "trace", marks=pytest.mark.slow),
        pytest.param("sdpa", "seen", marks=pytest.mark.slow),
    ],
)
def test_peak_memory_grows_with_the_tokens_and_not_with_their_square(implementation: str, what: str) -> None:
    less, more = (_added(implementation, what, tokens) for tokens in (1500, 3000))
    weights = 4 * 8 * 3000**2  # of one layer
    assert more < 2.6 * less, f"{less / 2**20:.0f} MB for 1,500 tokens, {more / 2**20:.0f} for 3,000"
    assert more < weights
