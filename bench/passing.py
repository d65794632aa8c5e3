"""A pass through the blocks against the network's own, and weights by law against weights that are drawn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from scipy.stats import ks_2samp

from bench.measure import Comparison, overhead, rounds_of, speedup
from tokendynamics.diagnosis import passes
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained.edits.repeated_stack import PassOptions, RepeatedStack

_TEXT = (
    "Describe a futuristic city where humans and robots live together. Talk about what the city looks like and what "
    "daily life is like there."
)
_PASSES = 10
_SEEDS = 40


def run() -> Iterator[Comparison]:
    """SmolLM2's own weights, measures after each pass and all; GPT-2 XL's 48 layers of 1600 with new ones."""
    yield _fixed(load("smollm2"))
    yield _by_law(load("random:gpt2-xl"))


def _fixed(ckpt: Checkpoint) -> Comparison:
    ids = ckpt.encode(_TEXT).ids

    def plain() -> None:
        with torch.inference_mode():
            for _ in range(_PASSES):
                ckpt.model(input_ids=ids, use_cache=False)

    works = {"ours": lambda: passes(ckpt, _TEXT, _PASSES), "plain": plain}
    rounds = rounds_of(works, 5, clock=time.process_time)
    states = ckpt.states(ids)
    assert states.final_norm is not None
    expected = states.final_norm.norm(dim=-1).median().log()
    error = abs(float(passes(ckpt, _TEXT, 1).log_norm[0, 1]) - float(expected))
    return overhead(
        f"{_PASSES} passes of SmolLM2's own weights, {ids.shape[1]} tokens, measured, against its own forward passes",
        [(seconds["ours"], seconds["plain"]) for seconds in rounds],
        at_most=1.1,
        error=f"logarithms of the norm differ by {error:.0e}",
    )


def _by_law(ckpt: Checkpoint) -> Comparison:
    """Time single passes: what is read once before the first one is in neither."""
    pack = ckpt.one_pack([ckpt.encode(_TEXT[:28]).ids])
    with (
        RepeatedStack(ckpt, [pack], PassOptions(weights="law")) as law,
        RepeatedStack(ckpt, [pack], PassOptions(weights="resample")) as drawn,
    ):
        rounds = rounds_of({"ours": law.advance, "other": drawn.advance}, 3, clock=time.process_time)
    return speedup(
        "a pass of new weights by their law, GPT-2 XL's size, 28 tokens, against drawing them",
        [(seconds["ours"], seconds["other"]) for seconds in rounds],
        at_least=15.0,
        error=_agreement(),
    )


def _agreement() -> str:
    """Say how well the laws of E agree where both can be drawn often."""
    ckpt = load("random:distilgpt2")
    by_law, drawn = (
        [float(passes(ckpt, _TEXT[:6], 1, weights=how, seed=start + seed).consensus[0, 1]) for seed in range(_SEEDS)]
        for how, start in (("law", 0), ("resample", 1000))
    )
    compared: Any = ks_2samp(by_law, drawn)
    return f"E after a pass of DistilGPT-2, {_SEEDS} seeds each: p = {compared.pvalue:.2f}"
