"""The arguments of one forward pass, held against what the network reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tokendynamics.numerics._errors import ArgumentTypeError, ArgumentValueError, expected
from tokendynamics.pretrained._architecture import Architecture


def forward_arguments(ids: Any, facts: Architecture, main_input: str | None) -> dict[str, Any]:
    """Return the arguments of a forward pass of one input by name.

    Args:
        ids: Token ids, (1, token) or (token,), or arguments by name.
        facts: Of the network.
        main_input: Name of what it reads; None for a network of the user's own.

    Raises:
        ArgumentTypeError: Ids that are no whole numbers, or for a network that reads something else.
        ArgumentValueError: Not one prompt, an id outside the vocabulary, more tokens than the context, or what the
            network reads is missing.
    """
    inputs = dict(ids) if isinstance(ids, Mapping) else {"input_ids": _checked(ids, facts, main_input)}
    of_its_own = isinstance(ids, Mapping) and facts.vocabulary is None and not main_input
    if "input_ids" in inputs and not of_its_own:
        inputs["input_ids"] = _checked(inputs["input_ids"], facts, main_input)
    if main_input not in (None, *inputs):
        wanted, came = f"{main_input} by name", ", ".join(map(str, inputs))
        raise ArgumentValueError(expected("ids", wanted, came, "that is what this network reads"))
    return inputs


def _checked(ids: Any, facts: Architecture, main_input: str | None) -> Tensor:
    if not isinstance(ids, Tensor):
        advice = "encode(text).ids are those of a text"
        raise ArgumentTypeError(expected("ids", "a tensor of token ids", type(ids).__name__, advice))
    ids = ids[None] if ids.ndim == 1 else ids
    if facts.vocabulary is None:
        wanted = f"{main_input}, by name in a mapping"
        raise ArgumentTypeError(expected("ids", wanted, "token ids", "this network reads no text"))
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool or ids.is_meta or ids.is_sparse:
        raise ArgumentTypeError(expected("ids", "whole numbers", f"dtype {ids.dtype}", "use encode()"))
    most = ids.shape[-1] if facts.context is None else facts.context
    if ids.ndim != 2 or ids.shape[0] != 1 or not 0 < ids.shape[1] <= most:
        wanted = f"one prompt, shape (1, token) with 1 to {most} tokens (the model's context)"
        raise ArgumentValueError(expected("ids", wanted, f"shape {tuple(ids.shape)}", "shorten the prompt"))
    if int(ids.min()) < 0 or int(ids.max()) >= facts.vocabulary:
        came = f"ids from {int(ids.min())} to {int(ids.max())}"
        raise ArgumentValueError(expected("ids", f"ids from 0 to {facts.vocabulary - 1}", came))
    return ids.long()
