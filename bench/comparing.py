"""A comparison against the two diagnoses that it stands for."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.measure import Comparison, overhead, rounds_of
from tokendynamics.diagnosis import compare, diagnose
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.pretrained import load

_TEXTS = 6


def run() -> Iterator[Comparison]:
    """Two untrained DistilGPT-2 (82 million weights each) on the same texts, loaded before."""
    models = [load(f"random:distilgpt2:{seed}") for seed in (0, 1)]
    texts = dict(list(default_texts().items())[:_TEXTS])
    works = {
        "ours": lambda: compare(*models, texts=texts, sinks=()),
        "two": lambda: [diagnose(model, texts, sinks=()) for model in models],
    }
    rounds = rounds_of(works, 5, clock=time.process_time)
    traces = compare(*models, texts=texts, sinks=(), weights=False).traces
    alone = [diagnose(model, texts, sinks=(), layers=[1]).trace for model in models]
    worst = max(float(abs(a.kappa - b.kappa).max()) for a, b in zip(traces, alone, strict=True))
    yield overhead(
        f"compare of two DistilGPT-2 with their weights, {_TEXTS} texts, against two diagnoses",
        [(each["ours"], each["two"]) for each in rounds],
        at_most=1.1,
        error=f"κ differs by {worst:.0e}",
    )
