"""All stationary points of the landscape `PositionsOnly`, and its attractor at infinity.

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

import torch
from torch import Tensor

from tokendynamics.circuits.landscape._positions_only import PositionsOnly
from tokendynamics.circuits.landscape.landscape import StationaryPoint, checked_point
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_tensor
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.seeding import generator


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
        raise ArgumentValueError(expected(argument, wanted, f"shape {tuple(vector.shape)}"))
    return vector


def _nonzero(value: float, argument: str) -> float:
    number = float(as_tensor(value, argument))
    if number == 0.0:
        raise ArgumentValueError(expected(argument, "a number that is not zero", number))
    return number
