"""One look of a monitor beside the steps of training from one look to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from bench.measure import Comparison, overhead, rounds_of
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.modules.language_model import LanguageModel, LanguageModelConfig
from tokendynamics.pretrained import load
from tokendynamics.training import Monitor

EVERY = 500
_SHARE = 0.01
"""Of the time of so many steps that a look may take."""


def run() -> Iterator[Comparison]:
    """Compare a look with a hundredth of 500 steps, of which one is taken in alternation; its layout is known then."""
    for dropout, regime in ((0.0, "baseline"), (0.1, "divergence")):
        config = LanguageModelConfig(max_position_embeddings=128, dropout=dropout, regime=regime)
        texts = [list(text.encode()[:128]) for text in default_texts().values()]
        name = f"4 layers of 64 ({regime}) on 16 × 128 bytes, {len(texts)} texts of up to 128"
        yield _compared(name, LanguageModel(config), texts, (16, 128), 15)
    from transformers import LlamaForCausalLM

    ckpt = load("smollm2")
    ids = [ckpt.encode(text).ids[0].tolist() for text in default_texts().values()]
    name = f"SmolLM2's sizes on 1 × 512 tokens, {len(ids)} texts of up to {max(map(len, ids))}"
    yield _compared(name, LlamaForCausalLM(ckpt.config), ids, (1, 512), 3)


def _compared(name: str, model: nn.Module, texts: list[list[int]], shape: tuple[int, int], rounds: int) -> Comparison:
    monitor, steps = Monitor(texts), iter(range(10**6))
    works = {"look": lambda: monitor.measure(model, next(steps)), "step": _step(model, shape)}
    taken = rounds_of(works, rounds)
    assert monitor.status == "measured", monitor.status
    pairs = [(seconds["look"], _SHARE * EVERY * seconds["step"]) for seconds in taken]
    workload = f"monitor, {name}: a look beside {_SHARE:.0%} of the time of {EVERY} steps"
    return overhead(workload, pairs, at_most=1.0, error="the training is the same to the last bit")


def _step(model: nn.Module, shape: tuple[int, int]) -> Callable[[], Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    ids = torch.randint(256, shape)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
