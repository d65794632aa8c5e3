"""The regime a layer's signs put its tokens in, by the paper's conjecture and by the criterion seen to decide.

`positional` says that the free flow ``dx_l/dt = ov Σ_i softmax_i(x_l^T qk x_i) x_i`` converges to zero when
A_sym ≺ 0 and W_sym ≻ 0, with W = qk and A = qk · ov^{-1}, and diverges otherwise. As a theorem that needs A and W
symmetric (Theorem 3.4); without symmetry it is a conjecture (Remark 3.5) and false for most draws. What was seen to
decide is the spectrum of the value map: no draw with all Re λ(V) < 0 diverged. Both are reported, with their names.

One number from −1 to 1 for a spectrum whose counts say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_square, check_finite, check_open, plain_tensor
from tokendynamics.numerics.errors import shown
from tokendynamics.spectra.signs import Inertia, inertia
from tokendynamics.spectra.value_map import ValueSpectrum, value_spectrum


def balance(eigenvalues: Tensor) -> Float[Tensor, "*batch"]:
    """Return ``Σ Re λ / Σ |λ|``: 1 when every eigenvalue is positive, −1 when all are negative, 0 when they cancel.

    The inertia of a single head's QK circuit is (d_k, d_k) for nearly every head of every network, so the sizes of
    the eigenvalues, not their number, tell heads apart. A zero matrix has balance 0.

    Args:
        eigenvalues: Real or complex, shape (…, count); exact zeros may be left out.

    Returns:
        float64 tensor of shape (…), dimensionless, from −1 to 1.

    Source: this project (no equation in the three papers); for ov it is the "copying score" of the circuits literature.

    >>> balance(torch.tensor([3.0, -1.0])).item()
    0.5
    """
    check_open(eigenvalues, "eigenvalues")
    if not isinstance(eigenvalues, Tensor):
        raise ArgumentTypeError("eigenvalues", "a torch tensor", shown(eigenvalues))
    eigenvalues = plain_tensor(eigenvalues, "eigenvalues")
    if eigenvalues.ndim == 0 or not (eigenvalues.is_floating_point() or eigenvalues.is_complex()):
        came = f"shape {tuple(eigenvalues.shape)}, {eigenvalues.dtype}"
        raise ArgumentTypeError("eigenvalues", "real or complex numbers of shape (…, count)", came)
    check_finite(eigenvalues, "eigenvalues")
    total = eigenvalues.abs().double().sum(-1)
    signed = eigenvalues.real.double().sum(-1)
    return signed / torch.where(total > 0, total, 1.0)


_CONGRUENCE_LIMIT = 1e6

RegimeName = Literal["convergence", "divergence", "intermediate", "mixed", "undefined"]


@dataclass(frozen=True)
class Regime:
    """The regime of one layer.

    Attributes:
        name: By the signs of W_sym and A_sym (`positional` Remark 3.5 and section D.2): "convergence" (W_sym ≻ 0,
            A_sym ≺ 0), "divergence" (both ≻ 0), "intermediate" (half of A_sym's signs each way, W_sym ≻ 0 or halved
            too), "mixed" (any other signs) or "undefined" (the value map is singular: A does not exist).
        reason: The name's reason in words, with the counts.
        by_spectrum: The observed criterion in words: what Re λ(V) says.
        qk_inertia: Inertia of W_sym.
        a_inertia: Inertia of A_sym, None where undefined.
        value: Spectrum of the value map.

    >>> flow_regime = regime([[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, -1.0]])
    >>> flow_regime.name, flow_regime.qk_inertia
    ('convergence', Inertia(positive=2, negative=0, zero=0))
    """

    name: RegimeName
    reason: str
    by_spectrum: str
    qk_inertia: Inertia
    a_inertia: Inertia | None
    value: ValueSpectrum


def regime(qk: ArrayLike, ov: ArrayLike) -> Regime:
    """Return the regime of one attention layer from its QK and OV circuits.

    The signs of A_sym are counted without forming A where that is safe; see `same_signs_as_contraction`.

    Args:
        qk: W, shape (dim, dim), logits ``x_i^T qk x_j``.
        ov: Shape (dim, dim), acting on column vectors (the transpose of `positional`'s V).

    Returns:
        Regime: the paper's conjecture and the observed criterion, both in words.

    Raises:
        ArgumentValueError: Shapes do not fit each other, or a number is not finite.
        ArgumentTypeError: Not real floating numbers.

    Source: `positional` Theorem 3.4, Remark 3.5, section D.2.

    >>> regime([[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, -2.0]]).name
    'convergence'
    """
    w, o = as_square(qk, "qk"), as_square(ov, "ov")
    if w.ndim != 2 or w.shape != o.shape:
        wanted = f"one pair of dim × dim matrices, the shape of qk being {tuple(w.shape)}"
        raise ArgumentValueError("ov", wanted, f"shape {tuple(o.shape)}")
    value = value_spectrum(o)
    if not value.invertible:
        return classify(inertia(w), None, value)
    return classify(inertia(w), inertia(same_signs_as_contraction(w.double(), o.double().mT, value.condition)), value)


def same_signs_as_contraction(
    W: Float[Tensor, "dim dim"], V: Float[Tensor, "dim dim"], condition: float
) -> Float[Tensor, "dim dim"]:
    """Return a matrix whose symmetric part has the signs of A_sym, A = W (V^T)^{-1}, V invertible.

    ``V A V^T = V W``: A_sym and the symmetric part of V W are congruent, and no inverse is taken. The congruence
    squares the condition number of V, so beyond 1e6 it is A itself, by solving with V.

    >>> same_signs_as_contraction(torch.eye(2).double(), -torch.eye(2).double(), 1.0).diagonal().tolist()
    [-1.0, -1.0]
    """
    return V @ W if condition < _CONGRUENCE_LIMIT else torch.linalg.solve(V, W.mT).mT


def classify(qk_inertia: Inertia, a_inertia: Inertia | None, value: ValueSpectrum) -> Regime:
    """Return the regime from measured signs; see `regime`.

    Args:
        qk_inertia: Inertia of W_sym.
        a_inertia: Inertia of A_sym, or None when the value map is singular.
        value: Spectrum of the value map.

    >>> value = value_spectrum([[1.0, 0.0], [0.0, 1.0]])
    >>> classify(Inertia(2, 0, 0), Inertia(2, 0, 0), value).name
    'divergence'
    """
    name = _name(qk_inertia, a_inertia, value.dim)
    return Regime(name, _reason(name, qk_inertia, a_inertia, value), _by_spectrum(value), qk_inertia, a_inertia, value)


def _name(qk: Inertia, a: Inertia | None, dim: int) -> RegimeName:
    if a is None:
        return "undefined"
    qk_positive = qk.positive == dim
    if qk_positive and a.negative == dim:
        return "convergence"
    if qk_positive and a.positive == dim:
        return "divergence"
    if _halved(a, dim) and (qk_positive or _halved(qk, dim)):
        return "intermediate"
    return "mixed"


def _halved(counts: Inertia, dim: int) -> bool:
    positive, negative = int(counts.positive), int(counts.negative)
    return positive + negative == dim and abs(positive - negative) == dim % 2


def _reason(name: RegimeName, qk: Inertia, a: Inertia | None, value: ValueSpectrum) -> str:
    signs = f"W_sym has {qk.positive} positive, {qk.negative} negative and {qk.zero} zero eigenvalues"
    if a is None:
        return (
            f"undefined (rank {value.rank}/{value.dim}): the value map is singular, "
            f"so A = W (V^T)^-1 does not exist; {signs}"
        )
    signs += f", A_sym {a.positive}, {a.negative} and {a.zero}"
    meaning = {
        "convergence": "all tokens tend to zero if A and W are symmetric (Theorem 3.4), otherwise often, not always",
        "divergence": "both forms are positive definite: tokens grow without bound",
        "intermediate": "half of the signs each way: some directions contract and others expand",
        "mixed": "no sign pattern of the theory: no theorem of collapse or of divergence applies",
    }
    return f"{name}: {signs}; {meaning[name]}"


def _by_spectrum(value: ValueSpectrum) -> str:
    noise = value.dim * torch.finfo(torch.float64).eps * value.radius
    if value.max_real < -noise:
        # Observed, no theorem: large norms with other signs of W and A diverge nevertheless.
        signs = "seen to be enough for most starts where A_sym ≺ 0 and W_sym ≻ 0, not otherwise"
        return f"does not diverge: every Re λ(V) < 0 (largest {value.max_real:.3g}), {signs}"
    if value.max_real > noise:
        return f"diverges for most starts: some Re λ(V) > 0 (largest {value.max_real:.3g})"
    return "undecided: the largest Re λ(V) is 0 to rounding"
