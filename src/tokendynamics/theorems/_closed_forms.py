"""What statements predict in closed form, or by an equation in one unknown: references for any way to integrate."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import brentq
from scipy.special import betainc, exprel, gammaln, ive

from tokendynamics.dynamics.options import read_times
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_choice, as_finite, as_not_negative, as_square, as_tensor
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.theorems._hypotheses import LIMIT_AT_ZERO
from tokendynamics.words import number

_RTOL, _ATOL = 1e-12, 1e-14
_END, _PANEL, _NODES, _HALVINGS = 100.0, 0.1, 16, 50
"""Of the logarithm z of a cosine's odds: how far it is followed, and how its range is divided and searched. Beyond, the
cosine is at an end of its range to all digits; in a panel the speed changes by a factor e^{β/40}, for which 16 nodes
give 13 digits up to β = 700."""
_LARGEST = 700.0
"""The largest β whose exponential is a number with room for a sum."""
_SMALLEST = 1e-300
"""The smallest share of a sphere whose quotients keep their digits."""


def equiangular_slope(
    cosine: np.ndarray, tokens: int, beta: float, *, speed: float = 1.0, weights: Literal["softmax", "exponential"]
) -> np.ndarray:
    """Return γ' at the cosine γ, any shape: the right-hand side of `predict_equiangular`."""
    weight = _weight_of_another(cosine, tokens, beta, weights)
    return 2 * speed * weight * (1 - cosine) * ((tokens - 1) * cosine + 1)


def _weight_of_another(cosine: np.ndarray, tokens: int, beta: float, weights: str) -> np.ndarray:
    """Return the weight w(γ) that a token gives another one."""
    if weights == "exponential":
        return np.exp(beta * cosine) / tokens
    up, down = _relative_exponentials(beta * (cosine - 1))
    return up / (down + (tokens - 1) * up)


def _relative_exponentials(logit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return e^s and 1, both divided by the larger, which overflows at no s."""
    return np.exp(np.minimum(logit, 0.0)), np.exp(np.minimum(-logit, 0.0))


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
            not increase, a β that is no number or overflows.

    >>> predict_equiangular([0.0, 1.0], tokens=2, beta=0.0).round(6), np.tanh(1.0).round(6)
    (array([0.      , 0.761594]), np.float64(0.761594))
    """
    moments = np.asarray(read_times(times))
    if tokens < 2:
        raise ArgumentValueError("tokens", "at least 2", str(tokens))
    least = -1 / (tokens - 1)
    if not least <= cosine <= 1:
        wanted = f"a cosine in [{least:.6g}, 1], which {tokens} vectors can have with each other"
        raise ArgumentValueError("cosine", wanted, repr(cosine))

    def rate(gamma: np.ndarray) -> np.ndarray:
        return 2 * tokens * speed * _weight_of_another(gamma, tokens, beta, weights)

    _check_strength(beta, speed, weights)
    return _solved(rate, cosine, moments, tokens)


def _array(value: ArrayLike, argument: str) -> np.ndarray:
    """Return finite numbers as float64, of any shape."""
    return as_tensor(value, argument).detach().double().cpu().numpy()


def _broadcast(**named: ArrayLike) -> tuple[np.ndarray, ...]:
    """Return finite numbers as float64, all of the shape to which they broadcast."""
    arrays = [_array(value, name) for name, value in named.items()]
    try:
        together = np.broadcast_arrays(*arrays)
    except ValueError:
        came = ", ".join(str(array.shape) for array in arrays)
        raise ArgumentValueError(", ".join(named), "shapes that fit by broadcasting", came) from None
    if together[0].size == 0:
        raise ArgumentValueError(", ".join(named), "at least one number each", f"shape {together[0].shape}")
    return tuple(together)


def _check_strength(beta: float, speed: float, weights: str) -> None:
    """Refuse a β or speed that is no number, unknown weights, and exponential ones that overflow."""
    as_finite(speed, "speed")
    as_choice(weights, "weights", ("softmax", "exponential"))
    if as_finite(beta, "beta") > _LARGEST and weights == "exponential":
        wanted = f"at most {_LARGEST:g} with exponential weights, which overflow beyond"
        raise ArgumentValueError("beta", wanted, repr(beta))


def _solved(rate: Callable[[np.ndarray], np.ndarray], first: float, moments: np.ndarray, tokens: int = 2) -> np.ndarray:
    """Return the solution of ``γ' = rate(γ)(1 − γ)((ℓ − 1)γ + 1)/ℓ``, (time,).

    With ``z = log(((ℓ − 1)γ + 1)/(1 − γ))`` it is z' = rate(γ), so that the time to a z is the integral of 1/rate:
    a quadrature, which is inverted. Exponential weights come to rest within a time of e^{−β}, where no step in time
    would be short enough.
    """
    above = (tokens - 1) * first + 1
    direction = float(np.sign(rate(np.array([first]))[0]))
    if above <= 0 or first >= 1 or direction == 0:
        return np.full(len(moments), first)

    def cosine(z: np.ndarray) -> np.ndarray:
        fallen = np.exp(-np.abs(z))
        return np.where(z >= 0, (1 - fallen) / (1 + (tokens - 1) * fallen), (fallen - 1) / (fallen + tokens - 1))

    nodes, weights = np.polynomial.legendre.leggauss(_NODES)

    def time_between(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        half = (high - low)[:, None] / 2
        z = (high + low)[:, None] / 2 + half * nodes
        with np.errstate(divide="ignore", over="ignore"):  # Where nothing moves the time is infinite.
            return (half * weights / rate(cosine(z))).sum(axis=-1)

    start = math.log(above / (1 - first))
    edges = start + direction * np.arange(0.0, _END + abs(start), _PANEL)
    reached = np.concatenate([[0.0], np.cumsum(time_between(edges[:-1], edges[1:]))])
    wanted = moments - moments[0]
    panel = np.clip(np.searchsorted(reached, wanted, side="right") - 1, 0, len(edges) - 2)
    low, high = edges[panel], edges[panel + 1]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        early = reached[panel] + time_between(edges[panel], middle) <= wanted
        low, high = np.where(early, middle, low), np.where(early, high, middle)
    return np.where(wanted == 0, first, cosine(low))


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
        ArgumentValueError: A share or a cosine out of range, times that do not increase, a β that is no number or
            overflows.

    >>> float(predict_two_clusters([0.0, 1.0], beta=0.0, share=0.25)[1].round(6)), float(np.tanh(1.0).round(6))
    (0.761594, 0.761594)
    """
    moments = np.asarray(read_times(times))
    if not 0 < share < 1:
        raise ArgumentValueError("share", "a share above 0 and below 1", repr(share))
    if not -1 <= cosine <= 1:
        raise ArgumentValueError("cosine", "a cosine in [-1, 1]", repr(cosine))

    def rate(rho: np.ndarray) -> np.ndarray:
        parts = [(share, 1 - share), (1 - share, share)]
        if weights == "exponential":
            pulls = sum(there * np.exp(beta * rho) for _, there in parts)
        else:
            up, down = _relative_exponentials(beta * (rho - 1))
            pulls = sum(there * up / (here * down + there * up) for here, there in parts)
        return 2 * speed * np.asarray(pulls)

    _check_strength(beta, speed, weights)
    return _solved(rate, cosine, moments)


def averaged_cosine(tokens: int, beta: float | np.ndarray, cosine: float | np.ndarray) -> Any:
    """Return the cosine of two attention averages Σ_j w_ij x_j of tokens with one cosine ρ in [0, 1], of any shape.

    With p the weight of a token for itself, q that for any other, and S = 1 + (ℓ − 1)ρ,

        ((p − q)²ρ + 2(p − q)qS + q²ℓS) / ((p − q)² + 2(p − q)qS + q²ℓS).
    """
    beta, cosine = np.asarray(beta, dtype=float), np.asarray(cosine, dtype=float)
    relative = np.exp(-np.abs(beta) * (1 - cosine))
    up, down = np.where(beta >= 0, 1.0, relative), np.where(beta >= 0, relative, 1.0)
    total = up + (tokens - 1) * down
    difference, other = (up - down) / total, down / total
    along = 1 + (tokens - 1) * cosine
    common = 2 * difference * other * along + other**2 * tokens * along
    return (difference**2 * cosine + common) / (difference**2 + common)


@typed_arguments
def predict_long_context(tokens: float, scale: float, cosine: float) -> float:
    """Return the cosine that one attention average leaves between tokens with one cosine ρ, at β = γ log ℓ.

    Of the averages Σ_j w_ij x_j with softmax weights, a full mask and qk = βI; no token is added to its average. As
    ℓ grows the answer tends to 1, 4ρ/(1 + 3ρ) or ρ for γ below, at and above 1/(1 − ρ).

    Source: `context`, for the limit; the value at finite ℓ follows from the weights.

    Args:
        tokens: ℓ ≥ 2, or ``math.inf`` for the limit.
        scale: γ.
        cosine: ρ, in [0, 1].

    Raises:
        ArgumentValueError: Fewer than two tokens, or a cosine out of range.

    >>> import math
    >>> [round(predict_long_context(10**6, scale, 0.4), 4) for scale in (1.0, 1 / 0.6, 3.0)]
    [1.0, 0.7273, 0.4]
    >>> round(predict_long_context(math.inf, 1 / 0.6, 0.4), 4)
    0.7273
    """
    as_finite(scale, "scale")
    if not tokens >= 2:
        raise ArgumentValueError("tokens", "at least 2", repr(tokens))
    if not 0 <= cosine <= 1:
        raise ArgumentValueError("cosine", "a cosine in [0, 1]", repr(cosine))
    if math.isinf(tokens):
        excess = scale * (1 - cosine) - 1
        if math.isclose(excess, 0.0, abs_tol=1e-12):
            return 4 * cosine / (1 + 3 * cosine)
        return cosine if excess > 0 else 1.0
    return float(averaged_cosine(int(tokens), scale * math.log(tokens), cosine))


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
    betas = _array(beta, "beta")
    if not bool(np.all((betas > 0) & np.isfinite(betas))):
        raise ArgumentValueError("beta", "finite numbers above 0", f"the least is {betas.min(initial=np.inf)}")
    root = np.hypot(2 * betas, 1.0)
    # 1 − cos τ, without the difference of nearly equal numbers at large β.
    return np.asarray(2 * np.arcsin(np.sqrt((1 + 1 / (root + 2 * betas)) / (root + 1) / 2)))


_INFINITE = 1e8
"""A covariance that has grown by this factor is infinite within as small a part of the time."""


@typed_arguments
def predict_gaussian_moments(
    times: ArrayLike, mean: ArrayLike, covariance: ArrayLike, qk: ArrayLike, ov: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean m and covariance Σ of infinitely many tokens in free space that start as a Gaussian.

    Under softmax attention with a full mask such tokens stay Gaussian: the field at x is ov(m + Σ qk^T x), so that

        m' = ov (I + Σ qk^T) m,   Σ' = ov Σ qk^T Σ + (ov Σ qk^T Σ)^T.

    In one dimension Σ(t) = Σ(0)/(1 − 2 ov qk Σ(0) t), which for ov·qk > 0 is infinite at t = 1/(2 ov qk Σ(0)).

    Source: `meanfield` for the Gaussians; the equations are derived here from the average of y under e^{x·qk y}.

    Args:
        times: Where the moments are wanted, increasing; the start is at the first. Shape (time,).
        mean: m at the first time, (dim,).
        covariance: Σ at the first time, symmetric and positive semidefinite, (dim, dim).
        qk: The QK circuit, (dim, dim).
        ov: The OV circuit, (dim, dim).

    Returns:
        Means, (time, dim), and covariances, (time, dim, dim), float64, to about 10 digits.

    Raises:
        ArgumentValueError: Shapes that do not fit, a matrix that cannot be a covariance, or times up to which it does
            not stay finite.

    >>> mean, covariance = predict_gaussian_moments([0.0, 1.0], [1.0], [[1.0]], [[1.0]], [[-1.0]])
    >>> mean[-1].round(6), covariance[-1].round(6)
    (array([0.212395]), array([[0.333333]]))
    """
    moments = np.asarray(read_times(times))
    key, value = (as_square(matrix, name).detach().double().cpu().numpy() for matrix, name in ((qk, "qk"), (ov, "ov")))
    if key.ndim > 2:
        raise ArgumentValueError("qk", "one matrix (dim, dim)", f"shape {key.shape}")
    dim = len(key)
    m, sigma = _gaussian(mean, covariance, value, dim)
    size = max(float(np.abs(sigma).max()), np.finfo(float).tiny)

    def slope(_: float, packed: np.ndarray) -> np.ndarray:
        spread = packed[dim:].reshape(dim, dim)
        with np.errstate(over="ignore", invalid="ignore"):
            pull = value @ spread @ key.T
            change = pull @ spread
            rates = np.concatenate([value @ packed[:dim] + pull @ packed[:dim], (change + change.T).ravel()])
        if not np.isfinite(rates).all():  # no step would ever be small enough
            raise ArgumentValueError("qk, ov and covariance", "rates of change that float64 holds", "infinite ones")
        return rates

    packed = np.concatenate([m, sigma.ravel()])[None]
    if len(moments) > 1:
        packed = _until_infinite(slope, packed[0], moments, dim, _INFINITE * size)
    return packed[:, :dim], packed[:, dim:].reshape(-1, dim, dim)


def _gaussian(mean: ArrayLike, covariance: ArrayLike, value: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance as float64, refused where they are none or do not fit."""
    m, sigma = _array(mean, "mean"), _array(covariance, "covariance")
    shapes = (("mean", m, (dim,)), ("covariance", sigma, (dim, dim)), ("ov", value, (dim, dim)))
    for name, array, shape in shapes:
        if array.shape != shape:
            raise ArgumentValueError(name, f"shape {shape}, which fits qk", f"shape {array.shape}")
    size = float(np.abs(sigma).max())
    least = float(np.linalg.eigvalsh((sigma + sigma.T) / 2)[0])
    if float(np.abs(sigma - sigma.T).max()) > 1e-12 * size or least < -1e-12 * size:
        came = f"the least eigenvalue {number(least)}" if least < 0 else "one that is not symmetric"
        raise ArgumentValueError("covariance", "a symmetric positive semidefinite matrix", came)
    return m, sigma


def _until_infinite(
    slope: Callable[[float, np.ndarray], np.ndarray], packed: np.ndarray, times: np.ndarray, dim: int, bound: float
) -> np.ndarray:
    """Integrate to the last time, (time, entry); refuse it where the covariance reaches the bound before."""

    def below(_: float, entries: np.ndarray) -> float:
        return bound - float(np.abs(entries[dim:]).max())

    below.terminal = True  # pyright: ignore[reportFunctionMemberAccess]
    ends = (float(times[0]), float(times[-1]))
    run = solve_ivp(slope, ends, packed, method="DOP853", t_eval=times, rtol=_RTOL, atol=_ATOL, events=below)
    if run.status == 1:
        end = number(float(run.t_events[0][0]), 7)
        wanted = f"times before {end}, when the covariance becomes infinite"
        raise ArgumentValueError("times", wanted, f"the last at {number(ends[1], 7)}")
    if run.status < 0:
        raise ArgumentValueError("qk, ov and covariance", "rates of change that can be integrated", run.message)
    return run.y.T


@typed_arguments
def predict_strong_centers(tokens: int | None, dim: int, radius: ArrayLike) -> np.ndarray:
    """Return how many of ℓ uniform tokens of the sphere are farther than a radius from all before them, on average.

    The first token counts as one. With m the share of the sphere within the radius of a point, token k is one with
    the probability (1 − m)^{k−1}, so that the number is (1 − (1 − m)^ℓ)/m on average, and 1/m for ℓ → ∞: π/δ on the
    circle, 1/sin²(δ/2) in three dimensions.

    Source: `masking` Lemma C.1, whose printed constant for three dimensions is a third of this.

    Args:
        tokens: ℓ ≥ 1, or None for infinitely many.
        dim: Of the space around the sphere, at least 2.
        radius: δ, angles in (0, π), any shape.

    Returns:
        Of the shape of `radius`, float64.

    Raises:
        ArgumentValueError: Fewer than one token, one dimension, or an angle outside (0, π), or for infinitely
            many one whose number is infinite in float64.

    >>> predict_strong_centers(None, 2, 0.3).round(6), predict_strong_centers(1, 3, [0.5, 3.0])
    (np.float64(10.471976), array([1., 1.]))
    """
    angles = _array(radius, "radius")
    for name, value, least in (("tokens", tokens, 1), ("dim", dim, 2)):
        if value is not None and value < least:
            raise ArgumentValueError(name, f"at least {least}", str(value))
    if not bool(np.all((angles > 0) & (angles < np.pi))):
        raise ArgumentValueError("radius", "angles between 0 and π", f"{angles.min()} to {angles.max()}")
    less_than_half = betainc((dim - 1) / 2, 0.5, np.sin(angles) ** 2) / 2
    share = np.where(angles <= np.pi / 2, less_than_half, 1 - less_than_half)
    if tokens is None:
        if not bool(np.all(share >= _SMALLEST)):
            wanted = f"angles whose cap is at least {_SMALLEST:.0e} of the sphere, for infinitely many tokens"
            raise ArgumentValueError("radius", wanted, str(angles.min()))
        return np.asarray(1 / share)
    share = np.maximum(share, _SMALLEST)  # of smaller caps ℓ are apart, in every digit
    return np.asarray(-np.expm1(tokens * np.log1p(-share)) / share)


_LARGEST_BETA = 1e6
"""β beyond which the series would take more than some million terms."""
_FURTHER = 200


def _log_series(parameter: float, beta: float) -> float:
    """Return log ₀F₁(; parameter; β²/4).

    With ``F(c) = ₀F₁(; c; β²/4) = Σ_k (β²/4)^k / (k! (c)_k)`` the Bessel function is
    ``I_ν(β) = (β/2)^ν F(ν + 1) / Γ(ν + 1)``: what cancels or overflows is left out, and all terms are positive.
    """
    if beta == 0:
        return 0.0
    # The largest term is before β/2, and those after β fall faster than 4^−k.
    k = np.arange(int(beta) + _FURTHER, dtype=np.float64)
    terms = 2 * k * (math.log(beta) - math.log(2)) - gammaln(k + 1) - (gammaln(k + parameter) - gammaln(parameter))
    largest = terms.max()
    return float(largest + np.log(np.exp(terms - largest).sum()))


class NoiseTransition(NamedTuple):
    """Where tokens with noise gather; see `predict_noise_transition`.

    Attributes:
        coupling: K_#, 0 where it is below the smallest float.
        log_coupling: log K_#, which falls like −β.
        tricritical_beta: ``β_*``.
    """

    coupling: float
    log_coupling: float
    tricritical_beta: float


@typed_arguments
def predict_noise_transition(beta: float, dim: int) -> NoiseTransition:
    """Return the coupling K_# from which on tokens with noise do not stay uniform on the sphere, and ``β_*``.

    Infinitely many tokens move by ``dy = K (I − yyᵀ) mean_j(e^{β y·y_j} y_j) dt`` and a Brownian motion of generator
    ½Δ. A small harmonic of degree k grows at the rate ``k (k + d − 2)/2 · (2Kλ_k/β − 1)``, λ_k being the Funk–Hecke
    eigenvalues of e^{β y·y'}, of which that of degree 1 is the largest: the uniform law is linearly stable below

        K_# = β^{d/2} / (2^{d/2} Γ(d/2) I_{d/2}(β)) = d / (2 ₀F₁(; d/2 + 1; β²/4)).

    With noise of strength σ and ov = cI the coupling is K = ω c e^{−offset}/σ². ``β_*`` is the root of
    ``I_{d/2+1}(β) / I_{d/2}(β) = 1/d``: for ``β ≤ β_*`` the uniform law is the only minimizer of the free energy up to
    K_#, and order grows continuously from there; for ``β > β_*`` it is no minimizer at K_#, and order comes by a jump.

    Source: `noise`, its abstract; K_# derived again as above.

    Args:
        beta: β from 0 to 10⁶, qk = βI.
        dim: d ≥ 2.

    Raises:
        ArgumentValueError: Another β, or fewer than two dimensions.

    >>> transition = predict_noise_transition(700.0, 3)
    >>> round(transition.log_coupling, 5), round(transition.tricritical_beta, 5)
    (-686.89641, 1.81615)
    >>> predict_noise_transition(0.0, 2).coupling  # that of Kuramoto's model
    1.0
    """
    if as_not_negative(beta, "beta") > _LARGEST_BETA:
        raise ArgumentValueError("beta", f"at most {_LARGEST_BETA:g}", repr(beta))
    if dim < 2:
        raise ArgumentValueError("dim", "at least 2", str(dim))
    log_coupling = math.log(dim / 2) - _log_series(dim / 2 + 1, beta)
    return NoiseTransition(math.exp(log_coupling), log_coupling, _tricritical_beta(dim))


@lru_cache
def _tricritical_beta(dim: int) -> float:
    def excess(beta: float) -> float:
        ratio = _log_series(dim / 2 + 2, beta) - _log_series(dim / 2 + 1, beta)
        return math.log(beta / (dim + 2)) + ratio + math.log(dim)

    # I_{ν+1}/I_ν is below β/(2ν + 2), and above β/(2ν + 2 + β).
    root: Any = brentq(excess, (dim + 2) / dim, (dim + 2) / (dim - 1), xtol=1e-15)
    return float(root)


@typed_arguments
def predict_position_correlation(
    times: ArrayLike, source: ArrayLike, position: ArrayLike = 1.0, *, beta: float, mode: int = 1, decay: float = 0.0
) -> np.ndarray:
    """Return ℓ times the correlation of a token of a long text with the start of an earlier one, on the circle.

    Of ℓ tokens at independent uniform angles, under a causal mask with exponential weights, qk = βI and ov = I, token
    i looks at token j with a further factor e^{−λ(i − j)/ℓ} over the sum of these factors. For σ₀ = j/ℓ below σ = i/ℓ

        ℓ E cos n(θ_i(t) − θ_j(0)) → g(t) = k Σ_{m ≥ 1} (at)^m Y^{m − 1} / (m! (m − 1)!),   a = n² I_n(β)/β,
        k = λ e^{−λ(σ − σ₀)} / (1 − e^{−λσ}),   Y = log((e^{λσ} − 1)/(e^{λσ₀} − 1)),

    which is k √(at/Y) I₁(2√(atY)); for λ = 0, the mask alone, k = 1/σ and Y = log(σ/σ₀). It solves g' = a(k + ∫ k g).
    First and last tokens of a text are kept best: at σ = 1, g has one minimum in σ₀ between them where λ > 0 and
    at < min{3 − √3, 2(1 − e^{−λ})}. With ov = cI and a factor ω of the weights, ωct stands for t.

    Source: `kinetic`, the proposition on the Volterra equation and the theorem on the U-shape. Its velocities are β
    times those here, and so is its a.

    Args:
        times: t ≥ 0 since the start, any shape.
        source: σ₀, above 0, of a shape that fits the others by broadcasting.
        position: σ, from σ₀ to 1.
        beta: β ≥ 0.
        mode: n ≥ 1.
        decay: λ ≥ 0.

    Returns:
        Of the broadcast shape, float64, to about 12 digits.

    Raises:
        ArgumentValueError: A time below 0, positions that are not 0 < σ₀ ≤ σ ≤ 1, a mode below 1, a negative β or λ,
            or a correlation that overflows.

    >>> predict_position_correlation(1.0, [0.01, 0.2, 1.0], beta=1.0, decay=2.0).round(4)
    array([0.6843, 0.5074, 1.3072])
    """
    beta, decay = as_not_negative(beta, "beta"), as_not_negative(decay, "decay")
    if mode < 1:
        raise ArgumentValueError("mode", "at least 1", str(mode))
    t, near, far = _broadcast(times=times, source=source, position=position)
    if not bool(np.all((t >= 0) & np.isfinite(t))):
        raise ArgumentValueError("times", "finite times of at least 0", f"the least is {t.min()}")
    if not bool(np.all((near > 0) & (near <= far) & (far <= 1))):
        raise ArgumentValueError(
            "source", "0 < source ≤ position ≤ 1", f"source down to {near.min()}, position up to {far.max()}"
        )
    kernel, distance = _kernel(near, far, decay)
    strength = _mode_rate(mode, beta) * t
    root = np.sqrt(strength * distance)
    with np.errstate(over="ignore", invalid="ignore"):
        bessel = np.where(root > 0, ive(1, 2 * root) * np.exp(2 * root) / np.where(root > 0, root, 1.0), 1.0)
        correlation = kernel * strength * bessel
    if not bool(np.isfinite(correlation).all()):
        raise ArgumentValueError("times", "times at which the correlation is finite in float64", str(t.max()))
    return np.asarray(correlation)


def _kernel(near: np.ndarray, far: np.ndarray, decay: float) -> tuple[np.ndarray, np.ndarray]:
    """Return k and Y, without the exponentials that overflow."""

    def mass(position: np.ndarray) -> np.ndarray:
        """Return (1 − e^{−λσ})/λ, which is σ for λ = 0."""
        return position * exprel(-decay * position)

    gap = decay * (far - near)
    return np.asarray(np.exp(-gap) / mass(far)), np.asarray(gap + np.log(mass(far) / mass(near)))


def _mode_rate(mode: int, beta: float) -> float:
    """Return n² I_n(β)/β."""
    if beta < LIMIT_AT_ZERO:
        return 0.5 if mode == 1 else 0.0
    if beta > _LARGEST:
        raise ArgumentValueError("beta", f"at most {_LARGEST:g}, beyond which weights overflow", repr(beta))
    return float(mode**2 * ive(mode, beta) * np.exp(beta) / beta)
