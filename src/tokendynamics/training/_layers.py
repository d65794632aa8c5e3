"""Norms of tokens and distances between them through the layers of a network, and of its attention alone."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from tokendynamics.modules.block import Block
from tokendynamics.observables import norms, pairwise_distances
from tokendynamics.provenance.manifest import plain

SEQUENCES, TOKENS = 8, 128
"""How much of a batch is looked at, at most."""


@torch.no_grad()
def through_layers(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, dict[str, list[float | None]]]:
    """Return mean token norm and mean distance of two tokens of a sequence, after 0, 1, … layers, in float64.

    Args:
        model: A network of `tokendynamics.modules` with whole weights; it is not changed.
        batch: What the network is given, of which the first sequences and tokens are looked at.

    Returns:
        ``"full"``: of the network as it is, before its last norm. ``"bare"``: of the same weights without norms,
        feed-forward parts and what is dropped, ``x ← x + attention(x)``, from the same embeddings. Each has ``"norm"``
        and ``"distance"``, a number for every depth from the embedding on; None where states are not finite, and from
        the first layer on whose logits are not: what PyTorch's kernels make of these depends on the processor.

    Source: `positional` Figures 6 and 7.
    """
    twin = copy.deepcopy(model).cpu().double().eval()  # not every accelerator has float64
    vars(twin).pop("forward", None)  # mixed precision, which accelerate puts there, is not for these
    blocks = [module for module in twin.modules() if isinstance(module, Block)]
    shown = {name: _beginning(name, value) for name, value in batch.items() if name != "labels"}
    seen: list[Tensor] = []
    sound: list[bool] = []  # whether the logits of each attention are finite, in the order in which they run

    def look(attention: Any, given: tuple[Tensor, ...]) -> None:
        sound.append(bool(attention.scores(given[0]).isfinite().all()))

    with ExitStack() as hooks:
        hooks.callback(blocks[0].register_forward_pre_hook(lambda _, given: seen.append(given[0])).remove)
        for block in blocks:
            hooks.callback(block.register_forward_hook(lambda *given: seen.append(given[-1])).remove)
            hooks.callback(block.attention.register_forward_pre_hook(look).remove)
        twin(**shown)
        bare = [seen[0]]
        for block in blocks:
            bare.append(bare[-1] + block.attention(bare[-1]))
    return {"full": _measured(seen, sound[: len(blocks)]), "bare": _measured(bare, sound[len(blocks) :])}


def _beginning(name: str, value: Tensor) -> Tensor:
    value = value.cpu()
    if name == "input_ids":
        return value[:SEQUENCES, :TOKENS]
    return value[:SEQUENCES].double() if value.is_floating_point() else value[:SEQUENCES]


def _measured(states: list[Tensor], sound: list[bool]) -> dict[str, list[float | None]]:
    finite = [bool(torch.isfinite(each).all()) and all(sound[:layer]) for layer, each in enumerate(states)]
    return plain(
        {
            name: [measure(each) if sound else math.nan for each, sound in zip(states, finite, strict=True)]
            for name, measure in (("norm", _mean_norm), ("distance", _mean_distance))
        }
    )


def _mean_norm(states: Tensor) -> float:
    return float(norms(states).mean())


def _mean_distance(states: Tensor) -> float:
    tokens = states.shape[-2]
    pairs: Any = pairwise_distances(states)
    return float(pairs.sum() / (len(states) * tokens * (tokens - 1))) if tokens > 1 else 0.0
