"""A trace against the forward passes that it contains."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from bench.measure import Comparison, overhead, rounds_of
from tokendynamics.diagnosis import trace
from tokendynamics.diagnosis.texts import five_texts
from tokendynamics.diagnosis.tracing import measure, prompt_trace
from tokendynamics.observables.summary import Gram
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained.discovery import interface
from tokendynamics.pretrained.edits.states import ReceivedAttention
from tokendynamics.pretrained.packs import filled_up

_SHORT = range(4, 64, 2)
_LONG = range(8, 98, 3)
"""Lengths of 30 prompts: from a few words to a paragraph, and to a page."""


def run() -> Iterator[Comparison]:
    """SmolLM2-135M on prompts of mixed lengths, against passes one by one and against one padded pass."""
    ckpt = load("smollm2")
    ids = torch.cat([ckpt.encode(text).ids[0] for text in five_texts().values()])
    for lengths, targets in ((_SHORT, (1.05, 1.35)), (_LONG, (1.25, 1.35))):
        starts = [37 * place % (len(ids) - max(lengths)) for place in range(len(lengths))]
        prompts = [ids[start : start + length] for start, length in zip(starts, lengths, strict=True)]
        works = {
            "ours": lambda prompts=prompts: trace(ckpt, prompts),
            "one by one": lambda prompts=prompts: _one_by_one(ckpt, prompts),
            "padded": lambda prompts=prompts: _padded(ckpt, prompts),
        }
        rounds = rounds_of(works, 5)
        for (other, words), most in zip(_OTHERS.items(), targets, strict=True):
            yield overhead(
                f"trace, SmolLM2, {len(prompts)} prompts of {min(lengths)} to {max(lengths)} tokens, against {words}",
                [(each["ours"], each[other]) for each in rounds],
                at_most=most,
                error=_difference(ckpt, prompts),
            )

        if lengths == _SHORT:
            yield _of_the_verdict(ckpt, prompts)


def _of_the_verdict(ckpt: Checkpoint, prompts: list[Tensor]) -> Comparison:
    """The whole trace against what is left of it without the measures that the verdict is made of."""
    pairs = []
    for _ in range(6):
        watch = _Stopwatch()
        with ExitStack() as patched:
            for place, name in _MEASURES:
                patched.enter_context(patch.object(place, name, watch.around(getattr(place, name))))
            start = time.perf_counter()
            trace(ckpt, prompts)
            whole = time.perf_counter() - start
        pairs.append((whole, whole - watch.seconds))
    return overhead(
        f"trace, SmolLM2, {len(prompts)} prompts, with shares, κ, intervals, updates and attention received, against "
        "the trace without them",
        pairs[1:],
        at_most=1.05,
        error="the same run, less the time inside them",
    )


_MEASURES = (
    (measure, "share_variables"),
    (prompt_trace, "update_ratios"),
    (Gram, "sums_of_directions"),
    (ReceivedAttention, "__call__"),
    (interface, "attention_weights"),
)


class _Stopwatch:
    """Adds up the time inside functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


_OTHERS = {"one by one": "plain forward passes one by one", "padded": "one padded pass"}


def _one_by_one(ckpt: Checkpoint, prompts: list[Tensor]) -> None:
    with torch.inference_mode():
        for ids in prompts:
            ckpt.model(ids[None], output_hidden_states=True)


def _padded(ckpt: Checkpoint, prompts: list[Tensor]) -> None:
    with torch.inference_mode():
        ckpt.model(**filled_up(prompts, 0), output_hidden_states=True)


def _difference(ckpt: Checkpoint, prompts: list[Tensor]) -> str:
    """Say how far the states in company are from the network's own, alone."""
    worst = 0.0
    for pack in ckpt.states_in_packs(prompts):
        for number, place in enumerate(pack.places):
            with torch.inference_mode():
                alone = torch.cat(ckpt.model(prompts[place][None], output_hidden_states=True).hidden_states[:-1])
            found = pack.of(number).feed_forward[:-1]
            worst = max(worst, float((found - alone).abs().max() / alone.abs().max()))
    return f"states differ by {worst:.0e} of the largest"
