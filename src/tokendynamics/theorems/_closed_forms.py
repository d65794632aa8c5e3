"""What statements predict in closed form, or by an equation in one unknown: references for any way to integrate."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.integrate import solve_ivp

from tokendynamics.dynamics.options import read_times
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments

_RTOL, _ATOL = 1e-12, 1e-14


def equiangular_slope(
    cosine: np.ndarray, tokens: int, beta: float, *, speed: float = 1.0, weights: Literal["softmax", "exponential"]
) -> np.ndarray:
    """Return γ' at the cosine γ, any shape: the right-hand side of `predict_equiangular`."""
    if weights == "softmax":
        relative = np.exp(beta * (cosine - 1))
        weight = relative / (1 + (tokens - 1) * relative)
    else:
        weight = np.exp(beta * cosine) / tokens
    return 2 * speed * weight * (1 - cosine) * ((tokens - 1) * cosine + 1)


@typed_arguments
def predict_equiangular(
    times: ArrayLike,
    tokens: int,
    beta: float,
    *,
    cosine: float = 0.0,
    speed: float = 1.0,
    weights: Literal["softmax", "exponential"] = "softmax",
) -> np.ndarray:
    """Return the one cosine γ(t) that all pairs of tokens have, which started with one cosine on the sphere.

    With qk = βI, ov = cI and a full mask every pair keeps the cosine of every other pair, and it obeys

        γ' = 2 s w(γ) (1 − γ)((ℓ − 1)γ + 1),   w(γ) = e^{βγ} / (e^β + (ℓ − 1)e^{βγ})   or   e^{βγ} / ℓ,

    with softmax and exponential weights, ℓ tokens, and s = c times the factor of the weights.

    Source: `perspective` Theorem 6.8, for the orthogonal start; any common cosine obeys the same equation.

    Args:
        times: Where γ is wanted, increasing; the start is at the first. Shape (time,).
        tokens: ℓ ≥ 2.
        beta: β, of either sign.
        cosine: γ at the first time, in [−1/(ℓ − 1), 1].
        speed: s, negative where tokens repel.
        weights: "softmax" or "exponential".

    Returns:
        Shape (time,), float64, to about 12 digits.

    Raises:
        ArgumentValueError: Fewer than two tokens, a cosine that ℓ vectors cannot have with each other, times that do
            not increase.

    >>> predict_equiangular([0.0, 1.0], tokens=2, beta=0.0).round(6), np.tanh(1.0).round(6)
    (array([0.      , 0.761594]), np.float64(0.761594))
    """
    moments = np.asarray(read_times(times))
    if tokens < 2:
        raise ArgumentValueError(expected("tokens", "at least 2", str(tokens)))
    least = -1 / (tokens - 1)
    if not least <= cosine <= 1:
        wanted = f"a cosine in [{least:.6g}, 1], which {tokens} vectors can have with each other"
        raise ArgumentValueError(expected("cosine", wanted, repr(cosine)))

    def slope(_: float, gamma: np.ndarray) -> np.ndarray:
        return equiangular_slope(gamma, tokens, beta, speed=speed, weights=weights)

    if len(moments) == 1:
        return np.array([cosine])
    ends = (moments[0], moments[-1])
    return solve_ivp(slope, ends, [cosine], method="DOP853", t_eval=moments, rtol=_RTOL, atol=_ATOL).y[0]


def predict_interaction_window(beta: ArrayLike) -> np.ndarray:
    """Return the angle τ at which one token of the sphere pulls another most: where e^{β(cos θ − 1)} sin θ is largest.

    cos τ = (√(4β² + 1) − 1)/(2β), and (β + ½)^{−1/2} < τ < β^{−1/2}. Beyond τ the pull falls up to the antipode.

    Source: `masking` appendix B, for β ≥ 1; the same derivative vanishes there for every β > 0.

    Args:
        beta: β > 0, any shape.

    Returns:
        Radians, of the shape of `beta`, float64.

    Raises:
        ArgumentValueError: A β that is not above 0, or not finite.

    >>> predict_interaction_window([1.0, 100.0]).round(6)
    array([0.904557, 0.099916])
    """
    betas = np.asarray(beta, dtype=np.float64)
    if not bool(np.all((betas > 0) & np.isfinite(betas))):
        raise ArgumentValueError(
            expected("beta", "finite numbers above 0", f"the least is {betas.min(initial=np.inf)}")
        )
    root = np.hypot(2 * betas, 1.0)
    # 1 − cos τ, without the difference of nearly equal numbers at large β.
    return np.asarray(2 * np.arcsin(np.sqrt((1 + 1 / (root + 2 * betas)) / (root + 1) / 2)))
