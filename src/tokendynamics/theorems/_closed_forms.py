"""What statements predict in closed form, or by an equation in one unknown: references for any way to integrate."""

from __future__ import annotations

from collections.abc import Callable
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

    return _solved(slope, cosine, moments)


def _solved(slope: Callable[[float, np.ndarray], np.ndarray], first: float, moments: np.ndarray) -> np.ndarray:
    """Return the solution of an equation in one unknown, (time,)."""
    ends = (moments[0], moments[-1])
    return solve_ivp(slope, ends, [first], method="DOP853", t_eval=moments, rtol=_RTOL, atol=_ATOL).y[0]


@typed_arguments
def predict_two_clusters(
    times: ArrayLike,
    beta: float,
    *,
    share: float = 0.5,
    cosine: float = 0.0,
    speed: float = 1.0,
    weights: Literal["softmax", "exponential"] = "softmax",
) -> np.ndarray:
    """Return the cosine ρ(t) of two points on the sphere, each of which many tokens share.

    With qk = βI, ov = cI and a full mask tokens in one point stay together, and

        ρ' = s (w₁₂ + w₂₁)(1 − ρ²),   w₁₂ = (1 − p)e^{βρ} / (p e^β + (1 − p)e^{βρ})   or   (1 − p)e^{βρ},

    with softmax and exponential weights, p the share of the tokens in the first point (p and 1 − p change places in
    w₂₁), and s = c times the factor of the weights. From ρ = 0 to ½ the halves take a time of about e^β/(2β).

    Source: derived here, for the time scale in `metastability`; for p = ½ it is the equation of `predict_equiangular`
    for two tokens.

    Args:
        times: Where ρ is wanted, increasing; the start is at the first. Shape (time,).
        beta: β, of either sign.
        share: p, above 0 and below 1.
        cosine: ρ at the first time, in [−1, 1].
        speed: s, negative where tokens repel.
        weights: "softmax" or "exponential".

    Returns:
        Shape (time,), float64, to about 12 digits.

    Raises:
        ArgumentValueError: A share or a cosine out of range, times that do not increase.

    >>> float(predict_two_clusters([0.0, 1.0], beta=0.0, share=0.25)[1].round(6)), float(np.tanh(1.0).round(6))
    (0.761594, 0.761594)
    """
    moments = np.asarray(read_times(times))
    if not 0 < share < 1:
        raise ArgumentValueError(expected("share", "a share above 0 and below 1", repr(share)))
    if not -1 <= cosine <= 1:
        raise ArgumentValueError(expected("cosine", "a cosine in [-1, 1]", repr(cosine)))

    def slope(_: float, rho: np.ndarray) -> np.ndarray:
        relative = np.exp(beta * (rho - 1)) if weights == "softmax" else np.exp(beta * rho)
        parts = [(share, 1 - share), (1 - share, share)]
        scale = [here + there * relative if weights == "softmax" else 1.0 for here, there in parts]
        pulls = sum(there * relative / size for (_, there), size in zip(parts, scale, strict=True))
        return speed * pulls * (1 - rho**2)

    return _solved(slope, cosine, moments)


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
