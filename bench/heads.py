"""What the derivatives by all heads, and a diagnosis with everything in it, cost beside what they are made from."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from bench.measure import Comparison, overhead, rounds_of
from tokendynamics.diagnosis import diagnose
from tokendynamics.diagnosis.gating.sensitivities import Sensitivities, sensitivities
from tokendynamics.diagnosis.texts import default_texts
from tokendynamics.pretrained import Checkpoint, load
from tokendynamics.pretrained.edits.gates import HeadGates
from tokendynamics.pretrained.packs import Pack
from tokendynamics.provenance.progress import silent

_RATIO = 4.0


def run() -> Iterator[Comparison]:
    """SmolLM2-135M on the fourteen default texts."""
    ckpt = load("smollm2")
    packs = ckpt.packs([ckpt.encode(text).ids for text in default_texts().values()])
    by_head, by_part = _by_head(ckpt, packs), _by_part(ckpt, packs)
    works = {"ours": partial(_by_head, ckpt, packs), "plain": partial(_backward, ckpt, packs)}
    heads = by_head.kappa.size
    yield overhead(
        f"∂κ/∂a and ∂loss/∂a of {heads} heads, SmolLM2, {len(default_texts())} texts, against a pass forward and back",
        [(seconds["ours"], seconds["plain"]) for seconds in rounds_of(works, 3, clock=time.process_time)],
        at_most=3.0,
        error=f"sums over heads differ from their parts by {abs(by_head.kappa.sum(1) - by_part.kappa[:, 0]).max():.0e}",
    )
    works = {"ours": partial(diagnose, ckpt), "plain": partial(_as_before, ckpt)}
    yield overhead(
        f"diagnosis of SmolLM2 with heads, directions and the untrained network, {len(default_texts())} texts, "
        "against one with levers alone",
        [(seconds["ours"], seconds["plain"]) for seconds in rounds_of(works, 3, uncounted=0, clock=time.process_time)],
        at_most=1.5,
        error="what both measure is the same",
    )


def _as_before(ckpt: Checkpoint) -> None:
    diagnose(ckpt, heads=False, directions=False, baseline=None)


def _by_head(ckpt: Checkpoint, packs: Sequence[Pack]) -> Sensitivities:
    with ckpt.gated() as gated:
        return sensitivities(HeadGates(gated), packs, _RATIO, silent)


def _by_part(ckpt: Checkpoint, packs: Sequence[Pack]) -> Sensitivities:
    with ckpt.gated() as gated:
        return sensitivities(gated, packs, _RATIO, silent)


def _backward(ckpt: Checkpoint, packs: Sequence[Pack]) -> None:
    """Differentiate the loss by the embedded tokens, so that the pass back goes through every block."""
    model: Any = ckpt.model
    table = model.get_input_embeddings()
    assert isinstance(table, torch.nn.Embedding)
    for pack in packs:
        ids = pack.arguments["input_ids"]
        given = {name: value for name, value in pack.arguments.items() if name != "input_ids"}
        embedded = functional.embedding(ids, table.weight.detach()).requires_grad_()
        states = model(inputs_embeds=embedded, use_cache=False, **given).last_hidden_state
        logits = states[:, :-1].flatten(0, 1) @ table.weight.detach().mT
        torch.autograd.grad(functional.cross_entropy(logits, ids[:, 1:].flatten()), embedded)
