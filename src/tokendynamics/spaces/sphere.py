"""The unit sphere: the ellipsoid whose metric is the identity."""

from __future__ import annotations

from torch import Tensor

from tokendynamics.spaces.ellipsoid import Ellipsoid


class Sphere(Ellipsoid):
    """The unit sphere ``|y| = 1`` of any dim.

    >>> Sphere().project([[3.0, 4.0]])
    [[0.6, 0.8]]
    """

    name = "sphere"

    def __init__(self) -> None:
        self.metric: Tensor | None = None

    def __repr__(self) -> str:
        return "Sphere()"
