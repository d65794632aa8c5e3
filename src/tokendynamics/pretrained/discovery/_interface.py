"""Sees queries, keys and values of every attention: through transformers' attention interface, or torch's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from tokendynamics.pretrained._remedy_columns import Ungrouped, columns_of

WATCHED = "tokendynamics"
"""The attention implementation under which a network is watched."""

WITH_REMEDY = {"sdpa": "tokendynamics-remedy-sdpa", "eager": "tokendynamics-remedy-eager"}
"""Those under which a network with a remedy runs, by the ones that they call."""

_LARGEST_LOG = 600.0
"""Of a factor of logits: with more than this the largest logit alone counts, by any number that float64 tells apart."""


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """What one attention was given and gave: the tensors themselves, which what runs next may overwrite; see `kept`.

    Attributes:
        module: The attention module; None where it called torch's fused attention itself.
        query: Queries, with norms and rotations applied.
        key: Keys, likewise.
        value: Values.
        output: Σ_j w_ij v_j of each head, before the output projection.
        weights: The attention weights.
        mask: Added to the logits; None where every token sees every token.
        scale: Factor of the logits.
        soft_cap: Logits s become c·tanh(s/c) before the mask; None without.
        sinks: A learned logit for each head that takes part in the softmax and carries no value; None without.
        bias: Added to the logits by position, (…, head, query, key); None without.
        window: Width of the sliding window; None without.
    """

    module: nn.Module | None
    query: Float[Tensor, "batch head token d_head"]
    key: Float[Tensor, "batch kv_head token d_head"]
    value: Float[Tensor, "batch kv_head token d_value"]
    output: Float[Tensor, "batch token head d_value"]
    weights: Float[Tensor, "batch head token token"]
    mask: Tensor | None
    scale: float
    soft_cap: float | None
    sinks: Float[Tensor, " head"] | None
    bias: Tensor | None
    window: int | None

    def kept(self) -> AttentionCall:
        """Return the same with tensors of its own."""
        own = {name: getattr(self, name).clone() for name in ("query", "key", "value", "output")}
        return replace(self, **own)


_log_factors: ContextVar[Callable[[], Tensor] | None] = ContextVar("_log_factors", default=None)
_watcher: ContextVar[Callable[[AttentionCall], None] | None] = ContextVar("_watcher", default=None)
_of_w: ContextVar[bool] = ContextVar("_of_w", default=False)


@contextmanager
def watching(network: nn.Module, watch: Callable[[AttentionCall], None], *, of_w: bool = False) -> Iterator[None]:
    """Give every attention of a network's forward passes inside the block to `watch`.

    The network's own plain implementation computes it, with its own mask, so that nothing else changes.

    Args:
        network: Its configurations choose the implementation; theirs is put back after.
        watch: Called with each attention, in the order in which they run.
        of_w: Whether a remedy, which adds to the logits what is no product of queries and keys, is left out.
    """
    token = _of_w.set(of_w)
    try:
        with _shown(configurations(network)), noticing(watch):
            yield
    finally:
        _of_w.reset(token)


@contextmanager
def showing(network: nn.Module) -> Iterator[None]:
    """Let a network's plain attentions inside the block be noticed; the fused ones are as they are.

    States stay bit for bit those of the network by itself.

    Args:
        network: Not to be in two such blocks at a time.
    """
    plain = ("eager", WITH_REMEDY["eager"])
    with _shown([config for config in configurations(network) if config._attn_implementation in plain]):
        yield


@contextmanager
def multiplied_logits(network: nn.Module, log_factors: Callable[[], Float[Tensor, " batch"]]) -> Iterator[None]:
    """Multiply every attention's logits by exp(log_factors()) inside the block, however large that is.

    Args:
        network: One whose attentions use transformers' interface, without soft cap and sinks.
        log_factors: Returns the logarithm of the factor of each input of the batch.
    """
    token = _log_factors.set(log_factors)
    try:
        with _shown(configurations(network)):
            yield
    finally:
        _log_factors.reset(token)


@contextmanager
def noticing(watch: Callable[[AttentionCall], None]) -> Iterator[None]:
    """Give to `watch` what runs in this thread inside the block: fused attentions, and plain ones that are shown."""
    token = _watcher.set(watch)
    try:
        with _FusedAttention():
            yield
    finally:
        _watcher.reset(token)


@contextmanager
def _shown(configurations: list[Any]) -> Iterator[None]:
    _register()
    chosen = [(config, config._attn_implementation) for config in configurations]
    try:
        for config, _ in chosen:
            config._attn_implementation_internal = WATCHED
        yield
    finally:
        for config, former in chosen:
            config._attn_implementation_internal = former


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    # Without a mask function of the same name the models would drop their masks, and with them causality.
    AttentionMaskInterface.register(WATCHED, eager_mask)
    AttentionInterface.register(WATCHED, _attend)


def configurations(network: nn.Module) -> list[Any]:
    """Return every configuration that chooses an attention, each once."""
    found: dict[int, Any] = {}
    waiting = [module.config for module in network.modules() if hasattr(module, "config")]
    while waiting:
        config = waiting.pop()
        if id(config) not in found and hasattr(config, "_attn_implementation"):
            found[id(config)] = config
            waiting += [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
    return list(found.values())


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **named: Any
) -> tuple[Tensor, Tensor]:
    log_factors, columns, seen_by = _log_factors.get(), columns_of(module), module
    if columns is not None and _of_w.get():
        columns.drop()
    elif columns is not None:
        query, key, value, named["scaling"] = columns.extended(query, key, value, named.get("scaling"))
        seen_by = Ungrouped(module)
    if log_factors is None:
        output, weights = plain_attention(module)(seen_by, query, key, value, attention_mask, **named)
    else:
        output, weights = _attend_multiplied(query, key, value, attention_mask, log_factors(), named)
    watch = _watcher.get()
    if watch is not None:
        scale, width = named.get("scaling"), query.shape[-1]
        call = AttentionCall(
            module=module,
            query=query.detach(),
            key=key.detach(),
            value=value.detach(),
            output=output.detach(),
            weights=weights.detach(),
            mask=attention_mask,
            scale=float(width**-0.5 if scale is None else scale),
            soft_cap=named.get("softcap"),
            sinks=named.get("s_aux"),
            bias=named.get("position_bias"),
            window=named.get("sliding_window"),
        )
        watch(call)
    return output, weights


class _FusedAttention(TorchFunctionMode):
    """Sees torch's own fused attention, which networks call that do not use transformers' interface."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        watch = _watcher.get()
        if func is scaled_dot_product_attention and watch is not None:
            watch(_fused_call(output, *args, **(kwargs or {})))
        return output


def _fused_call(
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionCall:
    del dropout_p, enable_gqa
    mask = attn_mask
    if is_causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
    factor = float(query.shape[-1] ** -0.5 if scale is None else scale)
    with torch.no_grad():
        weights = attention_weights(query, key, mask=mask, scale=factor)
    return AttentionCall(
        module=None,
        query=query.detach(),
        key=key.detach(),
        value=value.detach(),
        output=output.detach().transpose(1, 2),
        weights=weights,
        mask=mask,
        scale=factor,
        soft_cap=None,
        sinks=None,
        bias=None,
        window=None,
    )


def plain_attention(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the plain attention of the file that defines the module's class."""
    for kind in type(module).__mro__:
        found = getattr(sys.modules[kind.__module__], "eager_attention_forward", None)
        if found is not None:
            return found
    return recomputed_plainly


def recomputed_plainly(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **named: Any
) -> tuple[Tensor, Tensor]:
    """Attend as the interface's plain implementations do, for a module whose file has none of its own."""
    del module
    scale = named.get("scaling")
    return attend(
        query,
        key,
        value,
        mask=attention_mask,
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        soft_cap=named.get("softcap"),
        sinks=named.get("s_aux"),
        bias=named.get("position_bias"),
    )


def _attend_multiplied(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, log_factors: Tensor, named: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Attend with multiplied logits: each row's largest is taken off first, so that a huge factor only makes it win."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scale = named.get("scaling")
    logits = (query @ key.mT).double() * (query.shape[-1] ** -0.5 if scale is None else scale)
    added = torch.zeros_like(logits)
    for each in (mask, named.get("position_bias")):
        if each is not None:
            added = added + each.double()
    hidden = added < torch.finfo(query.dtype).min / 2
    below = logits - logits.masked_fill(hidden, -torch.inf).amax(dim=-1, keepdim=True)
    factor = torch.exp(log_factors.to(logits).clamp(max=_LARGEST_LOG)).reshape(-1, 1, 1, 1)
    logits = torch.where(hidden, -torch.inf, below * factor + added)
    weights = logits.softmax(dim=-1).to(value)
    return (weights @ value).transpose(1, 2), weights


def attend(
    query: Float[Tensor, "batch head token d_head"],
    key: Float[Tensor, "batch kv_head token d_head"],
    value: Float[Tensor, "batch kv_head token d_value"],
    *,
    mask: Tensor | None,
    scale: float,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return Σ_j w_ij v_j, (batch, token, head, d_value), and the weights w, (batch, head, token, token).

    The logits are ``scale · ⟨q_i, k_j⟩``, capped, then biased and masked; a sink is one more logit without a value.

    >>> x = torch.eye(2, dtype=torch.float64).reshape(1, 1, 2, 2)
    >>> output, weights = attend(x, x, x, mask=None, scale=0.0)
    >>> output[0, 0, 0].tolist()
    [0.5, 0.5]
    """
    weights = attention_weights(query, key, mask=mask, scale=scale, soft_cap=soft_cap, sinks=sinks, bias=bias)
    value = value.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    return (weights @ value).transpose(1, 2), weights


def attention_weights(
    query: Float[Tensor, "batch head token d_head"],
    key: Float[Tensor, "batch kv_head token d_head"],
    *,
    mask: Tensor | None,
    scale: float,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
) -> Float[Tensor, "batch head token token"]:
    """Return the weights of `attend`.

    >>> x = torch.eye(2, dtype=torch.float64).reshape(1, 1, 2, 2)
    >>> attention_weights(x, x, mask=None, scale=0.0)[0, 0, 0].tolist()
    [0.5, 0.5]
    """
    batch, heads, receivers, width = query.shape
    grouped = query.reshape(batch, key.shape[1], -1, width)  # heads that share their keys one below the other
    logits = (grouped @ key.mT).reshape(batch, heads, receivers, -1).mul_(scale)
    if soft_cap is not None:
        logits = soft_cap * torch.tanh(logits / soft_cap)
    for added in (bias, mask):
        if added is not None:
            logits += added.to(logits.dtype)
    if sinks is not None:
        column = sinks.to(logits.dtype).reshape(1, -1, 1, 1).expand(*logits.shape[:3], 1)
        logits = torch.cat([logits, column], dim=-1)
    return logits.softmax(dim=-1)[..., : key.shape[2]]
