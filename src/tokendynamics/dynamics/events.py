"""How the run of a system ends, and the events that end it or are recorded: consensus, a norm above a bound, rest.

With ``then="record"`` the run continues: every time at which the value falls to zero, and the states there, are in
`Trajectory.recorded`. An event that holds at the start is recorded when it holds anew.

Engines look for events within each step, through the continuous extension of the states: at its ends, at ten places
between, and at turning points of the value near zero. A value that falls to zero and returns several times within a
tenth of a step can still be missed; `max_step` of `simulate` bounds the step. The engine "layers" looks after each
layer. Whether tokens diverge (a norm above 1e100) is looked at only at the end of each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from tokendynamics.dynamics._field import Field
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import shown
from tokendynamics.numerics.signatures import typed_fields

__all__ = ["AtRest", "Consensus", "Event", "NormAbove", "Status"]


def __dir__() -> list[str]:
    return __all__


class Status(StrEnum):
    """One for every system of a batch; a failure is a status and never a NaN or an exception.

    Every engine means the same by them. "diverged": in free space the norm passed its bound, or grew in finite time
    beyond what the numbers or the time can resolve. "not finite": the field itself is not finite, at a state of
    moderate size. "step size underflow": states stay bounded, but no step is short enough for the tolerance. "radius
    reached zero": a token of a space with radii has no direction any more. "held at a tie": of two senders with the
    largest logits of a hardmax each loses the receiver as soon as it has it.

    >>> [status.value for status in Status][:3]
    ['reached the horizon', 'consensus', 'diverged']
    """

    HORIZON = "reached the horizon"
    CONSENSUS = "consensus"
    DIVERGED = "diverged"
    EQUILIBRIUM = "equilibrium"
    BUDGET = "step budget spent"
    UNDERFLOW = "step size underflow"
    NOT_FINITE = "not finite"
    INTERRUPTED = "interrupted"
    # Stores of sweeps have the places of these words: new ones come last.
    RADIUS = "radius reached zero"
    TIED = "held at a tie"


@runtime_checkable
class Event(Protocol):
    """Ends a system's run where its value, positive so far, becomes zero or less.

    >>> isinstance(NormAbove(10.0), Event), NormAbove(10.0).status
    (True, <Status.DIVERGED: 'diverged'>)
    """

    @property
    def status(self) -> Status:
        """The status the system then has."""
        ...

    def value(self, field: Field, x: Tensor, t: Tensor) -> Tensor:
        """Return one number for each system, shape (system,), of states (system, token, dim) at times (system,)."""
        ...


@typed_fields
@dataclass(frozen=True)
class Consensus:
    """All tokens within an angle of one token: ``max_i |u_i − u_r| ≤ below`` for unit rows u (signed).

    Attributes:
        below: The chord, about the angle in radians where it is small.
        reference: Index of the token r.

    >>> import tokendynamics as td
    >>> flow = td.Flow(td.Attention(torch.eye(2), torch.eye(2)), td.Sphere())
    >>> td.simulate(flow, [[1.0, 0.0], [0.8, 0.6]], [0.0, 100.0], events=[Consensus(below=0.01)]).status
    array('consensus', dtype='<U9')
    """

    below: float = 1e-3
    reference: int = 0
    status: Status = Status.CONSENSUS
    then: Literal["end", "record"] = "end"

    def __post_init__(self) -> None:
        _check_then(self.then)
        _check_positive("below", self.below)

    def value(self, field: Field, x: Tensor, t: Tensor) -> Tensor:
        """See `Event`."""
        unit = x / x.norm(dim=-1, keepdim=True)
        return (unit - unit[:, self.reference, None]).norm(dim=-1).amax(dim=-1) - self.below


@typed_fields
@dataclass(frozen=True)
class NormAbove:
    """A token's norm exceeds `bound`, on a logarithmic scale so that nothing overflows.

    >>> import tokendynamics as td
    >>> flow = td.Flow(td.Attention(torch.eye(2), torch.eye(2)), td.Free())
    >>> trajectory = td.simulate(flow, [[1.0, 0.0], [0.8, 0.6]], [0.0, 100.0], events=[NormAbove(bound=10.0)])
    >>> trajectory.status
    array('diverged', dtype='<U8')
    """

    bound: float
    status: Status = Status.DIVERGED
    then: Literal["end", "record"] = "end"

    def __post_init__(self) -> None:
        _check_then(self.then)
        _check_positive("bound", self.bound)

    def value(self, field: Field, x: Tensor, t: Tensor) -> Tensor:
        """See `Event`."""
        largest = x.abs().amax(dim=(-2, -1)).clamp_min(torch.finfo(x.dtype).tiny)
        norms = (x / largest[:, None, None]).norm(dim=-1).amax(dim=-1)
        return -(norms.log() + largest.log() - torch.log(torch.as_tensor(self.bound, dtype=x.dtype, device=x.device)))


@typed_fields
@dataclass(frozen=True)
class AtRest:
    """No token is faster than `speed`, in units of x per time.

    It ends no run of circuits that depend on time: what stands still at one moment moves again at another. Recorded,
    it says when the speed fell below the bound.

    >>> import tokendynamics as td
    >>> flow = td.Flow(td.Attention(torch.eye(2), torch.eye(2)), td.Sphere())
    >>> td.simulate(flow, [[1.0, 0.0], [0.8, 0.6]], [0.0, 100.0], events=[AtRest(speed=1e-6)]).status
    array('equilibrium', dtype='<U11')
    """

    speed: float
    status: Status = Status.EQUILIBRIUM
    then: Literal["end", "record"] = "end"

    def __post_init__(self) -> None:
        _check_then(self.then)
        _check_positive("speed", self.speed)

    def value(self, field: Field, x: Tensor, t: Tensor) -> Tensor:
        """See `Event`."""
        return field.refined_velocity(x, t).norm(dim=-1).amax(dim=-1) - self.speed


def _check_then(then: object) -> None:
    """Refuse what is neither to end the run nor to be recorded."""
    if then not in ("end", "record"):
        raise ArgumentValueError("then", "'end' or 'record'", shown(then))


def _check_positive(argument: str, value: float) -> None:
    if not value > 0:
        raise ArgumentValueError(argument, "a positive number", value)
