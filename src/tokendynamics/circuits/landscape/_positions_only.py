"""3.1 of `logical`: attention reads positions only, without softmax, and is to send the previous category.

Column i of the output is ``v Σ_j q_ji x_j`` with one-hot independent categories ``x_j``; its target is ``x_{i−1}``.
With ``p`` the law, ``Σ = diag p − p p^T``, ``s_i = Σ_j q_ji`` and ``c_i = q_{i−1,i}`` the expected squared error is

    ``L = Σ_{i=2..M} |p − s_i v p|² + tr((I − c_i v) Σ (I − c_i v)^T) + Σ_{j≠i−1} q_ji² tr(v Σ v^T)``,

the sum over columns of ``1 − 2[s p^T v p + c tr(vΣ)] + s²|vp|² + |q_i|² tr(v^T v Σ)`` written as squares: nothing
cancels, so that a loss of 1e-30 is a loss of 1e-30.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokendynamics.circuits.landscape.landscape import Gradient, checked_point, checked_positions, law_of_categories
from tokendynamics.numerics.arguments import ArrayLike
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
