"""Random points of a landscape from which a descent begins."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from tokendynamics.circuits.landscape.landscape import Landscape
from tokendynamics.numerics.arguments import as_number
from tokendynamics.numerics.errors import ArgumentTypeError, ArgumentValueError, expected
from tokendynamics.numerics.memory import check_fits
from tokendynamics.numerics.seeding import generator

_BYTES = 80
"""Of each entry of each start: itself, its gradient, and what a descent remembers of its steps."""


def random_starts(
    landscape: Landscape, starts: int, *, seed: int, scale: float | Literal["fan-in"] = 1.0
) -> tuple[Tensor, Tensor]:
    """Independent random points of a landscape.

    Args:
        landscape: Any landscape.
        starts: How many, at least 1.
        seed: Seed; start number k does not depend on how many follow it.
        scale: The standard deviation of normal entries, or "fan-in": uniform within ±1/√(number of columns), as
            linear layers are initialised.

    Returns:
        q of shape (starts, *q_shape) and v of shape (starts, *v_shape), float64.

    Raises:
        ArgumentTypeError: A number of starts that is no integer.
        ArgumentValueError: No starts, a scale that is not positive or not finite, or another word.

    >>> from tokendynamics.circuits.landscape.positions_only import PositionsOnly
    >>> q, v = random_starts(PositionsOnly([0.5, 0.5], positions=3), 10, seed=0)
    >>> tuple(q.shape), tuple(v.shape)
    ((10, 3, 3), (10, 2, 2))
    """
    if isinstance(starts, bool) or not isinstance(starts, int):
        raise ArgumentTypeError(expected("starts", "an integer", repr(starts)))
    if starts < 1:
        raise ArgumentValueError(expected("starts", "at least 1", starts))
    _check_scale(scale)
    scale = scale if isinstance(scale, str) else as_number(scale, "scale")
    entries = math.prod(landscape.q_shape)
    count = entries + math.prod(landscape.v_shape)
    check_fits(_BYTES * starts * count, "starts")
    if scale == "fan-in":
        draws = 2.0 * torch.rand(starts, count, generator=generator(seed), dtype=torch.float64) - 1.0
        width = torch.tensor([landscape.q_shape[1]] * entries + [landscape.v_shape[1]] * (count - entries)).double()
        draws = draws / width.sqrt()
    else:
        draws = scale * torch.randn(starts, count, generator=generator(seed), dtype=torch.float64)
    q, v = draws[:, :entries], draws[:, entries:]
    return q.reshape(starts, *landscape.q_shape), v.reshape(starts, *landscape.v_shape)


def _check_scale(scale: float | str) -> None:
    wanted = "a positive standard deviation or 'fan-in'"
    if isinstance(scale, str):
        if scale != "fan-in":
            raise ArgumentValueError(expected("scale", wanted, repr(scale)))
    elif not (math.isfinite(as_number(scale, "scale")) and scale > 0.0):
        raise ArgumentValueError(expected("scale", wanted, scale))
