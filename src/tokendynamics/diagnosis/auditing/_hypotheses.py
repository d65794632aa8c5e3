"""How far one layer's weights are from the hypotheses of the papers' theorems, in measures that no gauge changes.

Tokens are as the norm before attention hands them on, its gain being folded into W_Q, W_K and W_V; a LayerNorm hands on
no mean, and no later LayerNorm reads one, so the direction (1, …, 1) is taken out of every matrix. V = Σ_h W_V W_O and
W = Σ_h W_Q W_K^T are then those of a network whatever weights of it are stored (`mathematics` 10). Left out are biases
and what positions do to queries and keys.

No statement of `logical` is about V and W: its circuits read one-hot tokens. `positional-3.6` asks only for one
eigenvalue λ > 0 of V, which nearly every matrix has, and is left out as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import hypot, isnan, log, nan, sqrt
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy.linalg import get_lapack_funcs
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.pretrained import AttentionWeights
from tokendynamics.spectra import Inertia, inertia
from tokendynamics.spectra.extremes import spectral_norm
from tokendynamics.spectra.signs import symmetric_part


def gain_of(weights: AttentionWeights, fold_norms: bool | None = None) -> Float64[Tensor, "dim 1"] | None:
    """Return the gain that multiplies the rows of W_Q, W_K and W_V; None for none.

    Args:
        weights: Of one layer.
        fold_norms: None folds where there is a norm before attention; True requires one; False ignores its gain.

    Raises:
        ArgumentValueError: True for a layer without a norm before its attention.
    """
    if fold_norms and weights.norm_gain is None:
        came = "True for a model with no norm before its attention"
        raise ArgumentValueError("fold_norms", "False", came, "None folds where there is one")
    return None if fold_norms is False or weights.norm_gain is None else weights.norm_gain.double()[:, None]


def with_gain(factor: Float[Tensor, "*head dim d_head"], gain: Float64[Tensor, "dim 1"] | None) -> Tensor:
    """Return a factor in float64 with the gain on its rows; large ones are taken a head at a time."""
    return factor.double() if gain is None else gain * factor.double()


SENDERS = 20
"""Other tokens that a token sees, for the share of attention that it gives itself."""


class Head(NamedTuple):
    """Factors of one head in float64, folded and centred: W_h = query @ key^T, V_h = value @ output."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor


@dataclass(frozen=True)
class HeadSums:
    """What is known of each head of a layer without a dim × dim matrix.

    Attributes:
        directions: dim, or dim − 1 where the mean is taken out.
        centred: Whether it is.
        ov_squares: ‖V_h‖² of each head.
        ov_traces: tr V_h.
        qk_squares: ‖W_h‖².
        kept: a_h, the weight that a token gives itself: its logit on itself being t = scale · tr W_h and those on 20
            others 0, as they are in the mean over tokens of mean square 1 and of any direction, e^t/(e^t + 20).
    """

    directions: int
    centred: bool
    ov_squares: tuple[float, ...]
    ov_traces: tuple[float, ...]
    qk_squares: tuple[float, ...]
    kept: tuple[float, ...]


def heads_of(weights: AttentionWeights) -> Iterator[Head]:
    """Yield the factors of each head, folded, without the mean where a LayerNorm takes it off.

    Args:
        weights: Of one layer, as stored.
    """
    gain = gain_of(weights)
    for head, group in enumerate(weights.groups.tolist()):
        query, key = with_gain(weights.query[head], gain), with_gain(weights.key[group], gain)
        value, output = with_gain(weights.value[group], gain), weights.output[head].double()
        if is_centred(weights):
            query, key, value = (factor - factor.mean(dim=0, keepdim=True) for factor in (query, key, value))
            output = output - output.mean(dim=1, keepdim=True)
        yield Head(query, key, value, output)


def is_centred(weights: AttentionWeights) -> bool:
    """Tell whether attention reads states without a mean: behind a LayerNorm whose gain is folded."""
    return weights.norm_gain is not None and weights.norm_kind == "layer"


def sums_of(weights: AttentionWeights) -> HeadSums:
    """Return what is known of each head without a dim × dim matrix; see `HeadSums`.

    Args:
        weights: As stored.
    """
    rows = []
    for head in heads_of(weights):
        logit = torch.tensor(weights.scale * float((head.query * head.key).sum()), dtype=torch.float64)
        rows.append((
            _product_square(head.value, head.output.mT),
            float((head.value * head.output.mT).sum()),
            _product_square(head.query, head.key),
            float(torch.sigmoid(logit - log(SENDERS))),
        ))  # fmt: skip
    centred = is_centred(weights)
    return HeadSums(weights.query.shape[-2] - centred, centred, *zip(*rows, strict=True))


def qk_sum(weights: AttentionWeights) -> Float64[Tensor, "dim dim"]:
    """Return W = Σ_h W_h, folded and centred."""
    return _sum(weights, ((head.query, head.key.mT) for head in heads_of(weights)))


def ov_sum(weights: AttentionWeights) -> Float64[Tensor, "dim dim"]:
    """Return V = Σ_h V_h, folded and centred."""
    return _sum(weights, ((head.value, head.output) for head in heads_of(weights)))


def kept_square(weights: AttentionWeights, sums: HeadSums) -> float:
    """Return ‖Σ_h a_h V_h‖².

    Args:
        weights: As stored.
        sums: Of them.
    """
    heads = zip(sums.kept, heads_of(weights), strict=True)
    return float(_sum(weights, ((share * head.value, head.output) for share, head in heads)).square().sum())


def centred(matrix: Float64[Tensor, "dim dim"], sums: HeadSums) -> Float64[Tensor, "dim dim"]:
    """Return a sum over heads of folded factors without the direction (1, …, 1), where the layer reads none.

    Args:
        matrix: Σ_h W_h or Σ_h V_h.
        sums: Of the same layer.

    >>> sums = HeadSums(1, True, (), (), (), ())
    >>> centred(torch.tensor([[3.0, 0.0], [0.0, 1.0]]).double(), sums).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    if not sums.centred:
        return matrix
    return matrix - matrix.mean(dim=0) - matrix.mean(dim=1, keepdim=True) + matrix.mean()


def _sum(weights: AttentionWeights, products: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    dim = weights.query.shape[-2]
    whole = torch.zeros(dim, dim, dtype=torch.float64)
    for left, right in products:
        whole.addmm_(left, right)
    return whole


def _product_square(left: Tensor, right: Tensor) -> float:
    """Return ‖left @ right^T‖² without the product."""
    return float(((left.mT @ left) * (right.mT @ right)).sum())


HYPOTHESES = (
    "ov_identity", "ov_identity_per_head", "ov_symmetric", "ov_top_eigenvalue", "ov_invertible", "heads_alike",
    "qk_identity", "qk_symmetric", "qk_positive", "a_symmetric", "a_negative",
)  # fmt: skip
"""What is measured; see `ov_hypotheses`, `qk_hypotheses` and `contraction_hypotheses`."""

ASKED_OF_A = ("ov_invertible", "a_symmetric", "a_negative")

STATEMENTS: dict[str, tuple[str, ...]] = {
    "asymptotic-3.2": ("ov_identity", "heads_alike", "qk_identity"),
    "asymptotic-4.1": ("ov_identity", "heads_alike"),
    "asymptotic-5.1": ("ov_identity", "heads_alike"),
    "asymptotic-6.1": ("ov_symmetric", "ov_top_eigenvalue", "heads_alike"),
    "positional-3.1": ("a_symmetric", "ov_invertible", "heads_alike"),
    "positional-3.3": ("a_symmetric", "ov_invertible", "a_negative", "qk_positive", "heads_alike"),
    "positional-3.4": ("a_symmetric", "ov_invertible", "a_negative", "qk_symmetric", "qk_positive", "heads_alike"),
}
"""What each statement asks of the matrices."""

FULL_MASK = ("asymptotic-3.2", "asymptotic-4.1", "positional-3.1", "positional-3.4")

CAUSAL_MASK = ("asymptotic-5.1", "asymptotic-6.1")

PER_HEAD = ("asymptotic-4.1", "asymptotic-5.1")
"""Statements for any number of heads, each of them with V = I."""

_NEARLY_SYMMETRIC = 0.01
"""Asymmetry up to which the two largest eigenvalues are looked at: no matrix beyond it meets `asymptotic-6.1`."""

_SIMPLE = 1e-3
"""Relative gap behind the largest eigenvalue from which it counts as simple."""

_ROUNDING = 1e-12
"""Eigenvalues and singular values smaller than this share of a matrix's norm count as 0."""

_SURELY_FULL = 1e4 * _ROUNDING
"""Estimated inverse condition number, in the 1-norm, from which a matrix has full rank: such estimates are seldom wrong
by 10, and the norm differs from the other by √dim at most."""

_SMALLEST = 1e-30


def qk_hypotheses(qk: Float64[Tensor, "dim dim"], sums: HeadSums, positive: int | None = None) -> dict[str, float]:
    """Return how far W is from each hypothesis on it, from 0, where it is met, to 1.

    Args:
        qk: From `qk_sum`.
        sums: From `sums_of`.
        positive: Positive eigenvalues of W_sym where they are known; None to count them.

    Returns:
        ``heads_alike`` √(1 − ‖Σ W_h‖²/(H Σ ‖W_h‖²)), 0 where all heads weigh tokens alike; ``qk_identity`` min over
        c ≥ 0 of ‖W − cI‖/‖W‖; ``qk_symmetric`` ‖W − W^T‖/2‖W‖; ``qk_positive`` the share of eigenvalues of W_sym that
        are not positive. Norms are Frobenius norms.
    """
    total = len(sums.qk_squares) * sum(sums.qk_squares)
    several = total > 0 and len(sums.qk_squares) > 1
    return {
        "heads_alike": sqrt(max(1 - float(qk.square().sum()) / total, 0.0)) if several else 0.0,
        "qk_identity": _from_identity(qk, sums),
        "qk_symmetric": _asymmetry(qk),
        "qk_positive": 1 - int(_signs(qk).positive if positive is None else positive) / sums.directions,
    }


def ov_hypotheses(ov: Float64[Tensor, "dim dim"], sums: HeadSums) -> dict[str, float]:
    """Return how far V is from each hypothesis on it, from 0, where it is met, to 1.

    Args:
        ov: From `ov_sum`.
        sums: From `sums_of`.

    Returns:
        ``ov_identity`` min over c ≥ 0 of ‖V − cI‖/‖V‖ (c > 0 is a change of time), ``ov_identity_per_head`` the same of
        all V_h, with a c for each; ``ov_symmetric`` ‖V − V^T‖/2‖V‖; ``ov_top_eigenvalue`` 1 where no eigenvalue of
        V_sym is positive or, V being symmetric, the largest is not simple.
    """
    asymmetry, total = _asymmetry(ov), sum(sums.ov_squares)
    along = sum(max(trace, 0.0) ** 2 for trace in sums.ov_traces) / sums.directions
    return {
        "ov_identity": _from_identity(ov, sums),
        "ov_identity_per_head": sqrt(max(1 - along / total, 0.0)) if total > 0 else 1.0,
        "ov_symmetric": asymmetry,
        "ov_top_eigenvalue": _top_eigenvalue(ov, asymmetry),
    }


def contraction_hypotheses(
    ov: Float64[Tensor, "dim dim"], qk: Float64[Tensor, "dim dim"], sums: HeadSums
) -> dict[str, float]:
    """Return how far A = W (V^T)^{-1} is from each hypothesis on it, from 0, where it is met, to 1.

    Taken of V W = V A V^T, which is symmetric, and has signs, where A is and has them.

    Args:
        ov: From `ov_sum`.
        qk: From `qk_sum`.
        sums: From `sums_of`.

    Returns:
        ``a_symmetric``, ``a_negative`` the share of eigenvalues of A_sym that are not negative, ``ov_invertible``
        1 − rank V/dim.
    """
    product = ov @ qk
    return {
        "ov_invertible": 1 - _rank(ov, sums) / sums.directions,
        "a_symmetric": _asymmetry(product),
        "a_negative": 1 - int(_signs(product).negative) / sums.directions,
    }


def statement_distances(hypothesis_distances: dict[str, float], *, causal: bool) -> dict[str, float]:
    """Return the distance of a layer from each statement: the root of the sum of squares over its hypotheses.

    Several heads that weigh alike are one head; `asymptotic-4.1` and `asymptotic-5.1` hold as well for heads that
    differ, if each has V_h = c_h I.

    Args:
        hypothesis_distances: Distances from the hypotheses by name.
        causal: Whether attention is causal; a statement for another mask is NaN, as one on A under positions.
    """
    other = FULL_MASK if causal else CAUSAL_MASK
    distances = {}
    for name, asked in STATEMENTS.items():
        terms = {hypothesis: hypothesis_distances[hypothesis] for hypothesis in asked}
        if name in PER_HEAD:
            terms["heads_alike"] = min(terms["heads_alike"], hypothesis_distances["ov_identity_per_head"])
        distances[name] = nan if name in other else hypot(*terms.values())
    return distances


def predicted_contraction(ov: Float64[Tensor, "dim dim"], kept: float, sums: HeadSums) -> float:
    """Return how attention should change what a prompt's tokens share against what each has of its own, in nats.

    Attention gives what all tokens of a prompt share to each of them, V of it, and of a token's own direction only what
    the token gives itself, Σ_h a_h V_h: with states of mean square 1 whose directions are as likely as any other,

        log ‖I + V‖² − log ‖I + Σ_h a_h V_h‖²

    is the growth of the first mean square against the second. Above 0 tokens draw together.

    Args:
        ov: V, from `ov_sum`.
        kept: ‖Σ_h a_h V_h‖², from `kept_square`.
        sums: From `sums_of`.

    Source: this project (`mathematics` 10: contraction of OV weighted by QK).

    >>> sums = HeadSums(2, False, (2.0,), (2.0,), (0.0,), (0.0,))
    >>> round(predicted_contraction(torch.eye(2).double(), 0.0, sums), 4)  # log 4: what is shared is doubled
    1.3863
    """
    kept_trace = sum(share * trace for share, trace in zip(sums.kept, sums.ov_traces, strict=True))
    shared = sums.directions + 2 * float(ov.trace()) + float(ov.square().sum())
    individual = sums.directions + 2 * kept_trace + kept
    return log(max(shared, _SMALLEST)) - log(max(individual, _SMALLEST))


def numbers_of(weights: AttentionWeights, *, causal: bool, positions: bool) -> dict[str, np.ndarray]:
    """Return the audit's variables of one layer that compare it with the theorems; see `numbers_from`.

    Args:
        weights: As stored.
        causal: Whether attention is causal.
        positions: Whether attention itself turns or biases by position: nothing is then asked of A (NaN).
    """
    sums = sums_of(weights)
    kept = kept_square(weights, sums)
    qk: Tensor | None = qk_sum(weights)
    of_qk = qk_hypotheses(qk, sums)
    if positions:
        qk = None  # fewer matrices at a time
    return numbers_from(sums, kept, of_qk, ov_sum(weights), qk, causal=causal)


def numbers_from(
    sums: HeadSums,
    kept: float,
    of_qk: dict[str, float],
    ov: Float64[Tensor, "dim dim"],
    qk: Float64[Tensor, "dim dim"] | None,
    *,
    causal: bool,
) -> dict[str, np.ndarray]:
    """Return the audit's variables of one layer that compare it with the theorems.

    Args:
        sums: From `sums_of`.
        kept: From `kept_square`.
        of_qk: From `qk_hypotheses`.
        ov: From `ov_sum`.
        qk: From `qk_sum`; None under positions, where nothing is asked of A.
        causal: See `numbers_of`.
    """
    of_a = dict.fromkeys(ASKED_OF_A, nan) if qk is None else contraction_hypotheses(ov, qk, sums)
    hypothesis_distances = of_qk | ov_hypotheses(ov, sums) | of_a
    distances = statement_distances(hypothesis_distances, causal=causal)
    applying = {name: round(distance, 9) for name, distance in distances.items() if not isnan(distance)}
    return {
        "ov_norm": np.array(spectral_norm(ov)),
        "hypothesis_distance": np.array([hypothesis_distances[name] for name in HYPOTHESES]),
        "statement_distance": np.array(list(distances.values())),
        "nearest_statement": np.array(min(applying, key=applying.__getitem__)),
        "predicted_contraction": np.array(predicted_contraction(ov, kept, sums)),
    }


def _signs(matrix: Tensor) -> Inertia:
    return inertia(matrix, tolerance=_ROUNDING * float(matrix.norm()))


def _rank(ov: Tensor, sums: HeadSums) -> int:
    """Return the rank; singular values are looked at only where a factorisation cannot tell that it is full."""
    whole = ov
    if sums.centred:  # the direction that is taken out, put back, makes the rank one larger and no more
        whole = ov + float(ov.norm()) / len(ov) ** 1.5
    factorize, estimate = get_lapack_funcs(("getrf", "gecon"), (whole.numpy(),))
    factors, _, failed = factorize(whole.numpy())
    inverse_condition, _ = estimate(factors, float(torch.linalg.matrix_norm(whole, ord=1)))
    if not failed and inverse_condition > _SURELY_FULL:
        return sums.directions
    return int(torch.linalg.matrix_rank(ov, rtol=_ROUNDING))


def _from_identity(matrix: Tensor, sums: HeadSums) -> float:
    size = float(matrix.norm())
    if size == 0:
        return 1.0
    multiple = max(float(matrix.trace()), 0.0) / sums.directions
    rest = matrix.clone()
    rest.diagonal().sub_(multiple)
    if sums.centred:  # the identity on what has no mean is I − 11^T/dim
        rest += multiple / len(matrix)
    return float(rest.norm()) / size


def _asymmetry(matrix: Tensor) -> float:
    size = float(matrix.norm())
    return float((matrix - matrix.mT).norm()) / (2 * size) if size > 0 else 0.0


def _top_eigenvalue(ov: Tensor, asymmetry: float) -> float:
    if asymmetry > _NEARLY_SYMMETRIC:  # a positive trace, which is their sum, tells of a positive eigenvalue at once
        return 0.0 if float(ov.trace()) > 0 or int(_signs(ov).positive) else 1.0
    top = torch.linalg.eigvalsh(symmetric_part(ov))[-2:].tolist()
    if top[-1] <= 0:
        return 1.0
    gap = (top[-1] - top[0]) / top[-1] if len(top) == 2 else 1.0
    return max(0.0, 1 - gap / _SIMPLE)
