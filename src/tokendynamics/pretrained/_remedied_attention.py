"""Puts the columns of a remedy on the attentions of a live network, and takes them off: nothing else is changed.

A network's configuration names the implementation that transformers' attention interface runs. Of one with a remedy
that is one of ours, which adds the columns where a module has them and then calls the implementation chosen before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tokendynamics.numerics import CheckpointError
from tokendynamics.numerics.errors import expected
from tokendynamics.pretrained._remedy_columns import NAME, LambdaColumns, Ungrouped, columns_of, remedies_in
from tokendynamics.pretrained.discovery._calls import state_of
from tokendynamics.pretrained.discovery._plain_attention import plain_attention
from tokendynamics.pretrained.discovery._small_copy import random_inputs
from tokendynamics.pretrained.discovery.interface import WATCHED, WITH_REMEDY, configurations
from tokendynamics.pretrained.network import evaluating, without_cache
from tokendynamics.pretrained.other_libraries import silenced

IN_CONFIGURATION = "tokendynamics_remedy"
"""What the configuration of a network with a remedy calls its kind."""

_CHOSEN_BEFORE = {ours: theirs for theirs, ours in WITH_REMEDY.items()}


def attach(network: Any, columns: Mapping[nn.Module, LambdaColumns], name: str) -> None:
    """Give attentions their columns, and run the network once to see that each asks for them.

    Args:
        network: Theirs.
        columns: By the attention modules of the network, which have none yet.
        name: What a message calls the network.

    Raises:
        CheckpointError: Attentions that do not ask for them; the network is as it was.
    """
    if any(not hasattr(getattr(module, "config", None), "_attn_implementation") for module in columns):
        raise CheckpointError(_not_asking(name, list(columns)))
    _register()
    try:
        for module, own in columns.items():
            module.add_module(NAME, own)
            module.register_forward_pre_hook(_before, with_kwargs=True)
            config: Any = module.config
            config._attn_implementation_internal = WITH_REMEDY.get(*(config._attn_implementation,) * 2)
        _check_used(network, name)
    except BaseException:
        detach(network)
        raise
    setattr(network.config, IN_CONFIGURATION, next(iter(columns.values())).kind)


def detach(network: Any) -> None:
    """Take every remedy off, and choose the implementation that was chosen before."""
    for module, _ in remedies_in(network):
        delattr(module, NAME)
        for number, hook in list(module._forward_pre_hooks.items()):
            if hook is _before:
                del module._forward_pre_hooks[number], module._forward_pre_hooks_with_kwargs[number]
        config: Any = module.config
        chosen = config._attn_implementation
        config._attn_implementation_internal = _CHOSEN_BEFORE.get(chosen, chosen)
    vars(network.config).pop(IN_CONFIGURATION, None)


def check_implementation(network: nn.Module) -> None:
    """Refuse a network of which an attention is implemented otherwise than by "sdpa" or "eager".

    Raises:
        CheckpointError: It is.
    """
    for config in configurations(network):
        if config._attn_implementation not in (*WITH_REMEDY, None):
            wanted = f"an attention implementation that is {' or '.join(map(repr, WITH_REMEDY))}"
            came, advice = config._attn_implementation, "choose it with model.set_attn_implementation"
            raise CheckpointError(expected("model", wanted, came, advice))


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    functions, masks = AttentionInterface(), AttentionMaskInterface()
    for theirs, ours in WITH_REMEDY.items():
        AttentionInterface.register(ours, partial(_attend, functions.get(theirs)))
        AttentionMaskInterface.register(ours, masks[theirs])


def _check_used(network: nn.Module, name: str) -> None:
    with evaluating(network), without_cache(network), torch.no_grad(), silenced():
        network(**random_inputs(network)(1))
    idle = [module for module, columns in remedies_in(network) if columns.drop() is not None]
    if idle:
        raise CheckpointError(_not_asking(name, idle))


def _not_asking(name: str, modules: Sequence[nn.Module]) -> str:
    came = f"{len(modules)} that do not, the first a {type(modules[0]).__name__}"
    return expected(name, "attentions that use transformers' attention interface", came)


def _before(module: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Keep what an attention is about to read, and let its cache keep the columns with the keys."""
    from transformers import Cache

    columns, x = columns_of(module), state_of(positional, named)
    if columns is None or x is None:
        return None
    config: Any = module.config
    if config._attn_implementation not in (*_CHOSEN_BEFORE, WATCHED):
        advice = "remove the remedy, choose the implementation, and apply the remedy again"
        wanted = "the attention implementation that the remedy has chosen"
        raise CheckpointError(expected("model", wanted, repr(config._attn_implementation), advice))
    columns.keep(x)

    def with_columns(value: Any) -> Any:
        return _CacheWithColumns(value, columns.of_keys(x)) if isinstance(value, Cache) else value

    return tuple(map(with_columns, positional)), {name: with_columns(value) for name, value in named.items()}


class _CacheWithColumns:
    """The cache of a network as an attention with a remedy sees it: the columns of its keys are kept behind them.

    So whatever a cache does with keys (grow, slide, follow the beams of a search) it does with their columns.
    """

    def __init__(self, cache: Any, columns: Tensor) -> None:
        self._cache, self._columns = cache, columns

    def update(self, key_states: Tensor, value_states: Tensor, *positional: Any, **named: Any) -> tuple[Tensor, Tensor]:
        if key_states.shape[:-1] != self._columns.shape[:-1]:
            raise CheckpointError(expected("use_cache", "False: its cache does not store keys", True))
        keys = torch.cat([key_states, self._columns.to(key_states)], dim=-1)
        return self._cache.update(keys, value_states, *positional, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


def _attend(
    fused: Callable[..., tuple[Tensor, Tensor | None]] | None,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **named: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend with the module's columns, by a fused implementation or else the plain one of the module's family."""
    attention, columns = fused or plain_attention(module), columns_of(module)
    if columns is None:
        return attention(module, query, key, value, attention_mask, **named)
    query, key, value, named["scaling"] = columns.extended(query, key, value, named.get("scaling"))
    width = value.shape[-1]
    if fused is not None and width < key.shape[-1]:  # the fused kernels want all of one width
        value = functional.pad(value, (0, key.shape[-1] - width))
    output, weights = attention(Ungrouped(module), query, key, value, attention_mask, **named)
    return output[..., :width], weights
