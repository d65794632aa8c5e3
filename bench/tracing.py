"""A trace against the forward passes that it contains."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from bench.measure import NOTHING_COMPARED, Comparison, overhead, rounds_of
from tokendynamics.diagnosis import trace
from tokendynamics.diagnosis.texts import five_texts
from tokendynamics.diagnosis.tracing import measure, prompt_trace
from tokendynamics.observables.summary import Gram
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained.edits.states import ReceivedAttention
from tokendynamics.pretrained.packs import filled_up

_SHORT = range(4, 64, 2)
_LONG = range(8, 98, 3)
"""Lengths of 30 prompts: from a few words to a paragraph, and to a page."""


def run(quick: bool = False) -> Iterator[Comparison]:
    """SmolLM2-135M on prompts of mixed lengths, against passes one by one and against one padded pass."""
    yield _long_text()
    ckpt = load("smollm2")
    ids = torch.cat([ckpt.encode(text).ids[0] for text in five_texts().values()])

    def of_lengths(lengths: range) -> list[Tensor]:
        starts = [37 * place % (len(ids) - max(lengths)) for place in range(len(lengths))]
        return [ids[start : start + length] for start, length in zip(starts, lengths, strict=True)]

    yield _of_the_verdict(ckpt, of_lengths(_SHORT))
    for lengths, targets in () if quick else ((_SHORT, (1.05, 1.35)), (_LONG, (1.25, 1.35))):
        prompts = of_lengths(lengths)
        works = {
            "ours": lambda prompts=prompts: trace(ckpt, prompts),
            "one by one": lambda prompts=prompts: _one_by_one(ckpt, prompts),
            "padded": lambda prompts=prompts: _padded(ckpt, prompts),
        }
        rounds = rounds_of(works, 5)
        for (other, words), most in zip(_OTHERS.items(), targets, strict=True):
            yield overhead(
                f"trace, SmolLM2, {len(prompts)} prompts of {min(lengths)} to {max(lengths)} tokens, against {words}",
                [(seconds["ours"], seconds[other]) for seconds in rounds],
                at_most=most,
                error=_difference(ckpt, prompts),
            )


def _long_text() -> Comparison:
    """The memory of a trace whose attention would be gigabytes if all weights were there at once."""
    done = subprocess.run([sys.executable, "-c", _LONG_TEXT], capture_output=True, text=True, check=True)
    beyond, states = map(int, done.stdout.split())
    ratio = (beyond - states) / ALLOWED
    return Comparison(
        f"trace of one text of 5,000 tokens, 2 layers of width 32, peak beyond the states of {states / 1e6:.0f} MB",
        (beyond - states) / 1e6, ALLOWED / 1e6, ratio, (ratio, ratio), f"under {ALLOWED / 1e6:g} MB", ratio < 1,
        NOTHING_COMPARED, "MB",
    )  # fmt: skip


ALLOWED = 300e6
# VmHWM and not ru_maxrss: the latter starts from the resident size of the process that forked this one.
_LONG_TEXT = """
import pathlib
import torch
from transformers import LlamaConfig, LlamaModel
import tokendynamics as td
torch.set_num_threads(1)
torch.manual_seed(0)
sizes = dict(vocab_size=500, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
ckpt = td.load(LlamaModel(LlamaConfig(**sizes, max_position_embeddings=5000)).eval())
def peak():
    status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024
td.trace(ckpt, [torch.randint(3, 499, (100,))])
before = peak()
states = ckpt.states(torch.randint(3, 499, (100,))).feed_forward
td.trace(ckpt, [torch.randint(3, 499, (5000,))])
sites = 2 * len(states)
print(peak() - before, sites * 5000 * states.shape[-1] * states.itemsize)
"""


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
        f"trace, SmolLM2, {len(prompts)} prompts, with shares, κ, intervals, places, updates and attention received, "
        "against the trace without them",
        pairs[1:],
        at_most=1.03,
        error="the same run, less the time inside them",
    )


_MEASURES = (
    (measure, "share_variables"),
    (measure, "place_variables"),
    (prompt_trace, "update_ratios"),
    (Gram, "sums_of_directions"),
    (ReceivedAttention, "__call__"),
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
            states = pack.of(number).feed_forward[:-1]
            worst = max(worst, float((states - alone).abs().max() / alone.abs().max()))
    return f"states differ by {worst:.0e} of the largest"
