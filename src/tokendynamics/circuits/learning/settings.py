"""The settings of a learning run, and the penalty that favours one hand-built solution at first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from tokendynamics.circuits._task import PairTask
from tokendynamics.circuits._transformer import on_categories, on_positions, shift
from tokendynamics.circuits.learning.model import Architecture, Design, circuit, design
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.arguments import as_count
from tokendynamics.numerics.errors import expected
from tokendynamics.numerics.resources import check_fits
from tokendynamics.numerics.signatures import typed_fields

_MOST_STEPS = 10_000_000
_BYTES = 16
"""Bytes of each number and its gradient."""

Flavour = Literal["free", "towards-1", "towards-2", "towards-3"]
FLAVOURS: tuple[Flavour, ...] = ("towards-1", "towards-2", "towards-3", "free")

STRENGTH = 1e-2
"""Weight of the squared distance in the loss at the first step."""

_RELEASED = 0.6
"""Share of the steps after which the penalty is zero: it contains q_true, which must not help the final loss."""


@typed_fields
@dataclass(frozen=True, eq=False)
class Settings:
    """Task, model and recipe of one run.

    Attributes:
        task: N, M, q_true and the law.
        architecture: See `DESIGNS`.
        flavour: What the combined model leans towards at first; "free" for the tailored models.
        batch: Fresh sequences per outer step.
        steps: Outer steps.
        inner: Iterations of L-BFGS per outer step, at most.
        hidden: Hidden units.
        seed: Of the weights and, with the number of the step, of the batches.

    Raises:
        ArgumentTypeError: A number that is no integer.
        ArgumentValueError: An unknown architecture or flavour, a flavour of a tailored model, a number below 1, fewer
            than 3 steps with a penalty, or sequences too short to hold a pair.
    """

    task: PairTask
    architecture: Architecture
    flavour: Flavour
    batch: int
    steps: int
    inner: int
    hidden: int
    seed: int

    def __post_init__(self) -> None:
        penalty_of(self.flavour, self.task)
        if self.flavour != "free" and self.design.pairs != "both":
            wanted = f"'free' for the architecture {self.architecture}, which is tailored already"
            raise ArgumentValueError(expected("flavour", wanted, repr(self.flavour)))
        if self.task.positions < 2:
            wanted = "a task of at least 2 positions, since the first token has no target"
            raise ArgumentValueError(expected("task", wanted, f"{self.task.positions}"))
        for name in ("batch", "steps", "inner", "hidden"):
            as_count(getattr(self, name), name)
        if self.steps > _MOST_STEPS:
            raise ArgumentValueError(expected("steps", f"at most {_MOST_STEPS}", self.steps))
        self._check_size()
        if self.flavour != "free" and self.steps < 3:
            wanted = "at least 3 with a penalty, which must be gone before the last"
            raise ArgumentValueError(expected("steps", wanted, self.steps))

    def _check_size(self) -> None:
        """Refuse what does not fit: a step holds all hidden units, their gradients, and the weights several times."""
        width, tokens = self.task.width, self.batch * self.task.positions
        needed = {"batch": tokens * (self.hidden + 3 * width), "hidden": self.hidden * width, "task": width**2}
        check_fits(_BYTES * sum(needed.values()), max(needed, key=lambda name: needed[name]))

    @property
    def design(self) -> Design:
        """Which features the circuits see."""
        return design(self.architecture)

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers and lists."""
        model = {"architecture": self.architecture, "flavour": self.flavour}
        task = {"categories": self.task.categories, "positions": self.task.positions}
        recipe = {name: getattr(self, name) for name in ("batch", "steps", "inner", "hidden", "seed")}
        return {**model, **task, **recipe, "q_true": self.task.q_true.tolist(), "law": self.task.law.tolist()}

    @classmethod
    def from_json(cls, entries: dict[str, Any]) -> Settings:
        """Return what `as_json` returned."""
        task = PairTask(entries["q_true"], entries["positions"], entries["law"])
        names = ("architecture", "flavour", "batch", "steps", "inner", "hidden", "seed")
        return cls(task, *(entries[name] for name in names))


@dataclass(frozen=True, eq=False)
class Penalty:
    """``weight · (‖qk − target‖² + ‖v − target‖²)`` for the combined model.

    Attributes:
        qk: The hand-built one, (receiver, sender) = (width, width).
        v: The hand-built v, (width, width).
    """

    qk: Tensor
    v: Tensor

    def add(self, parameters: dict[str, Tensor], weight: float) -> float:
        """Add the penalty's gradient to those of q, k and v, and return its part of the loss."""
        distance = (circuit(parameters) - self.qk).square().sum() + (parameters["v"] - self.v).square().sum()
        loss = weight * distance
        loss.backward()
        return loss.item()


def penalty_weight(step: int, steps: int) -> float:
    """Return the weight, linear from `STRENGTH` to exactly zero after six tenths of the steps.

    >>> [penalty_weight(step, 10) for step in (0, 3, 6, 9)]
    [0.01, 0.005, 0.0, 0.0]
    """
    return STRENGTH * max(0.0, 1.0 - step / (_RELEASED * steps))


def penalty_of(flavour: str, task: PairTask) -> Penalty | None:
    """Return the penalty of a flavour; None for "free".

    Raises:
        ArgumentValueError: An unknown flavour.
    """
    if flavour not in FLAVOURS:
        raise ArgumentValueError(expected("flavour", f"one of {', '.join(FLAVOURS)}", repr(flavour)))
    if flavour == "free":
        return None
    if flavour == "towards-2":
        return Penalty(on_categories(task, task.q_true).T, on_positions(task, shift(task.positions).T))
    neighbours = on_positions(task, shift(task.positions)).T
    if flavour == "towards-1":
        return Penalty(2.0 * neighbours, on_categories(task, torch.eye(task.categories, dtype=torch.float64)))
    return Penalty(neighbours, on_categories(task, task.q_true.T))
