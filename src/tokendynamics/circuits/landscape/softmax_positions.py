"""3.2 of `logical`: attention reads positions only, through a softmax over the senders.

With softmax every column of weights is positive and sums to one, so that the loss is that of `PositionsOnly` on an
open simplex. For N ≥ 2 categories no finite point is stationary: `descent` gives a direction that falls at every
finite point, with the slope as a sum of negative terms. The optimum (loss 0) lies at infinite logits. Slow descent is
another matter: see `stall`.

How long gradient descent waits near the stationary points that softmax keeps at infinity.

Where some columns put no weight on the previous token, nothing pulls the weight back: with ``v = p 1^T`` and all
``w_{i−1,i} = 0`` the gradient vanishes on the closed simplex. With logits of −s it does not vanish, but descent has to
wait: that it cannot get stuck (`logical` 3.2) holds for infinite patience only.

How often that matters depends on the starts. For N = 5 equal categories and M = 6 the gradient flow was followed from
40 random starts (seed 0 of `find_basins`, method "gradient-flow") up to time 1e4. From normal entries of standard
deviation 1 every loss is below 1e-3 by then. From standard deviation 3 five starts still wait (12 %, interval
5 … 26 %): four at a loss of 0.95 to 0.99 and one at 4.0, the loss of the mean predictor. A start that `stall` lowers
on purpose leaves at time 540 from depth 3, 2.9e4 from depth 5 and 1.6e6 from depth 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from tokendynamics.circuits.landscape.landscape import Gradient, checked_point, flatten, unflatten
from tokendynamics.circuits.landscape.positions_only import PositionsOnly
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_tensor
from tokendynamics.numerics.signatures import typed_arguments


@dataclass(frozen=True)
class Descent:
    """A direction along which the loss falls, and how fast.

    Attributes:
        attention: Direction of the logits, shape (…, M, M).
        v: Direction of v, shape (…, N, N).
        slope: The derivative of the loss along the direction, shape (…,): below zero at every finite point.
    """

    attention: Tensor
    v: Tensor
    slope: Tensor


class SoftmaxPositions:
    """The landscape of logits (M, M) [sender, receiver], softmax over senders, and v (N, N) acting on columns.

    The first column of logits, and a constant added to any column, change nothing.

    Args:
        law: Probabilities of the categories 1..N, positive, summing to one.
        positions: M, at least 2.

    Attributes:
        linear: The same landscape as a function of the weights.

    Raises:
        ArgumentTypeError: Positions that are no integer.
        ArgumentValueError: An invalid law, or fewer than two positions.

    >>> landscape = SoftmaxPositions([0.5, 0.5], positions=2)
    >>> identity = [[1.0, 0.0], [0.0, 1.0]]
    >>> float(landscape.loss([[0.0, 0.0], [0.0, 0.0]], identity))
    0.25
    >>> float(landscape.loss([[0.0, 40.0], [0.0, 0.0]], identity)) < 1e-30
    True
    """

    @typed_arguments
    def __init__(self, law: ArrayLike, positions: int) -> None:
        self.linear = PositionsOnly(law, positions)
        self.law = self.linear.law
        self.positions = self.linear.positions
        self.categories = self.linear.categories
        self.gini = self.linear.gini
        self.name = "positions only, softmax"
        self.attention_shape = self.linear.attention_shape
        self.v_shape = self.linear.v_shape

    def weights(self, attention: ArrayLike) -> Tensor:
        """Return what each sender gets of each receiver's attention, shape (…, M, M): the columns sum to one.

        Args:
            attention: Logits, shape (…, M, M), entry [sender, receiver].
        """
        logits, _ = checked_point(self, attention, torch.zeros(self.v_shape))
        return torch.softmax(logits, dim=-2)

    def loss(self, attention: ArrayLike, v: ArrayLike) -> Tensor:
        """Return the expected squared error summed over i = 2..M, shape (…,); `logical` (3.3) with (3.35).

        Args:
            attention: Logits, shape (…, M, M), entry [sender, receiver].
            v: Shape (…, N, N).

        Raises:
            ArgumentTypeError: No real floating-point numbers.
            ArgumentValueError: A wrong shape, or a NaN or infinity.
        """
        return self.linear.loss(self.weights(attention), v)

    def gradient(self, attention: ArrayLike, v: ArrayLike) -> Gradient:
        """Return the derivatives of `loss`: ``w_ji (g_ji − Σ_k w_ki g_ki)``, g the derivatives for the weights w."""
        weights = self.weights(attention)
        linear = self.linear.gradient(weights, v)
        return Gradient(weights * _about_mean(weights, linear.attention), linear.v)

    def hessian(self, attention: ArrayLike, v: ArrayLike) -> Tensor:
        """Return the second derivatives over (logits row by row, v row by row), shape (…, M² + N², M² + N²)."""
        weights = self.weights(attention)
        entries, size = self.positions**2, self.positions
        linear = self.linear.hessian(weights, v)
        chain = self._chain(weights)
        qq = chain @ linear[..., :entries, :entries] @ chain
        force = weights * _about_mean(weights, self.linear.gradient(weights, v).attention)
        bend = torch.diag_embed(force.mT) - weights.mT[..., :, :, None] * force.mT[..., :, None, :]
        bend = bend - force.mT[..., :, :, None] * weights.mT[..., :, None, :]
        qq = qq + _by_column(bend, size)
        qv = chain @ linear[..., :entries, entries:]
        vv = linear[..., entries:, entries:].expand(*qq.shape[:-2], -1, -1)
        return torch.cat([torch.cat([qq, qv], dim=-1), torch.cat([qv.mT, vv], dim=-1)], dim=-2)

    def best_v(self, attention: ArrayLike) -> Tensor:
        """Return the best v for given logits, ``p 1^T + (Σ_i c_i / Σ_i |q_i|²)(I − p 1^T)``, shape (…, N, N)."""
        on_previous, squares = self._own_and_squares(self.weights(attention))
        mean_predictor = self.law[:, None].expand(self.categories, self.categories)
        return mean_predictor + (on_previous / squares)[..., None, None] * self._interaction()

    def descent(self, attention: ArrayLike, v: ArrayLike) -> Descent:
        """Return a direction of descent: for N ≥ 2 no finite point is stationary; sharpens `logical` 3.2.

        Write ``L(w, v) = F(w) + (M−1)|Ep|² + Q tr(E Σ E^T)`` with ``E = v − best_v``, ``C = Σ c_i``,
        ``Q = Σ |w_i|²`` and ``F = T(M − 1 − C²/Q)``. Move every column of weights straight towards its previous
        token, ``dw_i = e_{i−1} − w_i``, and E by ``dE = −(C/Q) E``. Then

            ``dL = −2TC[(M−1)Q − C²]/Q² − 2(C/Q)(M−1)|Ep|² − 2Q tr(E Σ E^T)``.

        The first term is below zero: all c_i > 0, and ``C² ≤ (M−1)Σc_i² < (M−1)Q`` since the other weights are
        positive too. It vanishes only where they all vanish, at infinite logits. (In floating point the slope can
        still round to zero once the weights underflow.) With a single category T = 0, and v = 1 solves the task with
        any logits: slope 0.

        Args:
            attention: Logits, shape (…, M, M).
            v: Shape (…, N, N).
        """
        logits, value = checked_point(self, attention, v)
        weights = torch.softmax(logits, dim=-2)
        on_previous, squares = self._own_and_squares(weights)
        error = value - self.best_v(logits)
        rate = on_previous / squares
        change_own = (self.positions - 1) - on_previous
        change_squares = 2.0 * (on_previous - squares)
        change_rate = change_own / squares - on_previous * change_squares / squares.square()
        direction = change_rate[..., None, None] * self._interaction() - rate[..., None, None] * error
        # Raising one logit by dl moves its column by w dl (e − w).
        steps = torch.exp(-torch.log_softmax(logits, dim=-2).diagonal(1, -2, -1))
        return Descent(torch.diag_embed(steps, offset=1), direction, self._slope(weights, error))

    def _slope(self, weights: Tensor, error: Tensor) -> Tensor:
        counted = self.positions - 1
        on_previous, squares = self._own_and_squares(weights)
        mean = error.matmul(self.law)
        energy = (error - mean[..., :, None]).square().matmul(self.law).sum(-1)
        entries = weights.diagonal(1, -2, -1)
        others = (weights[..., :, 1:] - torch.diag_embed(entries, offset=1)[..., :, 1:]).square().sum((-1, -2))
        # (M−1)Q − C² without cancellation: what the other senders get, and how unequal the columns are.
        spread = counted * (others + (entries - entries.mean(-1, keepdim=True)).square().sum(-1))
        slope = -2.0 * self.gini * on_previous * spread / squares.square()
        return slope - 2.0 * (on_previous / squares) * counted * mean.square().sum(-1) - 2.0 * squares * energy

    def _own_and_squares(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        return weights.diagonal(1, -2, -1).sum(-1), weights[..., :, 1:].square().sum((-1, -2))

    def _interaction(self) -> Tensor:
        return torch.eye(self.categories, dtype=torch.float64) - self.law[:, None]

    def _chain(self, weights: Tensor) -> Tensor:
        columns = weights.mT
        return _by_column(
            torch.diag_embed(columns) - columns[..., :, :, None] * columns[..., :, None, :], self.positions
        )


def _about_mean(weights: Tensor, gradient: Tensor) -> Tensor:
    return gradient - (weights * gradient).sum(-2, keepdim=True)


def _by_column(blocks: Tensor, size: int) -> Tensor:
    """Blocks (…, receiver, sender, sender) as a matrix over the entries of q row by row."""
    whole = torch.einsum("...ijk,il->...jikl", blocks, torch.eye(size, dtype=torch.float64))
    return whole.reshape(*blocks.shape[:-3], size * size, size * size)


@dataclass(frozen=True)
class Stall:
    """One start near a stationary point of the closed simplex.

    Attributes:
        depth: s: the logits of the previous tokens started at −s, all others at 0.
        loss: The loss at the start.
        gradient: The norm of the gradient there over the logits of the held columns: what pulls them out.
        time: The time of the gradient flow until the held columns put half their weight on the previous token (on
            average); the horizon if they did not. Gradient descent with learning rate η takes ``time / η`` steps.
        status: Whether it left before the horizon, or why the integration ended.
    """

    depth: float
    loss: float
    gradient: float
    time: float
    status: Literal["left", "still there", "step size underflow"]


@typed_arguments
def stall(
    landscape: SoftmaxPositions, depth: float, *, columns: Sequence[int] | None = None, horizon: float = 1e15
) -> Stall:
    """Integrate gradient flow from logits of −depth for the previous tokens, with the best v for these weights.

    With all columns held, v is within ``e^{−s}`` of ``p 1^T`` and the held weights ``ε ≈ e^{−s}/(M − 1)`` obey
    ``dε/dt = 2 T M ε³`` to leading order: the pull is of order ``e^{−2s}``, and the time tends to
    ``(M − 1)² e^{2s} / (4 T M)``. With some columns held the others give v its shape: the pull is of order ``e^{−s}``,
    and the time of order ``e^{s}``.

    Args:
        landscape: The landscape.
        depth: s, at least 0.
        columns: The receivers 2..M that are held back; all of them unless given.
        horizon: When to give up.

    Raises:
        ArgumentValueError: A single category (v = 1 then has no loss, and nothing to leave), a negative depth, a
            horizon that is not positive, or a column outside 2..M.

    >>> outcome = stall(SoftmaxPositions([0.5, 0.5], positions=2), 5.0)
    >>> outcome.status, round(outcome.time / (float(np.exp(10.0)) / 4.0), 1)
    ('left', 1.0)
    """
    if landscape.categories < 2:
        advice = "with one category every point with v = 1 is a solution"
        raise ArgumentValueError("landscape", "at least 2 categories", landscape.categories, advice)
    if not float(as_tensor(depth, "depth")) >= 0.0:
        raise ArgumentValueError("depth", "a number of at least 0", depth)
    if not float(as_tensor(horizon, "horizon")) > 0.0:
        raise ArgumentValueError("horizon", "a positive time", horizon)
    chosen = range(2, landscape.positions + 1) if columns is None else columns
    for column in chosen:
        if not 2 <= column <= landscape.positions:
            why = "the first column has no previous token"
            raise ArgumentValueError("columns", f"receivers 2..{landscape.positions}", column, why)
    if not chosen:
        raise ArgumentValueError("columns", "at least one receiver", "none")
    held = torch.tensor([column - 1 for column in chosen])
    logits = torch.zeros(landscape.attention_shape, dtype=torch.float64)
    logits[held - 1, held] = -float(depth)
    v = landscape.best_v(logits)
    slope = float(landscape.gradient(logits, v).attention[:, held].norm())
    time, status = _time_to_leave(landscape, flatten(logits, v).numpy(), held, float(horizon))
    return Stall(float(depth), float(landscape.loss(logits, v)), slope, time, status)


def _time_to_leave(
    landscape: SoftmaxPositions, start: np.ndarray, held: torch.Tensor, horizon: float
) -> tuple[float, Literal["left", "still there", "step size underflow"]]:
    def field(_: float, point: np.ndarray) -> np.ndarray:
        gradient = landscape.gradient(*unflatten(landscape, torch.from_numpy(point)))
        return -flatten(gradient.attention, gradient.v).numpy()

    def jacobian(_: float, point: np.ndarray) -> np.ndarray:
        return -landscape.hessian(*unflatten(landscape, torch.from_numpy(point))).numpy()

    def left(_: float, point: np.ndarray) -> float:
        logits, _v = unflatten(landscape, torch.from_numpy(point))
        return float(landscape.weights(logits)[held - 1, held].mean()) - 0.5

    event: Any = left
    event.terminal = True
    solution = solve_ivp(
        field, (0.0, horizon), start, method="Radau", jac=jacobian, events=event, rtol=1e-6, atol=1e-10, t_eval=[]
    )
    if solution.status == 1:
        return float(solution.t_events[0][0]), "left"
    return (horizon, "still there") if solution.status == 0 else (float("nan"), "step size underflow")
