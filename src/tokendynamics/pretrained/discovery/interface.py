"""Sees queries, keys and values of every attention: through transformers' attention interface, or torch's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from tokendynamics.pretrained.discovery._functions import AttentionFunctions, noticing
from tokendynamics.pretrained.discovery._fused_attention import uncompiled
from tokendynamics.pretrained.discovery._plain_attention import attend_multiplied, plain_attention
from tokendynamics.pretrained.discovery.attention_call import (
    LOG_FACTORS,
    LOST,
    WATCHER,
    Attend,
    AttentionCall,
    attended,
    named_rows,
    row_blocks,
    row_mask,
    rows_of,
    seen_elsewhere,
)

WATCHED = "tokendynamics"
"""The attention implementation under which a network is watched."""

WITH_REMEDY = {"sdpa": "tokendynamics-remedy-sdpa", "eager": "tokendynamics-remedy-eager"}
"""Those under which a network with a remedy runs, by the ones that they call."""

REMEDY = "remedy"
"""What an attention module calls the columns of its remedy."""

_of_w: ContextVar[bool] = ContextVar("_of_w", default=False)


@runtime_checkable
class FurtherColumns(Protocol):
    """Columns beside the queries and keys of an attention, such as those of a remedy."""

    def drop(self) -> Tensor | None:
        """Let go of what the attention was about to read."""
        ...

    def extended(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float | None
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        """Return queries and keys with the columns, values, and the factor of the logits; every head has its own."""
        ...


class Ungrouped:
    """An attention module as its own plain implementation sees it, where every head has keys of its own."""

    num_key_value_groups = 1

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@contextmanager
def watching(
    network: nn.Module,
    watch: Callable[[AttentionCall], None],
    *,
    of_w: bool = False,
    lost: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Give every attention of a network's forward passes inside the block to `watch`.

    The network's own plain implementation computes it, with its own mask, so that nothing else changes.

    Args:
        network: Its configurations choose the implementation; theirs is put back after.
        watch: Called with each attention, in the order in which they run.
        of_w: Whether a remedy, which adds to the logits what is no product of queries and keys, is left out.
        lost: Called with words on logits that are changed in a way that is not followed.
    """
    token, lost_token = _of_w.set(of_w), LOST.set(lost)
    try:
        with _shown(configurations(network)), noticing(watch):
            yield
    finally:
        _of_w.reset(token)
        LOST.reset(lost_token)


@contextmanager
def showing(network: nn.Module) -> Iterator[None]:
    """Let a network's plain attentions inside the block be noticed; the fused ones are as they are.

    States stay bit for bit those of the network by itself; of a prompt whose plain attention is computed in blocks of
    rows, to rounding.

    Args:
        network: Not to be in two such blocks at a time.
    """
    plain = ("eager", WITH_REMEDY["eager"])
    with _shown([config for config in configurations(network) if config._attn_implementation in plain]):
        yield


@contextmanager
def multiplied_logits(network: nn.Module, log_factors: Callable[[], Float[Tensor, " batch"]]) -> Iterator[None]:
    """Multiply every attention's logits by exp(log_factors()) inside the block; nested factors are multiplied.

    Args:
        network: One whose attentions are seen, without soft cap and sinks.
        log_factors: Returns the logarithm of the factor of each input of the batch.
    """
    outer = LOG_FACTORS.get()
    token = LOG_FACTORS.set(log_factors if outer is None else lambda: outer() + log_factors())
    try:
        with _shown(configurations(network)), uncompiled(), AttentionFunctions():
            yield
    finally:
        LOG_FACTORS.reset(token)


@contextmanager
def _shown(configurations: list[Any]) -> Iterator[None]:
    from transformers import AttentionInterface, AttentionMaskInterface

    # Without a mask function of the same name the models would drop their masks, and with them causality.
    AttentionMaskInterface.register(WATCHED, row_mask)
    AttentionInterface.register(WATCHED, _attend)
    chosen = [(config, config._attn_implementation) for config in configurations]
    try:
        for config, _ in chosen:
            config._attn_implementation_internal = WATCHED
        yield
    finally:
        for config, former in chosen:
            config._attn_implementation_internal = former


def configurations(network: nn.Module) -> list[Any]:
    """Return every configuration that chooses an attention, each once.

    Those that only code without the interface reads are left out: Falcon compares the name of the implementation with
    the ones that it knows, and with ALiBi it does not compute the same in each.
    """
    by_id: dict[int, Any] = {}
    readers: dict[int, list[nn.Module]] = {}
    waiting = []
    for module in network.modules():
        if hasattr(module, "config"):
            readers.setdefault(id(module.config), []).append(module)
            waiting.append(module.config)
    while waiting:
        config = waiting.pop()
        if id(config) not in by_id and hasattr(config, "_attn_implementation"):
            by_id[id(config)] = config
            waiting += [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
    return [
        config for name, config in by_id.items() if any(map(_may_call, readers.get(name, ()))) or name not in readers
    ]


def _may_call(module: nn.Module) -> bool:
    """Tell whether a module may call the attention that a configuration chooses: not if its files do not mention it."""
    files = [kind.__module__ for kind in type(module).__mro__ if kind.__module__.startswith("transformers.models.")]
    written_here = type(module).__module__ not in files
    return written_here or any(hasattr(sys.modules[file], "ALL_ATTENTION_FUNCTIONS") for file in files)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **named: Any
) -> tuple[Tensor, Tensor | None]:
    log_factors, columns, seen_by = LOG_FACTORS.get(), getattr(module, REMEDY, None), module
    columns = columns if isinstance(columns, FurtherColumns) else None
    if columns is not None and _of_w.get():
        columns.drop()
    elif columns is not None:
        query, key, value, named["scaling"] = columns.extended(query, key, value, named.get("scaling"))
        seen_by = Ungrouped(module)
    factors = None if log_factors is None else log_factors()
    receivers, senders = query.shape[2], key.shape[2]

    def mask_of(rows: slice) -> Tensor | None:
        return rows_of(attention_mask, rows, receivers)

    def compute(rows: slice) -> tuple[Tensor, Tensor]:
        given, some = named_rows(named, rows, receivers, senders), query[:, :, rows]
        with seen_elsewhere():
            if factors is not None:
                return attend_multiplied(some, key, value, mask_of(rows), factors, given)
            return plain_attention(module)(seen_by, some, key, value, mask_of(rows), **given)

    output, weights = attended(compute, row_blocks(query, key))
    watch = WATCHER.get()
    if watch is not None:
        watch(_plain_call(module, (query, key, value), output, weights, compute, mask_of, named))
    return output, weights


def _plain_call(
    module: nn.Module,
    given: tuple[Tensor, Tensor, Tensor],
    output: Tensor,
    weights: Tensor | None,
    compute: Attend,
    mask_of: Callable[[slice], Tensor | None],
    named: dict[str, Any],
) -> AttentionCall:
    query, key, value = (tensor.detach() for tensor in given)
    scale = named.get("scaling")

    def weights_of(rows: slice) -> Tensor:
        return (compute(rows)[1] if weights is None else weights[:, :, rows]).detach()

    return AttentionCall(
        module=module,
        query=query,
        key=key,
        value=value,
        output=output.detach(),
        weights_of=weights_of,
        mask_of=mask_of,
        scale=float(query.shape[-1] ** -0.5 if scale is None else scale),
        soft_cap=named.get("softcap"),
        sinks=named.get("s_aux"),
        bias=named.get("position_bias"),
        window=named.get("sliding_window"),
    )
