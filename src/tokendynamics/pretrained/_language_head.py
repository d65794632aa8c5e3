"""What turns the last state into the next token: a base model is stored without it, and its loss needs it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tokendynamics.pretrained._network import put
from tokendynamics.pretrained._other_libraries import silenced


def with_language_head(model: Any, stored: Callable[[nn.Module, str], Tensor | None]) -> nn.Module | None:
    """Put the head of its configuration on a base model, whose modules are shared and stay as they are.

    transformers' own class is used, since what stands between the last state and the logits (a bias, a scale, a soft
    cap) is part of it.

    Args:
        model: A base model of transformers, ready to run.
        stored: Returns a tensor of the whole network, which is empty, by its name; None where it is not stored.

    Returns:
        The whole network; None where the configuration has none, or a tensor of the head is neither tied nor stored.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    config: Any = getattr(model, "config", None)
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if not isinstance(kind, type):
        return None
    with silenced(), torch.device("meta"):
        whole: Any = kind(copy.deepcopy(config))
    prefix = whole.base_model_prefix
    base: Any = getattr(whole, prefix, None)
    if type(base) is not type(model):
        return None
    tied = {id(parameter): name for name, parameter in base.named_parameters(remove_duplicate=False)}
    for name, parameter in list(whole.named_parameters(remove_duplicate=False)):
        if name.startswith(f"{prefix}."):
            continue
        values = _own(model, tied[id(parameter)]) if id(parameter) in tied else stored(whole, name)
        if values is None or values.shape != parameter.shape:
            return None
        first = next(model.parameters())
        put(whole, name, nn.Parameter(values.detach().to(first), requires_grad=False))
    setattr(whole, prefix, model)
    return None if any(buffer.is_meta for buffer in whole.buffers()) else whole.eval()


def _own(model: nn.Module, name: str) -> Tensor | None:
    return dict(model.named_parameters(remove_duplicate=False)).get(name)


def logits_of(output: Any, ids: Tensor, vocabulary: int) -> Tensor | None:
    """Return the logits among what a network gave, shape (prompt, token, vocabulary); None where there are none.

    >>> logits_of((torch.zeros(1, 3, 7),), torch.zeros(1, 3), vocabulary=7).shape
    torch.Size([1, 3, 7])
    """
    found = getattr(output, "logits", None)
    if found is None:
        found = output if isinstance(output, Tensor) or not isinstance(output, tuple) else output[0]
    # A classifier's logits have other sizes, and so have states.
    return found if isinstance(found, Tensor) and found.shape == (*ids.shape, vocabulary) else None
