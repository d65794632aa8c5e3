"""Attention by formula, as the plain implementations of transformers compute it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

_LARGEST_LOG = 600.0
"""Of a factor of logits: with more than this the largest logit alone counts, by any number that float64 tells apart."""


def plain_attention(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the plain attention of the file that defines the module's class."""
    for kind in type(module).__mro__:
        function = getattr(sys.modules[kind.__module__], "eager_attention_forward", None)
        if function is not None:
            return function
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


def attend_multiplied(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, log_factors: Tensor, named: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Attend with multiplied logits: each row's largest is taken off first, so that a huge factor only makes it win."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scale = named.get("scaling")
    logits = (query @ key.mT).double() * (query.shape[-1] ** -0.5 if scale is None else scale)
    added = torch.zeros_like(logits)
    for addend in (mask, named.get("position_bias")):
        if addend is not None:
            added = added + addend.double()
    hidden = added < torch.finfo(query.dtype).min / 2
    weights = multiplied(logits, added, hidden, log_factors).softmax(dim=-1).to(value)
    return (weights @ value).transpose(1, 2), weights


def multiplied(scaled: Tensor, added: Tensor, hidden: Tensor, log_factors: Float[Tensor, " batch"]) -> Tensor:
    """Return logits of which the scaled products are multiplied, less what a softmax does not see.

    Args:
        scaled: The products (batch, …), in double precision.
        added: What is added to them.
        hidden: Where no token is seen.
        log_factors: Logarithm of the factor of each input.
    """
    hidden = hidden & ~hidden.all(dim=-1, keepdim=True)  # what sees none, such as padding, keeps its weights
    below = scaled - scaled.masked_fill(hidden, -torch.inf).amax(dim=-1, keepdim=True)
    factor = torch.exp(log_factors.to(scaled).clamp(max=_LARGEST_LOG)).reshape(-1, *(1,) * (scaled.ndim - 1))
    return torch.where(hidden, -torch.inf, below * factor + added)


def attend(
    query: Float[Tensor, "batch head receiver d_head"],
    key: Float[Tensor, "batch kv_head token d_head"],
    value: Float[Tensor, "batch kv_head token d_value"],
    *,
    mask: Tensor | None,
    scale: float,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return Σ_j w_ij v_j, (batch, receiver, head, d_value), and the weights w, (batch, head, receiver, token).

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
    query: Float[Tensor, "batch head receiver d_head"],
    key: Float[Tensor, "batch kv_head token d_head"],
    *,
    mask: Tensor | None,
    scale: float,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | None = None,
) -> Float[Tensor, "batch head receiver token"]:
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
