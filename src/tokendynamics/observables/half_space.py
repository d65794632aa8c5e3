"""The deepest open half space that contains all tokens, if there is one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float64

from tokendynamics.numerics.arguments import ArrayLike, as_states, like
from tokendynamics.observables.directions import unit_rows
from tokendynamics.observables.min_norm_point import RESOLUTION, min_norm_point


class Hemisphere(NamedTuple):
    """The answer of `hemisphere`: `direction` (…, dim), of norm 1 or zero, and `margin` (…,) in [0, 1]."""

    direction: Any
    margin: Any


def hemisphere(x: ArrayLike) -> Hemisphere:
    """Find the half space through the origin that holds all tokens as deeply as possible.

    The direction v, of norm 1, maximises min_i v·u_i over the unit rows u_i = x_i/|x_i|; the margin is that
    minimum, the sine of the angle between the boundary and the token nearest to it. By duality v is the
    direction of the point of smallest norm in the convex hull of the u_i, and the margin is its norm.

    The margin is positive exactly when some OPEN half space contains all tokens, the hypothesis of
    `asymptotic` theorem 4.1 (whose function (13), max_i (1 − v·y_i), is then 1 − margin at the start).
    Otherwise 0 lies in the hull, no half space is deepest, and the answer is a zero direction and margin 0.0.
    Margins below 1e-14 are not told from 0: the unit rows themselves are rounded.

    Args:
        x: States of shape (…, token, dim); the norms of the tokens do not matter.

    Returns:
        `Hemisphere(direction, margin)`: direction of shape (…, dim), dimensionless, and margin of shape (…,),
        dimensionless, in [0, 1].

    Raises:
        ArgumentValueError: A zero token (its index is printed).

    >>> direction, margin = hemisphere([[1.0, 0.0], [0.0, 5.0]])
    >>> [round(c, 12) for c in direction], round(margin, 12)
    ([0.707106781187, 0.707106781187], 0.707106781187)
    >>> hemisphere([[1.0, 0.0], [-2.0, 0.0]])
    Hemisphere(direction=[0.0, 0.0], margin=0.0)
    """
    states = as_states(x)
    unit = unit_rows(states.detach().double()).cpu().numpy()
    flat = unit.reshape(-1, *unit.shape[-2:])
    found = np.stack([_deepest(system) for system in flat]) if len(flat) else np.empty((0, unit.shape[-1] + 1))
    result = torch.as_tensor(found).to(states).reshape(*states.shape[:-2], states.shape[-1] + 1)
    return Hemisphere(like(result[..., :-1], x), like(result[..., -1], x))


def _deepest(unit: Float64[np.ndarray, "token dim"]) -> Float64[np.ndarray, " dim_and_margin"]:
    """Return the direction with the margin appended."""
    tokens, dim = unit.shape
    if dim > 2 * tokens:
        # The hull lies in the span of the tokens: its coordinates there are all that matters.
        basis, coordinates = np.linalg.qr(unit.T)
        direction = basis @ min_norm_point(np.ascontiguousarray(coordinates.T))[0]
    else:
        direction, _ = min_norm_point(unit)
    # Measured on the tokens, so that a positive margin is a proof whatever the solver did.
    margin = float((unit @ direction).min())
    if margin <= RESOLUTION:
        return np.zeros(dim + 1)
    return np.append(direction, margin)
