"""A comparison against the two diagnoses that it stands for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bench.measure import Comparison, overhead, rounds_of
from tokendynamics.diagnosis import compare, diagnose
from tokendynamics.diagnosis.comparing.effects import halved_parts
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained.inputs import prepared
from tokendynamics.provenance.progress import silent

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
        [(seconds["ours"], seconds["two"]) for seconds in rounds],
        at_most=1.1,
        error=f"κ differs by {worst:.0e}",
    )
    yield _of_halved_parts(texts)


def _of_halved_parts(texts: Sequence[list[int]]) -> Comparison:
    """Every part of both networks at a half, against as many plain passes with logits as that takes, one by one."""
    models = [load(_network(seed, head=True)) for seed in (0, 1)]
    given = [[prepared(model, text, argument="text") for text in texts] for model in models]
    works = {
        "ours": lambda: halved_parts(models, given, True, silent),
        "passes": lambda: [_plain_passes(model, texts) for model in models],
    }
    rounds = rounds_of(works, 3, clock=time.process_time)
    losses = halved_parts(models, given, True, silent).table.loss.values[:, 0]
    alone = [float(_loss(model, texts[0])) for model in models]
    return overhead(
        f"compare --halved of two networks of 8 layers, {len(texts)} texts, against its 17 passes of each with logits",
        [(seconds["ours"], seconds["passes"]) for seconds in rounds],
        at_most=1.2,
        error=f"the loss differs by {max(abs(losses - alone)):.0e}",
    )


def _plain_passes(model: Checkpoint, texts: Sequence[list[int]]) -> None:
    for _ in range(1 + 2 * model.architecture.layers):
        for text in texts:
            _loss(model, text)


def _loss(model: Checkpoint, text: list[int]) -> Tensor:
    ids = torch.tensor([text])
    with torch.inference_mode():
        return model.model(input_ids=ids, labels=ids).loss


def _network(seed: int, *, head: bool = False) -> Any:
    from transformers import AutoModel, AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(seed)
    kind = AutoModelForCausalLM if head else AutoModel
    return kind.from_config(LlamaConfig(**_SIZES, intermediate_size=688)).eval()
