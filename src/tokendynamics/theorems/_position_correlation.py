"""How much a token keeps of an earlier one, by where both stand in a long text: the closed form of `kinetic`."""

from __future__ import annotations

import numpy as np
from scipy.special import exprel, ive

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_not_negative
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.theorems._hypotheses import LIMIT_AT_ZERO

_LARGEST = 700.0
"""The largest β whose exponential is a number with room for a sum."""


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
        raise ArgumentValueError(expected("mode", "at least 1", str(mode)))
    t, near, far = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in (times, source, position)))
    if not bool(np.all((t >= 0) & np.isfinite(t))):
        raise ArgumentValueError(expected("times", "finite times of at least 0", f"the least is {t.min()}"))
    if not bool(np.all((near > 0) & (near <= far) & (far <= 1))):
        raise ArgumentValueError(
            expected("source", "0 < source ≤ position ≤ 1", f"source down to {near.min()}, position up to {far.max()}")
        )
    kernel, distance = _kernel(near, far, decay)
    strength = _mode_rate(mode, beta) * t
    root = np.sqrt(strength * distance)
    with np.errstate(over="ignore", invalid="ignore"):
        bessel = np.where(root > 0, ive(1, 2 * root) * np.exp(2 * root) / np.where(root > 0, root, 1.0), 1.0)
        correlation = kernel * strength * bessel
    if not bool(np.isfinite(correlation).all()):
        raise ArgumentValueError(expected("times", "times at which the correlation is finite in float64", str(t.max())))
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
        raise ArgumentValueError(expected("beta", f"at most {_LARGEST:g}, beyond which weights overflow", repr(beta)))
    return float(mode**2 * ive(mode, beta) * np.exp(beta) / beta)
