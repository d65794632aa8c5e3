"""A point where the gradient of a landscape vanishes, with what is known about it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class StationaryPoint:
    """A member of a family of stationary points.

    Attributes:
        family: The letter of the family, such as ``"B"``.
        text: What its members have in common, in a few words.
        q: Attention.
        v: Value map.
        loss: The predicted loss, summed over the columns i = 2..M.
        loss_per_column: `loss` divided by M − 1.
    """

    family: str
    text: str
    q: Tensor
    v: Tensor
    loss: float
    loss_per_column: float
