"""The states in what a module gives: a tensor, the first of several, or the one that is called ``hidden_states``."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

STATES = "hidden_states"


def states_given(output: Any) -> Tensor | None:
    """Return the states in what a module gave; None where there are none.

    Modules give a tensor, a tuple or a list with the states first (OpenAI's GPT), or a named tuple of several tensors
    (Reformer).

    >>> import torch
    >>> states_given([torch.ones(2), None]).tolist()
    [1.0, 1.0]
    """
    if isinstance(output, Tensor):
        return output
    named = getattr(output, STATES, None)
    if isinstance(named, Tensor):
        return named
    if isinstance(output, tuple | list):
        return next((each for each in cast("list[Any]", output) if isinstance(each, Tensor)), None)
    return None


def all_states_given(output: Any) -> list[Tensor]:
    """Return every tensor of real numbers among what a module gave that has the shape of its states."""
    states = states_given(output)
    if states is None or not isinstance(output, tuple | list):
        return [] if states is None else [states]
    tensors = [each for each in cast("list[Any]", output) if isinstance(each, Tensor)]
    return [each for each in tensors if each.shape == states.shape and each.is_floating_point()]


def with_states_given(output: Any, states: Tensor) -> Any:
    """Return what a module gave with other states in it.

    >>> import torch
    >>> with_states_given((None, torch.ones(1)), torch.zeros(1))
    (None, tensor([0.]))
    """
    former = states_given(output)
    if isinstance(output, Tensor) or former is None:
        return states
    if isinstance(output, tuple | list):
        several = [states if each is former else each for each in cast("list[Any]", output)]
        if isinstance(output, list):
            return several
        return type(output)(*several) if hasattr(output, "_fields") else tuple(several)
    setattr(output, STATES, states)
    return output
