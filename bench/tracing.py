"""A trace against the plain forward pass that it contains."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench.measure import Comparison, alternate, overhead
from tokendynamics.diagnosis import trace
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.pretrained import load


def run() -> Iterator[Comparison]:
    """SmolLM2-135M on the default texts."""
    ckpt, texts = load("smollm2"), default_texts()
    encoded = [ckpt.encode(text).ids for text in texts.values()]

    def forward() -> None:
        with torch.inference_mode():
            for ids in encoded:
                ckpt.model(ids, output_hidden_states=True)

    def forward_with_logits() -> None:
        with torch.inference_mode():
            for ids in encoded:
                states = ckpt.model(ids, output_hidden_states=True).last_hidden_state
                torch.nn.functional.linear(states, ckpt.model.get_input_embeddings().weight)

    with torch.inference_mode():
        hidden = ckpt.model(encoded[0], output_hidden_states=True).hidden_states
    difference = float((ckpt.states(encoded[0]).feed_forward[:-1] - torch.cat(hidden[:-1])).abs().max())
    tokens = sum(ids.shape[-1] for ids in encoded)
    for name, other in (("base model", forward), ("language model, logits included", forward_with_logits)):
        yield overhead(
            f"trace, SmolLM2, {len(texts)} texts ({tokens} tokens), against the forward pass with hidden states of "
            f"the {name}",
            alternate(lambda: trace(ckpt, texts), other, 9),
            at_most=1.25,
            error=f"states differ by {difference:.0e}",
        )
