"""Where one start went, and the shares of many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from tokendynamics.circuits.landscape.classification import Classification

Status = Literal["converged", "budget spent", "stopped early", "not finite"]


@dataclass(frozen=True)
class BasinRun:
    """One start followed to its end.

    Attributes:
        start: The number of the start, from 0.
        q: The last finite q.
        v: The last finite v.
        loss: The loss there.
        relative_gradient: ``|gradient| · max(|(q, v)|, 1)`` divided by the loss of no output (v = 0).
        status: "converged" (relative gradient or loss below the tolerance), "budget spent" (steps or time are over),
            "stopped early" (no step made progress any more) or "not finite" (a NaN or infinity came up).
        reason: What ended the run, in words.
        evaluations: How often loss and gradient were computed.
        classification: What the end is; None where the run became not finite.
    """

    start: int
    q: Tensor
    v: Tensor
    loss: float
    relative_gradient: float
    status: Status
    reason: str
    evaluations: int
    classification: Classification | None = None

    @property
    def kind(self) -> str:
        """The kind of the classification, or "not finite"."""
        return "not finite" if self.classification is None else self.classification.kind

    def as_json(self) -> dict[str, object]:
        """All fields as plain values; q and v as lists."""
        return {
            "start": self.start,
            "kind": self.kind,
            "loss": self.loss,
            "relative_gradient": self.relative_gradient,
            "status": self.status,
            "reason": self.reason,
            "evaluations": self.evaluations,
            "q": self.q.tolist(),
            "v": self.v.tolist(),
            "classification": None if self.classification is None else self.classification.as_json(),
        }


@dataclass(frozen=True)
class Share:
    """How many starts ended in one kind of point.

    Attributes:
        kind: See `classify`; "not finite" for runs that broke off.
        count: Number of starts.
        fraction: `count` divided by the number of all starts.
        low: Lower end of the 95 % interval of the fraction (Wilson).
        high: Upper end.
    """

    kind: str
    count: int
    fraction: float
    low: float
    high: float
