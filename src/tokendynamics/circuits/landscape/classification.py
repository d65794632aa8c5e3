"""What a point of a landscape was found to be, with the evidence."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Kind = Literal["global minimum", "strict saddle", "degenerate", "at infinity", "local minimum", "not stationary"]


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

    def as_json(self) -> dict[str, object]:
        """All fields as plain values."""
        return {**asdict(self), "symmetries": list(self.symmetries)}
