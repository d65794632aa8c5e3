"""Whether inputs of a network may share a forward pass, found by trying it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from tokendynamics.pretrained.length_dependence import as_before

Packing: TypeAlias = Literal["any lengths", "any lengths with a mask", "equal shapes", "none"]
"""Which inputs may share a pass: prompts of any lengths, shorter ones filled up behind their end; the same where a mask
says which tokens are there; only inputs of the same shape; or none."""

_SAME = 1e-5
"""Largest difference, of the largest entry, between an input in company and alone: more than float32 rounds."""


def packing_of(network: nn.Module, inputs: Callable[[int], Mapping[str, Any]], *, causal: bool) -> Packing:
    """Find which inputs may share a pass of a network.

    Args:
        network: In evaluation mode.
        inputs: Makes the arguments of a forward pass for a given number of inputs.
        causal: Whether no token sees a later one; only then may a prompt be filled up without a mask, whatever a trial
            says: a network that has not been trained yet may hardly attend.
    """
    with torch.no_grad():
        two = dict(inputs(2))
        alone = [_run(network, _one_of(two, place)) for place in (0, 1)]
        if not _agree(_run(network, two), alone):
            return "none"
        ids = two.get("input_ids")
        if set(two) == {"input_ids"} and isinstance(ids, Tensor) and ids.shape[1] > 2:
            shorter = ids.shape[1] - 3 if ids.shape[1] > 4 else 1
            alone[1] = _run(network, {"input_ids": ids[1:, :shorter]})
            filled = filled_up([ids[0], ids[1, :shorter]], filler_of(network))
            if causal and _agree(_run(network, {"input_ids": filled["input_ids"]}), alone):
                return "any lengths"
            if _agree(_run(network, filled), alone):
                return "any lengths with a mask"
    return "equal shapes"


def filled_up(prompts: list[Tensor], filler: int) -> dict[str, Tensor]:
    """Return token ids of several prompts side by side, and the mask that says which tokens are there.

    >>> filled_up([torch.tensor([5, 6, 7]), torch.tensor([8])], filler=0)["input_ids"].tolist()
    [[5, 6, 7], [8, 0, 0]]
    """
    ids = nn.utils.rnn.pad_sequence(prompts, batch_first=True, padding_value=filler)
    there = nn.utils.rnn.pad_sequence([torch.ones_like(each) for each in prompts], batch_first=True)
    return {"input_ids": ids, "attention_mask": there}


def filler_of(network: Any) -> int:
    """Return the token that stands behind the end of a shorter prompt: some networks count positions by it."""
    config = getattr(network, "config", None)
    found, vocabulary = getattr(config, "pad_token_id", None), getattr(config, "vocab_size", 1)
    return found if isinstance(found, int) and 0 <= found < vocabulary else 0


def _one_of(two: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Return one of two inputs; what has no axis of two inputs is the same for both."""
    return {
        name: value[[place]] if isinstance(value, Tensor) and value.shape[:1] == (2,) else value
        for name, value in two.items()
    }


def _run(network: nn.Module, arguments: Mapping[str, Any]) -> Tensor | None:
    """Return the first tensor that a network gives, None where it does not take these arguments."""
    with suppress(TypeError, ValueError, RuntimeError, IndexError), as_before(network):
        output = network(**arguments)
        return output if isinstance(output, Tensor) else output[0]
    return None


def _agree(together: Tensor | None, alone: list[Tensor | None]) -> bool:
    if together is None or together.shape[0] != len(alone):
        return False
    for row, own in zip(together, alone, strict=True):
        if own is None or own.ndim != together.ndim or own.shape[0] != 1:
            return False
        mine = row[: own.shape[1]] if own.ndim > 2 else row
        if not float((mine - own[0]).abs().max()) <= _SAME * float(own.abs().max()):
            return False
    return True
