"""3.3 of `logical`: attention sees categories only: its landscape in closed form, and its stationary points."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.optimize import root_scalar
from torch import Tensor

from tokendynamics.circuits._task import category_law
from tokendynamics.circuits.landscape.landscape import Gradient, StationaryPoint, checked_point, checked_positions
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_square
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
            raise ArgumentValueError("q_true", "one N × N matrix", f"shape {tuple(self.q_true.shape)}")
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


# Of a mean over N categories, for each of them.
_ROUNDING = 8 * torch.finfo(torch.float64).eps

_DIRECTIONS = 4096
_NO_ERROR = 1e-9


def zero_loss(landscape: CategoriesOnly, scale: float = 1.0, diagonal: float = 0.0) -> StationaryPoint:
    """Return the exact solutions q = (q* + a)/λ, v = λ(S + cI), with S the subdiagonal and a(t) = −c/(1+c) q*_tt.

    The constant a(X_i) that q adds through the previous token is what v_ii takes away: 0 = a(t) + c q_tt, which is
    `logical` (3.71) with q_tt = q*_tt + a(t); the line printed before (3.71) has the sign of a turned round. The
    family reaches infinity as c → −1.

    Args:
        landscape: The landscape, causal or not.
        scale: λ, finite and not 0.
        diagonal: c, finite and not −1.

    Raises:
        ArgumentValueError: λ = 0; c = −1, where no finite a exists (unless the diagonal of q_true is zero, and then
            c = 0 does as well); a number that is not finite, or so near to these that q overflows.

    >>> landscape = CategoriesOnly([[1.0, 2.0], [0.0, -1.0]], None, positions=3)
    >>> point = zero_loss(landscape, scale=2.0, diagonal=1.0)
    >>> point.attention
    tensor([[ 0.2500,  1.2500],
            [-0.2500, -0.2500]], dtype=torch.float64)
    >>> float(landscape.loss(point.attention, point.v))
    0.0
    """
    _check_scale(scale)
    if not math.isfinite(diagonal) or diagonal == -1.0:
        advice = "the sum v_ii + v_i,i−1 must not vanish, or no shift of q takes the diagonal term away"
        raise ArgumentValueError("diagonal", "a finite number other than −1", diagonal, advice)
    diagonal_of_q = landscape.q_true.diagonal()
    attention = (landscape.q_true - diagonal / (1.0 + diagonal) * diagonal_of_q) / scale
    if not bool(torch.isfinite(attention).all()):
        advice = "take a diagonal farther from −1 or a larger scale"
        raise ArgumentValueError("diagonal", "values that keep q finite", f"{diagonal} and {scale}", advice)
    size = landscape.positions
    identity = torch.eye(size, dtype=torch.float64)
    v = scale * (torch.ones(size, size, dtype=torch.float64).tril(-1).triu(-1) + diagonal * identity)
    return StationaryPoint("A", "zero loss", attention, v, 0.0, 0.0)


def mean_predictor(landscape: CategoriesOnly, scale: float = 1.0, pairs: ArrayLike | None = None) -> StationaryPoint:
    """Return Ŷ_i = E[Y_i | X_i], from the token alone: v = λI, q_tt = m*_t/λ with m* the mean of q_true over senders.

    Nothing attends elsewhere, so the rest of q is free but for one condition, E Cov(q_true, q | receiver) = 0.
    `logical` 3.3.1 rules these points out by setting v_{i,i−1} = 1 "without restriction", which needs v_{i,i−1} ≠ 0
    (corrects `logical` 3.3.1). A strict saddle: to first order in a change of v_{i,i−1} and of the entries of q off
    the diagonal the loss has a mixed term and no square in the latter.

    Args:
        landscape: The landscape, causal or not.
        scale: λ, finite and not 0.
        pairs: Wanted entries of q off the diagonal, (N, N); projected on the condition. None: constant columns.

    Raises:
        ArgumentTypeError, ArgumentValueError: λ = 0 or not finite; pairs that are not an N × N real finite matrix;
            a q_true without interaction, for which this point is a solution.

    >>> landscape = CategoriesOnly([[1.0, 2.0], [0.0, -1.0]], None, positions=3)
    >>> point = mean_predictor(landscape)
    >>> point.loss == float(landscape.loss(point.attention, point.v)) == 2 * landscape.interaction_variance
    True
    """
    _check_scale(scale)
    check_interaction(landscape)
    mean = landscape.law @ landscape.q_true
    attention = (mean / scale).expand(landscape.attention_shape).clone()
    if pairs is not None:
        wanted = as_square(pairs, "pairs").double()
        if wanted.shape != landscape.attention_shape:
            raise ArgumentValueError("pairs", f"shape {landscape.attention_shape}", f"{tuple(wanted.shape)}")
        attention = _uncorrelated(landscape, wanted, attention)
    v = scale * torch.eye(landscape.positions, dtype=torch.float64)
    per_row = landscape.interaction_variance
    return StationaryPoint("C", "mean predictor", attention, v, (landscape.positions - 1) * per_row, per_row)


def no_output(landscape: CategoriesOnly) -> StationaryPoint:
    """Return q = v = 0: the prediction is 0 and the loss (M − 1) E Y²; a strict saddle unless q_true is zero.

    >>> landscape = CategoriesOnly([[1.0, 2.0], [0.0, -1.0]], None, positions=3)
    >>> no_output(landscape).loss
    3.0
    """
    law, q_true = landscape.law, landscape.q_true
    per_row = float(law @ q_true**2 @ law)
    attention, v = torch.zeros_like(q_true), torch.zeros(landscape.v_shape, dtype=torch.float64)
    return StationaryPoint("D", "q = v = 0", attention, v, (landscape.positions - 1) * per_row, per_row)


def check_interaction(landscape: CategoriesOnly) -> None:
    """Refuse a q_true that depends on the receiver alone, up to rounding: these points are no saddles but solutions."""
    q_true = landscape.q_true
    rounding = _ROUNDING * q_true.shape[0] * float(q_true.abs().max())
    if landscape.interaction_variance <= rounding**2:
        advice = "with such a q_true the loss is zero without looking at any other token"
        raise ArgumentValueError("q_true", "dependence on the previous category", "equal rows", advice)


def _check_scale(scale: float) -> None:
    if not math.isfinite(scale) or scale == 0.0:
        raise ArgumentValueError("scale", "a finite number other than 0", scale)


def _uncorrelated(landscape: CategoriesOnly, pairs: Tensor, base: Tensor) -> Tensor:
    """`pairs` off the diagonal and `base` on it, with the mean covariance with q_true projected away."""
    free = 1.0 - torch.eye(len(landscape.law), dtype=torch.float64)
    attention = free * pairs + (1.0 - free) * base
    centred = landscape.q_true - landscape.law @ landscape.q_true
    direction = torch.outer(landscape.law, landscape.law) * centred
    movable = free * direction
    return attention - movable * ((direction * attention).sum() / (movable**2).sum())


@dataclass(frozen=True)
class _ZeroRows:
    """Rows of v up to scale: g on the previous token, α on the others, −u on itself, u = g + (M−2)α; (angle, 1)."""

    previous: Tensor
    others: Tensor
    sum_of_others: Tensor
    squares: Tensor
    error: Tensor  # (angle, t): mean of Y_i less its prediction, given X_i = t


def zero_row_sums(landscape: CategoriesOnly, scale: float = 1.0) -> list[StationaryPoint]:
    """Return the stationary points with Σ_k v_ik = 0 over all k, at one scale and with the smallest column means.

    Summed over r with weights p_r, the stationarity of q reads (Σ_k v_ik) E_t = 0, with E_t the error of the mean
    given X_i = t. `logical` divides by Σ_k v_ik to reach (3.54), and so loses this branch. On it v_{i,i−1} = g,
    v_ij = α for j ≠ i, i−1 and v_ii = −u with u = g + (M−2)α, and
    q_rt = m_t + [g(q*_rt − m*_t) + u E_t(1 − δ_rt/p_r)]/w2,
    E_t = [w2 m*_t + u g (q*_tt − m*_t)]/[w2 + u²(1/p_t − 1)], w2 = g² + (M−2)α², Σ_t p_t E_t q_tt = 0,
    where the ratio α : g is a root of one equation,
    g α V* = (w2 − 2(g−α)g) Σ_t p_t E_t(q*_tt − m*_t) + (g−α) u Σ_t (1 − p_t) E_t².
    Between them the points fill, for each root, the scale and N − 1 dimensions of column means m. For M = 2 there is
    no α and no equation: one such point exists for every q_true whose diagonal does not vanish, with u = g and
    E_t = p_t q*_tt.

    The branch that `logical` (3.59) looks at, Σ_{j≠i} v_ij = 0, is α = −Δv/(M−1) (not N − 1: v has M columns, which
    corrects (3.58) and (3.59)). With v_ii ≠ 0 and v_{i,i−1} ≠ 0 it is indeed empty, as 3.3.1 says. With v_ii = 0 it is
    the root u = 0 of the equation above and needs Σ_t p_t m*_t(q*_tt − m*_t) = V*/(M−1) of q_true; the loss per
    row is then E m*² + V*/(M−1). Without that coincidence the roots have u ≠ 0.

    All are strict saddles: adding k_t to column t of q leaves the loss as it is, whatever k, and a change of v_ii
    has a mixed second derivative with it, −2 Σ_t p_t E_t k_t, that cannot vanish for all k while E ≠ 0.

    Args:
        landscape: Not causal (under a causal mask the rows differ and this algebra does not hold).
        scale: √(α² + g²), positive.

    Returns:
        One point for each simple root in order of its loss; empty if the equation has none for this q_true. (Roots are
        found by a change of sign between 4096 angles: a double root, or two of them closer than that, are missed.)

    Raises:
        ArgumentValueError: A causal landscape, a q_true without interaction, a scale that is not positive.

    >>> landscape = CategoriesOnly([[1.0, 2.0], [0.0, -1.0]], None, positions=3)
    >>> for point in zero_row_sums(landscape):
    ...     slope = landscape.gradient(point.attention, point.v)
    ...     print(f"{point.loss:.6f}", bool(slope.attention.norm() + slope.v.norm() < 1e-14))
    0.819540 True
    2.847127 True
    """
    if landscape.causal:
        advice = "under a causal mask the rows of v have different lengths"
        raise ArgumentValueError("landscape", "attention over all positions", "a causal one", advice)
    if not (math.isfinite(scale) and scale > 0.0):
        raise ArgumentValueError("scale", "a positive number", scale)
    check_interaction(landscape)
    points = (_zero_rows_point(landscape, angle, scale) for angle in _roots(landscape))
    return sorted((point for point in points if point is not None), key=lambda point: point.loss)


def _zero_rows(landscape: CategoriesOnly, angles: Tensor, scale: float = 1.0) -> _ZeroRows:
    previous, others = scale * angles.cos()[:, None], scale * angles.sin()[:, None]
    total = previous + (landscape.positions - 2) * others
    squares = previous**2 + (landscape.positions - 2) * others**2
    mean, gap = _mean_and_gap(landscape)
    error = (squares * mean + total * previous * gap) / (squares + total**2 * (1.0 / landscape.law - 1.0))
    return _ZeroRows(previous, others, total, squares, error)


def _mean_and_gap(landscape: CategoriesOnly) -> tuple[Tensor, Tensor]:
    """m*_t and q*_tt − m*_t."""
    mean = landscape.law @ landscape.q_true
    return mean, landscape.q_true.diagonal() - mean


def _equation(landscape: CategoriesOnly, angles: Tensor) -> Tensor:
    """Zero where the share of the previous token is stationary: (Cov − (g − α) Var) w2²/u at each angle."""
    rows = _zero_rows(landscape, angles)
    law, gap = landscape.law, _mean_and_gap(landscape)[1]
    step = rows.previous - rows.others
    along = (law * rows.error * gap).sum(-1, keepdim=True)
    spread = ((1.0 - law) * rows.error**2).sum(-1, keepdim=True)
    explained = rows.previous * rows.others * landscape.interaction_variance
    unexplained = (rows.squares - 2 * step * rows.previous) * along + step * rows.sum_of_others * spread
    return (explained - unexplained)[:, 0]


def _roots(landscape: CategoriesOnly) -> list[float]:
    """Angles in one half turn; opposite ones are the same point with q and v turned round."""
    if landscape.positions == 2:
        return [0.0]  # There are no other senders that could have a share.

    def at(angle: float) -> float:
        return float(_equation(landscape, torch.tensor([angle], dtype=torch.float64)))

    # Half a step off 0, where a q_true with a zero diagonal has a root that is a solution.
    angles = (torch.arange(_DIRECTIONS + 1, dtype=torch.float64) - 0.5) * (math.pi / _DIRECTIONS)
    signs = _equation(landscape, angles).sign()
    crossings = (signs[:-1] * signs[1:] < 0).nonzero().flatten().tolist()
    brackets = [(float(angles[k]), float(angles[k + 1])) for k in crossings]
    return [root_scalar(at, bracket=ends, method="brentq", xtol=1e-15, rtol=1e-15).root for ends in brackets]


def _zero_rows_point(landscape: CategoriesOnly, angle: float, scale: float) -> StationaryPoint | None:
    rows = _zero_rows(landscape, torch.tensor([angle], dtype=torch.float64), scale)
    law, error = landscape.law, rows.error[0]
    if float(error.abs().max()) <= _NO_ERROR * float(landscape.q_true.abs().max()):
        return None  # The error of the mean vanishes: this root belongs to the zero-loss family.
    mean, _ = _mean_and_gap(landscape)
    about_mean = landscape.q_true - mean
    inverse_law = torch.eye(len(law), dtype=torch.float64) / law[:, None]
    centred = (rows.previous * about_mean + rows.sum_of_others * error * (1.0 - inverse_law)) / rows.squares
    weights = law * error
    attention = centred - weights * ((weights @ centred.diagonal()) / (weights @ weights))
    per_row = _loss_per_row(landscape, rows, centred)
    v = rows.others.expand(landscape.v_shape).clone()
    v.diagonal(offset=-1).fill_(float(rows.previous))
    v.diagonal().fill_(-float(rows.sum_of_others))
    return StationaryPoint("B", "zero row sums", attention, v, (landscape.positions - 1) * per_row, per_row)


def _loss_per_row(landscape: CategoriesOnly, rows: _ZeroRows, centred: Tensor) -> float:
    """E Y² − E Y Ŷ: where the loss is stationary in the scale of v, E Ŷ² = E Y Ŷ."""
    law = landscape.law
    mean, _ = _mean_and_gap(landscape)
    covariance = (torch.outer(law, law) * (landscape.q_true - mean) * centred).sum()
    square = (law * mean**2).sum() + landscape.interaction_variance
    product = rows.previous * covariance - rows.sum_of_others * (law * mean * centred.diagonal()).sum()
    return float(square - product)
