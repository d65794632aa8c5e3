"""The derivative of the vector field with respect to the states, by formula: whole, or applied to a direction.

With ``y_i = x_i / |x_i|_M`` and ``p_i = c Σ_h ov_h Σ_j w_ij y_j`` the field is ``F_i = p_i − (y_i^T M p_i) y_i``, and

- ``dy_i = (I − y_i y_i^T M) dx_i / |x_i|_M``: the field is taken at the projection, so that a change of length of a
  token changes nothing,
- ``dw_ij = w_ij (ds_ij − Σ_l w_il ds_il)`` for softmax weights, ``dw_ij = ds_ij`` for linear ones,
- ``dF_i = (I − y_i y_i^T M) dp_i − (y_i^T M p_i) dy_i − (p_i^T M dy_i) y_i``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.attention import Attention
from tokendynamics.attention.mixing import masked_weights
from tokendynamics.attention.schedules import Time
from tokendynamics.dynamics._field import Field
from tokendynamics.spaces.retraction import inner

_PIECE_ENTRIES = 2**22


def jacobian(field: Field, x: Tensor, t: Time) -> Tensor:
    """Return all derivatives ``∂F_ia / ∂x_kb``.

    Args:
        field: The vector field.
        x: States (system, token, dim).
        t: One time for all systems, or (system,).

    Returns:
        Shape (system, token, dim, token, dim): memory grows with (token · dim)².
    """
    y = field.project(x)
    pull, slope = _output_and_slope(field, y, t)
    if not field.geometry.constrained:
        return slope
    tokens, dim = x.shape[-2:]
    dual = y if field.geometry.metric is None else y @ field.geometry.metric
    onto = torch.eye(dim, dtype=x.dtype, device=x.device) - y.unsqueeze(-1) * dual.unsqueeze(-2)
    slope = torch.einsum("...iac,...ickb->...iakb", onto, slope)
    outward = (dual * pull).sum(dim=-1)[..., None, None] * torch.eye(dim, dtype=x.dtype, device=x.device)
    pull_dual = pull if field.geometry.metric is None else pull @ field.geometry.metric
    each = torch.arange(tokens, device=x.device)
    slope[..., each, :, each, :] -= (outward + y.unsqueeze(-1) * pull_dual.unsqueeze(-2)).movedim(-3, 0)
    shrunk = onto * inner(x, x, field.geometry.metric).rsqrt().unsqueeze(-1)
    return torch.einsum("...iakc,...kcb->...iakb", slope, shrunk)


def jacobian_vector(field: Field, x: Tensor, t: Time, direction: Tensor) -> Tensor:
    """Return the derivative of the field along `direction`, in memory linear in the number of tokens.

    Args:
        field: The vector field.
        x: States (system, token, dim).
        t: One time for all systems, or (system,).
        direction: Of the shape of `x`.

    Returns:
        Shape (system, token, dim); costs about three right-hand sides.
    """
    if not field.geometry.constrained:
        return _output_along(field, x, t, direction)[1]
    y, length = field.project(x), inner(x, x, field.geometry.metric).sqrt()
    turned = (direction - inner(y, direction, field.geometry.metric) * y) / length
    pull, change = _output_along(field, y, t, turned)
    outward = inner(y, pull, field.geometry.metric)
    bend = inner(y, change, field.geometry.metric) + inner(turned, pull, field.geometry.metric)
    return change - bend * y - outward * turned


def _output_and_slope(field: Field, y: Tensor, t: Time) -> tuple[Tensor, Tensor]:
    """Return ``p_i`` and ``∂p_i / ∂y_k``, (…, token, dim) and (…, token, dim, token, dim)."""
    attention = field.attention
    query, key = attention.queries_and_keys(y, t)
    query_slope, key_slope = _linear_maps(attention, y, t)
    by_receiver = torch.einsum("b...hir,...hjr->...hijb", query_slope, key.expand_as(query))
    by_sender = torch.einsum("b...hjr,...hir->...hijb", key_slope.expand_as(query_slope), query)
    ov, values = _ov(field, t, y), attention.with_positions(y)
    weights = masked_weights(query @ key.mT, attention.causal, attention.weights)
    carried = torch.einsum("...hab,...jb->...hja", ov, values)
    mean = weights @ carried
    # What the pull on i changes by for each unit of the logit of j.
    if attention.weights == "softmax":
        gain = weights.unsqueeze(-1) * (carried.unsqueeze(-3) - mean.unsqueeze(-2))
    else:
        seen = masked_weights(torch.ones_like(weights), attention.causal, "linear")
        gain = seen.unsqueeze(-1) * carried.unsqueeze(-3)
    slope = torch.einsum("...hik,...hab->...iakb", weights, ov)
    slope = slope + torch.einsum("...hika,...hikb->...iakb", gain, by_sender)
    own = torch.einsum("...hija,...hijb->...iab", gain, by_receiver)
    each = torch.arange(y.shape[-2], device=y.device)
    slope[..., each, :, each, :] += own.movedim(-3, 0)
    return field.factor * mean.sum(dim=-3), field.factor * slope


def _output_along(field: Field, y: Tensor, t: Time, direction: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``p_i`` and its derivative along `direction`, both (…, token, dim)."""
    attention, ov = field.attention, field.attention.ov.at(t)
    query, key = attention.queries_and_keys(y, t)
    query_change, key_change = _without_table(attention).queries_and_keys(direction, t)
    placed = attention.with_positions(y)
    value, value_change = (
        part.unsqueeze(-3) if field.identity_values else ov.values(part) for part in (placed, direction)
    )
    rows = max(1, _PIECE_ENTRIES // (query[..., :1, :1].numel() * y.shape[-2]))
    mixed, change = [], []
    for start in range(0, y.shape[-2], rows):
        part = slice(start, start + rows)
        weights = masked_weights(query[..., part, :] @ key.mT, attention.causal, attention.weights, start)
        logits_change = query_change[..., part, :] @ key.mT + query[..., part, :] @ key_change.mT
        weights_change = _weights_change(attention, weights, logits_change, start)
        mixed.append(weights @ value)
        change.append(weights_change @ value + weights @ value_change)
    pull, pull_change = (
        parts if field.identity_values else ov.output(parts) for parts in (torch.cat(mixed, -2), torch.cat(change, -2))
    )
    return field.factor * pull.sum(dim=-3), field.factor * pull_change.sum(dim=-3)


def _weights_change(attention: Attention, weights: Tensor, logits_change: Tensor, first_receiver: int) -> Tensor:
    if attention.weights == "linear":
        return masked_weights(logits_change, attention.causal, "linear", first_receiver)
    change = weights * logits_change
    return change - weights * change.sum(dim=-1, keepdim=True)


def _linear_maps(attention: Attention, y: Tensor, t: Time) -> tuple[Tensor, Tensor]:
    """Return queries and keys of every token as linear maps of its state, (dim, …, head, token, rank)."""
    dim = y.shape[-1]
    units = torch.eye(dim, dtype=y.dtype, device=y.device).reshape(dim, *[1] * (y.ndim - 1), dim)
    return _without_table(attention).queries_and_keys(units.expand(dim, *y.shape), t)


def _without_table(attention: Attention) -> Attention:
    """Return its linear part: a table of absolute positions only shifts."""
    positions = attention.positions
    linear = positions and positions.linear_part()
    return attention if linear is positions else attention.with_schedules(attention.qk, attention.ov, linear)


def _ov(field: Field, t: Time, y: Tensor) -> Tensor:
    if not field.identity_values:
        return field.attention.ov.at(t).dense()
    identity = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device)
    return identity.expand(field.attention.heads, -1, -1)
