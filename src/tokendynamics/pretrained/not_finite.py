"""Says where a forward pass left the range of its number format, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError, CheckpointError
from tokendynamics.pretrained._checkpoint import Checkpoint
from tokendynamics.pretrained.edits.gates import GatedPass, Gates
from tokendynamics.pretrained.edits.states import PackStates
from tokendynamics.words import plural

_POSITIVE = ("rope_theta", "factor", "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
"""Settings that describe a working network only above 0."""


def check_states(ckpt: Checkpoint | Gates, states: PackStates) -> None:
    """Refuse states or logits that hold a NaN or an infinity, naming the first layer that gave one.

    A site that was not read is NaN throughout and is no error: the states around it decide.

    Args:
        ckpt: What they are of.
        states: From its `states_in_packs`.

    Raises:
        ArgumentValueError: An argument hides tokens from all others: padding would be measured as tokens.
        CheckpointError: A state or a logit is not finite; the message names layer, part and number format.
    """
    check_none_hidden(states)
    for layer, (attention, after) in enumerate(zip(states.attention, states.feed_forward, strict=True)):
        where = f"layer {layer}" if layer else "the embedding"
        if layer and not _unread(attention):
            check_finite_state(ckpt, attention, where, "states after its attention")
        check_finite_state(ckpt, after, where, "states after its last part" if layer else "states")
    if states.final_norm is not None:
        check_finite_state(ckpt, states.final_norm, "the final norm", "states")
    if states.logits is not None:
        check_logits(ckpt, states.logits, "the language head")


def check_none_hidden(states: PackStates) -> None:
    """Refuse states of tokens that an argument hides from all others."""
    if states.hidden is not None:
        name, count = states.hidden[0], int(states.hidden[1].sum(dim=-1).max())
        advice = "pass the tokens of the prompt alone: padding would be measured as tokens"
        raise ArgumentValueError(name, "a mask that hides no token", f"one that hides {plural(count, 'token')}", advice)


def check_no_padding(ckpt: Checkpoint, prompts: Sequence[Mapping[str, Any]]) -> None:
    """Refuse prompts with tokens that a mask of any name hides, where the passes to come do not show which they are.

    Args:
        ckpt: The network.
        prompts: Arguments of a forward pass for one input each.

    Raises:
        ArgumentValueError, CheckpointError: See `check_states`.
    """
    masked = [inputs for inputs in prompts if ckpt.layout.mask_by_ids or len(inputs) > 1]
    for states in ckpt.states_in_packs(masked, hidden=True) if masked and ckpt.architecture.vocabulary is None else ():
        check_states(ckpt, states)


def check_gated_pass(gated: Gates, passed: GatedPass) -> None:
    """Refuse a pass whose gates leave the network as it is and whose states or logits are not finite.

    Raises:
        CheckpointError: Layer and number format are named.
    """
    for layer, states in enumerate(passed.states):
        where = f"layer {layer}" if layer else "the embedding"
        check_finite_state(gated, states, where, "states after its last part" if layer else "states")
    if passed.logits is not None:
        check_logits(gated, passed.logits, "the language head")


def _unread(site: Tensor) -> bool:
    """Tell whether the states at a site were not read: all of them are NaN."""
    return not _has_finite_sum(site) and bool(site.isnan().all())


def _has_finite_sum(values: Tensor) -> bool:
    """Tell whether the sum is finite, and every number with it: one pass, where a mask of all numbers takes several."""
    return math.isfinite(float(values.sum()))


def check_finite_state(ckpt: Checkpoint | Gates, values: Tensor, where: str, what: str) -> None:
    """Refuse numbers of a forward pass that are not finite.

    Args:
        ckpt: Whose pass it is.
        values: What to check.
        where: The place in the network, such as "layer 3".
        what: What the numbers are.

    Raises:
        CheckpointError: One of them is a NaN or an infinity.
    """
    if _has_finite_sum(values) or bool(values.isfinite().all()):
        return
    config, dtype = ckpt.config, ckpt.dtype
    came = "nan" if bool(values.isnan().any()) else "an infinity"
    largest = f"{str(dtype).removeprefix('torch.')}, whose largest number is {torch.finfo(dtype).max:.5g}"
    advice = "check its weights and its configuration"
    if dtype == torch.float16:
        advice = 'use dtype="bfloat16" or dtype="float32", which hold larger numbers'
    numbers = _numbers(config.to_dict() if hasattr(config, "to_dict") else {})
    # With these settings no network computes numbers.
    wrong = [
        f"{name} = {value:g}" for name, value in numbers if math.isnan(value) or (name in _POSITIVE and value <= 0)
    ]
    if wrong:
        advice = f"its configuration has {', '.join(wrong)}"
    raise CheckpointError(f"{ckpt.name}: {where}", f"finite {what}", f"{came} in {largest}", advice)


def check_logits(ckpt: Checkpoint | Gates, logits: Tensor, where: str) -> None:
    """Refuse logits without a distribution over tokens; a token may be excluded by a logit of minus infinity.

    Raises:
        CheckpointError: A logit is NaN or plus infinity, or every token of a position is excluded.
    """
    if bool(logits.amax(dim=-1).isfinite().all()):  # NaN is the largest of what holds it
        return
    check_finite_state(ckpt, logits.amax(dim=-1), where, "logits")


def _numbers(settings: Mapping[Any, Any]) -> Iterator[tuple[str, float]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield str(name), float(value)
