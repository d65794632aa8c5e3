"""The expected squared error of attention that sees categories only (`logical` 3.3), in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokendynamics.circuits._task import category_law
from tokendynamics.circuits.landscape.landscape import Gradient, checked_point, checked_positions
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_square
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments


@dataclass(frozen=True)
class _Moments:
    """What the loss depends on: means and variances over the sender, for each category t of the receiver."""

    mean: Tensor  # (…, t): Σ_r p_r q_rt
    diagonal: Tensor  # (…, t): q_tt
    centred: Tensor  # (…, r, t): q_rt less its mean
    variance: Tensor  # (…,): Σ_t p_t Var q(·, t)
    covariance: Tensor  # (…,): Σ_t p_t Cov(q_true, q)(·, t)
    others: Tensor  # (…, row, sender): v without its diagonal, rows 2..M
    value_diagonal: Tensor  # (…, row): v_ii
    previous: Tensor  # (…, row): v_{i,i−1}
    error: Tensor  # (…, row, t): mean of Y_i less its prediction, given X_i = t


class CategoriesOnly:
    """The landscape of attention on categories followed by a map of positions, `logical` (3.36) and below.

    The prediction is Ŷ_i = Σ_j v_ij q(X_j, X_i), over every j or (causal) over j ≤ i, of independent categories with
    law p; the target is Y_i = q_true(X_{i−1}, X_i). The loss is E Σ_{i=2}^M (Y_i − Ŷ_i)²: per row,
    Σ_t p_t[(m*_t − u m_t − v_ii q_tt)² + Var q*(·,t) − 2 v_{i,i−1} Cov_t + w2 Var q(·,t)] with u and w2 the sum and
    the sum of squares of v_ij over j ≠ i (section 9 of mathematics; corrects the printed derivatives of `logical`
    (3.37)–(3.53), which lack a factor −2). The first row of v, and under causal attention everything above the
    diagonal, has no effect.

    Args:
        q_true: Shape (N, N), [previous, current]; finite.
        law: Category law, see `category_law`.
        positions: M, at least 2.
        causal: Whether only j ≤ i are attended.

    Attributes:
        attention_shape: Shape of one attention matrix: (N, N), [category of the sender, category of the receiver].
        v_shape: Shape of one v: (M, M), [receiver, sender].
        interaction_variance: Σ_t p_t Var q_true(·, t): what is left of the variance of Y once X_i is known.

    Raises:
        ArgumentTypeError: A number of positions that is no integer, a q_true of integers or complex numbers.
        ArgumentValueError: A q_true that is not N × N or not finite, a law that does not fit, fewer than 2 positions.

    >>> landscape = CategoriesOnly([[1.0, 2.0], [0.0, -1.0]], None, positions=3)
    >>> attention = landscape.q_true
    >>> v = torch.eye(3, dtype=torch.float64).roll(1, 0).tril()
    >>> float(landscape.loss(attention, v)), float(landscape.loss(attention, 0 * v))
    (0.0, 3.0)
    """

    @typed_arguments
    def __init__(self, q_true: ArrayLike, law: ArrayLike | str | None, positions: int, causal: bool = False) -> None:
        self.q_true = as_square(q_true, "q_true").double()
        if self.q_true.ndim != 2:
            raise ArgumentValueError(expected("q_true", "one N × N matrix", f"shape {tuple(self.q_true.shape)}"))
        self.law = category_law(law, self.q_true.shape[0])
        self.positions = checked_positions(positions)
        self.causal = causal
        self.name = "categories only (3.3), causal" if causal else "categories only (3.3)"
        self.attention_shape = (len(self.law), len(self.law))
        self.v_shape = (positions, positions)
        rows = torch.ones(positions, positions, dtype=torch.float64)
        self._others = (rows.tril() if causal else rows)[1:] - torch.eye(positions, dtype=torch.float64)[1:]
        self._previous = torch.eye(positions, dtype=torch.float64)[:-1]
        self._own = torch.eye(positions, dtype=torch.float64)[1:]
        self._pairs = torch.outer(self.law, self.law)
        self._mean = self.law @ self.q_true
        self._centred = self.q_true - self._mean
        self.interaction_variance = float((self._pairs * self._centred**2).sum())

    def loss(self, attention: ArrayLike, v: ArrayLike) -> Tensor:
        """Return the expected squared error summed over the rows i = 2..M.

        Args:
            attention: Shape (…, N, N).
            v: Shape (…, M, M).

        Returns:
            Shape (…,), float64.

        Raises:
            ArgumentTypeError, ArgumentValueError: Matrices that are not real, not finite or of another shape.
        """
        return self._loss(self._moments(*checked_point(self, attention, v)))

    def gradient(self, attention: ArrayLike, v: ArrayLike) -> Gradient:
        """Return the derivatives of `loss`; arguments and errors as there.

        ∂/∂v_ij = −2 Σ_t p_t E_it m_t − 2 δ_{j,i−1} C + 2 v_ij V for j ≠ i and ∂/∂v_ii = −2 Σ_t p_t E_it q_tt, with
        E the error of the mean, C the mean covariance and V the mean variance; ∂/∂q_rt = −2 p_t[p_r Σ_i u_i E_it +
        δ_rt Σ_i v_ii E_it] − 2 p_r p_t Σ_i v_{i,i−1} (q*_rt − m*_t) + 2 p_r p_t Σ_i w2_i (q_rt − m_t).
        """
        return self._gradient(self._moments(*checked_point(self, attention, v)))

    def loss_and_gradient(self, attention: ArrayLike, v: ArrayLike) -> tuple[Tensor, Gradient]:
        """Return both at once, for less than the cost of one after the other."""
        at = self._moments(*checked_point(self, attention, v))
        return self._loss(at), self._gradient(at)

    def hessian(self, attention: ArrayLike, v: ArrayLike) -> Tensor:
        """Return the second derivatives of `loss` over (q, v) flattened row by row; arguments and errors as there.

        Returns:
            Shape (…, n, n) with n = N² + M², in closed form. Rows and columns of entries without effect are zero.
        """
        at = self._moments(*checked_point(self, attention, v))
        # by_v[i, j, t] and by_q[i, r, t]: derivatives of the predicted mean of row i given X_i = t.
        by_v = self._others[:, :, None] * at.mean[..., None, None, :]
        by_v = by_v + self._own[:, :, None] * at.diagonal[..., None, None, :]
        size = len(self.law)
        identity = torch.eye(size, dtype=torch.float64)
        by_q = at.others.sum(-1)[..., None, None] * self.law[:, None] + at.value_diagonal[..., None, None] * identity
        weight = (at.others**2).sum((-2, -1))[..., None, None]
        covariance = torch.diag(self.law) - torch.outer(self.law, self.law)
        within = 2 * self.law * (torch.einsum("...irt,...ist->...rst", by_q, by_q) + (weight * covariance)[..., None])
        qq = torch.einsum("...rst,tk->...rtsk", within, identity)
        curvature = torch.diag_embed(self._others) * at.variance[..., None, None, None]
        rows = 2 * (torch.einsum("...ijt,...ikt->...ijk", self.law * by_v, by_v) + curvature)
        vv = torch.einsum("...ijk,il->...ijlk", rows, torch.eye(self.positions - 1, dtype=torch.float64))
        return self._assembled(qq, self._mixed(at, by_q, by_v), vv)

    def _loss(self, at: _Moments) -> Tensor:
        # Written in squares, so that a loss near zero keeps its digits and is never negative.
        share = at.previous.mean(-1)
        missed = (self._pairs * (self._centred - share[..., None, None] * at.centred) ** 2).sum((-2, -1))
        uneven = ((at.previous - share[..., None]) ** 2).sum(-1)
        elsewhere = ((at.others * (1.0 - self._previous)) ** 2).sum((-2, -1))
        mean_part = (self.law * at.error**2).sum((-2, -1))
        return mean_part + (self.positions - 1) * missed + (uneven + elsewhere) * at.variance

    def _gradient(self, at: _Moments) -> Gradient:
        weighted = self.law * at.error
        from_others = (at.others * at.variance[..., None, None]) - self._previous * at.covariance[..., None, None]
        from_mean = self._others * (weighted @ at.mean[..., None])
        from_diagonal = (weighted @ at.diagonal[..., None]) * self._own
        rows = 2 * (from_others - from_mean - from_diagonal)
        v_gradient = torch.cat([torch.zeros_like(rows[..., :1, :]), rows], -2)
        mean_force = (at.others.sum(-1, keepdim=True) * weighted).sum(-2)
        own_force = (at.value_diagonal[..., None] * weighted).sum(-2)
        weight = (at.others**2).sum((-2, -1))[..., None, None]
        fit = self._pairs * (weight * at.centred - at.previous.sum(-1)[..., None, None] * self._centred)
        q_gradient = 2 * (fit - self.law[:, None] * mean_force[..., None, :] - torch.diag_embed(own_force))
        return Gradient(q_gradient, v_gradient)

    def _mixed(self, at: _Moments, by_q: Tensor, by_v: Tensor) -> Tensor:
        """∂²/∂q_rt ∂v_ij, shape (…, r, t, row, sender)."""
        identity = torch.eye(len(self.law), dtype=torch.float64)
        product = torch.einsum("...irt,...ijt->...rtij", self.law * by_q, by_v)
        weighted = (self.law * at.error).mT[..., None, :, :, None]
        through_others = weighted * self.law[:, None, None, None] * self._others
        through_own = weighted * identity[:, :, None, None] * self._own
        fitted = torch.einsum("rt,ij->rtij", self._pairs * self._centred, self._previous)
        spread = torch.einsum("...rt,...ij->...rtij", self._pairs * at.centred, at.others)
        return 2 * (product - through_others - through_own - fitted) + 4 * spread

    def _assembled(self, qq: Tensor, qv: Tensor, vv: Tensor) -> Tensor:
        entries, rows = len(self.law) ** 2, self.positions * (self.positions - 1)
        lead = qv.shape[:-4]
        qq = qq.reshape(*qq.shape[:-4], entries, entries).expand(*lead, entries, entries)
        vv = vv.reshape(*vv.shape[:-4], rows, rows).expand(*lead, rows, rows)
        qv = qv.reshape(*lead, entries, rows)
        first = self.positions
        result = qv.new_zeros(*lead, entries + first + rows, entries + first + rows)
        result[..., :entries, :entries] = qq
        result[..., :entries, entries + first :] = qv
        result[..., entries + first :, :entries] = qv.mT
        result[..., entries + first :, entries + first :] = vv
        return result

    def _moments(self, attention: Tensor, v: Tensor) -> _Moments:
        mean = self.law @ attention
        centred = attention - mean[..., None, :]
        diagonal = attention.diagonal(dim1=-2, dim2=-1)
        others = v[..., 1:, :] * self._others
        value_diagonal = v.diagonal(dim1=-2, dim2=-1)[..., 1:]
        predicted = (
            others.sum(-1, keepdim=True) * mean[..., None, :] + value_diagonal[..., None] * diagonal[..., None, :]
        )
        return _Moments(
            mean=mean,
            diagonal=diagonal,
            centred=centred,
            variance=(self._pairs * centred**2).sum((-2, -1)),
            covariance=(self._pairs * self._centred * centred).sum((-2, -1)),
            others=others,
            value_diagonal=value_diagonal,
            previous=v.diagonal(offset=-1, dim1=-2, dim2=-1),
            error=self._mean - predicted,
        )
