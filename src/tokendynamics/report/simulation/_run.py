"""What a page shows of a run: which systems and times, and functions of their states."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tokendynamics.dynamics import Flow, Noise, Trajectory
from tokendynamics.figures.axes import Axis, time_axis
from tokendynamics.figures.curves import evenly
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.observables import norms

MOST_TIMES, FEWEST_TIMES = 201, 41
_FULL_TIMES = 81
_ENOUGH_SYSTEMS = 50
_SHOWN_PAIRS = 2**24
"""Pairs of tokens that are measured over time, in all: about two seconds of work."""


@dataclass(frozen=True)
class Shown:
    """A run as its page sees it.

    Attributes:
        states: (system, time, token, dim), float64: of the chosen systems at the chosen times.
        reached: (system, time): whether the system's run got as far, and its numbers are finite.
        times: (time,), the chosen ones.
        systems: Which systems were chosen, counted from 0.
        last: (all systems, token, dim): where every system ended.
        first: (all systems, token, dim): the first state of each that was kept.
        status: (all systems,), a word for each.
        end_times: (all systems,).
        kept: How many times the run keeps.
        horizon: The last of them.
        flow: What was simulated; None where it is not known.
        engine: Which engine did the work.
        frame: "tokens", or "rescaled": whose states these are.
        noise: What moved tokens beside the flow.
    """

    states: Tensor
    reached: np.ndarray
    times: np.ndarray
    systems: np.ndarray
    last: Tensor
    first: Tensor
    status: np.ndarray
    end_times: np.ndarray
    kept: int
    horizon: float
    flow: Flow | None
    engine: str
    frame: str = "tokens"
    noise: Noise | None = None

    @property
    def letter(self) -> str:
        """What a token is called: x, or z in the rescaled frame."""
        return "z" if self.frame == "rescaled" else "x"

    @property
    def many(self) -> int:
        """How many systems the run has."""
        return len(self.status)

    @property
    def tokens(self) -> int:
        """Tokens of each system."""
        return self.states.shape[-2]

    @property
    def dim(self) -> int:
        """Features of each token."""
        return self.states.shape[-1]

    @property
    def space(self) -> str:
        """The name of the space; empty where it is not known."""
        return "" if self.flow is None else self.flow.space.name

    @property
    def on_surface(self) -> bool:
        """Whether tokens are held to a sphere or an ellipsoid, so that their length says nothing."""
        if self.flow is None:
            return False
        geometry = self.flow.geometry
        return geometry.quadratic or (geometry.norm is not None and not geometry.has_radius)

    @property
    def drawn(self) -> np.ndarray:
        """Which times have a place on an axis: up to the end of the last run, and above 0 where it is logarithmic."""
        some = self.reached.any(axis=0)
        return np.flatnonzero(some & (self.times > 0) if self.log_times else some)

    @property
    def statuses(self) -> Counter[str]:
        """How many systems ended with each status."""
        return Counter(self.status.tolist())

    @property
    def pairs_measured(self) -> bool:
        """Whether there are pairs of tokens, and few enough to be measured within seconds."""
        return self.tokens > 1 and self.tokens**2 * min(len(self.times), FEWEST_TIMES) <= 4 * _SHOWN_PAIRS

    @property
    def log_times(self) -> bool:
        """Whether the times are spread over decades, so that a linear axis would crowd most of them at its start."""
        later = self.times[self.times > 0]
        return len(later) > 2 and self.times[0] >= 0 and bool(np.median(later) < 0.1 * later[-1])


def shown(trajectory: Trajectory, system: int = 0) -> Shown:
    """Choose what a page shows of a run: everything, or systems and times evenly by their number.

    Args:
        trajectory: From `tokendynamics.simulate`.
        system: One that is chosen in any case.

    Raises:
        ArgumentValueError: There is no such system.
    """
    tensor = trajectory.tensor.detach().cpu()
    times, tokens, dim = tensor.shape[-3:]
    many = math.prod(tensor.shape[:-3])
    if not 0 <= system < many:
        raise ArgumentValueError("system", f"a system from 0 to {many - 1}", system)
    states = tensor.reshape(many, times, tokens, dim)
    # Systems and times, the first and the last among them, so that the pairs of tokens stay within a budget.
    room = _SHOWN_PAIRS // tokens**2
    most = MOST_TIMES if min(many, _ENOUGH_SYSTEMS) * MOST_TIMES <= room else _FULL_TIMES
    most_moments = min(max(FEWEST_TIMES, min(most, room // min(many, _ENOUGH_SYSTEMS))), times)
    systems, moments = evenly(many, max(1, min(room // most_moments, 4 * _ENOUGH_SYSTEMS))), evenly(times, most_moments)
    systems = np.union1d(systems, [system])
    part = states[systems][:, moments].double()
    finite = torch.isfinite(part).all(dim=-1).all(dim=-1).numpy()
    return Shown(
        states=part,
        reached=trajectory.reached.reshape(many, times)[systems][:, moments] & finite,
        times=trajectory.times[moments],
        systems=systems,
        last=states[:, -1].double(),
        first=states[:, 0].double(),
        status=np.array([str(word) for word in trajectory.status.reshape(many)]),
        end_times=trajectory.end_times.reshape(many),
        kept=times,
        horizon=float(trajectory.times[-1]),
        flow=trajectory.flow,
        engine=trajectory.engine,
        frame=trajectory.frame,
        noise=trajectory.noise,
    )


def with_directions(states: Tensor) -> np.ndarray:
    """Tell which states (…, token, dim) are finite with no token at zero, so that every token has a direction."""
    finite = torch.isfinite(states).all(dim=-1).all(dim=-1)
    sizes = norms(torch.where(finite[..., None, None], states, 1.0))
    return (finite & (sizes > 0).all(dim=-1)).numpy()


ANGLE = math.radians(5)
"""Tokens at most this far apart are linked to one cluster, as in the figures of `positional`."""

_PIECE = 2**21


def over_states(states: Tensor, where: np.ndarray, function: Callable[[Tensor], Tensor], size: int) -> np.ndarray:
    """Return a function of each chosen state, NaN elsewhere, a few states at a time.

    Args:
        states: (system, time, token, dim), or without the axis of time.
        where: Which states, of their leading shape.
        function: Of states (piece, token, dim).
        size: What one state costs, in numbers.
    """
    values = np.full(where.shape, np.nan)
    at = torch.from_numpy(where)
    if where.any():
        parts = [function(piece).double() for piece in states[at].split(max(1, _PIECE // size))]
        values[where] = torch.cat(parts).numpy()
    return values


def clock(run: Shown) -> Axis:
    """Return the axis of time, or of layers where these were counted."""
    times = run.times[run.drawn]
    name = "Layer" if run.engine == "layers" else "Time t"
    if run.log_times:
        zero = ", without t = 0" if run.times[0] == 0 else ""
        name = f"{name} (log scale{zero})"
    return time_axis(float(times[0]), float(times[-1]), name, log=run.log_times)
