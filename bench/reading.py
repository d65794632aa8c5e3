"""Finding a network's layout against loading it, and tracing it block by block against tracing it in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from bench.measure import Comparison, alternate, overhead
from tokendynamics.diagnosis import trace
from tokendynamics.pretrained import load
from tokendynamics.pretrained.discovery.random_weights import discover_in
from tokendynamics.pretrained.network import empty_network
from tokendynamics.pretrained.other_libraries import silenced

_PROMPTS = [[7 * place % 997 + 3 for place in range(length)] for length in (48, 31, 64, 20)]
_SIZES = {"vocab_size": 30_000, "hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096}


def run() -> Iterator[Comparison]:
    """SmolLM2-135M from its GGUF file, and a random checkpoint of 24 blocks and 1.6 GB."""
    yield _discovery()
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder))
        yield _streaming(Path(folder))


def _discovery() -> Comparison:
    config = load("smollm2").config
    network = empty_network(config)

    def from_the_file() -> None:
        with tempfile.TemporaryDirectory() as cache:
            _ = load("smollm2", cache=cache).model

    error = load("smollm2").layout.layers[0].attention
    return overhead(
        "discovery of SmolLM2's layout against loading it from its GGUF file",
        alternate(lambda: discover_in(config, network, None, "smollm2"), from_the_file, 3),
        at_most=0.02,
        error=f"attention recomputed to {0.0 if error is None else error.error:.0e}",
    )


def _write(folder: Path) -> None:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model("llama", **_SIZES, num_attention_heads=16, num_key_value_heads=16)
    torch.manual_seed(0)
    with silenced():
        AutoModel.from_config(config).save_pretrained(folder)


def _streaming(folder: Path) -> Comparison:
    ids = torch.tensor(_PROMPTS[0])
    states = [load(folder, stream=stream).states(ids).feed_forward for stream in (True, False)]
    difference = float((states[0] - states[1]).abs().max())
    return overhead(
        f"loading and tracing {len(_PROMPTS)} prompts of a checkpoint of 24 blocks (1.6 GB) block by block, against "
        "in memory",
        alternate(
            lambda: trace(load(folder, stream=True), _PROMPTS),
            lambda: trace(load(folder, stream=False), _PROMPTS),
            5,
        ),
        at_most=1.2,
        error=f"states differ by {difference:.0e}",
    )
