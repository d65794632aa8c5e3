"""From token coordinates to the paper: two of two, a view of three, or principal directions of more dimensions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokendynamics.figures.recording import Recording
from tokendynamics.numerics import ArgumentValueError
from tokendynamics.numerics.errors import expected

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
        raise ArgumentValueError(expected("view", "none unless tokens have dim 3", f"a view and dim {dim}"))
    if dim == 1:
        advice = "draw the coordinate with over_time"
        raise ArgumentValueError(expected("states", "tokens of dim 2 or more", "dim 1", advice))
    if dim == 2:
        return View(np.eye(2), None, (f"{letter}[0]", f"{letter}[1]"))
    if dim == 3:
        return _camera(*(direction or _facing(recording.states)))
    return _principal(recording.states)


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


def _principal(states: np.ndarray) -> View:
    points = states.reshape(-1, states.shape[-1])
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
