"""The field of many small systems with the systems innermost.

Ten tokens in three dimensions are too little for a product or a softmax by itself: a library call on rows of ten
numbers spends its time on the calls. With axes (dim, token, system) every operation runs along thousands of systems,
and the three nested sums over features and tokens are loops over whole arrays.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokendynamics.attention.attention import Attention
from tokendynamics.attention.schedules import Time
from tokendynamics.spaces.geometry import Geometry

_SYSTEMS, _TOKENS, _DIM = 64, 24, 8


def suits(attention: Attention, x: Tensor) -> bool:
    """Tell whether states (system, token, dim) are many enough and small enough."""
    if x.ndim != 3 or len(x) < _SYSTEMS or x.shape[1] > _TOKENS or x.shape[2] > _DIM or x.device.type != "cpu":
        return False
    return attention.weights == "softmax" and not (attention.positions and attention.positions.changes_logits)


def velocity(attention: Attention, geometry: Geometry, x: Tensor, t: Time, identity_values: bool) -> Tensor:
    """Return what `Field.velocity` gives, before the factor of the weights; shapes (system, token, dim)."""
    y = x.movedim(0, -1).transpose(0, 1).contiguous()
    metric = geometry.metric
    if geometry.constrained:
        y = y * _inner(y, y, metric).rsqrt()
    placed = y if attention.positions is None else attention.placed(y.movedim(-1, 0).mT).mT.movedim(0, -1).contiguous()
    queries = _transformed(attention.qk.at(t).dense().mT, placed)
    mixed = _averages(queries, placed, attention.causal)
    pull = mixed.sum(dim=0) if identity_values else _summed_outputs(attention.ov.at(t).dense(), mixed)
    if geometry.constrained:
        pull = torch.addcmul(pull, _inner(y, pull, metric), y, value=-1)
    return pull.transpose(0, 1).movedim(-1, 0)


def _transformed(matrix: Tensor, y: Tensor) -> Tensor:
    """Return ``B_h y`` for each head: (head, dim, dim) or (system, head, dim, dim) and (dim, token, system)."""
    if matrix.ndim == 3:
        return (matrix.reshape(-1, len(y)) @ y.flatten(1)).view(len(matrix), *y.shape)
    per_system = matrix.permute(1, 3, 2, 0).contiguous()
    return sum_of_products(per_system.unsqueeze(3).unbind(1), y.unsqueeze(1).unbind(0))


def _summed_outputs(matrix: Tensor, mixed: Tensor) -> Tensor:
    """Return ``Σ_h ov_h m_h`` of (head, dim, token, system)."""
    heads, dim = mixed.shape[:2]
    if matrix.ndim == 3:
        side_by_side = matrix.transpose(0, 1).reshape(dim, heads * dim)
        return (side_by_side @ mixed.flatten(2).reshape(heads * dim, -1)).view(mixed.shape[1:])
    per_system = matrix.permute(1, 3, 2, 0).contiguous().flatten(0, 1)
    return sum_of_products(per_system.unsqueeze(2).unbind(0), mixed.flatten(0, 1).unsqueeze(1).unbind(0))


def _averages(queries: Tensor, y: Tensor, causal: bool) -> Tensor:
    """Return ``Σ_j softmax_j(q_i · y_j) y_j``, (head, dim, token, system)."""
    logits = sum_of_products(queries.unsqueeze(3).unbind(1), y.unsqueeze(1).unbind(0))
    if causal:
        tokens = y.shape[1]
        hidden = torch.full((tokens, tokens), -torch.inf, dtype=y.dtype).triu(1)
        logits = logits + hidden.unsqueeze(-1)
    weights = (logits - logits.detach().amax(dim=2, keepdim=True)).exp()
    total = weights.sum(dim=2)
    sums = [(weights * feature).sum(dim=2) for feature in y.unbind(0)]
    return torch.stack(sums, dim=1) / total.unsqueeze(1)


def sum_of_products(left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> Tensor:
    """Return ``Σ_c left_c · right_c`` elementwise with broadcasting, one pass per term."""
    total = left[0] * right[0]
    for one, other in zip(left[1:], right[1:], strict=True):
        total = torch.addcmul(total, one, other)
    return total


def _inner(first: Tensor, second: Tensor, metric: Tensor | None) -> Tensor:
    """Return ``x_i^T M y_i``, (1, token, system), of (dim, token, system)."""
    if metric is not None:
        matrix = metric if metric.ndim == 3 else metric.unsqueeze(0)
        second = _transformed(matrix.unsqueeze(1) if metric.ndim == 3 else matrix, second)[0]
    return sum_of_products(first.unbind(0), second.unbind(0)).unsqueeze(0)
