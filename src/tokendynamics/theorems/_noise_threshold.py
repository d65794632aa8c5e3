"""Where noise keeps tokens with exponential weights apart on a sphere: closed forms of `noise`.

With ``F(c) = ₀F₁(; c; β²/4) = Σ_k (β²/4)^k / (k! (c)_k)`` the Bessel function is
``I_ν(β) = (β/2)^ν F(ν + 1) / Γ(ν + 1)``: what cancels or overflows is left out, and all terms are positive.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_not_negative
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments

_LARGEST = 1e6
"""β beyond which the series would take more than some million terms."""
_FURTHER = 200


def _log_series(parameter: float, beta: float) -> float:
    """Return log ₀F₁(; parameter; β²/4)."""
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
    if as_not_negative(beta, "beta") > _LARGEST:
        raise ArgumentValueError(expected("beta", f"at most {_LARGEST:g}", repr(beta)))
    if dim < 2:
        raise ArgumentValueError(expected("dim", "at least 2", str(dim)))
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
