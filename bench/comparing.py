"""A comparison against the two diagnoses that it stands for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from bench.measure import Comparison, overhead, rounds_of
from tokendynamics.diagnosis import compare, diagnose
from tokendynamics.pretrained import load

_SIZES: dict[str, Any] = {"vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 8}
_LENGTHS = range(20, 90, 10)
"""Lengths of 7 texts: from a sentence to a page."""


def run() -> Iterator[Comparison]:
    """Two untrained networks of LLaMA's kind, 8 layers of 256 features, on the same texts."""
    models = [load(_network(seed)) for seed in (0, 1)]
    draw = torch.Generator().manual_seed(2)
    texts = [torch.randint(1000, (length,), generator=draw).tolist() for length in _LENGTHS]
    works = {
        "ours": lambda: compare(*models, texts=texts, sinks=()),
        "two": lambda: [diagnose(model, texts, sinks=()) for model in models],
    }
    rounds = rounds_of(works, 7, clock=time.process_time)
    traces = compare(*models, texts=texts, sinks=(), weights=False).traces
    alone = [diagnose(model, texts, sinks=(), layers=[1]).trace for model in models]
    worst = max(float(abs(a.consensus_within - b.consensus_within).max()) for a, b in zip(traces, alone, strict=True))
    yield overhead(
        f"compare of two networks of 8 layers with their weights, {len(texts)} texts, against two diagnoses",
        [(each["ours"], each["two"]) for each in rounds],
        at_most=1.1,
        error=f"κ differs by {worst:.0e}",
    )


def _network(seed: int) -> Any:
    from transformers import AutoModel, LlamaConfig

    torch.manual_seed(seed)
    return AutoModel.from_config(LlamaConfig(**_SIZES, intermediate_size=688)).eval()
