"""3.1 of `logical`: attention reads positions only, without softmax: its landscape and all stationary points.

Column i of the output is ``v Σ_j q_ji x_j`` with one-hot independent categories ``x_j``; its target is ``x_{i−1}``.
With ``p`` the law, ``Σ = diag p − p p^T``, ``s_i = Σ_j q_ji`` and ``c_i = q_{i−1,i}`` the expected squared error is

    ``L = Σ_{i=2..M} |p − s_i v p|² + tr((I − c_i v) Σ (I − c_i v)^T) + Σ_{j≠i−1} q_ji² tr(v Σ v^T)``,

the sum over columns of ``1 − 2[s p^T v p + c tr(vΣ)] + s²|vp|² + |q_i|² tr(v^T v Σ)`` written as squares: nothing
cancels, so that a loss of 1e-30 is a loss of 1e-30.

With ``E = v − vp 1^T`` the gradient vanishes exactly where

    ``Σ_i s_i p = Σ_i s_i² vp``,  ``Σ_i c_i (I − p 1^T) = Σ_i |q_i|² E``  and, for every sender j and receiver i,
    ``p^T v p + [j = i−1] tr(vΣ) = s_i |vp|² + q_ji tr(v^T v Σ)``.

If ``E ≠ 0`` and ``q ≠ 0`` the second gives ``E = Δ(I − p 1^T)``, the third makes all columns alike up to the place of
their maximum, and a column sum s is either not zero (family A) or zero (family B). If ``E = 0`` then ``v = w 1^T``
and ``p·w = s_i |w|²``: the sums are one number s ≠ 0 (C) or zero (D), or w = 0 (D''). If q = 0, only the third
remains (D').
There are no others; `logical` (3.33) and its text know A and points of degenerate zeros only, and miss B.

Here ``s_i = Σ_j q_ji``, ``c_i = q_{i−1,i}`` and i = 2..M; the first column of q is free everywhere and set to zero by
the constructors unless it is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokendynamics.circuits.landscape.landscape import (
    Gradient,
    StationaryPoint,
    checked_point,
    checked_positions,
    law_of_categories,
)
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_tensor, generator
from tokendynamics.numerics.signatures import typed_arguments


class PositionsOnly:
    """The landscape of q (M, M) [sender, receiver] and v (N, N) acting on columns; corrects `logical` (3.1)–(3.18).

    The first column of q has no target and no influence. The cost of a loss or a gradient is O(N² + M²).

    Args:
        law: Probabilities of the categories 1..N, positive, summing to one.
        positions: M, at least 2.

    Attributes:
        law: Shape (N,), float64.
        categories: N.
        positions: M.
        gini: ``T = 1 − |p|²``, the chance that two categories differ (Gini–Simpson index); the loss per column of
            always predicting the mean.

    Raises:
        ArgumentTypeError: Positions that are no integer.
        ArgumentValueError: An invalid law, or fewer than two positions.

    >>> landscape = PositionsOnly([0.5, 0.3, 0.2], positions=3)
    >>> previous = [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    >>> identity = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    >>> float(landscape.loss(previous, identity))
    0.0
    """

    @typed_arguments
    def __init__(self, law: ArrayLike, positions: int) -> None:
        self.law = law_of_categories(law)
        self.positions = checked_positions(positions)
        self.categories = self.law.shape[0]
        self.gini = float((self.law * (1.0 - self.law)).sum())
        self.name = "positions only"
        self.attention_shape = (self.positions, self.positions)
        self.v_shape = (self.categories, self.categories)

    def loss(self, attention: ArrayLike, v: ArrayLike) -> Tensor:
        """Return the expected squared error summed over i = 2..M, shape (…,); corrects `logical` (3.3).

        Args:
            attention: Shape (…, M, M), entry [sender, receiver].
            v: Shape (…, N, N).

        Raises:
            ArgumentTypeError: No real floating-point numbers.
            ArgumentValueError: A wrong shape, or a NaN or infinity.
        """
        return self._loss(*self._reduced(attention, v))

    def gradient(self, attention: ArrayLike, v: ArrayLike) -> Gradient:
        """Return the derivatives of `loss`: −2 times what `logical` prints in (3.7), (3.8) and (3.18), for any law.

        ``∂L/∂q_ji = −2[p^T v p + [j = i−1] tr(vΣ)] + 2 s_i |vp|² + 2 q_ji tr(v^T v Σ)`` and
        ``∂L/∂v = Σ_i −2[s_i p p^T + c_i Σ] + 2 s_i² v p p^T + 2 |q_i|² v Σ``.
        """
        return self._gradient(*self._reduced(attention, v))

    def loss_and_gradient(self, attention: ArrayLike, v: ArrayLike) -> tuple[Tensor, Gradient]:
        """Return both at once, for less than the cost of one after the other."""
        reduced = self._reduced(attention, v)
        return self._loss(*reduced), self._gradient(*reduced)

    def hessian(self, attention: ArrayLike, v: ArrayLike) -> Tensor:
        """Return the second derivatives over (q row by row, v row by row), shape (…, M² + N², M² + N²)."""
        columns, values = self._reduced(attention, v)
        lead = columns.attention.shape[:-2]
        size_q, size_v = self.positions**2, self.categories**2
        qq = self._hessian_qq(values).expand(*lead, *2 * self.attention_shape).reshape(*lead, size_q, size_q)
        vv = self._hessian_vv(columns).expand(*lead, *2 * self.v_shape).reshape(*lead, size_v, size_v)
        qv = self._hessian_qv(columns, values).reshape(*lead, size_q, size_v)
        return torch.cat([torch.cat([qq, qv], dim=-1), torch.cat([qv.mT, vv], dim=-1)], dim=-2)

    def _reduced(self, attention: ArrayLike, v: ArrayLike) -> tuple[_Columns, _Values]:
        checked_attention, checked_v = checked_point(self, attention, v)
        return _Columns.of(checked_attention), _Values.of(checked_v, self.law)

    def _loss(self, columns: _Columns, values: _Values) -> Tensor:
        mean_error = (self.law - columns.mean_sum[..., None] * values.mean).square().sum(-1)
        mean_error = (self.positions - 1) * mean_error + columns.sum_scatter * values.mean.square().sum(-1)
        own_error = (self.positions - 1) * values.residual(columns.mean_own).square().matmul(self.law).sum(-1)
        return mean_error + own_error + (columns.own_scatter + columns.others) * values.energy

    def _gradient(self, columns: _Columns, values: _Values) -> Gradient:
        return Gradient(self._gradient_q(columns, values), self._gradient_v(columns, values))

    def _gradient_q(self, columns: _Columns, values: _Values) -> Tensor:
        energy = values.energy[..., None]
        # Before the derivative of the own sender is put in its place, every sender counts as another one.
        gradient = energy[..., None] * columns.attention
        along_mean = (values.mean[..., None, :] * (self.law - columns.sums[..., None] * values.mean[..., None, :])).sum(
            -1
        )
        gradient = gradient - _behind_first(along_mean)[..., None, :]
        on_previous = (values.centred * values.residual(columns.mean_own)).matmul(self.law).sum(-1)[..., None]
        on_previous = on_previous + (columns.mean_own[..., None] - columns.from_previous) * energy
        change = -on_previous - energy * columns.from_previous
        return 2.0 * (_behind_first(gradient[..., :, 1:]) + _above_diagonal(change))

    def _gradient_v(self, columns: _Columns, values: _Values) -> Tensor:
        counted = self.positions - 1
        to_mean = counted * columns.mean_sum[..., None] * (self.law - columns.mean_sum[..., None] * values.mean)
        to_mean = to_mean - columns.sum_scatter[..., None] * values.mean
        to_own = counted * columns.mean_own[..., None, None] * values.residual(columns.mean_own)
        to_own = to_own - (columns.own_scatter + columns.others)[..., None, None] * values.centred
        return -2.0 * (to_mean[..., :, None] + to_own) * self.law

    def _hessian_qq(self, values: _Values) -> Tensor:
        receivers = torch.diag(torch.cat([torch.zeros(1), torch.ones(self.positions - 1)]).double())
        senders = torch.eye(self.positions, dtype=torch.float64)
        block = values.mean.square().sum(-1)[..., None, None] + values.energy[..., None, None] * senders
        return 2.0 * torch.einsum("...jk,il->...jikl", block, receivers)

    def _hessian_vv(self, columns: _Columns) -> Tensor:
        squared_sums = columns.sums.square().sum(-1)[..., None, None]
        squared_entries = columns.attention[..., :, 1:].square().sum((-1, -2))[..., None, None]
        block = squared_sums * self.law[:, None] * self.law + squared_entries * self._covariance()
        return 2.0 * torch.einsum("...lm,kn->...klnm", block, torch.eye(self.categories, dtype=torch.float64))

    def _hessian_qv(self, columns: _Columns, values: _Values) -> Tensor:
        every = 2.0 * values.mean[..., None, :] * columns.sums[..., None] - self.law
        every = _behind_first(every.mT).mT[..., :, :, None] * self.law
        block = 2.0 * torch.einsum("...ji,...kl->...jikl", columns.attention, values.centred * self.law)
        block = block - _above_diagonal(torch.ones(self.positions - 1).double())[..., None, None] * self._covariance()
        block = torch.cat([torch.zeros_like(block[..., :, :1, :, :]), block[..., :, 1:, :, :]], dim=-3)
        return 2.0 * (block + every[..., None, :, :, :])

    def _covariance(self) -> Tensor:
        return torch.diag(self.law) - self.law[:, None] * self.law


@dataclass(frozen=True)
class _Columns:
    """What the loss needs of q: its counted columns i = 2..M."""

    attention: Tensor
    sums: Tensor  # (…, M − 1): s_i
    from_previous: Tensor  # (…, M − 1): c_i, what the previous token sends
    others: Tensor  # (…,): Σ_i Σ_{j≠i−1} q_ji²
    mean_sum: Tensor
    mean_own: Tensor
    sum_scatter: Tensor  # (…,): Σ_i (s_i − mean)²
    own_scatter: Tensor

    @classmethod
    def of(cls, attention: Tensor) -> _Columns:
        counted = attention[..., :, 1:]
        sums, on_previous = counted.sum(-2), attention.diagonal(1, -2, -1)
        others = (counted - _above_diagonal(on_previous)[..., :, 1:]).square().sum((-1, -2))
        mean_sum, mean_own = sums.mean(-1), on_previous.mean(-1)
        sum_scatter = (sums - mean_sum[..., None]).square().sum(-1)
        own_scatter = (on_previous - mean_own[..., None]).square().sum(-1)
        return cls(attention, sums, on_previous, others, mean_sum, mean_own, sum_scatter, own_scatter)


@dataclass(frozen=True)
class _Values:
    """What the loss needs of v: its mean column vp and its columns about it."""

    mean: Tensor  # (…, N): vp
    centred: Tensor  # (…, N, N): v − vp 1^T, so that (v − vp 1^T) diag p = v Σ
    energy: Tensor  # (…,): tr(v Σ v^T)
    target: Tensor  # (N, N): I − p 1^T

    @classmethod
    def of(cls, v: Tensor, law: Tensor) -> _Values:
        mean = v.matmul(law)
        centred = v - mean[..., :, None]
        target = torch.eye(law.shape[0], dtype=torch.float64) - law[:, None]
        return cls(mean, centred, centred.square().matmul(law).sum(-1), target)

    def residual(self, sent: Tensor) -> Tensor:
        """Return what remains of the previous category, about its mean, if the weight `sent` of it is sent."""
        return self.target - sent[..., None, None] * self.centred


def _above_diagonal(entries: Tensor) -> Tensor:
    return torch.diag_embed(entries, offset=1)


def _behind_first(entries: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(entries[..., :1]), entries], dim=-1)


def previous_token(positions: int) -> Tensor:
    """Return ``D_{−1}`` (M, M), [sender, receiver]: every receiver attends to the token before it.

    >>> previous_token(2)
    tensor([[0., 1.],
            [0., 0.]], dtype=torch.float64)
    """
    return torch.diag(torch.ones(positions - 1, dtype=torch.float64), diagonal=1)


def solved(landscape: PositionsOnly, scale: float = 1.0) -> StationaryPoint:
    """Return family A: ``q = D_{−1}/λ``, ``v = λ I``, loss 0: a valley of minima along λ; `logical` (3.34).

    Args:
        landscape: The landscape.
        scale: λ, not zero.

    Raises:
        ArgumentValueError: A scale of zero, or not finite.

    >>> landscape = PositionsOnly([0.5, 0.5], positions=3)
    >>> point = solved(landscape, scale=2.0)
    >>> point.attention[0, 1].item(), float(landscape.loss(point.attention, point.v))
    (0.5, 0.0)
    """
    scale = _nonzero(scale, "scale")
    v = scale * torch.eye(landscape.categories, dtype=torch.float64)
    return _point(landscape, "A", "solved", previous_token(landscape.positions) / scale, v, 0.0)


def zero_column_sums(landscape: PositionsOnly, scale: float = 1.0, w: ArrayLike | None = None) -> StationaryPoint:
    """Return family B: columns that sum to zero, a strict saddle missed by `logical`; corrects `logical` (3.32)–(3.34).

    ``q = (e_{i−1} − 1/M)/Δ`` and ``v = Δ I + w 1^T`` with ``p·w = −Δ(|p|² + T/M)``; the loss per column is
    ``1 − (1 − 1/M) T``.

    Args:
        landscape: The landscape.
        scale: Δ, not zero.
        w: Any vector of shape (N,); a multiple of 1 is added to meet the condition. Zero unless given.

    Raises:
        ArgumentValueError: A scale of zero, or a w of the wrong shape.

    >>> point = zero_column_sums(PositionsOnly([0.5, 0.5], positions=4))
    >>> point.loss_per_column
    0.625
    """
    scale = _nonzero(scale, "scale")
    positions, law = landscape.positions, landscape.law
    offset = _vector(w, "w", landscape)
    offset = offset - scale * (1.0 - landscape.gini + landscape.gini / positions) - law.dot(offset)
    attention = _counted(previous_token(positions) - 1.0 / positions) / scale
    v = scale * torch.eye(landscape.categories, dtype=torch.float64) + offset[:, None]
    loss = 1.0 - (1.0 - 1.0 / positions) * landscape.gini
    return _point(landscape, "B", "columns of q sum to zero", attention, v, loss)


def mean_predictor(landscape: PositionsOnly, scale: float = 1.0, attention: ArrayLike | None = None) -> StationaryPoint:
    """Return family C: every category gets the mean as its prediction, a strict saddle of loss T per column.

    ``v = κ p 1^T``, all columns of q sum to 1/κ, and ``Σ_i q_{i−1,i} = 0``.

    Args:
        landscape: The landscape.
        scale: κ, not zero.
        attention: Any matrix (M, M), moved to meet the conditions: the previous-token entries by a constant, then the
            other entries of each column by a constant. Zero unless given.

    Raises:
        ArgumentValueError: A scale of zero, or a q of the wrong shape.

    >>> landscape = PositionsOnly([0.5, 0.5], positions=3)
    >>> point = mean_predictor(landscape, scale=2.0)
    >>> point.loss_per_column == float(landscape.loss(point.attention, point.v)) / 2
    True
    """
    scale = _nonzero(scale, "scale")
    v = scale * landscape.law[:, None].expand(landscape.v_shape).clone()
    return _point(landscape, "C", "mean predictor", _with_sums(landscape, attention, 1.0 / scale), v, landscape.gini)


def nothing_sent(landscape: PositionsOnly, w: ArrayLike, attention: ArrayLike | None = None) -> StationaryPoint:
    """Return family D: ``v = w 1^T`` with ``p·w = 0``, columns of q that sum to zero, ``Σ_i q_{i−1,i} = 0``.

    The loss per column is 1, that of no output.

    Args:
        landscape: The landscape.
        w: Any vector of shape (N,); a multiple of 1 is added to meet the condition.
        attention: Any matrix (M, M), moved as in `mean_predictor`. Zero unless given.

    Raises:
        ArgumentValueError: A w or a q of the wrong shape.

    >>> point = nothing_sent(PositionsOnly([0.5, 0.5], positions=3), [1.0, -1.0])
    >>> point.loss_per_column, point.v.tolist()
    (1.0, [[1.0, 1.0], [-1.0, -1.0]])
    """
    direction = _vector(w, "w", landscape)
    direction = direction - landscape.law.dot(direction)
    v = direction[:, None].expand(landscape.v_shape).clone()
    return _point(landscape, "D", "one vector for all, sums zero", _with_sums(landscape, attention, 0.0), v, 1.0)


def no_attention(landscape: PositionsOnly, v: ArrayLike | None = None) -> StationaryPoint:
    """Return family D': ``q = 0`` with ``p^T v p = 0`` and ``tr(vΣ) = 0``: loss 1 per column.

    Args:
        landscape: The landscape.
        v: Any matrix (N, N), projected (least squares) to meet the conditions. Zero unless given.

    Raises:
        ArgumentValueError: A v of the wrong shape.

    >>> point = no_attention(PositionsOnly([0.5, 0.5], positions=3))
    >>> point.loss_per_column, point.attention.abs().max().item()
    (1.0, 0.0)
    """
    attention, value = checked_point(
        landscape, torch.zeros(landscape.attention_shape), torch.zeros(landscape.v_shape) if v is None else v
    )
    mean = landscape.law[:, None] * landscape.law
    covariance = torch.diag(landscape.law) - mean
    basis, _ = torch.linalg.qr(torch.stack([mean.flatten(), covariance.flatten()], dim=-1))
    flat = value.flatten()
    value = (flat - basis @ (basis.mT @ flat)).reshape(landscape.v_shape)
    return _point(landscape, "D'", "no attention", attention.clone(), value, 1.0)


def no_values(landscape: PositionsOnly, attention: ArrayLike | None = None) -> StationaryPoint:
    """Return family D'': ``v = 0`` with ``Σ_i s_i = 0`` and ``Σ_i q_{i−1,i} = 0``: loss 1 per column.

    Args:
        landscape: The landscape.
        attention: Any matrix (M, M); a constant is taken from the previous-token entries and another from all others
            to meet the conditions. Zero unless given.

    Raises:
        ArgumentValueError: A q of the wrong shape.

    >>> point = no_values(PositionsOnly([0.5, 0.5], positions=3))
    >>> point.loss_per_column, point.v.abs().max().item()
    (1.0, 0.0)
    """
    without_own = _own_to_zero(landscape, attention)
    others = _counted(1.0 - previous_token(landscape.positions))
    without_own = without_own - others * (without_own[:, 1:].sum() / others.sum())
    return _point(landscape, "D''", "no values", without_own, torch.zeros(landscape.v_shape).double(), 1.0)


def families(landscape: PositionsOnly, seed: int = 0) -> list[StationaryPoint]:
    """Return one member of each of the six families, its free parameters drawn standard normal.

    Args:
        landscape: The landscape.
        seed: Seed of the free parameters.

    >>> [point.family for point in families(PositionsOnly([0.5, 0.5], positions=3))]
    ['A', 'B', 'C', 'D', "D'", "D''"]
    """
    draws = generator(seed)
    attention = torch.randn(landscape.attention_shape, generator=draws, dtype=torch.float64)
    v = torch.randn(landscape.v_shape, generator=draws, dtype=torch.float64)
    w = torch.randn(landscape.categories, generator=draws, dtype=torch.float64)
    scale = 0.5 + float(torch.rand(1, generator=draws))
    return [
        solved(landscape, scale),
        zero_column_sums(landscape, scale, w),
        mean_predictor(landscape, scale, attention),
        nothing_sent(landscape, w, attention),
        no_attention(landscape, v),
        no_values(landscape, attention),
    ]


def towards_infinity(landscape: PositionsOnly, s: float, scale: float | None = None) -> StationaryPoint:
    """Return a point of the curve to the attractor at infinity: stationary as s → 0 only; missed by `logical`.

    ``q = (e_{i−1} − 1/M)/Δ + s/M`` and ``v = Δ I + (p/s − Δ p) 1^T`` have loss ``(T/M)(1 − sΔ)²`` per column. From
    ``sΔ < 0`` the loss falls to ``T/M`` as s → 0, and s = 0 is a wall where v is infinite: descent on that side runs to
    infinity, and the solution (``sΔ = 1``, family A) is on the other. With ``Δ = −s``, as by default, the two factors
    grow alike and the gradient vanishes like |s|.

    Args:
        landscape: The landscape.
        s: The sum of every column of q, not zero.
        scale: Δ, not zero; −s unless given.

    Raises:
        ArgumentValueError: An s or a scale of zero.

    >>> landscape = PositionsOnly([0.5, 0.5], positions=4)
    >>> [round(towards_infinity(landscape, s).loss_per_column, 5) for s in (1.0, 0.1, 0.001)]
    [0.5, 0.12751, 0.125]
    """
    s = _nonzero(s, "s")
    delta = -s if scale is None else _nonzero(scale, "scale")
    positions, law = landscape.positions, landscape.law
    attention = _counted((previous_token(positions) - 1.0 / positions) / delta + s / positions)
    v = delta * torch.eye(landscape.categories, dtype=torch.float64) + ((1.0 / s - delta) * law)[:, None]
    loss = loss_at_infinity(landscape) * (1.0 - s * delta) ** 2
    return _point(landscape, "∞", "on the path to infinity", attention, v, loss)


def loss_at_infinity(landscape: PositionsOnly) -> float:
    """Return the loss per column that the curve of `towards_infinity` tends to: ``T/M``, below that of every saddle.

    >>> loss_at_infinity(PositionsOnly([0.5, 0.5], positions=4))
    0.125
    """
    return landscape.gini / landscape.positions


def _point(
    landscape: PositionsOnly, family: str, text: str, attention: Tensor, v: Tensor, loss: float
) -> StationaryPoint:
    return StationaryPoint(family, text, attention, v, (landscape.positions - 1) * loss, loss)


def _with_sums(landscape: PositionsOnly, attention: ArrayLike | None, total: float) -> Tensor:
    without_own = _own_to_zero(landscape, attention)
    missing = (total - without_own.sum(-2)) / (landscape.positions - 1)
    return without_own + _counted(1.0 - previous_token(landscape.positions)) * missing


def _own_to_zero(landscape: PositionsOnly, attention: ArrayLike | None) -> Tensor:
    start = torch.zeros(landscape.attention_shape) if attention is None else attention
    checked, _ = checked_point(landscape, start, torch.zeros(landscape.v_shape))
    return checked - checked.diagonal(1).mean() * previous_token(landscape.positions)


def _counted(attention: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(attention[:, :1]), attention[:, 1:]], dim=-1)


def _vector(w: ArrayLike | None, argument: str, landscape: PositionsOnly) -> Tensor:
    vector = torch.zeros(landscape.categories).double() if w is None else as_tensor(w, argument).double()
    if vector.shape != (landscape.categories,):
        wanted = f"{landscape.categories} numbers, one for each category"
        raise ArgumentValueError(argument, wanted, f"shape {tuple(vector.shape)}")
    return vector


def _nonzero(value: float, argument: str) -> float:
    number = float(as_tensor(value, argument))
    if number == 0.0:
        raise ArgumentValueError(argument, "a number that is not zero", number)
    return number
