"""The vector field of a flow on checked tensors, in the form that suits it, and its derivative.

Ten tokens in three dimensions are too little for a product or a softmax by itself: a library call on rows of ten
numbers spends its time on the calls. Many small systems have their systems innermost: with axes (dim, token, system)
every operation runs along thousands of systems, and the three nested sums over features and tokens are loops over
whole arrays.

Its derivative with respect to the states is given by formula, whole or applied to a direction: with
``y_i = x_i / |x_i|_M`` and ``p_i = c Σ_h ov_h Σ_j w_ij y_j`` the field is ``F_i = p_i − (y_i^T M p_i) y_i``, and

- ``dy_i = (I − y_i y_i^T M) dx_i / |x_i|_M``: the field is taken at the projection, so that a change of length of a
  token changes nothing,
- ``dw_ij = w_ij (ds_ij − Σ_l w_il ds_il)`` for softmax weights, ``w_ij ds_ij`` for exponential, ``ds_ij`` for
  linear and 0 for hardmax ones, whose jumps it leaves out,
- ``dF_i = (I − y_i y_i^T M) dp_i − (y_i^T M p_i) dy_i − (p_i^T M dy_i) y_i``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tokendynamics.attention import Attention
from tokendynamics.attention.circuit_at_time import Scaled
from tokendynamics.attention.mixing import masked_weights
from tokendynamics.attention.schedules import Time
from tokendynamics.spaces.geometry import Geometry
from tokendynamics.spaces.retraction import inner

_SYSTEMS, _TOKENS, _DIM = 64, 24, 8


def suits_innermost(attention: Attention, x: Tensor) -> bool:
    """Tell whether states (system, token, dim) are many enough and small enough."""
    if x.ndim != 3 or len(x) < _SYSTEMS or x.shape[1] > _TOKENS or x.shape[2] > _DIM or x.device.type != "cpu":
        return False
    if attention.mask is not None:
        return False
    if attention.positions is not None and attention.positions.changes_logits:
        return False
    return attention.weights in ("softmax", "exponential")


def systems_innermost(field: Field, x: Tensor, t: Time) -> Tensor:
    """Return what `Field.velocity` gives, before the factor of the weights; shapes (system, token, dim)."""
    attention, geometry = field.attention, field.geometry
    y = x.movedim(0, -1).transpose(0, 1).contiguous()
    metric = geometry.metric
    if geometry.constrained:
        y = y * _inner(y, y, metric).rsqrt()
    placed = y
    if attention.positions is not None:
        placed = attention.with_positions(y.movedim(-1, 0).mT).mT.movedim(0, -1).contiguous()
    qk = attention.qk.at(t)
    if isinstance(qk, Scaled):
        queries = _transformed(qk.circuit.dense().mT, placed) * qk.scale
    else:
        queries = _transformed(qk.dense().mT, placed)
    mixed = _averages(queries, placed, attention)
    if field.relative:
        mixed = mixed - placed
    pull = mixed.sum(dim=0) if field.identity_values else _summed_outputs(attention.ov.at(t).dense(), mixed)
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


def _averages(queries: Tensor, y: Tensor, attention: Attention) -> Tensor:
    """Return ``Σ_j w_ij y_j`` of weights that are positive, with logits ``q_i · y_j``: (head, dim, token, system)."""
    logits = sum_of_products(queries.unsqueeze(3).unbind(1), y.unsqueeze(1).unbind(0))
    tokens = y.shape[1]
    if attention.causal:
        hidden = torch.full((tokens, tokens), -torch.inf, dtype=y.dtype).triu(1)
        logits = logits + hidden.unsqueeze(-1)
    softmax = attention.weights == "softmax"
    weights = (logits - (logits.detach().amax(dim=2, keepdim=True) if softmax else attention.offset)).exp()
    seen = torch.arange(1.0, tokens + 1, dtype=y.dtype).unsqueeze(-1) if attention.causal else tokens
    total = weights.sum(dim=2).unsqueeze(1) if softmax else seen
    sums = [(weights * feature).sum(dim=2) for feature in y.unbind(0)]
    return torch.stack(sums, dim=1) / total


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


SLOW = 1e-4
"""Tokens slower than this share of the largest possible speed are recomputed from differences."""

_DIFFERENCE_ENTRIES = 2**22
_PIECE_ENTRIES = 2**18
"""Larger batches are evaluated in pieces of this many numbers, so that what passes between products stays in cache."""


@dataclass(frozen=True)
class Field:
    """What an engine integrates: ``dx/dt = velocity(x, t)`` for states (system, token, dim) of one dtype and device.

    Attributes:
        attention: Whose system axes, if any, are one axis.
        geometry: Of the space; its system axes, if any, are one axis.
        factor: Multiplies the weights: 1, or 1/√dim of `normalization="paper"`.
        identity_values: Whether ov is left out, as in `asymptotic` (20).
        frozen: Tokens that do not move, by index.
        relative: Whether what attention carries is taken relative to the receiver, ``Σ_h ov_h Σ_j w^h_ij (x_j − x_i)``,
            as in the rescaled frame. In free space without positions.
    """

    attention: Attention
    geometry: Geometry
    factor: float
    identity_values: bool = False
    frozen: tuple[int, ...] = ()
    relative: bool = False

    def velocity(self, x: Tensor, t: Time) -> Tensor:
        """Return the field at the projection of x, one product form for all tokens: accurate to rounding of |ov x|."""
        return self.held(self._velocity_of_all(x, t))

    def held(self, change: Tensor, axis: int = -2) -> Tensor:
        """Return changes of tokens with those of frozen ones 0."""
        if not self.frozen:
            return change
        return change.index_fill(axis, torch.tensor(self.frozen, device=change.device), 0.0)

    def _velocity_of_all(self, x: Tensor, t: Time) -> Tensor:
        if x.ndim == 3 and len(x) > 1 and x.numel() > _PIECE_ENTRIES:
            return torch.cat([self._piece(part)._velocity_of_all(x[part], _time_of(t, part)) for part in _pieces(x)])
        if self.geometry.closed_form and suits_innermost(self.attention, x):
            velocity = systems_innermost(self, x, t)
            return velocity if self.factor == 1.0 else self.factor * velocity
        y = self.project(x)
        return self.geometry.velocity(y, self._mixed(self.geometry.directions(y), t), t)

    def velocity_from_differences(self, x: Tensor, t: Time) -> Tensor:
        """Return ``Σ_j w_ij (y_j − y_i)``, tangent: accurate to rounding of the velocity itself, however slow.

        Only where ov is a multiple of the identity (`multiples`). The usual form sums to y_i first and loses what
        moves slower than 1e-16. The differences are those of x itself, ``(x_j − x_i) / |x_j|_M``, which agree with
        those of the projections up to a multiple of y_i: projecting first would round what nearly coincides. Costs
        token² · dim, in pieces of bounded memory.
        """
        y = self.project(x)
        query, key = self.attention.queries_and_keys(y, t)
        tokens, dim = y.shape[-2:]
        rows = max(1, _DIFFERENCE_ENTRIES // (query[..., :1, :1].numel() * tokens * dim))
        pieces = [
            self._difference_rows(x, y, query[..., start : start + rows, :], key, start)
            for start in range(0, tokens, rows)
        ]
        return self.held(torch.cat(pieces, dim=-2))

    def refined_velocity(self, x: Tensor, t: Time) -> Tensor:
        """Return `velocity`, with slow tokens taken from differences where that is possible."""
        if self.has_differences and self.attention.weights == "exponential":
            # No speed is the largest for all tokens, of which slow ones would have less.
            return self.velocity_from_differences(x, t)
        velocity = self.velocity(x, t)
        if not self.has_differences or self.multiples is None:
            return velocity
        bound = SLOW * self.factor * self.multiples.abs().sum(dim=-1)[..., None, None]
        slow = velocity.norm(dim=-1, keepdim=True) < bound
        return torch.where(slow, self.velocity_from_differences(x, t), velocity) if bool(slow.any()) else velocity

    def layer(self, x: Tensor, k: int, tau: float, residual: float = 1.0) -> Tensor:
        """Return ``π_M(ρ x + τ Σ_h w^h(x) x ov_h^T)`` with the schedules at time k, ρ = 1 in `asymptotic` (6)."""
        pull = self._mixed(self.geometry.directions(x), float(k))
        return self.unmoved(self.geometry.layer(x, pull, k, (tau, residual)), x)

    def unmoved(self, x: Tensor, start: Tensor) -> Tensor:
        """Return states with frozen tokens where they are in `start`, which broadcasts."""
        if not self.frozen:
            return x
        still = torch.zeros(x.shape[-2], 1, dtype=torch.bool, device=x.device)
        still[list(self.frozen)] = True
        return torch.where(still, start, x)

    def exactly_projected(self, x: Tensor) -> Tensor:
        """Return `project` to the last digit, for states that are handed out."""
        return self.geometry.exactly_projected(x)

    def projected_over_time(self, states: Tensor) -> Tensor:
        """Return `exactly_projected` for states (system, time, token, dim)."""
        return self.geometry.over_time().exactly_projected(states)

    def project(self, x: Tensor) -> Tensor:
        """Return the points of the space; a token that has none gives NaN, which an engine reports as a status."""
        return self.geometry.project(x)

    @property
    def has_differences(self) -> bool:
        """Whether `velocity_from_differences` holds."""
        return self.geometry.quadratic and self.multiples is not None

    @property
    def multiples(self) -> Tensor | None:
        """c_h, (*system, head), where every ov_h is c_h times the identity at all times; else None."""
        if self.attention.positions is not None and self.attention.positions.changes_states:
            return None
        if self.identity_values:
            return torch.ones(self.attention.heads, dtype=torch.float64)
        return getattr(self.attention.ov, "multiple", None)

    @property
    def per_system(self) -> bool:
        """Whether systems differ in their matrices."""
        return bool(self.attention.system_shape) or self.geometry.per_system

    @property
    def constant(self) -> bool:
        """Whether the field does not depend on time."""
        return self.attention.constant and self.geometry.constant

    @property
    def is_sampled(self) -> bool:
        """Whether some function of time is known only where it is asked."""
        return self.attention.is_sampled or self.geometry.is_sampled

    def joints(self, start: float, end: float) -> list[float]:
        """Return the jumps and kinks strictly between start and end, onto which explicit methods step, in order."""
        return sorted({*self.attention.joints(start, end), *self.geometry.joints(start, end)})

    def within(self, start: float, end: float) -> Field:
        """Return the field on an interval without jumps; see `Schedule.within`."""
        if self.constant:
            return self
        attention, geometry = self.attention.within(start, end), self.geometry.within(start, end)
        return replace(self, attention=attention, geometry=geometry)

    @property
    def has_jacobian(self) -> bool:
        """Whether `jacobian` knows the derivative as a formula."""
        positions = self.attention.positions
        return self.geometry.closed_form and (positions is None or positions.closed_form)

    def flattened(self) -> Field:
        """Return the field for systems along one axis."""
        return replace(self, attention=self.attention.flattened(), geometry=self.geometry.flattened())

    def select(self, systems: Tensor) -> Field:
        """Return the field of some systems."""
        return replace(self, attention=self.attention.select(systems), geometry=self.geometry.select(systems))

    def _piece(self, systems: slice) -> Field:
        return self.select(torch.arange(systems.start, systems.stop)) if self.per_system else self

    def _mixed(self, x: Tensor, t: Time) -> Tensor:
        mixed = self.attention.mix(x, t, identity_values=self.identity_values, relative=self.relative)
        return mixed if self.factor == 1.0 else self.factor * mixed

    def _difference_rows(self, x: Tensor, y: Tensor, query: Tensor, key: Tensor, start: int) -> Tensor:
        part = slice(start, start + query.shape[-2])
        receivers = y[..., part, :]
        weights = _weights_of_rows(self.attention, query @ key.mT, start)
        multiples = self.multiples
        if multiples is not None and not self.identity_values:
            weights = weights * multiples[..., None, None]
        lengths = inner(x, x, self.geometry.metric).rsqrt()
        of_all_heads = weights.squeeze(-3) if weights.shape[-3] == 1 else weights.sum(dim=-3)
        differences = x.unsqueeze(-3) - x[..., part, :].unsqueeze(-2)
        pull = ((of_all_heads * lengths.mT).unsqueeze(-2) @ differences).squeeze(-2)
        return self.geometry.tangent_part(receivers, pull if self.factor == 1.0 else self.factor * pull)


def _pieces(x: Tensor) -> list[slice]:
    size = max(1, _PIECE_ENTRIES // x[0].numel())
    return [slice(start, min(start + size, len(x))) for start in range(0, len(x), size)]


def _time_of(t: Time, systems: slice) -> Time:
    return t[systems] if isinstance(t, Tensor) and t.ndim else t


_JACOBIAN_ENTRIES = 2**22


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
        return field.held(slope, -4)
    tokens, dim = x.shape[-2:]
    dual = y if field.geometry.metric is None else y @ field.geometry.metric
    onto = torch.eye(dim, dtype=x.dtype, device=x.device) - y.unsqueeze(-1) * dual.unsqueeze(-2)
    slope = torch.einsum("...iac,...ickb->...iakb", onto, slope)
    outward = (dual * pull).sum(dim=-1)[..., None, None] * torch.eye(dim, dtype=x.dtype, device=x.device)
    pull_dual = pull if field.geometry.metric is None else pull @ field.geometry.metric
    diagonal = torch.arange(tokens, device=x.device)
    slope[..., diagonal, :, diagonal, :] -= (outward + y.unsqueeze(-1) * pull_dual.unsqueeze(-2)).movedim(-3, 0)
    shrunk = onto * inner(x, x, field.geometry.metric).rsqrt().unsqueeze(-1)
    return field.held(torch.einsum("...iakc,...kcb->...iakb", slope, shrunk), -4)


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
        return field.held(_output_along(field, x, t, direction)[1])
    y, length = field.project(x), inner(x, x, field.geometry.metric).sqrt()
    turned = (direction - inner(y, direction, field.geometry.metric) * y) / length
    pull, change = _output_along(field, y, t, turned)
    outward = inner(y, pull, field.geometry.metric)
    bend = inner(y, change, field.geometry.metric) + inner(turned, pull, field.geometry.metric)
    return field.held(change - bend * y - outward * turned)


def _output_and_slope(field: Field, y: Tensor, t: Time) -> tuple[Tensor, Tensor]:
    """Return ``p_i`` and ``∂p_i / ∂y_k``, (…, token, dim) and (…, token, dim, token, dim)."""
    attention = field.attention
    query, key = attention.queries_and_keys(y, t)
    # Queries and keys of every token as linear maps of its state, (dim, …, head, token, rank).
    dim = y.shape[-1]
    units = torch.eye(dim, dtype=y.dtype, device=y.device).reshape(dim, *[1] * (y.ndim - 1), dim)
    query_slope, key_slope = _without_table(attention).queries_and_keys(units.expand(dim, *y.shape), t)
    by_receiver = torch.einsum("b...hir,...hjr->...hijb", query_slope, key.expand_as(query))
    by_sender = torch.einsum("b...hjr,...hir->...hijb", key_slope.expand_as(query_slope), query)
    ov, values = _ov(field, t, y), attention.with_positions(y)
    weights = attention.weigh(query, key)
    carried = torch.einsum("...hab,...jb->...hja", ov, values)
    mean = weights @ carried
    # What the pull on i changes by for each unit of the logit of j.
    if attention.weights == "softmax":
        gain = weights.unsqueeze(-1) * (carried.unsqueeze(-3) - mean.unsqueeze(-2))
    elif attention.weights == "exponential":
        gain = weights.unsqueeze(-1) * carried.unsqueeze(-3)
    elif attention.weights == "hardmax":
        gain = torch.zeros_like(weights.unsqueeze(-1) * carried.unsqueeze(-3))
    else:
        seen = masked_weights(torch.ones_like(weights), attention.visible, "linear")
        gain = seen.unsqueeze(-1) * carried.unsqueeze(-3)
    slope = torch.einsum("...hik,...hab->...iakb", weights, ov)
    slope = slope + torch.einsum("...hika,...hikb->...iakb", gain, by_sender)
    through_query = torch.einsum("...hija,...hijb->...iab", gain, by_receiver)
    diagonal = torch.arange(y.shape[-2], device=y.device)
    slope[..., diagonal, :, diagonal, :] += through_query.movedim(-3, 0)
    if field.relative:
        slope[..., diagonal, :, diagonal, :] -= ov.sum(dim=-3)
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
    rows = max(1, _JACOBIAN_ENTRIES // (query[..., :1, :1].numel() * y.shape[-2]))
    mixed, change = [], []
    for start in range(0, y.shape[-2], rows):
        part = slice(start, start + rows)
        weights = _weights_of_rows(attention, query[..., part, :] @ key.mT, start)
        logits_change = query_change[..., part, :] @ key.mT + query[..., part, :] @ key_change.mT
        weights_change = _weights_change(attention, weights, logits_change, start)
        mixed.append(weights @ value)
        change.append(weights_change @ value + weights @ value_change)
    pull, pull_change = (
        parts if field.identity_values else ov.output(parts) for parts in (torch.cat(mixed, -2), torch.cat(change, -2))
    )
    if field.relative:
        pull, pull_change = pull - ov.output(value), pull_change - ov.output(value_change)
    return field.factor * pull.sum(dim=-3), field.factor * pull_change.sum(dim=-3)


def _weights_of_rows(attention: Attention, logits: Tensor, first_receiver: int) -> Tensor:
    return masked_weights(logits, attention.visible, attention.weights, first_receiver, offset=attention.offset)


def _weights_change(attention: Attention, weights: Tensor, logits_change: Tensor, first_receiver: int) -> Tensor:
    if attention.weights == "linear":
        return masked_weights(logits_change, attention.visible, "linear", first_receiver)
    if attention.weights == "hardmax":
        return torch.zeros_like(weights)
    change = weights * logits_change
    if attention.weights == "exponential":
        return change
    return change - weights * change.sum(dim=-1, keepdim=True)


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
