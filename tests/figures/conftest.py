"""Runs with known geometry, and a way to read back what was drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes


@dataclass
class Run:
    """What the drawing functions read of a trajectory."""

    times: np.ndarray
    tensor: torch.Tensor
    reached: np.ndarray
    flow: Any


@pytest.fixture
def make_run() -> type[Run]:
    return Run


@pytest.fixture
def metric() -> np.ndarray:
    return np.array([[1.6, 0.3, 0.0], [0.3, 0.9, 0.2], [0.0, 0.2, 0.5]])


@pytest.fixture
def converging() -> Callable[..., np.ndarray]:
    """Tokens that move from random places to one place, (time, token, dim), all on y^T M y = 1."""

    def build(metric: np.ndarray, tokens: int = 5, steps: int = 9, seed: int = 0) -> np.ndarray:
        draw = np.random.default_rng(seed)
        start, end = draw.normal(size=(tokens, len(metric))), draw.normal(size=len(metric))
        mix = np.linspace(0, 1, steps)[:, None, None]
        points = (1 - mix) * start + mix * end
        return points / np.sqrt(np.einsum("...i,ij,...j->...", points, metric, points))[..., None]

    return build


@pytest.fixture
def plane() -> np.ndarray:
    """Four tokens that wander in the plane, (time, token, dim)."""
    return np.random.default_rng(4).normal(size=(7, 4, 2)).cumsum(axis=0)


@pytest.fixture
def drawn() -> Callable[[Axes, str], np.ndarray]:
    """The data (point, 2) of the lines that carry a label, one below the other."""

    def find(axes: Axes, label: str) -> np.ndarray:
        values = [line.get_xydata() for line in axes.lines if line.get_label() == label]
        assert values, f"no line is labelled {label!r}"
        return np.concatenate(values)

    return find
