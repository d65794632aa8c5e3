"""Says what a point of a landscape is: a minimum, a saddle, degenerate, on the way to infinity, or not stationary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tokendynamics.circuits.landscape._continuation import Continuation, balanced, continue_descent, find_symmetries
from tokendynamics.circuits.landscape.landscape import Landscape, flatten, one_point
from tokendynamics.numerics.arguments import ArrayLike, as_finite
from tokendynamics.numerics.signatures import typed_arguments

Kind = Literal["global minimum", "strict saddle", "degenerate", "at infinity", "local minimum", "not stationary"]

# Relative to the highest curvature, an eigenvalue of a matrix of a hundred rows is known to about 1e-14.
_ROUNDING = 1e-13


@dataclass(frozen=True)
class Classification:
    """The kind of a point, and what was measured there (after balancing |q| = |v| where the loss allows it).

    Attributes:
        kind: See `classify`.
        text: One sentence with the decisive numbers.
        loss: The loss at the point.
        relative_loss: `loss` divided by the loss of no output at all (v = 0).
        relative_gradient: ``|gradient| · |(q, v)|`` (the norm at least 1) divided by the loss of no output: no units.
        lowest_curvature: The lowest eigenvalue of the Hessian.
        highest_curvature: The highest.
        zero_directions: How many eigenvalues count as zero.
        symmetric_directions: How many directions the symmetries of the landscape account for.
        symmetries: Their names.
        norm: ``|(q, v)|``.
        growth: The factor by which the norm grew when the descent was continued; 1.0 where it was not continued.
        limit: The loss that the continued descent ended with; the loss itself where it was not continued.
    """

    kind: Kind
    text: str
    loss: float
    relative_loss: float
    relative_gradient: float
    lowest_curvature: float
    highest_curvature: float
    zero_directions: int
    symmetric_directions: int
    symmetries: tuple[str, ...]
    norm: float
    growth: float
    limit: float

    @property
    def unexplained_directions(self) -> int:
        """Zero directions that no symmetry accounts for."""
        return max(0, self.zero_directions - self.symmetric_directions)


@typed_arguments
def classify(
    landscape: Landscape,
    attention: ArrayLike,
    v: ArrayLike,
    *,
    lowest: float = 0.0,
    loss_tolerance: float = 1e-9,
    gradient_tolerance: float = 1e-6,
    curvature_tolerance: float = 1e-6,
    growth: float = 1.5,
    drop_tolerance: float = 0.05,
    expansions: int = 4,
) -> Classification:
    """Say what kind of point (attention, v) is, decided in this order.

    1. "global minimum": the loss is within `loss_tolerance` of `lowest` (under softmax it lies at infinity).
    2. "strict saddle": the gradient vanishes, and the Hessian has a negative eigenvalue.
    3. "at infinity": `continue_descent` multiplies ``|(q, v)|`` by `growth` while the loss falls by no more than
       `drop_tolerance`: it tends to a limit without a point that has it.
    4. "local minimum" where the gradient vanishes, no eigenvalue is negative and the symmetries of the landscape
       account for all that are zero; "degenerate" if they do not: second derivatives then do not decide.
    5. "not stationary".

    Where only the product of q and v counts, the point is first scaled to ``|q| = |v|``. The unit of losses is that of
    no output (v = 0), of gradients that over ``|(q, v)|``, of curvatures that over ``|(q, v)|²``.

    Args:
        landscape: Any landscape.
        attention: One matrix, the paper's q.
        v: One matrix.
        lowest: The least loss there is.
        loss_tolerance: See 1, in units of losses.
        gradient_tolerance: Below this the relative gradient counts as zero.
        curvature_tolerance: Eigenvalues below this, or below the rounding of the highest, count as zero.
        growth: See 3, where the descent is tried from `expansions` times further out.
        drop_tolerance: See 3, in units of losses.
        expansions: See `growth`.

    Raises:
        ArgumentTypeError, ArgumentValueError: No real floating-point numbers, a wrong shape, a NaN or infinity.

    >>> from tokendynamics.circuits.landscape import PositionsOnly, positions_families
    >>> landscape = PositionsOnly([0.5, 0.3, 0.2], positions=3)
    >>> point = positions_families.zero_column_sums(landscape)
    >>> classify(landscape, point.attention, point.v).kind
    'strict saddle'
    """
    here = _measure(landscape, attention, v, curvature_tolerance)
    if (above := here.loss - as_finite(lowest, "lowest")) <= loss_tolerance * here.scale:
        return here.result("global minimum", f"the loss is within {above:.2g} of the least there is")
    stationary = here.relative_gradient <= gradient_tolerance
    if stationary and here.negative:
        return here.result("strict saddle", f"no gradient, and the lowest curvature is {here.lowest_curvature:.3g}")
    further = continue_descent(landscape, here.attention, here.v, expansions=expansions)
    if further.growth >= growth and further.drop <= drop_tolerance * here.scale:
        text = f"the norm grows {further.growth:.3g} times while the loss tends to {further.loss:.6g}"
        return here.result("at infinity", text, further)
    if stationary:
        return _flat_or_minimal(here, further)
    return here.result("not stationary", f"the relative gradient is {here.relative_gradient:.2g}", further)


def _flat_or_minimal(here: _Measured, further: Continuation) -> Classification:
    """Tell a local minimum from a point whose second derivatives do not decide."""
    unexplained = here.zero_directions - here.symmetric.shape[-1]
    if unexplained > 0:
        text = f"no negative curvature, and {unexplained} directions without curvature that no symmetry accounts for"
        return here.result("degenerate", text, further)
    return here.result("local minimum", "no gradient, positive curvature but for the symmetries", further)


@dataclass(frozen=True)
class _Measured:
    attention: Tensor
    v: Tensor
    loss: float
    scale: float
    relative_gradient: float
    lowest_curvature: float
    highest_curvature: float
    zero_directions: int
    negative: bool
    symmetric: Tensor
    names: tuple[str, ...]

    def result(self, kind: Kind, text: str, further: Continuation | None = None) -> Classification:
        return Classification(
            kind=kind,
            text=f"{kind}: {text}",
            loss=self.loss,
            relative_loss=self.loss / self.scale,
            relative_gradient=self.relative_gradient,
            lowest_curvature=self.lowest_curvature,
            highest_curvature=self.highest_curvature,
            zero_directions=self.zero_directions,
            symmetric_directions=self.symmetric.shape[-1],
            symmetries=self.names,
            norm=float(flatten(self.attention, self.v).norm()),
            growth=1.0 if further is None else further.growth,
            limit=self.loss if further is None else further.loss,
        )


def _measure(landscape: Landscape, attention: ArrayLike, v: ArrayLike, curvature_tolerance: float) -> _Measured:
    checked_attention, checked_v = one_point(landscape, attention, v)
    found = find_symmetries(landscape, checked_attention, checked_v)
    if "scaling q against v" in found.names:
        checked_attention, checked_v = balanced(checked_attention, checked_v)
        found = find_symmetries(landscape, checked_attention, checked_v)
    gradient = landscape.gradient(checked_attention, checked_v)
    scale = float(landscape.loss(checked_attention, torch.zeros_like(checked_v))) or 1.0
    size = float(flatten(checked_attention, checked_v).norm())
    curvatures = torch.linalg.eigvalsh(landscape.hessian(checked_attention, checked_v))
    unit = scale / max(size, 1.0) ** 2
    zero = max(curvature_tolerance * unit, _ROUNDING * float(curvatures.abs().max()))
    return _Measured(
        attention=checked_attention,
        v=checked_v,
        loss=float(landscape.loss(checked_attention, checked_v)),
        scale=scale,
        # Near the origin the norm says nothing about how far the loss can fall: at least one unit of length counts.
        relative_gradient=float(flatten(gradient.attention, gradient.v).norm()) * max(size, 1.0) / scale,
        lowest_curvature=float(curvatures[0]),
        highest_curvature=float(curvatures[-1]),
        zero_directions=int((curvatures.abs() <= zero).sum()),
        negative=bool(curvatures[0] < -zero),
        symmetric=found.directions,
        names=found.names,
    )
