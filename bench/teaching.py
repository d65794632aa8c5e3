"""Steps of training in a regime, and with a remedy, beside those of the baseline."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

import torch

from bench.measure import Comparison, rounds_of
from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig

REDUCED = ("4 layers of 64 on 16 × 128 bytes", {"hidden_size": 64, "num_hidden_layers": 4}, (16, 128), 1.25, 15)
AT_SCALE = (
    "a layer of 512 on 16 × 1024 bytes, as a step of the paper's EnWik8 model has them",
    {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 1, "intermediate_size": 2048},
    (16, 1024),
    1.1,
    3,
)
ARMS = {
    "divergence": {"regime": "divergence"},
    "divergence, in the paper's form": {"regime": "divergence", "form": "solve"},
    "contracting": {"regime": "contracting"},
}
_REMEDY_ALLOWED = 1.15


def run() -> Iterator[Comparison]:
    """Compare a forward pass, a backward pass and a step of AdamW with those of the baseline, in alternation."""
    for size, sizes, shape, allowed, rounds in (REDUCED, AT_SCALE):
        yield from _compared(size, {**sizes, "positions": "sinusoidal"}, ARMS, shape, allowed, rounds)
        remedy = {"+ λA": {"remedy": "diagonal"}}
        yield from _compared(
            f"{size}, rotary", {**sizes, "positions": "rotary"}, remedy, shape, _REMEDY_ALLOWED, rounds
        )


def _compared(
    size: str, base: dict, arms: dict[str, dict], shape: tuple[int, int], allowed: float, rounds: int
) -> Iterator[Comparison]:
    works = {name: _step(LanguageModelConfig(**base, max_position_embeddings=shape[1], **own), shape)
             for name, own in {"baseline": {}, **arms}.items()}  # fmt: skip
    taken = rounds_of(works, rounds)
    for name in arms:
        ratios = [each[name] / each["baseline"] for each in taken]
        middle = statistics.median(ratios)
        ours, other = (statistics.median(each[arm] for each in taken) for arm in (name, "baseline"))
        yield Comparison(
            f"step of training, {size}: {name}", ours, other, middle, (min(ratios), max(ratios)),
            f"≤ {allowed:g} × the baseline's", middle <= allowed, "none: other models",
        )  # fmt: skip


def _step(config: LanguageModelConfig, shape: tuple[int, int]) -> Callable[[], float]:
    torch.manual_seed(0)
    model = LanguageModel(config)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    ids = torch.randint(config.vocab_size, shape)

    def step() -> float:
        optimizer.zero_grad()
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step
