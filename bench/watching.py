"""What watching an attention costs a forward pass, and finding the layout of a live network."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.measure import NOTHING_COMPARED, Comparison, overhead, rounds_of
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained.other_libraries import silenced

_WIDE = {"vocab_size": 1000, "hidden_size": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GPT = {"vocab_size": 1000, "n_embd": 512, "n_layer": 8, "n_head": 8, "bos_token_id": 1, "eos_token_id": 2}
_NETWORKS: dict[str, tuple[dict[str, Any], float]] = {
    "llama": ({**_WIDE, "num_hidden_layers": 8, "num_attention_heads": 8, "intermediate_size": 1024}, 1.05),
    "bloom": ({**_WIDE, "n_layer": 8, "n_head": 8}, 1.2),
    "gptj": ({**_GPT, "rotary_dim": 32, "n_positions": 512}, 1.2),
}
"""Settings by type, and the target: the first shows its attention by the interface, the others by functions."""


def run() -> Iterator[Comparison]:
    """Networks of 8 layers of width 512 with random weights, on short and on long prompts."""
    for model_type, (settings, most) in _NETWORKS.items():
        yield from _of_type(model_type, _network_of(model_type, settings), most)


def _of_type(model_type: str, network: Any, most: float) -> Iterator[Comparison]:
    ckpt, draw = load(network), torch.Generator().manual_seed(1)
    for tokens in (60, 400):
        ids = torch.randint(3, 990, (1, tokens), generator=draw)
        works = {"ours": partial(ckpt.states, ids), "plain": partial(_plain, network, ids)}
        yield overhead(
            f"states of {model_type}, {tokens} tokens, against a forward pass with hidden states",
            [(seconds["ours"], seconds["plain"]) for seconds in rounds_of(works, 15, clock=time.process_time)],
            at_most=most,
            error=_difference(ckpt, network, ids),
        )
    short = torch.randint(3, 990, (2, 7), generator=draw)
    works = {"ours": partial(load, network), "plain": lambda: [_plain(network, short) for _ in range(3)]}
    yield overhead(
        f"load of a live {model_type}, against three forward passes of two prompts of 7 tokens",
        [(seconds["ours"], seconds["plain"]) for seconds in rounds_of(works, 5, clock=time.process_time)],
        at_most=1.0,
        error=NOTHING_COMPARED,
    )


def _network_of(model_type: str, settings: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    with silenced():
        return AutoModel.from_config(AutoConfig.for_model(model_type, **settings)).eval()


def _plain(network: Any, ids: Tensor) -> tuple[Tensor, ...]:
    with torch.inference_mode():
        return network(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states


def _difference(ckpt: Checkpoint, network: Any, ids: Tensor) -> str:
    plain = torch.cat(_plain(network, ids)[:-1])
    states = ckpt.states(ids).feed_forward[:-1]
    return f"states differ by {float((states - plain).abs().max() / plain.abs().max()):.0e} of the largest"
