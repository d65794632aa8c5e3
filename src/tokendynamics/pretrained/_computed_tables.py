"""Tables that transformers computes and may leave out of a file, such as the sinusoidal positions of Marian."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from tokendynamics.pretrained._other_libraries import silenced


def computed_table(whole: Any, module: nn.Module, leaf: str) -> Tensor | None:
    """Return the values of a frozen parameter that its network's initialization computes without drawing any.

    Args:
        whole: The network of transformers, whose initialization it is.
        module: The module that holds the parameter; empty.
        leaf: The parameter's name in it.

    Returns:
        None for a parameter that is trained, or drawn, or constant: a file without it is incomplete.
    """
    if module.get_parameter(leaf).requires_grad:
        return None
    made = []
    for seed in (0, 1):
        own = copy.deepcopy(module).to_empty(device="cpu")
        own.get_parameter(leaf).data.fill_(torch.nan)
        with silenced(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            whole._init_weights(own)
        made.append(own.get_parameter(leaf).detach())
    known = bool(torch.isfinite(made[0]).all()) and torch.equal(*made) and bool((made[0] != made[0].flatten()[0]).any())
    return made[0] if known else None
