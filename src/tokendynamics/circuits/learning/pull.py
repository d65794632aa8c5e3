"""What leans the combined model towards one hand-built solution, and how it is taken away again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tokendynamics.circuits.hand_built.blocks import on_categories, on_positions, shift
from tokendynamics.circuits.pair_task import PairTask
from tokendynamics.numerics.errors import ArgumentValueError, expected

Flavour = Literal["free", "towards-1", "towards-2", "towards-3"]
FLAVOURS: tuple[Flavour, ...] = ("towards-1", "towards-2", "towards-3", "free")

STRENGTH = 1e-2
"""Weight of the squared distance in the loss at the first step."""

_RELEASED = 0.6
"""Share of the steps after which the pull is zero: q_true, which it leaks, must not help the final loss."""


@dataclass(frozen=True, eq=False)
class Pull:
    """``weight · (‖k^t q − target‖² + ‖v − target‖²)`` for the combined model.

    Attributes:
        key_query: The hand-built ``k^t q``, sender first, (width, width).
        v: The hand-built v, (width, width).
    """

    key_query: Tensor
    v: Tensor

    def add(self, parameters: dict[str, Tensor], weight: float) -> float:
        """The pull's part of the loss; its gradient is added to those of q, k and v."""
        key_query = parameters["k"].T @ parameters["q"]
        distance = (key_query - self.key_query).square().sum() + (parameters["v"] - self.v).square().sum()
        loss = weight * distance
        loss.backward()
        return loss.item()


def pull_weight(step: int, steps: int) -> float:
    """Linear from `STRENGTH` to exactly zero after six tenths of the steps.

    >>> [pull_weight(step, 10) for step in (0, 3, 6, 9)]
    [0.01, 0.005, 0.0, 0.0]
    """
    return STRENGTH * max(0.0, 1.0 - step / (_RELEASED * steps))


def pull_towards(flavour: str, task: PairTask) -> Pull | None:
    """The pull of a flavour; None for "free".

    Raises:
        ArgumentValueError: An unknown flavour.
    """
    if flavour not in FLAVOURS:
        raise ArgumentValueError(expected("flavour", f"one of {', '.join(FLAVOURS)}", repr(flavour)))
    if flavour == "free":
        return None
    if flavour == "towards-2":
        return Pull(on_categories(task, task.q_true), on_positions(task, shift(task.positions).T))
    neighbours = on_positions(task, shift(task.positions))
    if flavour == "towards-1":
        return Pull(2.0 * neighbours, on_categories(task, torch.eye(task.categories, dtype=torch.float64)))
    return Pull(neighbours, on_categories(task, task.q_true.T))
