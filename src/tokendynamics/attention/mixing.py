"""Averages over the senders, in the form that suits the sizes: fused for long sequences, direct for short ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

SHORT = 128
"""Up to this many tokens the matrix of weights is formed; beyond it memory stays linear in the tokens."""


_ROWS = 128
"""Rows of exponential or hardmax weights that are formed at a time for long sequences."""

_TIED = 16.0
"""Logits as near the largest as this many rounding units of the largest size in their row are equal to it."""


Mask = bool | Tensor
"""Whom receivers see: everyone (False), themselves and those before them (True), or the entries of (token, token)."""


def hidden_senders(mask: Mask, shape: torch.Size, first_receiver: int, device: torch.device) -> Tensor | None:
    """Return which senders receivers from the first on do not see, (receiver, sender); None where all are seen."""
    if isinstance(mask, Tensor):
        return ~mask[first_receiver : first_receiver + shape[0]].to(device)
    return torch.ones(shape, dtype=torch.bool, device=device).triu(1 + first_receiver) if mask else None


def attention_weights(query: Tensor, key: Tensor, mask: Mask, weights: str, offset: float = 0.0) -> Tensor:
    """Return the weights of logits ``q_i · k_j``, (*system, head, token, token); see `masked_weights`.

    Args:
        query: (*system, head, token, rank).
        key: (*system, head or 1, token, rank).
        mask: See `Mask`.
        weights: "softmax", "linear", "exponential" or "hardmax".
        offset: Taken off the logits of exponential weights.
    """
    return masked_weights(logits(query, key), mask, weights, offset=offset)


def masked_weights(logits: Tensor, mask: Mask, weights: str, first_receiver: int = 0, *, offset: float = 0.0) -> Tensor:
    """Return the softmax or hardmax over the senders, the logits, or their exponentials; hidden senders get 0.

    Args:
        logits: (…, receiver, sender), for receivers from `first_receiver` on.
        mask: See `Mask`.
        weights: "softmax"; "linear"; "exponential": e^{s − offset} over the number of senders that are seen; or
            "hardmax": equal shares for those whose logit is the largest, up to rounding.
        first_receiver: Index of the first row.
        offset: Taken off the logits of exponential weights.
    """
    hidden = hidden_senders(mask, logits.shape[-2:], first_receiver, logits.device)
    if weights == "linear":
        return logits if hidden is None else logits.masked_fill(hidden, 0.0)
    seen = logits if hidden is None else logits.masked_fill(hidden, -torch.inf)
    if weights == "exponential":
        # One pass less than a division: w = e^(s − offset − log n).
        count = logits.shape[-1] if hidden is None else (~hidden).sum(dim=-1, keepdim=True)
        return (seen - (offset + torch.as_tensor(count).to(logits).log())).exp()
    if weights == "hardmax":
        return equal_shares(largest_logits(seen).to(logits.dtype))
    return seen.softmax(dim=-1)


def largest_logits(logits: Tensor) -> Tensor:
    """Return which senders have the largest logit of each row, up to rounding; those at −inf are not seen."""
    size = logits.masked_fill(torch.isneginf(logits), 0.0).abs().amax(dim=-1, keepdim=True)
    return logits >= logits.amax(dim=-1, keepdim=True) - _TIED * torch.finfo(logits.dtype).eps * size


def equal_shares(chosen: Tensor) -> Tensor:
    """Return rows of 0 and 1 divided by their sums."""
    return chosen / chosen.sum(dim=-1, keepdim=True)


def logits(query: Tensor, key: Tensor) -> Tensor:
    """Return ``q_i · k_j``, (*system, head, token, token)."""
    return _shared_by_heads(query, key.mT)


def average(weights: Tensor, value: Tensor) -> Tensor:
    """Return ``Σ_j w_ij v_j``, (*system, head, token, width)."""
    return _shared_by_heads(weights, value)


def fused_average(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """Return ``Σ_j softmax_j(q_i · k_j) v_j`` in memory linear in the tokens."""
    parts, back = _side_by_side(query, key, value)
    if isinstance(mask, Tensor):
        return back(scaled_dot_product_attention(*parts, attn_mask=mask.to(query.device), scale=1.0))
    return back(scaled_dot_product_attention(*parts, is_causal=mask, scale=1.0))


def _side_by_side(
    query: Tensor, key: Tensor, value: Tensor
) -> tuple[tuple[Tensor, Tensor, Tensor], Callable[[Tensor], Tensor]]:
    """Return the three as PyTorch's fused attention takes them, and what brings its output back."""
    # Four axes and one width: with three axes or unequal widths PyTorch falls back to a path that forms the weights.
    system, heads, tokens = query.shape[:-3], query.shape[-3], query.shape[-2]
    width = max(query.shape[-1], value.shape[-1])

    def prepared(part: Tensor) -> Tensor:
        four_axes = part.expand(*system, heads, -1, -1).reshape(-1, heads, tokens, part.shape[-1])
        return pad(four_axes, (0, width - part.shape[-1])) if part.shape[-1] < width else four_axes

    def back(mixed: Tensor) -> Tensor:
        return mixed[..., : value.shape[-1]].reshape(*system, heads, tokens, value.shape[-1])

    return (prepared(query), prepared(key), prepared(value)), back


def long_average(query: Tensor, key: Tensor, value: Tensor, mask: Mask, weights: str, offset: float = 0.0) -> Tensor:
    """Return ``Σ_j w_ij v_j`` in memory linear in the tokens, but for linear weights with a mask."""
    if weights == "softmax":
        return fused_average(query, key, value, mask)
    if weights == "exponential":
        return _exponential_average(query, key, value, mask, offset)
    if weights == "hardmax":
        return _average_by_rows(query, key, value, mask, weights, offset)
    # Without a mask linear weights go through a rank × width product.
    if mask is False:
        return query @ (key.mT @ value)
    return average(masked_weights(logits(query, key), mask, "linear"), value)


def _exponential_average(query: Tensor, key: Tensor, value: Tensor, mask: Mask, offset: float) -> Tensor:
    on_cpu = query.device.type == "cpu" and not isinstance(mask, Tensor)
    if on_cpu and not any(part.requires_grad for part in (query, key, value)):
        # PyTorch's fused attention on processors gives the logarithms of the sums, too, but no gradient of them.
        fused, back = _side_by_side(query, key, value)
        mean, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*fused, 0.0, mask, scale=1.0)
        seen = torch.arange(1, query.shape[-2] + 1).unsqueeze(-1) if mask else query.shape[-2]
        return back(mean * (log_sums - offset).exp().unsqueeze(-1) / seen)
    return _average_by_rows(query, key, value, mask, "exponential", offset)


def _average_by_rows(query: Tensor, key: Tensor, value: Tensor, mask: Mask, weights: str, offset: float) -> Tensor:
    parts = []
    for start in range(0, query.shape[-2], _ROWS):
        rows = logits(query[..., start : start + _ROWS, :], key)
        parts.append(average(masked_weights(rows, mask, weights, start, offset=offset), value))
    return torch.cat(parts, dim=-2)


def _shared_by_heads(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left_h @ right_h`` where right may have one head for all: then the heads' rows stand in one product."""
    heads, rows = left.shape[-3:-1]
    if right.shape[-3] == heads:
        return left @ right
    stacked = left.reshape(*left.shape[:-3], heads * rows, left.shape[-1]) @ right.squeeze(-3)
    return stacked.reshape(*stacked.shape[:-2], heads, rows, stacked.shape[-1])
