"""Reads what can be drawn, a trajectory or plain states, into one run; and where its tokens stand on paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from torch import Tensor

from tokendynamics.dynamics.options import read_times as increasing_times
from tokendynamics.numerics import ArgumentTypeError, ArgumentValueError
from tokendynamics.numerics.arguments import ArrayLike, as_states
from tokendynamics.spaces import Space
from tokendynamics.spaces.geometry import geometry_of

_OFF_SURFACE = 1e-4


@runtime_checkable
class Simulated(Protocol):
    """What is drawn of a run: `tokendynamics.dynamics.Trajectory` has it."""

    @property
    def times(self) -> Any:
        """Saved times, shape (time,)."""
        ...

    @property
    def tensor(self) -> Tensor:
        """Saved states, shape (…, time, token, dim)."""
        ...

    @property
    def reached(self) -> Any:
        """Shape (…, time): False where the run ended earlier."""
        ...

    @property
    def flow(self) -> Any:
        """The flow that was simulated; its `space` is drawn."""
        ...


Run: TypeAlias = Simulated | ArrayLike
"""A trajectory, or states of shape (time, token, dim) or (system, time, token, dim)."""


@dataclass(frozen=True)
class Recording:
    """One run, ready to be drawn.

    Attributes:
        states: Shape (time, token, dim), float64.
        times: Shape (time,), or None where no times came with the states.
        metric: M of the surface, shape (dim, dim), or None where tokens are free.
        rescaled: Whether the tokens are rescaled ones; see `is_rescaled`.
    """

    states: np.ndarray
    times: np.ndarray | None
    metric: np.ndarray | None
    rescaled: bool = False

    @property
    def dim(self) -> int:
        """Dimension of the tokens."""
        return self.states.shape[-1]

    @property
    def letter(self) -> str:
        """The papers' letter for a token: x where it is free, z if rescaled, y on a surface."""
        return "z" if self.rescaled else "x" if self.metric is None else "y"


def read_run(run: Run, *, space: Space | None, times: ArrayLike | None, system: int | None) -> Recording:
    """Return one run of `run`, cut where it ended; a given `space` wins over that of a trajectory.

    Raises:
        ArgumentTypeError, ArgumentValueError: Not one run of shape (time, token, dim), times that do not fit it,
            or tokens that do not lie on the surface.
    """
    if isinstance(run, Simulated):
        if times is not None:
            raise ArgumentValueError("times", "none, a trajectory has its own", "times as well")
        chosen, index = one_run(run.tensor, system)
        reached = np.asarray(run.reached, dtype=bool)[index]
        clock = np.asarray(run.times, dtype=np.float64)[reached]
        states, space = chosen[reached], run.flow.space if space is None else space
    else:
        states, index = one_run(run, system)
        clock = None if times is None else read_times(times, states.shape[0])
    metric = _metric(space, states.shape[-1], index)
    if metric is not None:
        defect = np.abs(np.einsum("...i,ij,...j->...", states, metric, states) - 1)
        worst = np.unravel_index(int(defect.argmax()), defect.shape)
        if defect[worst] > _OFF_SURFACE:
            came = f"|y^T M y - 1| = {defect[worst]:.3g} at time {worst[0]}, token {worst[1]}"
            raise ArgumentValueError("states", "tokens on the surface", came, "pass space=None for free tokens")
    return Recording(states, clock, metric, is_rescaled(run))


def is_rescaled(run: Run) -> bool:
    """Tell whether these are rescaled tokens, of which the flow is not the velocity."""
    return isinstance(run, Simulated) and getattr(run, "frame", "tokens") == "rescaled"


def timed_run(
    times: ArrayLike | Simulated, states: ArrayLike | None, system: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return times (time,) and states (time, token, dim) of a trajectory, or of times and states given apart."""
    if isinstance(times, Simulated):
        if states is not None:
            raise ArgumentValueError("states", "none, a trajectory has its own", "states as well")
        run = read_run(times, space=None, times=None, system=system)
        return np.asarray(times.times, dtype=np.float64)[: len(run.states)], run.states
    if states is None:
        raise ArgumentTypeError("states", "a trajectory, or times and states", "times alone")
    run, _ = one_run(states, system)
    return read_times(times, len(run)), run


def one_run(states: ArrayLike, system: int | None = None) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return states (time, token, dim) as float64, and the index of the run among the systems."""
    array = to_numpy(as_states(states, "states"))
    shape = tuple(array.shape)
    if 0 in shape[-3:]:
        raise ArgumentValueError("states", "at least one time and token", f"shape {shape}")
    if array.ndim == 3 and system is None:
        return array, ()
    if array.ndim != 4 or (system is None and array.shape[0] != 1):
        advice = "choose one with system=" if array.ndim == 4 else ""
        raise ArgumentValueError("states", "one run of shape (time, token, dim)", f"shape {shape}", advice)
    index = 0 if system is None else system
    if not -shape[0] <= index < shape[0]:
        raise ArgumentValueError("system", f"an index from 0 to {shape[0] - 1}", index)
    return array[index], (index,)


def read_times(times: ArrayLike, count: int) -> np.ndarray:
    """Return `times` as float64 of shape (time,); refuse another length than `count` and times that do not increase."""
    array = np.array(increasing_times(times, at_least=1))
    if array.shape != (count,):
        wanted = f"one time for each of the {count} saved states"
        raise ArgumentValueError("times", wanted, f"shape {tuple(array.shape)}")
    return array


def to_numpy(tensor: Tensor) -> np.ndarray:
    """Return a float64 array of the same numbers, from any device and with or without a gradient."""
    return tensor.detach().cpu().double().numpy()


def _metric(space: Space | None, dim: int, index: tuple[int, ...]) -> np.ndarray | None:
    if space is None:
        return None
    if not isinstance(space, Space):
        raise ArgumentTypeError("space", "Free(), Sphere(), Ellipsoid(metric) or your own", type(space).__name__)
    geometry = geometry_of(space)
    if not geometry.quadratic:
        return None
    if geometry.metric is None:
        return np.eye(dim)
    metric = to_numpy(geometry.metric)
    if metric.ndim > 2:
        metric = metric[index]
    if metric.shape != (dim, dim):
        came = f"metric {tuple(metric.shape)} and tokens of dim {dim}"
        raise ArgumentValueError("space", "a metric of shape (dim, dim)", came)
    return metric


_ELEVATION, _ASIDE = 22.0, 30.0


@dataclass(frozen=True)
class View:
    """An orthographic view.

    Attributes:
        paper: Orthonormal rows, shape (2, dim): a token y lands at ``paper @ y``.
        towards: The unit vector from the tokens to the reader, shape (3,); None where there is no depth.
        labels: What the two directions of the paper are; empty where the paper shows three axes.
    """

    paper: np.ndarray
    towards: np.ndarray | None
    labels: tuple[str, str] | None

    def place(self, points: np.ndarray) -> np.ndarray:
        """Return points (…, dim) on the paper, shape (…, 2)."""
        return points @ self.paper.T

    def in_front(self, points: np.ndarray, metric: np.ndarray | None) -> np.ndarray:
        """Tell which points of the convex surface are not hidden by it: the outward normal M y faces the reader."""
        if self.towards is None or metric is None:
            return np.ones(points.shape[:-1], dtype=bool)
        return np.asarray(points @ (metric @ self.towards) >= 0)


def choose_view(recording: Recording, direction: tuple[float, float] | None) -> View:
    """Return the view of a run: `direction`, (azimuth, elevation) in degrees, makes sense in three dimensions only.

    Without a direction the view stands over the mean of all tokens, 30 degrees aside and 22 degrees up, so that
    most of the motion is in front.
    """
    dim, letter = recording.dim, recording.letter
    if direction is not None and dim != 3:
        raise ArgumentValueError("view", "none unless tokens have dim 3", f"a view and dim {dim}")
    if dim == 1:
        raise ArgumentValueError("states", "tokens of dim 2 or more", "dim 1", "draw the coordinate with over_time")
    if dim == 2:
        return View(np.eye(2), None, (f"{letter}[0]", f"{letter}[1]"))
    if dim == 3:
        return _camera(*(direction or _facing(recording.states)))
    points = recording.states.reshape(-1, recording.states.shape[-1])
    # Scaled first: squares of diverging states must not overflow.
    centred = points / max(float(np.abs(points).max()), np.finfo(float).tiny)
    centred = centred - centred.mean(axis=0)
    variances, vectors = np.linalg.eigh(centred.T @ centred)
    directions = vectors[:, :-3:-1].T
    # The sign of an eigenvector is arbitrary: make its largest entry positive.
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1)
    shares = 100 * variances[:-3:-1] / max(float(variances.sum()), np.finfo(float).tiny)
    first, second = (f"principal direction {k + 1} ({share:.0f} % of variance)" for k, share in enumerate(shares))
    return View(directions * np.sign(largest), None, (first, second))


def _camera(azimuth: float, elevation: float) -> View:
    a, e = np.radians([azimuth, elevation])
    towards = np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])
    right = np.array([-np.sin(a), np.cos(a), 0.0])
    return View(np.stack([right, np.cross(towards, right)]), towards, None)


def _facing(states: np.ndarray) -> tuple[float, float]:
    mean = states.mean(axis=(0, 1))
    if np.hypot(mean[0], mean[1]) <= 1e-9 * np.abs(states).max():
        return _ASIDE, _ELEVATION
    return float(np.degrees(np.arctan2(mean[1], mean[0])) + _ASIDE), _ELEVATION
