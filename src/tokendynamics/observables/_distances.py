"""Numbers of a set of tokens: lengths, distances, agreement of directions, and rank."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_states, as_tensor, check_finite, like
from tokendynamics.numerics.signatures import typed_arguments
from tokendynamics.observables import directions as directions
from tokendynamics.observables.directions import lengths, unit_rows

# Differences of float64 numbers at least this large are multiples of 1e-136: their squares do not underflow.
_SMALLEST_ENTRY, _LARGEST_ENTRY = 1e-120, 1e140


def norms(x: ArrayLike) -> Any:
    """Return the Euclidean norm |x_i| of every token.

    Args:
        x: States of shape (…, token, dim).

    Returns:
        Norms of shape (…, token), in the units of `x`. Exact to rounding for entries from 1e-300 to 1e300.

    Raises:
        ArgumentTypeError, ArgumentValueError: See `tokendynamics.numerics.arguments.as_states`.

    >>> norms([[3.0, 4.0], [0.0, 0.0], [3e300, 4e300]])
    [5.0, 0.0, 5e+300]
    """
    states = as_states(x)
    return like(lengths(states.double()).to(states.dtype), x)


@typed_arguments
def pairwise_distances(x: ArrayLike, *, geometry: str = "euclidean") -> Any:
    """Return the distance of every pair of tokens.

    ``"euclidean"``: |x_i − x_j|, taken from the differences and never from the Gram matrix, so that coincident
    tokens are at exactly 0 and near-coincident ones keep their full relative precision. The distances in the
    figures of `positional` (its Fig. 1 and 5) are these.

    ``"sphere"``: the angle between the tokens, 2·atan2(|u − v|, |u + v|) for unit rows u and v. It is
    accurate at coincident and at antipodal tokens alike, where an arccos loses half of the digits.

    Args:
        x: States of shape (…, token, dim).
        geometry: ``"euclidean"`` or ``"sphere"``.

    Returns:
        Shape (…, token, token), symmetric, with an exactly zero diagonal; in the units of `x`, or in radians
        from 0 to π.

    Raises:
        ArgumentValueError: Another geometry, or a zero token where angles are asked for.

    >>> pairwise_distances([[0.0, 0.0], [3.0, 4.0]])
    [[0.0, 5.0], [5.0, 0.0]]
    >>> pairwise_distances([[1.0, 0.0], [-2.0, 0.0]], geometry="sphere")
    [[0.0, 3.141592653589793], [3.141592653589793, 0.0]]
    """
    states = as_states(x)
    if geometry == "euclidean":
        result = euclidean(states.double())
    elif geometry == "sphere":
        result = angles(unit_rows(states.double()))
    else:
        raise ArgumentValueError("geometry", "'euclidean' or 'sphere'", repr(geometry))
    return like(result.to(states.dtype), x)


@typed_arguments
def diameter(x: ArrayLike, *, geometry: str = "euclidean") -> Any:
    """Return the largest distance between two tokens.

    0 exactly when all tokens coincide (in direction, on the sphere): the measure of consensus in `asymptotic`
    theorem 4.1. Distances are those of `pairwise_distances`.

    Args:
        x: States of shape (…, token, dim).
        geometry: ``"euclidean"`` or ``"sphere"``.

    Returns:
        Shape (…,), in the units of `x`, or in radians from 0 to π; 0 for a single token.

    Raises:
        ArgumentValueError: Another geometry, or a zero token where angles are asked for.

    >>> diameter([[0.0, 0.0], [3.0, 4.0], [1.0, 1.0]])
    5.0
    """
    states = as_states(x)
    return like(pairwise_distances(states, geometry=geometry).flatten(start_dim=-2).amax(dim=-1), x)


def euclidean(x: Float[Tensor, "*system token dim"]) -> Float[Tensor, "*system token token"]:
    """Return |x_i − x_j| from differences; memory (…, token, token) and (…, token, dim), never their product."""
    size = x.abs()
    moderate = ((size == 0) | ((size > _SMALLEST_ENTRY) & (size < _LARGEST_ENTRY))).all()
    if bool(moderate):
        return torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    rows = [lengths(x[..., i : i + 1, :] - x) for i in range(x.shape[-2])]
    return torch.stack(rows, dim=-2)


def angles(
    unit: Float[Tensor, "*system row dim"], others: Float[Tensor, "*system token dim"] | None = None
) -> Float[Tensor, "*system row token"]:
    """Return the angles between unit rows, in radians; between them and others where these are given."""
    others = unit if others is None else others
    apart = torch.cdist(unit, others, compute_mode="donot_use_mm_for_euclid_dist")
    together = torch.cdist(unit, -others, compute_mode="donot_use_mm_for_euclid_dist")
    return 2 * torch.atan2(apart, together)


@typed_arguments
def consensus(x: ArrayLike, reference: int = 0, signed: bool = False) -> Any:
    """Return the consensus measure E: 0 when all tokens point along the reference token.

    E = 1 − (1/ℓ) Σ_i |cos(x_r, x_i)|, where i runs over ALL ℓ tokens, the reference r among them. Identical
    tokens give 0 and orthogonal ones 1 − 1/ℓ. Source: `asymptotic` (25), whose printed sum starts at 0 and is
    meant to start at 1; its reference is the first token.

    The absolute value counts a token at the antipode as agreeing. `signed` drops it, and E then runs up to 2.
    Each term 1 − |cos| is computed as min(|u − v|², |u + v|²)/2 of unit rows, so identical tokens give exactly
    0 and tokens 1e-10 radians apart a value near 5e-21 with the right leading digits.

    Args:
        x: States of shape (…, token, dim); the norms of the tokens do not matter.
        reference: Index of the reference token; negative counts from the end (−1 is the last token).
        signed: Whether opposite directions count as disagreeing.

    Returns:
        Shape (…,), dimensionless, in [0, 1 − 1/ℓ], or in [0, 2 − 2/ℓ] if `signed`.

    Raises:
        ArgumentValueError: No such reference token, or a zero token (its index is printed).

    >>> consensus([[1.0, 0.0], [0.0, 2.0]])
    0.5
    >>> x = [[1.0, 0.0], [-3.0, 0.0]]
    >>> consensus(x), consensus(x, signed=True)
    (0.0, 1.0)
    """
    states = as_states(x)
    tokens, index = states.shape[-2], operator.index(reference)
    if not -tokens <= index < tokens:
        raise ArgumentValueError("reference", f"a token index from {-tokens} to {tokens - 1}", index)
    unit = unit_rows(states.double())
    chosen = unit[..., index, :].unsqueeze(-2)
    disagreement = (unit - chosen).square().sum(dim=-1) / 2
    if not signed:
        disagreement = torch.minimum(disagreement, (unit + chosen).square().sum(dim=-1) / 2)
    result = disagreement.mean(dim=-1)
    return like(result.to(states.dtype), x)


def mean_pair_cosine(x: ArrayLike) -> Any:
    """Return the mean cosine over the ordered pairs of different tokens.

    (1/(ℓ(ℓ−1))) Σ_{i≠j} cos(x_i, x_j): 1 for identical directions, 0 for orthogonal ones, −1/(ℓ−1) for the
    vertices of a regular simplex (the lowest possible). Signed, and without a preferred token, where
    `consensus` (`asymptotic` (25)) has a reference and an absolute value.

    Computed as 1 − Σ_i |u_i − ū|²/(ℓ − 1) over unit rows u, which is exactly 1 for identical tokens.

    Args:
        x: States of shape (…, token, dim); the norms of the tokens do not matter.

    Returns:
        Shape (…,), dimensionless, in [−1/(ℓ−1), 1].

    Raises:
        ArgumentValueError: Fewer than two tokens, or a zero token (its index is printed).

    >>> mean_pair_cosine([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    -0.333333...
    """
    states = as_states(x)
    if states.shape[-2] < 2:
        raise ArgumentValueError("x", "at least two tokens for a measure over pairs", f"shape {tuple(states.shape)}")
    unit = unit_rows(states.double())
    # Measured from the first token, identical tokens stay identical through the rounding of their mean.
    from_first = unit - unit[..., :1, :]
    scatter = (from_first - from_first.mean(dim=-2, keepdim=True)).square().sum(dim=(-2, -1))
    result = 1 - scatter / (unit.shape[-2] - 1)
    return like(result.to(states.dtype), x)


def agreement_with_first(x: ArrayLike) -> Any:
    """Return a_i = y_1·y_i, the inner product of every token with the first one.

    Source: `asymptotic`, proof of theorem 5.1, where tokens have length 1 and a_i → 1 for every i. Lengths are
    not divided out; `direction_deficit` of the first token gives 1 − a_i without cancellation on the sphere.

    Args:
        x: States of shape (…, token, dim).

    Returns:
        Shape (…, token), in the squared units of `x`; the first entry is |y_1|².

    Raises:
        ArgumentValueError: Values that overflow.

    >>> agreement_with_first([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]])
    [1.0, 0.6, -1.0]
    """
    states = as_states(x)
    wide = states.double()
    result = (wide * wide[..., :1, :]).sum(dim=-1)
    check_finite(result, "x_1·x_i")
    return like(result.to(states.dtype), x)


def first_token_function(agreement: ArrayLike) -> Any:
    """Return 2/3 − a + a³/3, computed as (1 − a)²(2 + a)/3.

    Source: `asymptotic` (17), the Lyapunov function of theorem 5.1 on [−1, 1]: 4/3 at the antipode, falling to 0
    at a = 1. The factors keep it at or above 0 for a ≥ −2, also where a exceeds 1 by rounding; the printed sum
    gives −5.6e-17 at a = 1.

    Args:
        agreement: a, of any shape, such as `agreement_with_first` gives.

    Returns:
        The shape of `agreement`, dimensionless.

    Raises:
        ArgumentTypeError, ArgumentValueError: See `tokendynamics.numerics.arguments.as_tensor`.

    >>> first_token_function([1.0, 0.5, 0.0, -1.0])
    [0.0, 0.208333..., 0.666666..., 1.333333...]
    """
    values = as_tensor(agreement, "agreement")
    a = values.double()
    return like(((1 - a).square() * (2 + a) / 3).to(values.dtype), agreement)


@typed_arguments
def effective_rank(x: ArrayLike, unit_rows: bool = False, *, exponent: int | float = 2) -> Any:
    """Return exp of the entropy of the normalised singular values of X.

    exp(−Σ_i p_i log p_i) with p_i = σ_i^k / Σ_j σ_j^k: 1 for a matrix of rank one, n for n equal singular
    values. `exponent` k = 2 weighs directions by their energy and is the default; k = 1 weighs them by
    amplitude, the definition of Roy and Vetterli (2007), and is always the larger of the two.

    A single token of large norm (an attention sink) drives the raw value to 1 while the other tokens may still
    point anywhere: compare `unit_rows`. Used beside the consensus measure `asymptotic` (25).

    Args:
        x: States of shape (…, token, dim).
        unit_rows: Whether every token is first divided by its norm.
        exponent: The power k of the singular values, above 0.

    Returns:
        Shape (…,), dimensionless, from 1 to min(token, dim).

    Raises:
        ArgumentValueError: All tokens zero; a zero token where `unit_rows`; an exponent that is not positive.

    >>> effective_rank([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    2.0
    >>> x = [[3.0, 0.0], [0.0, 1.0]]
    >>> f"{effective_rank(x):.4f} {effective_rank(x, exponent=1):.4f} {effective_rank(x, unit_rows=True):.4f}"
    '1.3841 1.7548 2.0000'
    """
    states = as_states(x)
    if not (math.isfinite(exponent) and exponent > 0):
        raise ArgumentValueError("exponent", "a positive number", exponent)
    ratios = _singular_ratios(_prepared(states, unit_rows))
    return like(exp_entropy(ratios.pow(exponent)).to(states.dtype), x)


@typed_arguments
def stable_rank(x: ArrayLike, unit_rows: bool = False) -> Any:
    """Return the stable rank ‖X‖_F²/‖X‖_2² = Σ_i σ_i²/σ_1².

    It never exceeds the rank, and small singular values hardly move it. Not a quantity of the three papers;
    it stands beside `effective_rank`.

    Args:
        x: States of shape (…, token, dim).
        unit_rows: Whether every token is first divided by its norm.

    Returns:
        Shape (…,), dimensionless, from 1 to min(token, dim).

    Raises:
        ArgumentValueError: All tokens zero; a zero token where `unit_rows`.

    >>> stable_rank([[2.0, 0.0], [0.0, 1.0]])
    1.25
    """
    states = as_states(x)
    ratios = _singular_ratios(_prepared(states, unit_rows))
    return like(ratios.square().sum(dim=-1).to(states.dtype), x)


def rank_one_distance(x: ArrayLike) -> Any:
    """Return the relative distance of X to the nearest matrix with equal rows, ‖X − 1 x̄^T‖_F/‖X‖_F.

    x̄ is the mean token. 0 when all tokens coincide, 1 when their mean is zero: rank collapse in the sense of
    the literature on oversmoothing. Differences are taken before squares, so that coincident tokens give
    exactly 0 and a collapse to 1e-12 still shows.

    Args:
        x: States of shape (…, token, dim).

    Returns:
        Shape (…,), dimensionless, in [0, 1].

    Raises:
        ArgumentValueError: All tokens zero.

    >>> rank_one_distance([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    0.0
    >>> rank_one_distance([[1.0, 2.0], [-1.0, -2.0]])
    1.0
    """
    states = as_states(x)
    scaled = _prepared(states, unit_rows=False)
    from_first = scaled - scaled[..., :1, :]
    spread = directions.lengths((from_first - from_first.mean(dim=-2, keepdim=True)).flatten(start_dim=-2))
    result = spread / torch.linalg.matrix_norm(scaled)
    return like(result.to(states.dtype), x)


def exp_entropy(weights: Float[Tensor, "*system index"]) -> Float[Tensor, "*system"]:
    """Return exp(−Σ p log p) of non-negative weights, normalised here."""
    shares = weights / weights.sum(dim=-1, keepdim=True)
    return torch.special.entr(shares).sum(dim=-1).exp()


def _prepared(states: Float[Tensor, "*system token dim"], unit_rows: bool) -> Float[Tensor, "*system token dim"]:
    x = states.double()
    if unit_rows:
        return directions.unit_rows(x)
    directions.refuse_zero_systems(x, "x")
    return x / directions.scale_of(x.flatten(start_dim=-2)).unsqueeze(-1)


def _singular_ratios(x: Float[Tensor, "*system token dim"]) -> Float[Tensor, "*system index"]:
    values = torch.linalg.svdvals(x)
    return values / values[..., :1]
