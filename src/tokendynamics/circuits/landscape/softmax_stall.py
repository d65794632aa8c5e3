"""How long gradient descent waits near the stationary points that softmax keeps at infinity.

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

from tokendynamics.circuits.landscape.landscape import flatten, unflatten
from tokendynamics.circuits.landscape.softmax_positions import SoftmaxPositions
from tokendynamics.numerics.arguments import as_tensor
from tokendynamics.numerics.errors import ArgumentValueError, expected
from tokendynamics.numerics.signatures import typed_arguments


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

    >>> found = stall(SoftmaxPositions([0.5, 0.5], positions=2), 5.0)
    >>> found.status, round(found.time / (float(np.exp(10.0)) / 4.0), 1)
    ('left', 1.0)
    """
    _check(landscape, depth, horizon)
    held = _receivers(landscape, columns)
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
    found = solve_ivp(
        field, (0.0, horizon), start, method="Radau", jac=jacobian, events=event, rtol=1e-6, atol=1e-10, t_eval=[]
    )
    if found.status == 1:
        return float(found.t_events[0][0]), "left"
    return (horizon, "still there") if found.status == 0 else (float("nan"), "step size underflow")


def _check(landscape: SoftmaxPositions, depth: float, horizon: float) -> None:
    if landscape.categories < 2:
        advice = "with one category every point with v = 1 is a solution"
        raise ArgumentValueError(expected("landscape", "at least 2 categories", landscape.categories, advice))
    if not float(as_tensor(depth, "depth")) >= 0.0:
        raise ArgumentValueError(expected("depth", "a number of at least 0", depth))
    if not float(as_tensor(horizon, "horizon")) > 0.0:
        raise ArgumentValueError(expected("horizon", "a positive time", horizon))


def _receivers(landscape: SoftmaxPositions, columns: Sequence[int] | None) -> torch.Tensor:
    chosen = range(2, landscape.positions + 1) if columns is None else columns
    for column in chosen:
        if not 2 <= column <= landscape.positions:
            advice = "the first column has no previous token"
            raise ArgumentValueError(expected("columns", f"receivers 2..{landscape.positions}", column, advice))
    if not chosen:
        raise ArgumentValueError(expected("columns", "at least one receiver", "none"))
    return torch.tensor([column - 1 for column in chosen])
