"""Derivatives of κ and of the loss by all gates against the forward passes that they contain."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch

from bench.measure import Comparison, overhead, rounds_of
from tokendynamics.diagnosis.gating.sensitivities import Sensitivities, sensitivities
from tokendynamics.diagnosis.gating.trials import Trials
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained.packs import Pack
from tokendynamics.provenance.progress import silent

_LENGTHS = range(8, 92, 12)
"""Lengths of 7 prompts: from a few words to a page."""

_RATIO = 4.0


def run() -> Iterator[Comparison]:
    """SmolLM2-135M: one pass forward and two back, against one pass forward of the same prompts side by side."""
    ckpt = load("smollm2")
    ids = torch.cat([ckpt.encode(text).ids[0] for text in default_texts().values()])
    starts = [37 * place % (len(ids) - max(_LENGTHS)) for place in range(len(_LENGTHS))]
    packs = ckpt.packs([ids[start : start + length] for start, length in zip(starts, _LENGTHS, strict=True)])
    sensitivities = _sensitivities(ckpt, packs)
    works = {"ours": lambda: _sensitivities(ckpt, packs), "plain": lambda: _plain(ckpt, packs)}
    rounds = rounds_of(works, 3, clock=time.process_time)
    yield overhead(
        f"∂κ/∂α and ∂loss/∂α of 60 gates, SmolLM2, {len(_LENGTHS)} prompts, against forward passes with logits",
        [(seconds["ours"], seconds["plain"]) for seconds in rounds],
        at_most=3.5,
        error=_difference(ckpt, packs, sensitivities),
    )


def _sensitivities(ckpt: Checkpoint, packs: Sequence[Pack]) -> Sensitivities:
    with ckpt.gated() as gated:
        return sensitivities(gated, packs, _RATIO, silent)


def _plain(ckpt: Checkpoint, packs: Sequence[Pack]) -> None:
    table = ckpt.model.get_input_embeddings().weight.T  # pyright: ignore
    with torch.inference_mode():
        for pack in packs:
            torch.matmul(ckpt.model(**pack.arguments, use_cache=False).last_hidden_state, table)


def _difference(ckpt: Checkpoint, packs: Sequence[Pack], sensitivities: Sensitivities) -> str:
    """Say how far the largest derivatives are from differences at 0.99 and 1.01."""
    with ckpt.gated() as gated:
        trials = Trials(gated, packs, sensitivities.where, _RATIO)
        worst = 0.0
        for place in (-abs(sensitivities.kappa)).argsort(axis=None)[:3].tolist():
            layer, part = divmod(place, 2)
            above, below = trials.of_each([(layer + 1, part, alpha) for alpha in (1.01, 0.99)], silent, "trying")
            difference = (above.kappa_change.value - below.kappa_change.value) / 0.02
            worst = max(worst, abs(difference / sensitivities.kappa[layer, part] - 1))
    return f"∂κ/∂α differ from differences by {worst:.0e}"
