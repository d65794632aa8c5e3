"""Norms of tokens and distances between them, exact where tokens coincide or are antipodal."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_states, like
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.signatures import typed_arguments
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
        raise ArgumentValueError(expected("geometry", "'euclidean' or 'sphere'", repr(geometry)))
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
