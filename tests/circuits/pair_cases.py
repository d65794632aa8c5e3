"""Golden cases of hand-built circuits, and tasks and sequences drawn by hypothesis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tokendynamics.circuits._task import PairTask

FOLDER = Path(__file__).parents[1] / "golden" / "circuits"


def golden(name: str) -> dict[str, Any]:
    """One file of the golden references, by the start of its name."""
    (path,) = FOLDER.glob(f"{name}*.json")
    return json.loads(path.read_text())


def task_of(case: dict[str, Any]) -> PairTask:
    """The task of a golden case."""
    return PairTask(case["q_true"], case["M"])


def close(came: Tensor, wanted: Any, scale: float = 1.0) -> bool:
    """Whether all entries agree to 1e-12 of `scale`, which is at least 1."""
    expected = torch.as_tensor(wanted, dtype=torch.float64)
    return came.shape == expected.shape and bool(((came - expected).abs() <= 1e-12 * max(1.0, scale)).all())


def largest(task: PairTask) -> float:
    """The largest absolute value of the functional."""
    return float(task.q_true.abs().max())


@st.composite
def tasks_and_sequences(draw: st.DrawFn, scales: tuple[float, ...] = (1.0, 1e-9, 1e9)) -> tuple[PairTask, Tensor]:
    """A task with N ≤ 12, M ≤ 40 and signed q_true, and sequences no longer than M."""
    categories, positions = draw(st.integers(1, 12)), draw(st.integers(1, 40))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    q_true = torch.randn(categories, categories, generator=generator, dtype=torch.float64)
    # Off centre: all values of one sign must work too.
    q_true = draw(st.sampled_from(scales)) * (q_true + draw(st.sampled_from([0.0, 5.0, -5.0])))
    length = draw(st.integers(1, positions))
    x = torch.randint(1, categories + 1, (4, length), generator=generator)
    return PairTask(q_true, positions), x


def every_pair(categories: int) -> Tensor:
    """Sequences of two tokens, all N² of them."""
    numbers = torch.arange(1, categories + 1)
    return torch.cartesian_prod(numbers, numbers)
